//! SIGQUIT.

use std::time::Duration;

use nix::sys::signal::Signal;
use rouse_tests::{
    App, Binaries, Echo, Front, Node, ORIGIN_HOST, RawOrigin, Reply, Visit, VisitError,
    assert_eventually,
};
use tokio::task::JoinSet;

use crate::successor;

async fn page(front: &Front) -> bool {
    let reply = Visit::get("/page").host(ORIGIN_HOST).send(front.http()).await;
    reply.is_ok_and(|reply| reply.status == 200 && reply.text() == "page")
}

/// Fifty who are held by the first process.
async fn fifty(front: &Front) -> JoinSet<Result<Reply, VisitError>> {
    let mut held = JoinSet::new();
    for n in 0..50 {
        let visit = Visit::post("/echo", "body").header("X-Request-Id", &format!("held-{n}"));
        let to = front.http();
        held.spawn(async move { visit.send(to).await });
    }
    assert_eventually!(front.held().await == 50.0, "all are held");
    held
}

async fn all_served(held: JoinSet<Result<Reply, VisitError>>) {
    for answer in held.join_all().await {
        let echo: Echo = answer.expect("an answer").expect_status(200).json();
        assert_eq!((echo.seen, echo.body_bytes), (1, 4), "each came once, and whole");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_under_way_ends_whole_while_others_are_served_by_the_new_process() {
    let node = Node::start().await;
    let origin = RawOrigin::start().await;
    let mut front = Front::beside(&node, origin.address(), "").await;
    let first = front.proxy.pid();
    node.wake("hello").await;
    // It outlasts all that follows.
    let drip = Visit::get("/drip?bytes=150&every_ms=100");
    let mut download = drip.open(front.http()).await.expect("it begins");
    assert_eq!(download.status(), 200);
    let mut got = download.next().await.expect("it goes on").expect("there is more").len();

    front.proxy.signal(Signal::SIGQUIT);
    let second = successor(&front).await;
    assert_eventually!(
        front.proxy.log().contains("another process serves"),
        "the first knows that the second serves"
    );
    for _ in 0..20 {
        assert!(page(&front).await, "whoever comes is served by the second");
    }
    assert!(front.proxy.runs(), "the first is there for its download");
    assert_eventually!(
        front.metrics().await.sum("rouse_in_flight", &[]) == 0.0,
        "operators ask the second, which has not the download"
    );
    while let Some(bytes) = download.next().await.expect("it goes on") {
        got += bytes.len();
    }
    assert_eq!(got, 150, "it is whole");
    assert_eventually!(!front.proxy.runs(), "the first ends with its last visitor");
    assert_eq!(front.processes(), [second], "{first} is gone");
    // That is an answer of the real app by the second process.
    assert_eq!(Visit::get("/time").send(front.http()).await.expect("an answer").status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_who_wait_for_a_sleeping_app_are_served_through_a_handover() {
    let binaries = Binaries::find();
    let builder = Node::builder(&binaries).app(App::hello(&binaries));
    let node = builder.waker(|waker| waker.sleep.agreement_seconds = 1).start().await;
    let origin = RawOrigin::start().await;
    let mut front = Front::beside(&node, origin.address(), "").await;
    let generation = node.generation("hello").await;
    // As long as it is not let on, the waker is in the middle of the wake.
    node.waker.signal(Signal::SIGSTOP);
    let held = fifty(&front).await;
    node.waker.signal(Signal::SIGCONT);
    front.proxy.signal(Signal::SIGQUIT);
    let second = successor(&front).await;
    all_served(held).await;
    assert_eq!(node.generation("hello").await, generation + 1, "there was one wake");
    assert_eventually!(!front.proxy.runs(), "the first ends with its last visitor");
    assert_eq!(front.processes(), [second]);
    // And the second puts the app to sleep and wakes it like the first.
    // The waker asks the first too, until its lease is over: it may have lost its watch only.
    assert_eventually!(node.try_sleep("hello").await.is_ok(), "the app can be put to sleep");
    let reply = Visit::get("/time").send(front.http()).await.expect("an answer");
    assert_eq!((reply.status.as_u16(), reply.header("rouse-wake")), (200, "resumed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_who_are_held_for_long_do_not_keep_others_from_the_new_process() {
    let node = Node::start().await;
    let origin = RawOrigin::start().await;
    let mut front = Front::beside(&node, origin.address(), "").await;
    node.wake("hello").await;
    node.crash("hello", Duration::from_secs(8)).await;
    let held = fifty(&front).await;
    front.proxy.signal(Signal::SIGQUIT);
    let second = successor(&front).await;
    assert_eventually!(
        front.proxy.log().contains("another process serves"),
        "the first knows that the second serves"
    );
    assert!(page(&front).await, "whoever comes is served at once");
    assert!(front.proxy.runs(), "while the first holds its own still");
    all_served(held).await;
    assert_eventually!(!front.proxy.runs(), "the first ends with its last visitor");
    assert_eq!(front.processes(), [second]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_that_can_not_start_leaves_everything_as_it_was() {
    let node = Node::start().await;
    let origin = RawOrigin::start().await;
    let mut front = Front::beside(&node, origin.address(), "").await;
    let first = front.proxy.pid();
    node.wake("hello").await;
    node.crash("hello", Duration::from_secs(5)).await;
    let held = fifty(&front).await;
    let good = std::fs::read_to_string(front.file()).expect("a file of ours");
    std::fs::write(front.file(), format!("{good}\n[nonsense]\n")).expect("a file of ours");
    front.proxy.signal(Signal::SIGQUIT);
    assert_eventually!(front.proxy.log().contains("goes on serving"), "it says that it goes on");
    assert_eq!(front.processes(), [first], "nothing of the other is left");
    assert!(page(&front).await);
    all_served(held).await;
    front.proxy.assert_runs();

    // With a good file it is as if nothing had been.
    std::fs::write(front.file(), good).expect("a file of ours");
    front.proxy.signal(Signal::SIGQUIT);
    let second = successor(&front).await;
    assert_eventually!(!front.proxy.runs(), "the first ends");
    assert_eq!(front.processes(), [second]);
    assert!(page(&front).await);
}
