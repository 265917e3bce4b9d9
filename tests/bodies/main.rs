//! Does a request with a body reach a sleeping app once and whole?
#![forbid(unsafe_code)]

use bytes::Bytes;
use rand::Rng;
use rouse_tests::{Echo, Node, Raw, Reply, Visit, sha256};

const KIB: usize = 1024;

fn body(length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    rand::rng().fill_bytes(&mut bytes);
    bytes.into()
}

fn assert_arrived(reply: Reply, id: &str, body: &[u8]) {
    let echo: Echo = reply.expect_status(200).json();
    assert_eq!(echo.method, "POST", "{id}: the method");
    assert_eq!(echo.body_bytes, body.len() as u64, "{id}: the body arrives whole");
    assert_eq!(echo.body_sha256, sha256(body), "{id}: the body arrives unchanged");
    assert_eq!(echo.seen, 1, "{id}: the request arrives once");
}

/// Each size to an app that sleeps anew.
async fn to_a_sleeping_app(chunked: bool) {
    let node = Node::start().await;
    for length in [1, 63 * KIB, 65 * KIB, 10_000_000] {
        let (body, id) = (body(length), format!("{length}-{chunked}"));
        let before = node.generation("hello").await;
        let visit = Visit::post("/echo/body", body.clone()).header("x-request-id", &id);
        let visit = if chunked { visit.chunked() } else { visit };
        assert_arrived(node.visit(&visit).await, &id, &body);
        assert_eq!(node.generation("hello").await, before + 1, "{id}: it was asleep");
        node.sleep("hello").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_its_length() {
    to_a_sleeping_app(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_chunks() {
    to_a_sleeping_app(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expect_100_continue() {
    let node = Node::start().await;
    let body = body(1000);
    let mut visitor = Raw::connect(node.http()).await.unwrap();
    let head = "POST /echo HTTP/1.1\r\nHost: hello.localhost\r\nContent-Length: 1000\r\n\
                X-Request-Id: continue\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n";
    visitor.write(head).await.unwrap();
    let first = visitor.read_until("\r\n\r\n").await;
    assert!(first.starts_with("HTTP/1.1 100 "), "the body is asked for first: {first}");
    visitor.write(&body).await.unwrap();
    let rest = visitor.read_to_end().await;
    assert!(rest.starts_with("HTTP/1.1 200 "), "one 100, then the answer: {rest}");
    assert!(rest.contains(&sha256(&body)), "the body arrived whole: {rest}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_is_held() {
    let node = Node::start().await;
    for method in ["OPTIONS", "HEAD", "PUT", "PATCH", "DELETE"] {
        let before = node.generation("hello").await;
        let visit = Visit::new(method.parse().unwrap(), "/echo/a%2Fb/../c?q=%20");
        let reply = node.visit(&visit).await.expect_status(200);
        if method != "HEAD" {
            let echo: Echo = reply.json();
            assert_eq!(echo.method, method, "the method arrives");
            assert_eq!(echo.path, "/echo/a%2Fb/../c?q=%20", "the path arrives as it was sent");
            assert_eq!(echo.header("host"), "hello.localhost", "the host arrives as it was sent");
        }
        assert_eq!(node.generation("hello").await, before + 1, "{method} wakes");
        node.sleep("hello").await;
    }
}
