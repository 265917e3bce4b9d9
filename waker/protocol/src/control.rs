//! Between the waker and the agent: JSON objects, one a line, over a virtio-serial port.

use serde::{Deserialize, Serialize};

use crate::app::{AppId, Generation};
use crate::signature::AgentKey;

/// The name of the virtio-serial port, as the guest sees it under `/sys/class/virtio-ports`.
pub const PORT_NAME: &str = "rouse.agent";

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
    /// It has taken over a life: the key is in use, clock and entropy are set.
    Alive {
        /// Which.
        generation: Generation,
        /// By how much the wall clock was stepped, in milliseconds.
        stepped_ms: i64,
    },
}
