//! Visitors who leave.

use std::time::{Duration, Instant};

use rouse_protocol::watch::AppState;
use rouse_tests::{App, Binaries, Hold, Node, Raw, Visit, assert_eventually};
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_frees_the_slot_and_the_wake_goes_on() {
    // A boot from the kernel takes long enough to see it while it runs.
    let binaries = Binaries::find();
    let node = Node::builder(&binaries).app(App::hello(&binaries).cold()).start().await;
    let mut visitor = Raw::connect(node.http()).await.unwrap();
    visitor.write("GET / HTTP/1.1\r\nHost: hello.localhost\r\n\r\n").await.unwrap();
    assert_eventually!(node.held().await == 1.0, "the visitor is held");

    drop(visitor);
    let left = Instant::now();
    assert_eventually!(node.held().await == 0.0, "who leaves frees the slot");
    println!("the slot was free {:?} after the visitor had left", left.elapsed());

    let view = node
        .wait_state("hello", "awake though its only visitor has left", |state| {
            matches!(state, AppState::Awake(_))
        })
        .await;
    assert_eq!(view.generation.0, 1, "it is the wake that the visitor began");
    node.get("/").await.expect_status(200);
    assert_eq!(node.generation("hello").await, 1, "and no other was needed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_with_an_unread_body_frees_the_slot() {
    let node = Node::start().await;
    node.wake("hello").await;
    node.crash("hello", LONG).await;
    let mut visitor = Raw::connect(node.http()).await.unwrap();
    let head = "POST /echo HTTP/1.1\r\nHost: hello.localhost\r\nContent-Length: 100000\r\n\r\n";
    visitor.write(head).await.unwrap();
    visitor.write([b'x'; 1000]).await.unwrap();
    assert_eventually!(node.held().await == 1.0, "the visitor is held with his body");

    drop(visitor);
    assert_eventually!(node.held().await == 0.0, "who leaves in the middle frees the slot");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_app_refuses_at_once_and_takes_again_when_one_leaves() {
    refuses_when_full(|hold| hold.per_app = 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_proxy_refuses_at_once_and_takes_again_when_one_leaves() {
    refuses_when_full(|hold| hold.total = 3).await;
}

async fn refuses_when_full(limit: impl FnOnce(&mut Hold)) {
    let binaries = Binaries::find();
    let node = Node::builder(&binaries)
        .app(App::hello(&binaries))
        .proxy(|proxy| limit(&mut proxy.hold))
        .start()
        .await;
    node.wake("hello").await;
    node.crash("hello", LONG).await;

    let to = node.http();
    let mut held: Vec<JoinSet<_>> = Vec::new();
    for n in 1..=3 {
        let mut visitor = JoinSet::new();
        visitor.spawn(async move { Visit::get("/").send(to).await });
        held.push(visitor);
        assert_eventually!(node.held().await == f64::from(n), "{n} are held");
    }
    let reply = node.get("/").await.expect_status(503);
    assert_eq!(reply.header("rouse-error"), "full", "the fourth is one too many: {reply:?}");
    assert_ne!(reply.header("retry-after"), "", "and is told when to come again: {reply:?}");

    drop(held.pop());
    assert_eventually!(node.held().await == 2.0, "one has left");
    let mut visitor = JoinSet::new();
    visitor.spawn(async move { Visit::get("/").send(to).await });
    assert_eventually!(node.held().await == 3.0, "the next is held in the free place");
    assert!(visitor.try_join_next().is_none(), "and has not been refused");
}
