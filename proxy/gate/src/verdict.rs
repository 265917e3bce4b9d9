//! What one probe, or one live answer, proves about an app. Pure and strict.
//!
//! *Down* is only what no app can fake: no connection, or not one byte over it, or the agent's own
//! signature. Everything else is *serving*, whatever it looks like: the app's own 502, an answer
//! that is no HTTP, a copy of our agent's error, another Rouse's signed word.

use rouse_protocol::app::AppId;
use rouse_protocol::signature::{AgentKey, AgentState};

/// What came of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The connection was refused.
    Refused,
    /// There is no way to the endpoint.
    Unreachable,
    /// The connection was reset before one byte of a response.
    Reset,
    /// Nothing came in time: no connection, or not one byte over it.
    TimedOut,
    /// The connection was closed before one byte of a response.
    Closed,
    /// At least one byte came back.
    Answer {
        /// The values of `Rouse-Agent`, when the answer was a response header that has any.
        agent: Vec<String>,
    },
}

/// Why an app is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The connection was refused.
    Refused,
    /// There is no way to the endpoint.
    Unreachable,
    /// The connection was reset before one byte.
    Reset,
    /// Not one byte came in time.
    TimedOut,
    /// The connection was closed before one byte.
    Closed,
    /// The agent says so, signed.
    Signed(AgentState),
}

/// What the gate concludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The app is not there.
    Down(Why),
    /// It is.
    Serving,
}

/// The verdict on what was `heard` from `app` in answer to `nonce`. Without a key there is no agent
/// whose word could count.
pub fn classify(heard: &Heard, app: &AppId, key: Option<&AgentKey>, nonce: &str) -> Verdict {
    let why = match heard {
        Heard::Refused => Why::Refused,
        Heard::Unreachable => Why::Unreachable,
        Heard::Reset => Why::Reset,
        Heard::TimedOut => Why::TimedOut,
        Heard::Closed => Why::Closed,
        Heard::Answer { agent } => {
            let said = agent.iter().map(String::as_str);
            match key.and_then(|key| signed(said, app, key, nonce)) {
                Some(state @ (AgentState::Down | AgentState::Starting)) => Why::Signed(state),
                Some(AgentState::Serving) | None => return Verdict::Serving,
            }
        }
    };
    Verdict::Down(why)
}

/// What the agent of `app` really said among the values of `Rouse-Agent` in a response: the first
/// that its key and this request's nonce prove.
pub fn signed<'a>(
    mut values: impl Iterator<Item = &'a str>,
    app: &AppId,
    key: &AgentKey,
    nonce: &str,
) -> Option<AgentState> {
    values.find_map(|value| key.verify(app, nonce, value).ok()).map(|signed| signed.state)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rouse_protocol::app::Generation;

    use super::*;

    fn app(id: &str) -> AppId {
        id.parse().unwrap()
    }

    fn answer(agent: &[&str]) -> Heard {
        Heard::Answer { agent: agent.iter().map(|a| (*a).to_owned()).collect() }
    }

    #[test]
    fn table() {
        use AgentState::{Down, Serving, Starting};
        let (key, other) = (AgentKey::generate(), AgentKey::generate());
        let (hello, b) = (app("hello"), app("b"));
        let sign = |key: &AgentKey, app: &AppId, state, nonce: &str| {
            key.sign(app, Generation(3), state, nonce)
        };
        let down = sign(&key, &hello, Down, "n");
        let starting = sign(&key, &hello, Starting, "n");
        let serving = sign(&key, &hello, Serving, "n");
        let old = sign(&key, &hello, Down, "n-1");
        let foreign = sign(&other, &hello, Down, "n");
        let neighbour = sign(&key, &b, Down, "n");

        let cases: &[(&str, Heard, Verdict)] = &[
            ("refused", Heard::Refused, Verdict::Down(Why::Refused)),
            ("unreachable", Heard::Unreachable, Verdict::Down(Why::Unreachable)),
            ("reset", Heard::Reset, Verdict::Down(Why::Reset)),
            ("timed out", Heard::TimedOut, Verdict::Down(Why::TimedOut)),
            ("closed", Heard::Closed, Verdict::Down(Why::Closed)),
            ("signed down", answer(&[&down]), Verdict::Down(Why::Signed(Down))),
            ("signed starting", answer(&[&starting]), Verdict::Down(Why::Signed(Starting))),
            ("signed serving", answer(&[&serving]), Verdict::Serving),
            ("an answer without the header", answer(&[]), Verdict::Serving),
            ("garbage in the header", answer(&["down"]), Verdict::Serving),
            ("another nonce: a copy of an old error", answer(&[&old]), Verdict::Serving),
            ("another key: another Rouse", answer(&[&foreign]), Verdict::Serving),
            ("another app's agent", answer(&[&neighbour]), Verdict::Serving),
            (
                "a lie before the agent's word",
                answer(&[&old, &down]),
                Verdict::Down(Why::Signed(Down)),
            ),
        ];
        for (name, heard, verdict) in cases {
            assert_eq!(classify(heard, &hello, Some(&key), "n"), *verdict, "{name}");
        }
        // Without a key no signature counts.
        assert_eq!(classify(&answer(&[&down]), &hello, None, "n"), Verdict::Serving);
        assert_eq!(classify(&Heard::Closed, &hello, None, "n"), Verdict::Down(Why::Closed));
    }

    proptest! {
        #[test]
        fn no_text_is_a_down(values in prop::collection::vec(".{0,120}", 0..4)) {
            let key = AgentKey::generate();
            let verdict = classify(&Heard::Answer { agent: values }, &app("a"), Some(&key), "n");
            prop_assert_eq!(verdict, Verdict::Serving);
        }
    }
}
