//! After a crash, where the file system can share blocks: does an app come back with memory *and* disk
//! of its last sleep, and is what was written since still there?

use rouse_tests::{App, Binaries, Counter, FileSystem, Node, Volume, read_log};

/// For a guest's memory of 256 MiB twice, and its disk.
const MIB: u64 = 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_goes_back_to_memory_and_disk_of_its_last_sleep() {
    let binaries = Binaries::find();
    let builder = Node::builder(&binaries);
    let volume = match Volume::make(builder.root(), FileSystem::Xfs, MIB) {
        Ok(volume) => volume,
        Err(why) => return println!("skipped: no file system of our own: {why}"),
    };
    let state = volume.path().to_owned();
    let mut app = App::hello(&binaries).cold().disk(32);
    app.sleep.after_crash = Some("rollback");
    let builder = builder.waker(|waker| waker.state_dir = state);
    let node = builder.app(app).start().await;

    node.get("/counter").await.expect_status(200);
    let kept = node.log("before the sleep").await;
    node.sleep("hello").await;

    for crash in 1..=2 {
        let counted: Counter = node.get("/counter").await.expect_status(200).json();
        assert_eq!(counted.counter, 2, "crash {crash}: one was counted before the sleep");
        let lost = node.log("after the sleep").await;
        assert_eq!(lost.n, kept.n + 1);
        node.vm("hello").kill();

        let reply = node.get("/log").await.expect_status(200);
        assert_eq!(reply.header("rouse-wake"), "resumed", "crash {crash}: {reply:?}");
        let lines = read_log(reply.text()).unwrap_or_else(|e| panic!("{e}: {reply:?}"));
        let last = lines.last().map(|line| (line.n, line.hash.clone()));
        assert_eq!(last, Some((kept.n, kept.hash.clone())), "crash {crash}: the disk went back");
        // The disk with what was written since is kept for the operator.
        let aside = node.app_dir("hello").join("refused").join("disk.img");
        assert!(aside.exists(), "crash {crash}: {} is there", aside.display());

        // And from there it goes on: the way back leads to the sleep that was, once more.
        if crash == 1 {
            node.sleep("hello").await;
        }
    }
    drop(node);
}
