//! Does a CDN or a balancer in front get on with it, and is nobody else taken for one?
#![forbid(unsafe_code)]

mod answers;
mod forwarded;
mod peer;
mod preamble;

#[path = "../tls/client.rs"]
#[allow(dead_code, reason = "tests/tls looks at more of a handshake")]
mod client;

use rouse_tests::{Front, assert_eventually};
use serde_json::Value;

/// Who is trusted, and where requests are written down.
const TRUSTING: &str = "[downstream]\ntrusted_proxies = [\"127.0.0.2\"]\nforwarded = true\n\
                        [log]\naccess = \"./access.log\"\nsample = 1.0\n";

/// The clients of all requests in the access log, once there are so many.
async fn clients(front: &Front, requests: usize) -> Vec<String> {
    let file = front.directory().join("access.log");
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    assert_eventually!(read().lines().count() >= requests, "{requests} requests are written down");
    let client = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a line of JSON");
        line["client"].as_str().expect("there is a client").to_owned()
    };
    read().lines().map(client).collect()
}
