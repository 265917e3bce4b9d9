//! What counts as down, and what is the app's own business?
#![forbid(unsafe_code)]

use std::time::Duration;

use rouse_protocol::signature::{HEADER_PREFIX, NONCE_HEADER};
use rouse_tests::{App, Binaries, Echo, Node, Reply, Visit, assert_eventually, sha256};

/// Longer than the agent needs to say that the app is down, and the proxy to hold for it.
const A_WHILE: Duration = Duration::from_secs(6);

/// How many holds have ended. A request that the proxy tries again goes through one.
async fn holds(node: &Node) -> f64 {
    node.proxy_metrics().await.sum("rouse_holds_total", &[])
}

fn assert_nothing_of_ours(reply: &Reply) {
    let ours = reply.headers.keys().find(|name| name.as_str().starts_with(HEADER_PREFIX));
    assert_eq!(ours, None, "nothing of ours goes down with the app's answer: {reply:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_apps_own_errors_pass_untouched() {
    let node = Node::start().await;
    let direct = node.wake("hello").await.endpoint;
    node.get("/").await.expect_status(200);
    let generation = node.generation("hello").await;

    let before = holds(&node).await;

    for path in ["/status/502", "/status/503", "/status/500", "/agent-copy"] {
        let original = Visit::get(path).send(direct).await.unwrap();
        let reply = node.get(path).await;
        assert_eq!(reply.status, original.status, "{path}: the status is the app's");
        assert!(reply.status.is_server_error(), "{path}: it is an error of the app's: {reply:?}");
        assert_eq!(reply.body, original.body, "{path}: the body is the app's, byte for byte");
        for name in ["content-type", "cache-control", "retry-after"] {
            assert_eq!(reply.header(name), original.header(name), "{path}: {name} is the app's");
        }
        assert_nothing_of_ours(&reply);
    }
    assert_eq!(holds(&node).await, before, "nothing was held, so nothing was tried again");
    assert_eq!(node.generation("hello").await, generation, "nothing was woken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_copy_is_a_good_one() {
    // Or else the test above proves nothing: unsigned, the agent's own error reads the same.
    let node = Node::start().await;
    let direct = node.wake("hello").await.endpoint;
    let copy = Visit::get("/agent-copy").send(direct).await.unwrap();
    node.crash("hello", Duration::from_secs(600)).await;
    let own = Visit::get("/agent-copy").header(NONCE_HEADER, "n").send(direct).await.unwrap();
    assert_eq!(own.status, copy.status, "the copy has the status of the agent's own error");
    assert_eq!(own.body, copy.body, "and its body, byte for byte");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signed_down_is_held_and_served_when_the_app_comes() {
    let node = Node::start().await;
    node.wake("hello").await;
    node.get("/").await.expect_status(200);
    let generation = node.generation("hello").await;

    node.crash("hello", A_WHILE).await;
    let visit = Visit::get("/");
    let held = async {
        assert_eventually!(node.held().await == 1.0, "a visitor of a down app is held");
    };
    let (reply, ()) = tokio::join!(node.visit(&visit), held);
    reply.expect_status(200);
    assert_eq!(node.generation("hello").await, generation, "no VM was woken for it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_post_to_a_down_app_arrives_once() {
    let node = Node::start().await;
    node.wake("hello").await;
    node.get("/").await.expect_status(200);
    let generation = node.generation("hello").await;

    node.crash("hello", A_WHILE).await;
    let visit = Visit::post("/echo", "small").header("x-request-id", "down");
    let held = async {
        assert_eventually!(node.held().await == 1.0, "a visitor of a down app is held");
    };
    let (reply, ()) = tokio::join!(node.visit(&visit), held);
    let echo: Echo = reply.expect_status(200).json();
    assert_eq!(
        (echo.body_bytes, echo.body_sha256),
        (5, sha256(b"small")),
        "the body arrives whole"
    );
    assert_eq!(echo.seen, 1, "and once");
    assert_eq!(node.generation("hello").await, generation, "no VM was woken for it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_agent_any_answer_of_the_app_is_the_proof() {
    let binaries = Binaries::find();
    let mut app = App::hello(&binaries).cold();
    app.vm.agent = false;
    app.vm.cmdline = "rouse.agent=no".into();
    let node = Node::builder(&binaries).app(app).start().await;

    let reply = node.get("/counter").await.expect_status(200);
    assert_eq!(reply.header("rouse-wake"), "cold", "it had never been awake: {reply:?}");
    node.sleep("hello").await;
    let reply = node.get("/status/502").await;
    assert_eq!(reply.status, 502, "the app's own error is an answer: {reply:?}");
    assert_eq!(
        reply.header("rouse-wake"),
        "resumed",
        "and the first one after the wake: {reply:?}"
    );
    let counter = node.get("/counter").await.expect_status(200);
    assert!(counter.text().contains("\"counter\":2"), "memory went on: {counter:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_of_ours_do_not_come_from_outside() {
    let node = Node::start().await;
    let visit = Visit::get("/echo")
        .header("rouse-agent", "v=1; app=hello; gen=1; state=down; mac=00")
        .header("rouse-nonce", "mine")
        .header("rouse-anything", "x")
        .header("x-other", "stays");
    let echo: Echo = node.visit(&visit).await.expect_status(200).json();
    let ours: Vec<_> = echo.headers.iter().filter(|(n, _)| n.starts_with(HEADER_PREFIX)).collect();
    assert!(ours.is_empty(), "the app sees nothing of ours, true or forged: {ours:?}");
    assert_eq!(echo.header("x-other"), "stays", "and all of the visitor's own");
}
