//! Do upgrades and streams work through a hold?
#![forbid(unsafe_code)]

use futures_util::{SinkExt, StreamExt};
use rouse_tests::{Node, Visit, patience, websocket};
use tokio_tungstenite::tungstenite::Message;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_to_a_sleeping_app_is_held_and_echoed() {
    let node = Node::start().await;
    let before = node.generation("hello").await;
    let mut socket = websocket(node.http(), "/ws").await.expect("the upgrade is held, not refused");
    assert_eq!(node.generation("hello").await, before + 1, "it woke the app");

    let large = "x".repeat(200_000);
    for text in ["one", "two", &large] {
        socket.send(Message::text(text)).await.unwrap();
        let echo = tokio::time::timeout(patience(), socket.next()).await;
        let echo = echo.expect("an echo comes").expect("the socket is open").unwrap();
        assert_eq!(echo, Message::text(text), "what comes back is what was sent");
    }
    socket.close(None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_arrive_one_by_one() {
    let node = Node::start().await;
    let mut stream = Visit::get("/sse").open(node.http()).await.unwrap();
    assert_eq!(stream.status(), 200, "the stream is held and opens");
    assert!(
        stream.header("content-type").starts_with("text/event-stream"),
        "as a stream of events"
    );

    // The stream has no end: that anything comes shows that nobody waits for all of it. And who
    // collected a few KiB before passing them on would bring more than a hundred events together.
    let mut read = String::new();
    while read.matches("\n\n").count() < 3 {
        let more = stream.next().await.unwrap().expect("the stream goes on");
        read.push_str(std::str::from_utf8(&more).unwrap());
    }
    assert!(read.starts_with("id: 1\n"), "the first event comes first: {read}");
    assert!(read.matches("\n\n").count() < 50, "events come as they are made: {read}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_answer_arrives_as_it_is_made() {
    let node = Node::start().await;
    // Of an answer whose length is known Pingora passes on a packet's worth at a time, 1460 bytes.
    let path = "/drip?bytes=10000000&every_ms=2";
    let mut drip = Visit::get(path).open(node.http()).await.unwrap();
    assert_eq!(drip.status(), 200, "the head comes before the body is made");
    for n in 1..=3 {
        let read = drip.next().await.unwrap();
        assert!(read.is_some(), "part {n} comes hours before the last");
    }
    drop(drip);

    let whole = node.get("/drip?bytes=5&every_ms=50").await.expect_status(200);
    assert_eq!(whole.body.len(), 5, "all of a shorter one comes");
}
