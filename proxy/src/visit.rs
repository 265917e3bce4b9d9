//! What is known of one request on its way through.

use rouse_gate::Visitor;
use tokio::time::Instant;

use crate::answer::Answer;
use crate::edge::Sender;

/// One request's state. Keep it in your `CTX`; it lives as long as the request does, and that is
/// how long the app counts as visited.
pub struct Visit {
    pub(crate) arrived: Instant,
    pub(crate) visitor: Option<Visitor>,
    /// Who asks, once that was found out.
    pub(crate) sender: Option<Box<Sender>>,
    /// What the agent must sign in the answer to the current try.
    pub(crate) nonce: Option<String>,
    /// The current try was answered by the agent: the app is down, and has not seen the request.
    pub(crate) down: bool,
    /// It was answered by the app's policy, and neither woke the app nor went to it.
    pub(crate) replied: bool,
    /// The app's response header has come.
    pub(crate) answered: bool,
    /// How often it was sent again after a connection broke before one byte.
    pub(crate) resent: u8,
    /// The error of ours that is the answer.
    pub(crate) answer: Option<Answer>,
}

impl Visit {
    /// A visit that begins now.
    pub fn new() -> Self {
        Self {
            arrived: Instant::now(),
            visitor: None,
            sender: None,
            nonce: None,
            down: false,
            replied: false,
            answered: false,
            resent: 0,
            answer: None,
        }
    }

    /// The error of ours that this request was answered with, if it was.
    pub fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref()
    }

    /// Whether this request was answered in its app's place, by the app's policy.
    pub fn replied(&self) -> bool {
        self.replied
    }

    /// The id of the app that is visited, once that is known.
    pub fn app(&self) -> Option<&str> {
        self.visitor.as_ref().map(|visitor| visitor.app().id().as_str())
    }
}

impl Default for Visit {
    fn default() -> Self {
        Self::new()
    }
}
