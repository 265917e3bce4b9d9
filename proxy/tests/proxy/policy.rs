//! What the app's policy does to its visitors.

use std::time::Duration;

use rouse_protocol::problem::Problem;
use rouse_protocol::watch::AppState;
use serde_json::{Value, json};

use crate::client::{self, Reply};
use crate::waker::{Plan, Wake};
use crate::{World, eventually};

fn told(plan: &mut Plan, policies: &Value) {
    plan.policy.policies = serde_json::from_value(policies.clone()).unwrap();
}

async fn world(policies: Value) -> World {
    World::with("", |plan| told(plan, &policies)).await
}

fn check(reply: &Reply, status: u16, code: &str) {
    assert_eq!((reply.status, reply.error()), (status, Some(code)), "{reply:?}");
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    let problem: Problem = serde_json::from_str(&reply.body).unwrap();
    assert_eq!((problem.status, problem.code()), (status, code));
}

fn reply(path: &str, status: u16, body: &str) -> Value {
    json!({"path": path, "status": status, "content_type": "text/plain", "body": body})
}

#[tokio::test]
async fn a_health_check_is_answered_while_the_app_sleeps() {
    let world = world(json!({"wake": {"replies": [
        reply("/healthz", 200, "asleep\n"), reply("/none", 204, ""),
    ]}}))
    .await;
    let reply = world.get("/healthz").await;
    assert_eq!((reply.status, &*reply.body, reply.error()), (200, "asleep\n", None), "{reply:?}");
    assert_eq!(reply.header("content-length"), Some("7"));
    assert_eq!(world.get("/none").await.status, 204);
    let head = world.request("HEAD /healthz HTTP/1.1\r\nHost: hello.test\r\n").await;
    assert_eq!((head.header("content-length"), &*head.body), (Some("7"), ""));
    assert_eq!(world.waker.wakes(), 0);
    assert_eq!(world.proxy.app().await["gate"], "closed");
    assert_eq!(world.proxy.metric("rouse_requests_total{class=\"2xx\"}").await, 3.0);

    // The connection is good for the next request, which wakes the app; that answers for itself.
    let mut stream = client::connect(world.proxy.http).await;
    let two = "GET /healthz HTTP/1.1\r\nHost: hello.test\r\n\r\n\
               GET / HTTP/1.1\r\nHost: hello.test\r\nConnection: close\r\n\r\n";
    client::send(&mut stream, two, &[]).await;
    let first = client::read(&mut stream).await;
    assert_eq!(first.status, 200);
    assert!(first.body.contains("HTTP/1.1 200"), "{first:?}");
    assert_eq!(world.waker.wakes(), 1);
    let own = world.get("/healthz").await;
    assert_ne!(own.body, "asleep\n");
}

#[tokio::test]
async fn the_denied_are_told_and_wake_nothing() {
    let world = world(json!({"wake": {"who": {"methods": ["GET"]}}})).await;
    check(&world.post("/", b"x").await, 403, "wake-method");
    assert_eq!(world.waker.wakes(), 0);
    assert_eq!(world.proxy.metric("rouse_holds_total{end=\"denied\"}").await, 1.0);
    assert_eq!(world.get("/").await.status, 200);
    assert_eq!(world.post("/", b"x").await.status, 200, "the app is there for everybody");
}

#[tokio::test]
async fn budgets_that_are_used_up_are_told_with_their_time() {
    let rate = json!({"wakes": 1, "per_seconds": 3600, "burst": 1});
    for (budget, status, code) in
        [("budget", 503, "wake-budget"), ("per_address", 429, "wake-address-budget")]
    {
        let world = world(json!({"wake": {budget: rate}})).await;
        assert_eq!(world.get("/").await.status, 200);
        world.through().await;
        world.waker.sleep().await.unwrap();
        eventually("it sleeps", async || world.proxy.app().await["state"] == "asleep").await;
        let reply = world.get("/").await;
        check(&reply, status, code);
        let after: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!((3_500..=3_600).contains(&after), "{after}");
        assert_eq!(world.waker.wakes(), 1);
    }
}

#[tokio::test]
async fn a_browser_is_shown_the_page_and_then_the_app() {
    let world = World::with("", |plan| {
        told(plan, &json!({"waiting": {"page_after_seconds": 0, "retry_seconds": 2}}));
        plan.wake = Wake::Runs(Duration::from_millis(300));
    })
    .await;
    let browser = "GET /a HTTP/1.1\r\nHost: hello.test\r\nAccept: text/html\r\n";
    let page = world.request(browser).await;
    assert_eq!((page.status, page.error()), (503, Some("waiting")), "{page:?}");
    assert_eq!(page.header("retry-after"), Some("2"));
    assert_eq!(page.header("cache-control"), Some("no-store"));
    assert!(page.header("content-security-policy").is_some());
    assert!(page.body.contains("hello is starting") && page.body.contains("hello.test"));
    // A program is held, and joins the wake that goes on.
    let reply = world.get("/").await;
    assert_eq!((reply.status, reply.header("rouse-wake")), (200, Some("joined")));
    assert_eq!(world.request(browser).await.status, 200);
    assert_eq!(world.waker.wakes(), 1);
    assert_eq!(world.proxy.metric("rouse_holds_total{end=\"waiting\"}").await, 1.0);
}

#[tokio::test]
async fn a_grpc_client_is_told_in_grpc() {
    let parked = AppState::Parked { detail: "x".to_owned() };
    let world = World::with("", |plan| {
        plan.wake = Wake::Hangs;
        plan.policy.hold_deadline_ms = 50;
    })
    .await;
    let call = "POST /a.B/C HTTP/1.1\r\nHost: hello.test\r\nContent-Length: 0\r\n\
                Content-Type: application/grpc-web+proto\r\n";
    let reply = world.request(call).await;
    assert_eq!((reply.status, reply.error()), (200, Some("deadline")), "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/grpc-web"));
    assert_eq!(reply.header("grpc-status"), Some("14"));
    assert_eq!(reply.header("grpc-retry-pushback-ms"), Some("5000"));
    assert!(reply.header("grpc-status-details-bin").is_some());
    assert_eq!(reply.body, "");
    world.waker.tell(parked);
    eventually("it is parked", async || world.proxy.app().await["state"] == "parked").await;
    let reply = world.request(call).await;
    assert_eq!((reply.header("grpc-status"), reply.error()), (Some("14"), Some("parked")));
    let other = world.request(&call.replace("hello.test", "other.test")).await;
    assert_eq!((other.header("grpc-status"), other.error()), (Some("12"), Some("unknown-host")));
    // Plain gRPC over HTTP/1.1 is none.
    let reply = world.request(&call.replace("grpc-web+proto", "grpc")).await;
    assert_eq!(reply.status, 503);
}

#[tokio::test]
async fn health_checks_do_not_keep_it_awake() {
    let world = World::with("", |plan| {
        told(plan, &json!({"wake": {"replies": [reply("/healthz", 200, "asleep\n")]}}));
        plan.policy.idle_ms = 500;
    })
    .await;
    assert_eq!(world.get("/").await.status, 200);
    eventually("it sleeps though it is looked after", async || {
        world.get("/healthz").await.body == "asleep\n"
    })
    .await;
    assert_eq!(world.waker.wakes(), 1);
}
