//! What a visitor asks, and what came of it.

use rouse_protocol::problem::{PROBLEM_JSON, Problem};
use rouse_tests::{Counter, LogHead, LogLine, Reply, Visit, VisitError, read_log};
use serde::de::DeserializeOwned;

/// The page at `/`, as the test app has it.
const PAGE: &[u8] = include_bytes!("../guest/app/src/page/index.html");
/// What every byte of a slow stream is.
const DRIP: u8 = b'.';
/// How much of a wrong answer is shown, in characters.
const SHOWN: usize = 300;

/// What a visitor asks an app for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// `GET /`.
    Page,
    /// `GET /counter`.
    Counter,
    /// `POST /log` with this text.
    Append(String),
    /// `GET /log/head`.
    Head,
    /// `GET /log`.
    Log,
    /// A stream of so many bytes, one every so many milliseconds.
    Drip {
        /// How many bytes.
        bytes: u64,
        /// How long between two of them.
        every_ms: u64,
    },
    /// A WebSocket on which so many messages are said and heard.
    Socket(u32),
}

impl Ask {
    /// The word in the summary.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Page => "GET /",
            Self::Counter => "GET /counter",
            Self::Append(_) => "POST /log",
            Self::Head => "GET /log/head",
            Self::Log => "GET /log",
            Self::Drip { .. } => "GET /drip",
            Self::Socket(_) => "WebSocket",
        }
    }

    /// The request; none for a WebSocket, which is more than one.
    pub(crate) fn visit(&self, host: &str) -> Option<Visit> {
        let visit = match self {
            Self::Page => Visit::get("/"),
            Self::Counter => Visit::get("/counter"),
            Self::Append(entry) => Visit::post(&format!("/log?entry={entry}"), ""),
            Self::Head => Visit::get("/log/head"),
            Self::Log => Visit::get("/log"),
            Self::Drip { bytes, every_ms } => {
                Visit::get(&format!("/drip?bytes={bytes}&every_ms={every_ms}"))
            }
            Self::Socket(_) => return None,
        };
        Some(visit.host(host))
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// What was asked for, and nothing that could contradict another answer.
    Right,
    /// The counter.
    Counter(Counter),
    /// The entry is in the log.
    Appended(LogHead),
    /// The log's last entry.
    Head(LogHead),
    /// The whole log; its chain holds.
    Log(Vec<LogLine>),
    /// An answer that can't be right, whatever else has happened.
    Wrong(String),
    /// An error that carries `Rouse-Error`.
    Error(String),
    /// An error of the agent's: a problem of ours, without the header.
    AgentError(String),
    /// The connection broke, before the answer or in the middle of it.
    Cut(String),
    /// Nobody listened.
    NoConnection(String),
    /// Nothing came for longer than any hold lasts.
    Silence,
}

impl Answer {
    /// What `came` is, when it was asked for by `ask`.
    pub(crate) fn read(ask: &Ask, came: Result<Reply, VisitError>) -> Self {
        let reply = match came {
            Ok(reply) => reply,
            Err(VisitError::Connect(error)) => return Self::NoConnection(error.to_string()),
            Err(VisitError::Http(error)) => return Self::Cut(error.to_string()),
            Err(VisitError::Silence(_)) => return Self::Silence,
        };
        if reply.status != 200 {
            return Self::unwell(&reply);
        }
        if !reply.header("rouse-error").is_empty() {
            return Self::wrong("a 200 with Rouse-Error", &reply);
        }
        match ask {
            Ask::Page if reply.body == PAGE => Self::Right,
            Ask::Drip { bytes, .. } if is_drip(&reply.body, *bytes) => Self::Right,
            Ask::Page | Ask::Drip { .. } => Self::wrong("another body", &reply),
            Ask::Socket(_) => Self::wrong("no WebSocket", &reply),
            Ask::Counter => Self::json(&reply, Self::Counter),
            Ask::Append(_) => Self::json(&reply, Self::Appended),
            Ask::Head => Self::json(&reply, Self::Head),
            Ask::Log => match std::str::from_utf8(&reply.body).map(read_log) {
                Ok(Ok(lines)) => Self::Log(lines),
                Ok(Err(error)) => Self::Wrong(error.to_string()),
                Err(error) => Self::Wrong(format!("the log is no text: {error}")),
            },
        }
    }

    /// The word in the summary.
    pub(crate) fn word(&self) -> String {
        match self {
            Self::Right | Self::Counter(_) | Self::Appended(_) | Self::Head(_) | Self::Log(_) => {
                "right".into()
            }
            Self::Wrong(_) => "wrong".into(),
            Self::Error(code) => format!("error {code}"),
            Self::AgentError(code) => format!("agent's error {code}"),
            Self::Cut(_) => "cut".into(),
            Self::NoConnection(_) => "no connection".into(),
            Self::Silence => "silence".into(),
        }
    }

