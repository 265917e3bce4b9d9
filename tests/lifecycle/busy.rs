//! What keeps an app awake, and what does not.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use rouse_protocol::client::ClientError;
use rouse_protocol::watch::AppState;
use rouse_tests::{Node, Visit, websocket};
use tokio_tungstenite::tungstenite::Message;

/// Many times the idle time of these tests' app, which is one second.
const LONG_IDLE: Duration = Duration::from_secs(5);

async fn idle_node() -> Node {
    Node::with_app(|app| app.sleep.idle_seconds = 1).await
}

async fn assert_busy(node: &Node) {
    match node.try_sleep("hello").await {
        Err(ClientError::Refused(problem)) => {
            assert_eq!(problem.code(), "busy", "the reason of the refusal: {problem:?}");
            assert_eq!(problem.status, 409, "and its status: {problem:?}");
        }
        other => panic!("an app with something in flight does not sleep: {other:?}"),
    }
    assert!(
        matches!(node.view("hello").await.state, AppState::Awake(_)),
        "and is awake after the refusal"
    );
}

/// Awake in the same life all through a time in which an idle app would have slept.
async fn assert_stays_awake(node: &Node) {
    let generation = node.generation("hello").await;
    let until = tokio::time::Instant::now() + LONG_IDLE;
    while tokio::time::Instant::now() < until {
        let view = node.view("hello").await;
        assert!(view.state.ready().is_some(), "it serves: {view:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(node.generation("hello").await, generation, "in the same life");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_app_sleeps_by_itself_and_wakes_again() {
    let node = idle_node().await;
    for _ in 0..2 {
        let before = node.generation("hello").await;
        let reply = node.get("/").await.expect_status(200);
        assert_eq!(reply.header("rouse-wake"), "resumed", "it was asleep: {reply:?}");
        let view = node.wait_asleep("hello").await;
        assert_eq!(view.generation.0, before + 1, "one life, and over");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_websocket_keeps_the_app_awake() {
    let node = idle_node().await;
    let mut socket = websocket(node.http(), "/ws").await.unwrap();
    assert_busy(&node).await;
    assert_stays_awake(&node).await;

    socket.send(Message::text("still here")).await.unwrap();
    let echo = socket.next().await.expect("the socket is open").unwrap();
    assert_eq!(echo, Message::text("still here"), "the socket works all the while");
    drop(socket);
    node.wait_asleep("hello").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_download_keeps_the_app_awake() {
    let node = idle_node().await;
    // At this pace it would take hours.
    let drip = Visit::get("/drip?bytes=10000000&every_ms=2");
    let mut download = drip.open(node.http()).await.unwrap();
    download.next().await.unwrap().expect("the download begins");
    assert_busy(&node).await;
    assert_stays_awake(&node).await;

    download.next().await.unwrap().expect("the download goes on");
    drop(download);
    node.wait_asleep("hello").await;
}
