//! Does a guest run on when the host's disk is full? (One that has a disk stands still when it writes there and
//! there is no room, until there is: chaos has that.)

use rouse_tests::{App, Binaries, Counter, FileSystem, Node, Visit, Volume, assert_eventually};

/// For a guest's memory of 256 MiB and what is written at sleeps.
const MIB: u64 = 448;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_touches_memory_that_it_never_had_on_a_disk_that_is_full() {
    let binaries = Binaries::find();
    let builder = Node::builder(&binaries);
    let volume = match Volume::make(builder.root(), FileSystem::Ext4, MIB) {
        Ok(volume) => volume,
        Err(why) => return println!("skipped: no file system of our own: {why}"),
    };
    let state = volume.path().to_owned();
    let builder = builder.waker(|waker| waker.state_dir = state);
    let node = builder.app(App::hello(&binaries).cold()).start().await;

    // A first life, and one from an image, whose memory file was sparse before it.
    for (life, outcome) in ["cold", "resumed"].into_iter().enumerate() {
        let reply = node.get("/counter").await.expect_status(200);
        assert_eq!(reply.header("rouse-wake"), outcome, "{reply:?}");
        let before: Counter = reply.json();
        let vm = node.vm("hello");

        volume.fill(0).expect("it can be filled");
        // More than it ever had: 64 MiB, then 128.
        let dirty = format!("/dirty?mib={}&seed={life}", 64 << life);
        node.visit(&Visit::post(&dirty, "")).await.expect_status(200);
        // In the middle of a sleep: there is no room for what has to be written.
        let slept = node.try_sleep("hello").await;
        assert!(slept.is_err(), "{outcome}: there is no room to sleep: {slept:?}");
        let after: Counter = node.get("/counter").await.expect_status(200).json();
        let next = Counter { counter: before.counter + 1, boot: before.boot };
        assert_eq!(after, next, "{outcome}: the same process counts on");
        assert_eq!(node.vm("hello"), vm, "{outcome}: in the same VM");

        volume.empty().expect("it can be emptied");
        assert_eventually!(node.try_sleep("hello").await.is_ok(), "{outcome}: it sleeps again");
        let whole = node.status("hello").await.image_bytes;
        assert_eventually!(
            node.status("hello").await.image_bytes < 200 << 20,
            "{outcome}: what holds nothing is given back, {whole} bytes at first"
        );
    }
    let last: Counter = node.get("/counter").await.expect_status(200).json();
    assert_eq!(last.counter, 5, "no answer was lost: {last:?}");
    drop(node);
}