    fn unwell(reply: &Reply) -> Self {
        let code = reply.header("rouse-error");
        if !code.is_empty() {
            return Self::Error(code.to_owned());
        }
        let problem = reply.header("content-type") == PROBLEM_JSON;
        match serde_json::from_slice::<Problem>(&reply.body) {
            Ok(ours) if problem && ours.code() != ours.kind => {
                Self::AgentError(ours.code().to_owned())
            }
            _ => Self::wrong("an error that is not ours", reply),
        }
    }

    fn json<T: DeserializeOwned>(reply: &Reply, read: fn(T) -> Self) -> Self {
        match serde_json::from_slice(&reply.body) {
            Ok(value) => read(value),
            Err(error) => Self::wrong(&error.to_string(), reply),
        }
    }

    fn wrong(why: &str, reply: &Reply) -> Self {
        let body: String = String::from_utf8_lossy(&reply.body).chars().take(SHOWN).collect();
        Self::Wrong(format!("{why}: {} {body:?}", reply.status))
    }
}

fn is_drip(body: &[u8], bytes: u64) -> bool {
    body.len() as u64 == bytes && body.iter().all(|byte| *byte == DRIP)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut response = hyper::Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let (head, ()) = response.body(()).unwrap().into_parts();
        let body = body.to_owned().into();
        Reply { status: head.status, headers: head.headers, body }
    }

    fn read(ask: &Ask, status: u16, body: &str) -> Answer {
        Answer::read(ask, Ok(reply(status, &[], body)))
    }

    #[test]
    fn right_answers_are_read() {
        let page = std::str::from_utf8(PAGE).unwrap();
        assert_eq!(read(&Ask::Page, 200, page), Answer::Right);
        assert_eq!(read(&Ask::Drip { bytes: 3, every_ms: 1 }, 200, "..."), Answer::Right);
        let counter = Counter { counter: 3, boot: "x".into() };
        assert_eq!(
            read(&Ask::Counter, 200, r#"{"counter":3,"boot":"x"}"#),
            Answer::Counter(counter)
        );
        let head = LogHead { n: 2, hash: "h".into() };
        let text = r#"{"n":2,"hash":"h"}"#;
        assert_eq!(read(&Ask::Append("a".into()), 200, text), Answer::Appended(head.clone()));
        assert_eq!(read(&Ask::Head, 200, text), Answer::Head(head));
        assert_eq!(read(&Ask::Log, 200, ""), Answer::Log(Vec::new()));
    }

    #[test]
    fn a_200_with_another_body_is_wrong() {
        for (ask, body) in [
            (Ask::Page, ""),
            (Ask::Page, "<html></html>"),
            (Ask::Drip { bytes: 3, every_ms: 1 }, ".."),
            (Ask::Drip { bytes: 3, every_ms: 1 }, "..x"),
            (Ask::Counter, ""),
            (Ask::Append("a".into()), "{}"),
            (Ask::Head, r#"{"n":-1,"hash":"h"}"#),
            (Ask::Log, "1 a b"),
            (Ask::Log, "1 a b c\n"),
            (Ask::Socket(1), ""),
        ] {
            assert_eq!(read(&ask, 200, body).word(), "wrong", "{ask:?}: {body:?}");
        }
    }

    #[test]
    fn errors_say_whose_they_are() {
        let problem = serde_json::to_string(&Problem::new(502, "app-broke", "t", "")).unwrap();
        let other = serde_json::to_string(&Problem {
            kind: "https://example/x".into(),
            ..Problem::new(502, "", "t", "")
        });
        let json = [("content-type", PROBLEM_JSON)];
        for (reply, word) in [
            (reply(503, &[("rouse-error", "parked")], ""), "error parked"),
            (reply(502, &json, &problem), "agent's error app-broke"),
            (reply(502, &json, &other.unwrap()), "wrong"),
            (reply(502, &[], &problem), "wrong"),
            (reply(500, &[], "out of order"), "wrong"),
            (reply(404, &[], ""), "wrong"),
            (reply(204, &[], ""), "wrong"),
            (reply(200, &[("rouse-error", "parked")], ""), "wrong"),
        ] {
            let shown = format!("{reply:?}");
            assert_eq!(Answer::read(&Ask::Page, Ok(reply)).word(), word, "{shown}");
        }
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let none = Answer::read(&Ask::Page, Err(VisitError::Connect(refused)));
        assert_eq!(none.word(), "no connection");
        let silence = VisitError::Silence(std::time::Duration::ZERO);
        assert_eq!(Answer::read(&Ask::Page, Err(silence)), Answer::Silence);
    }
}
