//! What happens when something dies?
//!
//! With the feature `failpoints` also: what if a step of a sleep or a wake fails, or is the waker's
//! last?
#![forbid(unsafe_code)]

#[cfg(feature = "failpoints")]
mod armed;
#[cfg(feature = "failpoints")]
mod deaths;
#[cfg(feature = "failpoints")]
mod errors;

use rouse_protocol::watch::AppState;
use rouse_tests::{Counter, Node, assert_eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waker_is_told_at_once() {
    let mut node = Node::start().await;
    node.waker.kill();

    // The app's deadline is far beyond what a visit may take here: an answer at all is one at once.
    let reply = node.get("/").await.expect_status(503);
    assert_eq!(reply.header("rouse-error"), "waker-unreachable", "it says why: {reply:?}");
    assert_ne!(reply.header("retry-after"), "", "and when to come again: {reply:?}");

    node.start_waker().await;
    assert_eventually!(
        node.get("/").await.status == 200,
        "visitors are served once the waker is back"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_waker_adopts_the_running_vm() {
    let mut node = Node::start().await;
    let before: Counter = node.get("/counter").await.expect_status(200).json();
    let (generation, vm) = (node.generation("hello").await, node.vm("hello"));

    node.waker.kill();
    for n in 1..=5 {
        let next: Counter = node.get("/counter").await.expect_status(200).json();
        assert_eq!(next.counter, before.counter + n, "an awake app is served without its waker");
    }

    node.start_waker().await;
    node.wait_state("hello", "awake", |state| matches!(state, AppState::Awake(_))).await;
    assert_eq!(node.generation("hello").await, generation, "the same life goes on");
    assert_eq!(node.vm("hello"), vm, "in the same process");

    node.sleep("hello").await;
    assert!(!vm.runs(), "the adopted VM has ended with the sleep");
    let after: Counter = node.get("/counter").await.expect_status(200).json();
    assert_eq!(
        after,
        Counter { counter: before.counter + 6, boot: before.boot },
        "and its memory lives on"
    );
    assert_eq!(node.generation("hello").await, generation + 1, "in the next life");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_waker_leaves_the_vm_and_takes_it_up_again() {
    let mut node = Node::start().await;
    let before: Counter = node.get("/counter").await.expect_status(200).json();
    let vm = node.vm("hello");
    let status = node.waker.stop().await;
    assert!(status.success(), "a waker that is asked to stop stops well: {status}");
    assert!(vm.runs(), "and leaves the VM");
    node.start_waker().await;
    let after: Counter = node.get("/counter").await.expect_status(200).json();
    assert_eq!(
        after,
        Counter { counter: before.counter + 1, boot: before.boot },
        "which serves on"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_vm_is_replaced_by_a_cold_boot() {
    let node = Node::start().await;
    let before: Counter = node.get("/counter").await.expect_status(200).json();
    node.vm("hello").kill();

    let reply = node.get("/counter").await.expect_status(200);
    assert_eq!(reply.header("rouse-wake"), "cold", "its memory is gone: {reply:?}");
    let after: Counter = reply.json();
    assert_ne!(after.boot, before.boot, "this is another process");

    let last: Counter = {
        node.sleep("hello").await;
        node.get("/counter").await.expect_status(200).json()
    };
    assert_eq!(
        last,
        Counter { counter: after.counter + 1, boot: after.boot },
        "which sleeps and wakes"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_proxy_serves_what_is_awake_and_wakes_what_sleeps() {
    let mut node = Node::start().await;
    node.get("/").await.expect_status(200);
    let generation = node.generation("hello").await;
    node.proxy.kill();
    node.start_proxy().await;
    node.get("/").await.expect_status(200);
    assert_eq!(node.generation("hello").await, generation, "an awake app is not woken");

    node.sleep("hello").await;
    node.proxy.kill();
    node.start_proxy().await;
    node.get("/").await.expect_status(200);
    assert_eq!(node.generation("hello").await, generation + 1, "a sleeping app is");
}
