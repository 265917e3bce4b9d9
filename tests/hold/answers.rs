//! The answers that are ours: each says whose it is, why, and when to come again.

use std::time::Duration;

use rouse_protocol::problem::{PROBLEM_JSON, Problem};
use rouse_tests::{App, Binaries, Node, Reply, Visit, assert_eventually, eventually};

/// What holds for every error of ours.
fn assert_ours(reply: &Reply, status: u16, code: &str) {
    assert_eq!(reply.status.as_u16(), status, "the status of `{code}`: {reply:?}");
    assert_eq!(reply.header("rouse-error"), code, "the code: {reply:?}");
    assert_eq!(reply.header("cache-control"), "no-store", "nobody may keep it: {reply:?}");
    assert!(!reply.body.is_empty(), "it says something: {reply:?}");
}

fn assert_retry_after(reply: &Reply) {
    let seconds = reply.header("retry-after").parse::<u64>();
    assert!(seconds.is_ok_and(|s| s >= 1), "it says when to come again: {reply:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deadline_ends_a_hold() {
    let node = Node::with_app(|app| app.gate.hold_deadline_seconds = 2).await;
    node.wake("hello").await;
    node.crash("hello", Duration::from_secs(600)).await;
    let generation = node.generation("hello").await;

    let reply = node.get("/").await;
    assert_ours(&reply, 503, "deadline");
    assert_retry_after(&reply);
    assert_eq!(node.generation("hello").await, generation, "the VM is the same");
    assert_eventually!(node.held().await == 0.0, "the hold has ended");

    let page = Visit::get("/").header("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    let page = node.visit(&page).await;
    assert_ours(&page, 503, "deadline");
    assert!(page.header("content-type").starts_with("text/html"), "a browser gets HTML: {page:?}");
    assert!(page.text().contains("<html"), "that is a page: {page:?}");

    let json = Visit::get("/").header("accept", "application/json");
    let json = node.visit(&json).await;
    assert_ours(&json, 503, "deadline");
    assert_eq!(json.header("content-type"), PROBLEM_JSON, "an API client gets a problem: {json:?}");
    let problem: Problem = json.json();
    assert_eq!(
        (problem.status, problem.code()),
        (503, "deadline"),
        "it says the same: {problem:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_host_is_no_app() {
    let node = Node::start().await;
    let generation = node.generation("hello").await;
    for host in ["unknown.localhost", "xhello.localhost", "hello.localhost.example"] {
        let reply = node.visit(&Visit::get("/").host(host)).await;
        assert_ours(&reply, 404, "unknown-host");
    }
    assert_eq!(node.generation("hello").await, generation, "nothing was woken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_that_cannot_wake_fails_and_is_then_parked() {
    let binaries = Binaries::find();
    let mut app = App::hello(&binaries).cold();
    app.vm.kernel = binaries.initrd();
    let node = Node::builder(&binaries)
        .app(app)
        .waker(|waker| waker.wake.failed_before_park = 2)
        .start()
        .await;

    let reply = node.get("/").await;
    assert_ours(&reply, 503, "wake-failed");
    assert_retry_after(&reply);
    eventually("the app is parked after its last failed wake", async || {
        let reply = node.get("/").await;
        if let again @ ("wake-failed" | "backoff") = reply.header("rouse-error") {
            assert_ours(&reply, 503, again);
            assert_retry_after(&reply);
            return None;
        }
        assert_ours(&reply, 503, "parked");
        Some(())
    })
    .await;

    let tried = node.wakes().await;
    for _ in 0..5 {
        assert_ours(&node.get("/").await, 503, "parked");
    }
    let again = node.wakes().await;
    assert_eq!(again, tried, "a parked app is not tried again");

    node.client().clear(&"hello".parse().unwrap()).await.expect("an operator clears it");
    eventually("a cleared app is tried again", async || {
        let reply = node.get("/").await;
        (reply.header("rouse-error") == "wake-failed").then_some(())
    })
    .await;
    assert!(node.wakes().await > again, "the waker has tried");
}
