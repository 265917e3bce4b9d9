//! Many visitors, one wake.

use std::time::Duration;

use rouse_tests::{Node, Visit, assert_eventually, crowd};
use tokio::task::JoinSet;
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_visitors_make_one_wake() {
    let node = Node::start().await;
    let before = node.generation("hello").await;
    let wakes = node.wakes().await;

    let replies = crowd(node.http(), &Visit::get("/"), 200).await;

    assert_eq!(replies.len(), 200, "every visitor comes back");
    let page = replies[0].as_ref().expect("the first visitor has an answer").body.clone();
    for reply in replies {
        let reply = reply.expect("every visitor has an answer").expect_status(200);
        assert_eq!(reply.body, page, "every visitor has the same page");
    }
    assert_eq!(node.generation("hello").await, before + 1, "200 visitors begin one life");
    let after = node.wakes().await;
    assert_eq!(after - wakes, 1.0, "the waker counts one wake");
    let proxy = node.proxy_metrics().await;
    let wakes = |outcome| proxy.sum("rouse_wake_seconds_count", &[("outcome", outcome)]);
    assert_eq!(wakes("resumed"), 1.0, "the proxy counts one wake");
    assert_eq!(wakes("cold") + wakes("failed"), 0.0, "and no other: {proxy:?}");
    assert_eq!(
        proxy.sum("rouse_holds_total", &[]),
        proxy.sum("rouse_holds_total", &[("end", "forwarded")]),
        "every hold ended with its visitor let through: {proxy:?}"
    );
    assert_eventually!(node.held().await == 0.0, "nobody is held any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_leaves_and_the_others_are_served_by_the_same_wake() {
    let node = Node::start().await;
    let before = node.generation("hello").await;

    let (to, visit) = (node.http(), Visit::get("/"));
    let mut first = JoinSet::new();
    let start = Instant::now();
    first.spawn({
        let visit = visit.clone();
        async move { visit.send(to).await }
    });
    assert_eventually!(
        node.held().await >= 1.0 || node.generation("hello").await > before,
        "the first visitor begins the wake"
    );
    let others = crowd(to, &visit, 9);
    let leave = async {
        // The time is the input here: this is when the visitor gives up.
        tokio::time::sleep_until(start + Duration::from_millis(50)).await;
        first.shutdown().await;
    };
    let (replies, ()) = tokio::join!(others, leave);

    for reply in replies {
        reply.expect("who stays has an answer").expect_status(200);
    }
    assert_eq!(node.generation("hello").await, before + 1, "all were served by one wake");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_crowd_of_an_awake_app_waits_for_nothing() {
    let node = Node::start().await;
    node.get("/").await.expect_status(200);
    let generation = node.generation("hello").await;
    let wakes = node.wakes().await;

    for reply in crowd(node.http(), &Visit::get("/"), 50).await {
        let reply = reply.expect("an awake app answers").expect_status(200);
        assert_eq!(reply.header("rouse-wake"), "", "no wake belongs to this answer");
    }
    assert_eq!(node.generation("hello").await, generation, "it is the same life");
    assert_eq!(node.wakes().await, wakes, "and nothing was woken");
}
