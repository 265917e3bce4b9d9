//! A disk that has no room for what is to be fetched.

use rouse_s3::Server;
use rouse_tests::{App, Binaries, Counter, FileSystem, Node, Volume, assert_eventually};

use super::{bucket, count, lose_everything, sent};

/// For a guest's memory of 256 MiB and its disk, and for what is written at sleeps.
const MIB: u64 = 512;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_refused_before_anything_comes_and_served_once_there_is_room() {
    let (binaries, server) = (Binaries::find(), Server::start().await.expect("an S3 server"));
    let builder = Node::builder(&binaries);
    let volume = match Volume::make(builder.root(), FileSystem::Ext4, MIB) {
        Ok(volume) => volume,
        Err(why) => return println!("skipped: no file system of our own: {why}"),
    };
    let (state, store) = (volume.path().to_owned(), bucket("a", &server));
    let builder = builder.waker(|waker| {
        waker.state_dir = state;
        waker.store = Some(store);
        waker.cache.max_mib = Some(0);
    });
    let mut node = builder.app(App::hello(&binaries).disk(32)).start().await;
    let (before, _) = count(&node).await;
    node.sleep("hello").await;
    sent(&node, 1.0).await;
    lose_everything(&mut node).await;
    // Less than its image has, with its disk.
    volume.fill(64 << 20).expect("it can be filled");
    let came = server.faults().expect("it is our own").bytes_out();
    for _ in 0..2 {
        let refused = node.get("/counter").await.expect_status(503);
        assert_eq!(refused.header("rouse-error"), "node-full", "{refused:?}");
    }
    let came = server.faults().expect("it is our own").bytes_out() - came;
    assert!(came < 4 << 20, "no more than what tells how much it is: {came} bytes");
    assert_eq!(node.status("hello").await.failures, 0, "it is no failure of the app's");
    volume.empty().expect("it can be emptied");
    assert_eventually!(
        {
            let reply = node.get("/counter").await;
            let expected = Counter { counter: before.counter + 1, boot: before.boot.clone() };
            reply.status == 200 && reply.json::<Counter>() == expected
        },
        "it goes on where it stood"
    );
    drop(node);
}
