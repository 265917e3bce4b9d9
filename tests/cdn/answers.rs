//! What may a CDN do with our answers, and does it ever wait longer than it can?

use std::time::{Duration, Instant};

use rouse_tests::{DEFAULT_HOST, Front, Node, RawOrigin, Visit};

use crate::TRUSTING;
use crate::peer::{self, CDN, STRANGER};

/// How long a common CDN waits for an origin's header, at the least.
const ORIGIN_TIMEOUT: Duration = Duration::from_secs(30);

fn assert_ours(answer: &str, status: &str, code: &str) {
    let head = answer.split("\r\n\r\n").next().unwrap_or_default().to_lowercase();
    assert!(head.starts_with(&format!("http/1.1 {status} ")), "{answer}");
    assert!(head.contains(&format!("rouse-error: {code}")), "{answer}");
    assert!(head.contains("cache-control: no-store"), "nobody may keep it: {answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_error_of_ours_is_kept_and_a_hold_ends_before_the_cdn_gives_up() {
    let node = Node::with_app(|app| app.gate.hold_deadline_seconds = 3).await;
    let origin = RawOrigin::start().await;
    let front = Front::beside(&node, origin.address(), TRUSTING).await;
    let ask = async |head: String| peer::ask(CDN, front.http(), &head).await;
    let told = "X-Forwarded-For: 198.51.100.7\r\n";
    let generation = node.generation("hello").await;

    // Checks, by whoever and for whichever host, wake nobody.
    for host in [DEFAULT_HOST, "nobody.localhost", "198.51.100.1"] {
        for from in [CDN, STRANGER] {
            let head = format!("GET /.well-known/rouse-health HTTP/1.1\r\nHost: {host}\r\n");
            let answer = peer::ask(from, front.http(), &head).await.to_lowercase();
            assert!(answer.starts_with("http/1.1 200 "), "{answer}");
            assert!(answer.contains("cache-control: no-store"), "{answer}");
        }
    }
    assert_ours(
        &ask(format!("GET / HTTP/1.1\r\nHost: nobody.localhost\r\n{told}")).await,
        "404",
        "unknown-host",
    );
    let two = format!("GET / HTTP/1.1\r\nHost: {DEFAULT_HOST}\r\nContent_Length: 3\r\n{told}");
    assert_ours(&ask(two).await, "400", "bad-request");
    assert_eq!(node.generation("hello").await, generation, "nobody was woken");
    assert_eq!(node.wakes().await, 0.0);

    node.wake("hello").await;
    node.crash("hello", Duration::from_secs(600)).await;
    let began = Instant::now();
    let answer = ask(format!("GET / HTTP/1.1\r\nHost: {DEFAULT_HOST}\r\n{told}")).await;
    assert!(began.elapsed() < ORIGIN_TIMEOUT, "a CDN would have given up: {:?}", began.elapsed());
    assert_ours(&answer, "503", "deadline");
    assert!(answer.to_lowercase().contains("\r\nretry-after: "), "{answer}");
    let page = Visit::get("/").header("accept", "text/html").send(front.http()).await;
    let page = page.expect("an answer").expect_status(503);
    assert_eq!(page.header("cache-control"), "no-store", "a page as little");
    assert!(!page.header("retry-after").is_empty(), "{page:?}");
}
