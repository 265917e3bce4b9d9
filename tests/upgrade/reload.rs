//! SIGHUP.

use std::time::Duration;

use nix::sys::signal::Signal;
use rouse_tests::{
    DEFAULT_HOST, Front, Node, ORIGIN_HOST, Raw, RawOrigin, Visit, assert_eventually,
};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_holds_and_answers_go_on_through_a_reload() {
    let node = Node::start().await;
    let origin = RawOrigin::start().await;
    let front = Front::build(origin.address()).beside(&node);
    let log = front.directory().join("access.log");
    let written = format!("[log]\naccess = {log:?}\n");
    let mut front = front.more(&written).start().await;
    let pid = front.proxy.pid();
    let get = format!("GET /page HTTP/1.1\r\nHost: {ORIGIN_HOST}\r\n\r\n");
    let mut kept = Raw::connect(front.http()).await.expect("it listens");
    kept.write(&get).await.expect("it is open");
    kept.read_until("\r\n\r\npage").await;

    node.wake("hello").await;
    let drip = Visit::get("/drip?bytes=60&every_ms=100");
    let mut download = drip.open(front.http()).await.expect("it begins");
    let mut got = download.next().await.expect("it goes on").expect("there is more").len();
    // A file that is turned away is written anew.
    std::fs::rename(&log, log.with_extension("old")).expect("a file of ours can be moved");
    front.proxy.signal(Signal::SIGHUP);
    assert_eventually!(log.exists(), "the access log's file is opened anew");
    assert_eventually!(
        front.proxy.log().contains("trusted proxies are read again"),
        "the reload is through"
    );
    kept.write(&get).await.expect("it is open still");
    kept.read_until("\r\n\r\npage").await;
    while let Some(bytes) = download.next().await.expect("it goes on") {
        got += bytes.len();
    }
    assert_eq!(got, 60, "it is whole");

    node.crash("hello", Duration::from_secs(3)).await;
    let mut held = JoinSet::new();
    let to = front.http();
    held.spawn(async move { Visit::get("/time").host(DEFAULT_HOST).send(to).await });
    assert_eventually!(front.held().await == 1.0, "it is held");
    front.proxy.signal(Signal::SIGHUP);
    for answer in held.join_all().await {
        answer.expect("an answer").expect_status(200);
    }
    front.proxy.assert_runs();
    assert_eq!(front.processes(), [pid], "it is the same process");
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    assert_eventually!(read().contains("\"path\":\"/time\""), "requests are written into it");
}
