//! Errors of ours: which, to whom, and in what form.

use std::time::Duration;

use rouse_protocol::problem::Problem;
use rouse_protocol::signature::AgentState;
use rouse_protocol::wake::{FailureCode, WakeFailure};
use rouse_protocol::watch::AppState;

use crate::client::{self, Reply};
use crate::guest::Act;
use crate::waker::Wake;
use crate::{World, eventually};

/// An error of ours in full form.
fn check(reply: &Reply, status: u16, code: &str, retry: bool) {
    assert_eq!((reply.status, reply.error()), (status, Some(code)), "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert_eq!(reply.header("retry-after").is_some(), retry, "{reply:?}");
    let problem: Problem = serde_json::from_str(&reply.body).unwrap();
    assert_eq!((problem.status, problem.code()), (status, code));
}

#[tokio::test]
async fn an_unknown_host_is_404() {
    let world = World::new("").await;
    let reply = world.request("GET / HTTP/1.1\r\nHost: other.test\r\n").await;
    check(&reply, 404, "unknown-host", false);
    for host in ["HELLO.Test", "hello.test:8443", "hello.test."] {
        let reply = world.request(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n")).await;
        assert_eq!(reply.status, 200, "{host}");
    }
}

#[tokio::test]
async fn the_deadline_is_503_and_counts_over_the_whole_hold() {
    let world = World::with("", |plan| {
        plan.wake = Wake::Hangs;
        plan.policy.hold_deadline_ms = 50;
    })
    .await;
    check(&world.get("/").await, 503, "deadline", true);
    assert_eq!(world.proxy.metric("rouse_holds_total{end=\"deadline\"}").await, 1.0);
    assert_eq!(world.proxy.metric("rouse_requests_total{class=\"ours\"}").await, 1.0);
    assert_eq!(world.proxy.holds().await, 0);
}

#[tokio::test]
async fn full_is_503_at_once() {
    let world = World::with("[hold]\nper_app = 1\n", |plan| plan.wake = Wake::Hangs).await;
    let mut first = client::connect(world.proxy.http).await;
    client::send(&mut first, "GET / HTTP/1.1\r\nHost: hello.test\r\n\r\n", &[]).await;
    eventually("the first is held", async || world.proxy.holds().await == 1).await;
    check(&world.get("/").await, 503, "full", true);
    assert_eq!(world.proxy.holds().await, 1);
}

#[tokio::test]
async fn parked_is_503_without_a_wake() {
    let parked = AppState::Parked { detail: "the disk's secret name".to_owned() };
    let world = World::with("", |plan| plan.state = parked).await;
    let reply = world.get("/").await;
    check(&reply, 503, "parked", false);
    assert!(!reply.body.contains("secret"));
    assert_eq!(world.waker.wakes(), 0);
}

#[tokio::test]
async fn a_failed_wake_is_503_and_the_next_visitor_starts_another() {
    let failure = |retry_after_ms| WakeFailure {
        code: FailureCode::Backoff,
        detail: "x".to_owned(),
        retry_after_ms,
    };
    let world = World::with("", |plan| plan.wake = Wake::Fails(failure(Some(2_100)))).await;
    let reply = world.get("/").await;
    check(&reply, 503, "backoff", true);
    assert_eq!(reply.header("retry-after"), Some("3"));
    world.waker.plan(Wake::Runs(Duration::ZERO));
    assert_eq!(world.get("/").await.status, 200);
    assert_eq!(world.waker.wakes(), 2);
}

#[tokio::test]
async fn each_kind_of_failed_wake_has_its_own_answer() {
    let world = World::new("").await;
    for (failed, retry_after_ms, code, retry_after) in [
        (FailureCode::Backoff, Some(60_000), "backoff", Some("60")),
        (FailureCode::Backoff, None, "backoff", Some("5")),
        (FailureCode::Full, Some(10_000), "node-full", Some("10")),
        (FailureCode::Full, None, "node-full", Some("5")),
        (FailureCode::Vmm, Some(500), "wake-failed", Some("1")),
        (FailureCode::Storage, Some(500), "wake-failed", Some("1")),
        (FailureCode::Locked, None, "wake-failed", Some("5")),
        (FailureCode::Store, Some(500), "wake-failed", Some("1")),
        (FailureCode::Elsewhere, Some(1_000), "elsewhere", Some("1")),
        (FailureCode::Stopping, None, "waker-unreachable", Some("1")),
        // Coming again changes nothing, whatever the waker says.
        (FailureCode::Parked, None, "parked", None),
        (FailureCode::Parked, Some(1_000), "parked", None),
    ] {
        let detail = "the disk's secret name".to_owned();
        world.waker.plan(Wake::Fails(WakeFailure { code: failed, detail, retry_after_ms }));
        let reply = world.get("/").await;
        check(&reply, 503, code, retry_after.is_some());
        assert_eq!(reply.header("retry-after"), retry_after, "{failed:?}");
        assert!(!reply.body.contains("secret"), "{failed:?}");
    }
    assert_eq!(world.proxy.metric("rouse_holds_total{end=\"parked\"}").await, 2.0);
}

#[tokio::test]
async fn without_a_waker_it_is_503_at_once_and_well_again_after() {
    let mut world = World::with("", |plan| plan.wake = Wake::BreaksOff).await;
    check(&world.get("/").await, 503, "waker-unreachable", true);
    world.waker.die().await;
    check(&world.get("/").await, 503, "waker-unreachable", true);
    world.waker.plan(Wake::Runs(Duration::ZERO));
    world.waker.tell(AppState::Asleep);
    world.waker.listen();
    assert_eq!(world.get("/").await.status, 200);
}

#[tokio::test]
async fn an_awake_app_is_served_while_the_waker_is_away() {
    let mut world = World::new("").await;
    assert_eq!(world.get("/").await.status, 200);
    world.waker.die().await;
    eventually("the proxy knows", async || {
        world.proxy.metric("rouse_waker_connected").await == 0.0
    })
    .await;
    assert_eq!(world.get("/").await.status, 200);
}

#[tokio::test]
async fn the_form_is_negotiated() {
    let world = World::new("").await;
    let ask = async |accept: &str| {
        let head = format!("GET / HTTP/1.1\r\nHost: other.test\r\nAccept: {accept}\r\n");
        world.request(&head).await
    };
    let page = ask("text/html,application/xhtml+xml,*/*;q=0.8").await;
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.body.starts_with("<!doctype html>") && page.body.ends_with("</html>\n"));
    check(&ask("*/*").await, 404, "unknown-host", false);
    check(&ask("application/json").await, 404, "unknown-host", false);

    let head = world.request("HEAD / HTTP/1.1\r\nHost: other.test\r\n").await;
    assert_eq!((head.status, head.error(), &*head.body), (404, Some("unknown-host"), ""));
}

#[tokio::test]
async fn an_apps_own_errors_pass_untouched() {
    let world = World::new("").await;
    assert_eq!(world.get("/").await.status, 200);
    let own = "HTTP/1.1 502 Mine\r\nContent-Length: 3\r\n\r\nown".to_owned();
    world.guest.script([Act::Raw(own), Act::Raw(world.guest.copied_down())]);
    let reply = world.get("/").await;
    assert_eq!((reply.status, &*reply.body, reply.error()), (502, "own", None));
    let reply = world.get("/agent-copy").await;
    assert_eq!((reply.status, &*reply.body, reply.error()), (503, "copy", None));
    assert_eq!(reply.header("rouse-agent"), None);
    assert_eq!(world.waker.wakes(), 1);
}

#[tokio::test]
async fn an_app_that_breaks_off_is_502_and_not_asked_twice_when_that_may_hurt() {
    let world = World::new("").await;
    assert_eq!(world.get("/").await.status, 200);
    let seen = world.guest.seen().len();
    world.guest.script([Act::Close]);
    let reply = world.post("/", b"x").await;
    check(&reply, 502, "app-broke", false);
    assert_eq!(world.guest.seen().len(), seen + 1);
    // A GET may be sent again, and is.
    world.guest.script([Act::Close]);
    assert_eq!(world.get("/").await.status, 200);
    // But not for ever.
    world.guest.script([Act::Close, Act::Close, Act::Close, Act::Close]);
    check(&world.get("/").await, 502, "app-broke", false);
}

#[tokio::test]
async fn a_signed_starting_is_waited_for() {
    let world = World::new("").await;
    world.guest.agent(AgentState::Starting);
    let mut visitor = client::connect(world.proxy.http).await;
    let head = "GET / HTTP/1.1\r\nHost: hello.test\r\nConnection: close\r\n\r\n";
    client::send(&mut visitor, head, &[]).await;
    eventually("it is probed again and again", async || world.guest.probes() > 3).await;
    assert_eq!(world.proxy.holds().await, 1);
    world.guest.agent(AgentState::Serving);
    assert_eq!(client::read(&mut visitor).await.status, 200);
    assert_eq!(world.waker.wakes(), 1);
}
