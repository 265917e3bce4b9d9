//! Can a request hide in another, or speak in another's name?
//!
//! What is open to two readings is either refused, its connection closed and nothing of it at the app, or
//! it arrives as exactly one request that has one reading. The origin's own parser is the judge.
#![forbid(unsafe_code)]

mod body;
mod head;
mod http2;
mod names;
mod sleeping;

use rouse_tests::origin::Request;
use rouse_tests::{Front, Raw, RawOrigin};

/// What an attacker wants the app to see.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: origin.localhost\r\n\r\n";

/// A proxy and what is behind it.
struct World {
    front: Front,
    origin: RawOrigin,
}

impl World {
    async fn new() -> Self {
        let origin = RawOrigin::start().await;
        let front = Front::of(origin.address(), "").await;
        Self { front, origin }
    }

    /// All that is answered to these bytes, until the connection is closed.
    #[allow(clippy::print_stdout, reason = "the test runner shows it with a failed test")]
    async fn say(&self, bytes: &[u8]) -> String {
        // Which one it was, when it fails.
        println!("{:?}", String::from_utf8_lossy(bytes));
        let mut visitor = Raw::connect(self.front.http()).await.expect("the proxy listens");
        // It may be refused before it has said everything.
        let _ = visitor.write(bytes).await;
        visitor.read_to_end().await
    }

    /// It is refused, whatever comes after it is not read, and the app sees nothing of either.
    async fn refused(&self, what: &[u8]) {
        let before = self.origin.bytes();
        let shown = String::from_utf8_lossy(what).into_owned();
        let answer = self.say(&[what, HIDDEN.as_bytes()].concat()).await;
        assert_error(&shown, &answer);
        assert_eq!(self.origin.bytes(), before, "nothing reaches the app: {shown:?}");
    }

    /// It is one request for the app, with one reading; the last that it has seen. The connection has to
    /// be one that is closed after it.
    async fn one(&self, what: &[u8]) -> Request {
        let before = self.origin.requests().len();
        let shown = String::from_utf8_lossy(what).into_owned();
        let answer = self.say(what).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "it is answered: {shown:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.").count(), 1, "and once: {shown:?}: {answer}");
        let mut requests = self.origin.requests();
        assert_eq!(requests.len(), before + 1, "it is one request: {shown:?}: {requests:#?}");
        requests.pop().expect("there is one")
    }

    /// Either of both, for what may be mended as well as refused.
    async fn refused_or_one(&self, what: &[u8]) -> Option<Request> {
        let before = self.origin.requests().len();
        let shown = String::from_utf8_lossy(what).into_owned();
        let answer = self.say(what).await;
        let mut requests = self.origin.requests();
        if answer.starts_with("HTTP/1.1 200 ") {
            assert_eq!(answer.matches("HTTP/1.").count(), 1, "once: {shown:?}: {answer}");
            assert_eq!(requests.len(), before + 1, "one request: {shown:?}: {requests:#?}");
            return requests.pop();
        }
        assert_error(&shown, &answer);
        assert_eq!(requests.len(), before, "nothing reaches the app: {shown:?}");
        None
    }

    /// The app is as it was: a plain request comes to it on whatever connection there is.
    async fn fine(&self) {
        let plain = "GET /plain HTTP/1.1\r\nHost: origin.localhost\r\nConnection: close\r\n\r\n";
        let request = self.one(plain.as_bytes()).await;
        assert_eq!((&*request.method, &*request.target), ("GET", "/plain"));
        let requests = self.origin.requests();
        assert!(requests.iter().all(|r| r.target != "/hidden"), "{requests:#?}");
    }
}

/// One answer, which is an error.
fn assert_error(shown: &str, answer: &str) {
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    let status = status.and_then(|digits| digits.parse::<u16>().ok());
    assert!(status.is_some_and(|s| (400..600).contains(&s)), "refused: {shown:?}: {answer:?}");
    assert_eq!(answer.matches("HTTP/1.").count(), 1, "and closed: {shown:?}: {answer}");
}
