//! Between the waker and the agent: JSON objects, one a line, over a virtio-serial port.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::app::{AppId, Generation};
use crate::signature::AgentKey;

/// The name of the virtio-serial port, as the guest sees it under `/sys/class/virtio-ports`.
pub const PORT_NAME: &str = "rouse.agent";

/// The longest that an app can say it is busy at once: a day.
pub const MAX_BUSY_SECONDS: u64 = 24 * 3600;

/// What the waker tells the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "lowercase")]
pub enum ToAgent {
    /// In answer to [`FromAgent::Hello`], and again at the instant of every resume: who the guest
    /// is and what it can't know after a sleep.
    Life {
        /// The app.
        app: AppId,
        /// The life that has begun.
        generation: Generation,
        /// The app's key. Kept in memory only.
        key: AgentKey,
        /// The wall clock, in nanoseconds of Unix time.
        unix_ns: u64,
        /// Fresh random bytes, hexadecimal, for the guest's pool.
        entropy: String,
    },
    /// The guest is about to stand still: write out the file system on its disk, and leave `marker`
    /// on it and in memory, so that after the next wake [`Patch::Disk`] can compare the two.
    Flush {
        /// The answer carries it.
        id: u64,
        /// 32 hexadecimal digits, other ones each time.
        marker: String,
    },
    /// Do this, now that visitors are served again.
    Patch {
        /// The answer carries it.
        id: u64,
        /// What.
        patch: Patch,
    },
}

/// Work on a running guest after the first byte. Each is carried out on its own; the waker bounds
/// how long it waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "patch", rename_all = "lowercase")]
pub enum Patch {
    /// These variables, whole, to the file that the agent was told to keep them in.
    Env {
        /// Name to value.
        vars: BTreeMap<String, String>,
    },
    /// Is the disk the one that memory knows? A check that reads past the page cache: the last
    /// [`ToAgent::Flush`]'s marker, whether the file system is still writable, its count of errors.
    Disk,
    /// Does an SSH server greet on this port of the guest's loopback?
    Ssh {
        /// The port.
        port: u16,
    },
    /// A program and its arguments; well means that it exits with 0.
    Command {
        /// What to run.
        argv: Vec<String>,
        /// After so long it is killed, in milliseconds.
        timeout_ms: u64,
    },
}

impl Patch {
    /// The word in metrics and errors.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Env { .. } => "env",
            Self::Disk => "disk",
            Self::Ssh { .. } => "ssh",
            Self::Command { .. } => "command",
        }
    }
}

/// What the agent tells the waker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "lowercase")]
pub enum FromAgent {
    /// The agent has started and needs to know its [`ToAgent::Life`].
    Hello {
        /// Its version.
        version: String,
    },
    /// It has taken over a life: the key is in use, clock and entropy are set, or the errors say why not.
    Alive {
        /// Which.
        generation: Generation,
        /// By how much the wall clock was stepped, in milliseconds.
        stepped_ms: i64,
        /// Why the wall clock could not be set, if so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        clock_error: Option<String>,
        /// Why the fresh randomness could not be mixed in, if so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        entropy_error: Option<String>,
    },
    /// The app has work to do that no visitor waits for, and is not to go to sleep by itself meanwhile.
    /// The newest word counts; said again to each waker that tells a life.
    Busy {
        /// For so many more seconds of the guest's own time, at most [`MAX_BUSY_SECONDS`]; 0: not.
        seconds: u64,
    },
    /// The end of a [`ToAgent::Flush`].
    Flushed {
        /// Its id.
        id: u64,
        /// What went wrong, if anything.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// The end of a [`ToAgent::Patch`].
    Patched {
        /// Its id.
        id: u64,
        /// What went wrong, if anything.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}
