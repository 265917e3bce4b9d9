//! How deep does an app sleep, and who decides?
#![forbid(unsafe_code)]

use rouse_protocol::wake::{Outcome, Tier};
use rouse_protocol::watch::AppState;
use rouse_tests::{App, Binaries, Counter, Node, NodeBuilder, Visit};

/// Longer than any test: who was paused becomes an image for another reason.
const FOR_EVER: u64 = 3600;

/// A node on which no pause ends for what else runs on this machine.
fn builder(binaries: &Binaries) -> NodeBuilder {
    Node::builder(binaries).waker(|waker| waker.sleep.keep_free_mib = Some(0))
}

async fn wait_paused(node: &Node) {
    node.wait_state("hello", "paused", |state| matches!(state, AppState::Paused)).await;
}

/// The test app, idle at once and then paused for so long.
fn idle(binaries: &Binaries, paused_seconds: u64) -> App {
    let mut app = App::hello(binaries).paused(paused_seconds);
    app.sleep.idle_seconds = 1;
    app
}

/// A node that has room for one VM and two apps: `hello`, and `other`, which was never awake.
fn for_one(binaries: &Binaries, hello: App, queue_seconds: u64) -> NodeBuilder {
    let mut other = App::hello(binaries).cold();
    other.id = "other".into();
    other.hosts = vec![OTHER.into()];
    builder(binaries).app(hello).app(other).waker(|waker| {
        waker.wake.memory_mib = Some(300);
        waker.wake.queue_seconds = queue_seconds;
    })
}

const OTHER: &str = "other.localhost";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_app_is_paused_and_serves_from_the_same_memory() {
    let binaries = Binaries::find();
    let node = builder(&binaries).app(idle(&binaries, FOR_EVER)).start().await;
    let reply = node.get("/counter").await.expect_status(200);
    assert_eq!(reply.header("rouse-wake"), "resumed", "it slept as an image: {reply:?}");
    let (mut last, vm): (Counter, _) = (reply.json(), node.vm("hello"));
    let generation = node.generation("hello").await;

    for pause in 1..=2 {
        wait_paused(&node).await;
        assert!(vm.runs(), "pause {pause}: its process stays, and with it its memory");
        assert_eq!(node.status("hello").await.pid, Some(vm.pid), "pause {pause}: and is known");
        let reply = node.get("/counter").await.expect_status(200);
        assert_eq!(reply.header("rouse-wake"), "unpaused", "pause {pause}: {reply:?}");
        let next: Counter = reply.json();
        let expected = Counter { counter: last.counter + 1, boot: last.boot };
        assert_eq!(next, expected, "pause {pause}: the same process counts on");
        assert_eq!(node.vm("hello"), vm, "pause {pause}: in the same VM");
        assert_eq!(node.generation("hello").await, generation, "pause {pause}: in the same life");
        let wake = node.trace("hello").await.expect("it was woken");
        assert_eq!(wake.outcome, Some(Outcome::Unpaused), "pause {pause}: {wake:?}");
        last = next;
    }

    wait_paused(&node).await;
    let report = node.sleep("hello").await;
    assert_eq!(report.tier, Tier::Image, "an operator's sleep is an image: {report:?}");
    assert!(report.image_bytes > 0, "of a size: {report:?}");
    assert!(matches!(node.view("hello").await.state, AppState::Asleep), "it is no longer paused");
    assert!(!vm.runs(), "and its memory is given back");
    let reply = node.get("/counter").await.expect_status(200);
    assert_eq!(reply.header("rouse-wake"), "resumed", "it wakes from that image: {reply:?}");
    let next: Counter = reply.json();
    assert_eq!(next, Counter { counter: last.counter + 1, boot: last.boot }, "and counts on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_ends_in_an_image() {
    let binaries = Binaries::find();
    let node = builder(&binaries).app(idle(&binaries, 1)).start().await;
    let before: Counter = node.get("/counter").await.expect_status(200).json();
    let vm = node.vm("hello");
    node.wait_asleep("hello").await;
    assert!(!vm.runs(), "its memory is given back");
    let metrics = node.waker_metrics().await;
    for tier in ["paused", "image"] {
        let slept = metrics.sum("rouse_waker_sleeps_total", &[("end", tier)]);
        assert_eq!(slept, 1.0, "it was {tier} once");
    }
    let reply = node.get("/counter").await.expect_status(200);
    assert_eq!(reply.header("rouse-wake"), "resumed", "from the image: {reply:?}");
    let after: Counter = reply.json();
    assert_eq!(
        after,
        Counter { counter: before.counter + 1, boot: before.boot },
        "with the memory that was paused"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_that_lacks_room_has_what_is_paused_saved() {
    let binaries = Binaries::find();
    let node = for_one(&binaries, idle(&binaries, FOR_EVER), 240).start().await;
    let before: Counter = node.get("/counter").await.expect_status(200).json();
    let vm = node.vm("hello");
    wait_paused(&node).await;

    node.visit(&Visit::get("/").host(OTHER)).await.expect_status(200);
    assert!(!vm.runs(), "the paused app has made room");
    let view = node.view("hello").await;
    assert!(matches!(view.state, AppState::Asleep), "and is an image: {view:?}");

    node.sleep("other").await;
    let reply = node.get("/counter").await.expect_status(200);
    assert_eq!(reply.header("rouse-wake"), "resumed", "its memory was saved: {reply:?}");
    let after: Counter = reply.json();
    assert_eq!(after, Counter { counter: before.counter + 1, boot: before.boot }, "all of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_awake_app_makes_no_room() {
    let binaries = Binaries::find();
    let node = for_one(&binaries, App::hello(&binaries), 1).start().await;
    node.get("/").await.expect_status(200);
    let vm = node.vm("hello");

    let reply = node.visit(&Visit::get("/").host(OTHER)).await.expect_status(503);
    assert_eq!(reply.header("rouse-error"), "node-full", "it says why: {reply:?}");
    assert_ne!(reply.header("retry-after"), "", "and when to come again: {reply:?}");
    let woken =
        node.waker_metrics().await.sum("rouse_waker_wakes_total", &[("outcome", "no-room")]);
    assert_eq!(woken, 1.0, "it waited its time and was told");
    assert!(vm.runs(), "nobody was taken the memory that he uses");
    node.get("/").await.expect_status(200);
}
