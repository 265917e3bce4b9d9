//! What is known of one request on its way through.

use rouse_gate::{Visitor, Woken};
use tokio::time::Instant;

use crate::answer::Answer;
use crate::edge::Sender;
use crate::trace::Context;

/// One request's state. Keep it in your `CTX`; it lives as long as the request does, and that is
/// how long the app counts as visited.
pub struct Visit {
    pub(crate) arrived: Instant,
    pub(crate) visitor: Option<Visitor>,
    /// Who asks, once that was found out.
    pub(crate) sender: Option<Sender>,
    /// What the agent must sign in the answer to the current try.
    pub(crate) nonce: Option<String>,
    /// The current try was answered by the agent: the app is down, and has not seen the request.
    pub(crate) down: bool,
    /// It was answered by the app's policy, and neither woke the app nor went to it.
    pub(crate) replied: bool,
    /// The app's response header has come.
    pub(crate) answered: bool,
    /// How often it was sent again after a connection broke before one byte.
    resent: u8,
    /// And how often that was on a fresh connection.
    anew: u8,
    /// The error of ours that is the answer.
    pub(crate) answer: Option<Answer>,
    /// How often a way to the app was looked for.
    pub(crate) tries: u8,
    /// The connection to the app was there already.
    pub(crate) reused: Option<bool>,
    /// What the app was told of the trace.
    pub(crate) trace: Option<Context>,
    /// What the visitor was told of its wake.
    pub(crate) woken: Option<Box<Woken>>,
    /// It asked for our own health, and visits nobody.
    pub(crate) health: bool,
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
            anew: 0,
            answer: None,
            tries: 0,
            reused: None,
            trace: None,
            woken: None,
            health: false,
        }
    }

    /// Whether it may be sent again after a connection broke, and notes that it is.
    pub(crate) fn may_resend(&mut self, reused: bool) -> bool {
        let (count, limit) = if reused { (&mut self.resent, 3) } else { (&mut self.anew, 2) };
        let may = *count < limit;
        *count += u8::from(may);
        may
    }

    /// Whether fresh connections have broken, too, and another may.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.anew == 2
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
