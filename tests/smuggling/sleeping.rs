//! And of an app that sleeps?

use std::time::Duration;

use rouse_tests::{Counter, Node, Raw, assert_eventually};

const PLAIN: &str = "GET /counter HTTP/1.1\r\nHost: hello.localhost\r\nConnection: close\r\n\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_two_meanings_wakes_nobody_and_what_has_one_is_held_and_comes_once() {
    let node = Node::start().await;
    let generation = node.generation("hello").await;
    let hidden = "GET /counter HTTP/1.1\r\nHost: hello.localhost\r\n\r\n";
    for head in [
        "POST /echo HTTP/1.1\r\nHost: hello.localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: hello.localhost\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: hello.localhost\r\nContent-Length: 0\r\nContent-Length: 9\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: hello.localhost\r\nContent-Length: +0\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: hello.localhost\r\nHost: b\r\n\r\n",
        "GET http://b/ HTTP/1.1\r\nHost: hello.localhost\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost : hello.localhost\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: hello.localhost\r\nX: a\r\n b\r\n\r\n",
    ] {
        let answer = say(&node, &format!("{head}{hidden}")).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{head:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.").count(), 1, "and closed: {head:?}: {answer}");
    }
    assert_eq!(node.generation("hello").await, generation, "nobody was woken");

    // A body that looks like a request is a body also after a wake.
    let head = "POST /echo HTTP/1.1\r\nHost: hello.localhost\r\nConnection: close\r\nX-Request-Id: one\r\n";
    let answer =
        say(&node, &format!("{head}Content-Length: {}\r\n\r\n{hidden}", hidden.len())).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(node.generation("hello").await, generation + 1, "it woke the app");
    assert!(answer.contains(&format!("\"body_bytes\":{}", hidden.len())), "{answer}");
    assert!(answer.contains("\"seen\":1"), "it came once: {answer}");

    let counter: Counter = node.get("/counter").await.expect_status(200).json();
    assert_eq!(counter.counter, 1, "no hidden request has counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_behind_a_held_request_waits_for_its_turn() {
    let node = Node::start().await;
    node.wake("hello").await;
    node.crash("hello", Duration::from_secs(5)).await;
    let mut visitor = Raw::connect(node.http()).await.unwrap();
    // While the first is held, a second that has two meanings is there, and one is hidden behind it.
    let first = "POST /echo HTTP/1.1\r\nHost: hello.localhost\r\nContent-Length: 3\r\nX-Request-Id: first\r\n\r\nabc";
    let second = "POST /echo HTTP/1.1\r\nHost: hello.localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    visitor.write(format!("{first}{second}{PLAIN}")).await.unwrap();
    assert_eventually!(node.held().await == 1.0, "the first is held");
    let answer = visitor.read_to_end().await;
    assert_eq!(answer.matches("HTTP/1.1 200 ").count(), 1, "the first is answered: {answer}");
    assert_eq!(answer.matches("HTTP/1.1 400 ").count(), 1, "the second refused: {answer}");
    assert_eq!(answer.matches("HTTP/1.").count(), 2, "the third not read: {answer}");
    assert!(answer.contains("\"body_bytes\":3") && answer.contains("\"seen\":1"), "{answer}");
    let counter: Counter = node.get("/counter").await.expect_status(200).json();
    assert_eq!(counter.counter, 1, "no hidden request has counted");
}

async fn say(node: &Node, bytes: &str) -> String {
    let mut visitor = Raw::connect(node.http()).await.expect("the proxy listens");
    // It may be refused before it has said everything.
    let _ = visitor.write(bytes).await;
    visitor.read_to_end().await
}
