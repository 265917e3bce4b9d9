//! Does an app come back from the store alone, with all that it was, on whichever node, and on one only?
#![forbid(unsafe_code)]

mod cached;
mod demanded;
mod faults;
mod full;
#[cfg(feature = "failpoints")]
mod killed;
mod moving;

use std::path::Path;

use rouse_s3::Server;
use rouse_tests::{
    App, Binaries, Counter, LogHead, Node, NodeBuilder, Reply, S3, Store, eventually, read_log,
};

/// A node with the test app on a disk of its own, over a store.
fn over(store: Store) -> NodeBuilder {
    let binaries = Binaries::find();
    Node::builder(&binaries)
        .app(App::hello(&binaries).disk(32))
        .waker(|waker| waker.store = Some(store))
}

/// A node called `name`, over the store in a directory.
fn builder(name: &str, store: &Path) -> NodeBuilder {
    over(Store::directory(name, store))
}

/// A bucket of its own on the S3 server that the environment wants, or on one of ours.
async fn server() -> Server {
    Server::wanted().await.expect("an S3 server")
}

/// The store in the bucket, as the node called `name` uses it.
fn bucket(name: &str, server: &Server) -> Store {
    Store {
        directory: None,
        s3: Some(S3 {
            bucket: server.bucket().to_owned(),
            prefix: server.prefix().to_owned(),
            endpoint: server.endpoint().to_owned(),
            credentials_file: server.credentials_file().to_owned(),
        }),
        ..Store::directory(name, Path::new("/"))
    }
}

/// Waits until so many generations were sent since the waker started.
async fn sent(node: &Node, generations: f64) {
    eventually("its generation is in the store", async || {
        let metrics = node.waker_metrics().await;
        let done = metrics.sum("rouse_waker_store_sent_total", &[("end", "done")]);
        (done >= generations).then_some(())
    })
    .await;
}

/// What the node has of its apps goes, as if its disk had been lost.
async fn lose_everything(node: &mut Node) {
    node.waker.stop().await;
    wipe(node);
    node.start_waker().await;
}

fn wipe(node: &Node) {
    std::fs::remove_dir_all(node.state_dir().join("apps")).expect("it is there");
    match std::fs::remove_dir_all(node.state_dir().join("cache")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{error}"),
        _ => {}
    }
}

async fn count(node: &Node) -> (Counter, Reply) {
    let reply = node.get("/counter").await.expect_status(200);
    (reply.json(), reply)
}

/// Everything that was acknowledged is on the disk, and nothing else, and the memory knows it so.
async fn assert_log(node: &Node, acknowledged: &[LogHead], when: &str) {
    let reply = node.get("/log").await.expect_status(200);
    let lines = read_log(reply.text()).unwrap_or_else(|e| panic!("{when}: {e}: {reply:?}"));
    let there: Vec<_> =
        lines.iter().map(|line| LogHead { n: line.n, hash: line.hash.clone() }).collect();
    assert_eq!(there, acknowledged, "{when}: the log on the disk");
    let head: LogHead = node.get("/log/head").await.expect_status(200).json();
    assert_eq!(Some(&head), acknowledged.last(), "{when}: the end of the log in memory");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_of_which_nothing_is_left_here_goes_on_where_it_stood() {
    let store = tempfile::tempdir().expect("a directory");
    comes_back(builder("a", store.path()).start().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn and_so_it_does_from_s3() {
    let server = server().await;
    comes_back(over(bucket("a", &server)).start().await).await;
}

async fn comes_back(mut node: Node) {
    let (mut before, _) = count(&node).await;
    let mut acknowledged = vec![node.log("before any sleep").await];
    let mut first = 0;
    for round in 1..=3 {
        let when = format!("after {round} sleeps");
        let report = node.sleep("hello").await;
        sent(&node, 1.0).await;
        let metrics = node.waker_metrics().await;
        let bytes = metrics.sum("rouse_waker_store_sent_bytes_total", &[]);
        match round {
            1 => first = bytes as u64,
            _ => assert!(
                bytes < first as f64 / 2.0,
                "what has not changed is not sent again: {bytes} after {first}"
            ),
        }
        lose_everything(&mut node).await;

        let (now, reply) = count(&node).await;
        assert_eq!(reply.header("rouse-wake"), "resumed", "{when}: {reply:?}");
        let expected = Counter { counter: before.counter + 1, boot: before.boot };
        assert_eq!(now, expected, "{when}: the same process counts on");
        before = now;
        assert_log(&node, &acknowledged, &when).await;
        assert!(node.generation("hello").await > report.generation.0, "{when}: a life of its own");
        let trace = node.trace("hello").await.expect("it was woken");
        let cost = trace.store.expect("from the store");
        assert!(cost.requests >= 5 && cost.bytes > 1 << 20, "{cost:?}");
        acknowledged.push(node.log(&when).await);
    }
}
