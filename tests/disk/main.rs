//! Does what an app has written to its disk stay, whatever happens, and does its memory never meet
//! another disk than its own?
#![forbid(unsafe_code)]

mod full;
mod rollback;

use std::fs::{File, FileTimes};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rouse_protocol::wake::Outcome;
use rouse_tests::{
    App, Binaries, Counter, LogHead, LogLine, Node, Reply, assert_eventually, read_log,
};

/// A node with the test app on a disk of its own, which was never awake.
async fn node() -> Node {
    let binaries = Binaries::find();
    Node::builder(&binaries).app(App::hello(&binaries).disk(32)).start().await
}

fn lines(reply: &Reply) -> Vec<LogLine> {
    read_log(reply.text()).unwrap_or_else(|e| panic!("{e}: {reply:?}"))
}

/// Everything that was acknowledged is there, in its order, and nothing else.
fn assert_holds(lines: &[LogLine], acknowledged: &[LogHead], when: &str) {
    let there: Vec<_> =
        lines.iter().map(|line| LogHead { n: line.n, hash: line.hash.clone() }).collect();
    assert_eq!(there, acknowledged, "{when}: the log on the disk");
}

/// What the app in memory takes for the end of its log.
async fn head(node: &Node) -> LogHead {
    node.get("/log/head").await.expect_status(200).json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_stays() {
    let mut node = node().await;
    let first = node.get("/counter").await.expect_status(200);
    assert_eq!(first.header("rouse-wake"), "cold", "it was never awake: {first:?}");
    let mut counter: Counter = first.json();
    let mut acknowledged = vec![node.log("before any sleep").await];

    for cycle in 1..=3 {
        let when = format!("after {cycle} sleeps");
        node.sleep("hello").await;
        let reply = node.get("/log").await.expect_status(200);
        assert_eq!(reply.header("rouse-wake"), "resumed", "{when}: {reply:?}");
        assert_holds(&lines(&reply), &acknowledged, &when);

        // Memory and disk are of one instant: what the app remembers is what is there.
        assert_eq!(head(&node).await, acknowledged[acknowledged.len() - 1], "{when}: its memory");
        let next: Counter = node.get("/counter").await.expect_status(200).json();
        let expected = Counter { counter: counter.counter + 1, boot: counter.boot };
        assert_eq!(next, expected, "{when}: the same process counts on");
        counter = next;
        acknowledged.push(node.log(&when).await);
    }

    node.vm("hello").kill();
    let reply = node.get("/log").await.expect_status(200);
    assert_eq!(reply.header("rouse-wake"), "cold", "its memory died with its VM: {reply:?}");
    assert_holds(&lines(&reply), &acknowledged, "after its VM was killed");
    acknowledged.push(node.log("after the VM's death").await);

    // That life sleeps too, and what it wrote goes with it.
    node.sleep("hello").await;
    acknowledged.push(node.log("after the sleep that followed").await);

    // What a power loss leaves: neither waker nor VM had a word in it.
    let vm = node.vm("hello");
    node.waker.kill();
    vm.kill();
    node.start_waker().await;
    assert_eventually!(
        node.get("/log/head").await.status == 200,
        "visitors are served after the node is back"
    );
    assert_holds(&node.logged().await, &acknowledged, "after the node went down");
    let wake = node.trace("hello").await.expect("it was woken");
    assert_eq!(wake.outcome, Some(Outcome::Cold), "its memory is gone: {wake:?}");
    assert_eq!(wake.refused, None, "and there was no image to refuse: {wake:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_whose_disk_has_changed_is_refused() {
    let node = node().await;
    let mut acknowledged = vec![node.log("first").await];
    let touch = |disk: &File| {
        let later = SystemTime::now() + Duration::from_secs(1);
        disk.set_times(FileTimes::new().set_modified(later))
    };
    let grow = |disk: &File| disk.set_len(disk.metadata()?.len() + (1 << 20));
    type Change<'a> = &'a dyn Fn(&File) -> std::io::Result<()>;
    let changes: [(Change<'_>, &str); 2] = [(&touch, "disk's last write"), (&grow, "disk size")];

    for (change, reason) in changes {
        let before: Counter = node.get("/counter").await.expect_status(200).json();
        node.sleep("hello").await;
        let disk = disk_of_the_sleeping(&node);
        let file = File::options().write(true).open(&disk).expect("it can be opened");
        change(&file).unwrap_or_else(|e| panic!("{}: {e}", disk.display()));
        drop(file);

        let reply = node.get("/log").await.expect_status(200);
        assert_eq!(reply.header("rouse-wake"), "cold", "{reason}: no memory over it: {reply:?}");
        assert_holds(&lines(&reply), &acknowledged, reason);
        let after: Counter = node.get("/counter").await.expect_status(200).json();
        assert_ne!(after.boot, before.boot, "{reason}: this is another process");

        let name = "rouse_waker_images_refused_total";
        let refused = node.waker_metrics().await.sum(name, &[("reason", reason)]);
        assert_eq!(refused, 1.0, "{reason}: counted once");
        let told = node.trace("hello").await.and_then(|wake| wake.refused).unwrap_or_default();
        assert!(told.contains(reason), "{reason}: the operator reads why: {told:?}");
        acknowledged.push(node.log(reason).await);
    }
    node.sleep("hello").await;
    let reply = node.get("/log").await.expect_status(200);
    assert_eq!(reply.header("rouse-wake"), "resumed", "left alone it wakes: {reply:?}");
    assert_holds(&lines(&reply), &acknowledged, "at the end");
}

/// The disk in the one generation that sleeps.
fn disk_of_the_sleeping(node: &Node) -> PathBuf {
    let disk = node.app_dir("hello").join("current").join("disk.img");
    disk.canonicalize().unwrap_or_else(|e| panic!("{}: {e}", disk.display()))
}
