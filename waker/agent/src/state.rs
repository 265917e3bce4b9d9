//! Which word the agent signs, from what dialling the app's port showed.

use std::io;

use rouse_protocol::signature::AgentState;

/// What one attempt to connect to the app's port showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dial {
    /// Somebody listens.
    Listens,
    /// Nobody listens.
    Refused,
    /// The attempt failed for a reason of our own (no descriptors, no route) and shows nothing.
    Unclear,
}

impl Dial {
    /// What `result` of connecting to a port of this machine shows.
    pub fn of<T>(result: &io::Result<T>) -> Self {
        match result {
            Ok(_) => Self::Listens,
            Err(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Self::Refused,
                // Over loopback a connect hangs only when there is a listener with a full backlog.
                io::ErrorKind::TimedOut => Self::Listens,
                _ => Self::Unclear,
            },
        }
    }
}

/// The state to sign, and whether the app is known to have listened from now on.
///
/// An app that has never listened is `starting`; once it has, silence means `down`. What shows
/// nothing changes nothing: then the app counts as it did when it was last known.
pub fn observe(listened: bool, dial: Dial) -> (AgentState, bool) {
    match (dial, listened) {
        (Dial::Listens, _) => (AgentState::Serving, true),
        (Dial::Refused, true) => (AgentState::Down, true),
        (Dial::Unclear, true) => (AgentState::Serving, true),
        (Dial::Refused | Dial::Unclear, false) => (AgentState::Starting, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        use AgentState::{Down, Serving, Starting};
        for (listened, dial, word, after) in [
            (false, Dial::Listens, Serving, true),
            (false, Dial::Refused, Starting, false),
            (false, Dial::Unclear, Starting, false),
            (true, Dial::Listens, Serving, true),
            (true, Dial::Refused, Down, true),
            (true, Dial::Unclear, Serving, true),
        ] {
            assert_eq!(observe(listened, dial), (word, after), "{listened} {dial:?}");
        }
    }

    #[test]
    fn only_a_refusal_is_one() {
        for (kind, dial) in [
            (io::ErrorKind::ConnectionRefused, Dial::Refused),
            (io::ErrorKind::ConnectionReset, Dial::Refused),
            (io::ErrorKind::TimedOut, Dial::Listens),
            (io::ErrorKind::AddrNotAvailable, Dial::Unclear),
            (io::ErrorKind::OutOfMemory, Dial::Unclear),
        ] {
            assert_eq!(Dial::of(&Err::<(), _>(kind.into())), dial);
        }
        assert_eq!(Dial::of(&Ok(())), Dial::Listens);
    }
}
