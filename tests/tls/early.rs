//! When does the wake begin?

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rouse_tests::{DEFAULT_HOST, Front, Node, RawOrigin, assert_eventually};

use crate::client;

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(now.as_millis()).expect("it is before the year 500 million")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_begins_at_the_name_in_the_handshake_and_the_request_joins_it() {
    let node = Node::start().await;
    let origin = RawOrigin::start().await;
    let front = Front::beside(&node, origin.address(), "").await;
    let generation = node.generation("hello").await;
    // A name that nobody has begins nothing, and has no handshake.
    let stranger = client::to(front.https(), "nobody.localhost", &[front.certificate()]).await;
    stranger.expect_err("there is no certificate for it");
    assert_eventually!(front.refused("no_certificate").await == 1.0, "it is counted");
    assert_eq!(front.metrics().await.sum("rouse_early_wakes_total", &[]), 0.0);

    let stream = client::to(front.https(), DEFAULT_HOST, &[front.certificate()]).await;
    let mut stream = stream.expect("a handshake");
    node.wait_state("hello", "awake", |state| state.ready().is_some()).await;
    let metrics = front.metrics().await;
    assert_eq!(metrics.sum("rouse_early_wakes_total", &[]), 1.0);
    assert_eq!(metrics.sum("rouse_requests_total", &[]), 0.0, "nobody has asked for anything");
    assert_eq!(metrics.sum("rouse_holds", &[]), 0.0, "and nobody is held");
    let asked = now_ms();
    let answer = client::last(&mut stream, DEFAULT_HOST, "/echo").await.to_lowercase();
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    assert!(!answer.contains("rouse-wake: resumed"), "it is not the one who began: {answer}");
    assert!(answer.contains(r#"["x-forwarded-proto","https"]"#), "{answer}");
    let trace = node.trace("hello").await.expect("there was a wake");
    assert!(trace.at_unix_ms < asked, "it began before the request: {trace:?}, {asked}");
    assert_eq!(node.wakes().await, 1.0, "there was one wake");
    assert_eq!(node.generation("hello").await, generation + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_becomes_no_request_lets_the_app_sleep_again_soon() {
    const IDLE: Duration = Duration::from_secs(600);
    let mut node = Node::with_app(|app| app.sleep.idle_seconds = IDLE.as_secs()).await;
    // Another proxy would not know that nobody came, and keep the app awake for its idle time.
    node.proxy.kill();
    let origin = RawOrigin::start().await;
    let front = Front::beside(&node, origin.address(), "").await;
    let generation = node.generation("hello").await;
    let stream = client::to(front.https(), DEFAULT_HOST, &[front.certificate()]).await;
    let began = Instant::now();
    drop(stream.expect("a handshake"));
    assert_eventually!(node.generation("hello").await == generation + 1, "it wakes");
    node.wait_asleep("hello").await;
    assert!(began.elapsed() < IDLE / 4, "long before its idle time: {:?}", began.elapsed());
    assert_eq!(node.wakes().await, 1.0, "it was woken");
    // And as before it can be visited.
    let again = client::to(front.https(), DEFAULT_HOST, &[front.certificate()]).await;
    let answer = client::last(&mut again.expect("a handshake"), DEFAULT_HOST, "/time").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
