//! SIGTERM.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rouse_tests::{Front, Node, ORIGIN_HOST, RawOrigin, Visit, assert_eventually};
use tokio::task::JoinSet;

const GRACE: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_held_is_told_to_come_again_within_the_grace() {
    let node = Node::start().await;
    let origin = RawOrigin::start().await;
    let grace = format!("[server]\ngrace_seconds = {}\n", GRACE.as_secs());
    let mut front = Front::beside(&node, origin.address(), &grace).await;
    node.wake("hello").await;
    node.crash("hello", Duration::from_secs(600)).await;
    let mut held = JoinSet::new();
    for _ in 0..50 {
        let to = front.http();
        held.spawn(async move { Visit::get("/counter").send(to).await });
    }
    assert_eventually!(front.held().await == 50.0, "all are held");
    let began = Instant::now();
    front.proxy.signal(Signal::SIGTERM);
    for answer in held.join_all().await {
        let reply = answer.expect("an answer").expect_status(503);
        assert_eq!(reply.header("rouse-error"), "stopping", "{reply:?}");
        let again: u64 = reply.header("retry-after").parse().expect("it says when to come again");
        assert!(again >= 1, "{reply:?}");
    }
    assert_eventually!(!front.proxy.runs(), "then it ends");
    assert!(began.elapsed() < GRACE, "nobody is there to wait for: {:?}", began.elapsed());
    assert_eq!(front.processes(), [0; 0], "and nothing of it is left");
    let refused = Visit::get("/page").host(ORIGIN_HOST).send(front.http()).await;
    refused.expect_err("nobody listens");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_served_is_served_to_the_end() {
    let node = Node::start().await;
    let origin = RawOrigin::start().await;
    let grace = format!("[server]\ngrace_seconds = {}\n", GRACE.as_secs());
    let mut front = Front::beside(&node, origin.address(), &grace).await;
    node.wake("hello").await;
    let drip = Visit::get("/drip?bytes=40&every_ms=100");
    let mut download = drip.open(front.http()).await.expect("it begins");
    let mut got = download.next().await.expect("it goes on").expect("there is more").len();
    front.proxy.signal(Signal::SIGTERM);
    while let Some(bytes) = download.next().await.expect("it goes on") {
        got += bytes.len();
    }
    assert_eq!(got, 40, "it is whole");
    assert_eventually!(!front.proxy.runs(), "then it ends");
}
