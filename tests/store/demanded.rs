//! A wake that does not wait for all of the memory.

use rouse_protocol::wake::Outcome;
use rouse_s3::Server;
use rouse_snapshot_format::Map;
use rouse_tests::{Counter, Node, Store, Visit, assert_eventually};

use super::{assert_log, bucket, count, lose_everything, over, sent};

/// Every memory is filled while its VM runs.
pub(crate) fn store(server: &Server) -> Store {
    Store { demand: Some(true), demand_from_mib: Some(0), ..bucket("a", server) }
}

/// How many wakes went on before all of the memory was here.
async fn demanded(node: &Node) -> f64 {
    let metrics = node.waker_metrics().await;
    metrics.sum("rouse_waker_store_fetched_total", &[("end", "demanded")])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_memory_comes_while_it_runs_and_it_sleeps_and_wakes_as_ever() {
    let server = Server::start().await.expect("an S3 server");
    let mut node = over(store(&server)).start().await;
    let (mut before, _) = count(&node).await;
    let mut acknowledged = vec![node.log("before any sleep").await];
    for round in 1..=3 {
        let when = format!("after {round} sleeps");
        node.sleep("hello").await;
        sent(&node, 1.0).await;
        lose_everything(&mut node).await;
        let (now, reply) = count(&node).await;
        assert_eq!(reply.header("rouse-wake"), "resumed", "{when}: {reply:?}");
        assert_eq!(demanded(&node).await, 1.0, "{when}");
        let expected = Counter { counter: before.counter + 1, boot: before.boot };
        assert_eq!(now, expected, "{when}: the same process counts on");
        before = now;
        assert_log(&node, &acknowledged, &when).await;
        acknowledged.push(node.log(&when).await);
    }
    // From the file beside the disk, once the life that was filled is over.
    node.sleep("hello").await;
    let (last, _) = count(&node).await;
    assert_eq!(last, Counter { counter: before.counter + 1, boot: before.boot });
    assert!(!node.app_dir("hello").join("lazy.json").exists(), "and nothing is left of that");
    // What a wake takes is noted, and comes first the next time.
    let already = node.waker_metrics().await;
    let already = already.sum("rouse_waker_store_sent_total", &[("end", "done")]);
    node.sleep("hello").await;
    sent(&node, already + 1.0).await;
    lose_everything(&mut node).await;
    count(&node).await;
    let map = Map::open(node.app_dir("hello").join("live/memory.map")).expect("its map");
    let first: u64 = map
        .working_set()
        .order(map.window_size())
        .iter()
        .map(|window| map.window_data_pages(u64::from(*window)))
        .sum();
    assert!(first > 256 && first < map.counts().data, "{first} of {:?}", map.counts());
    let cost = node.trace("hello").await.and_then(|trace| trace.store).expect("from the store");
    assert!(cost.bytes > 1 << 20, "{cost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_visitor_is_served_long_before_a_slow_link_has_brought_all_of_it() {
    let server = Server::start().await.expect("an S3 server");
    let faults = server.faults().expect("it is our own");
    let mut node = over(store(&server)).start().await;
    let (before, _) = count(&node).await;
    node.sleep("hello").await;
    sent(&node, 1.0).await;
    lose_everything(&mut node).await;
    faults.bandwidth(Some(2_000_000));
    let (now, _) = count(&node).await;
    assert_eq!(now, Counter { counter: before.counter + 1, boot: before.boot.clone() });
    let filling = || {
        let record = std::fs::read_to_string(node.app_dir("hello").join("lazy.json"));
        record.is_ok_and(|record| record.contains("filling"))
    };
    assert!(filling(), "not all of its memory is here");
    // A waker that restarts leaves it be, and takes it up.
    node.waker.kill();
    node.start_waker().await;
    let (now, _) = count(&node).await;
    assert_eq!(now.counter, before.counter + 2);
    faults.clear();
    node.sleep("hello").await;
    sent(&node, 1.0).await;
    let (now, _) = count(&node).await;
    assert_eq!(now, Counter { counter: before.counter + 3, boot: before.boot });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_whose_pager_dies_boots_from_its_disk() {
    let server = Server::start().await.expect("an S3 server");
    let mut node = over(store(&server)).start().await;
    count(&node).await;
    let mut acknowledged = vec![node.log("before any sleep").await];
    node.sleep("hello").await;
    sent(&node, 1.0).await;
    lose_everything(&mut node).await;
    count(&node).await;
    acknowledged.push(node.log("while it is filled").await);
    let pager = rouse_tests::Vm::recorded_in(&node.app_dir("hello").join("lazy.json"));
    pager.expect("it has a pager").kill();
    // It goes on for as long as it touches nothing new, and dies then.
    let dirty = Visit::post("/dirty?mib=100", String::new());
    let lost = dirty.send(node.http()).await;
    assert!(!lost.is_ok_and(|reply| reply.status == 200), "its memory is gone");
    assert_eventually!(
        node.get("/log/head").await.status == 200 && node.wakes().await >= 2.0,
        "it boots from its disk"
    );
    let trace = node.trace("hello").await.expect("it was woken");
    assert_eq!(trace.outcome, Some(Outcome::Cold), "{trace:?}");
    let reply = node.get("/log").await.expect_status(200);
    let lines = rouse_tests::read_log(reply.text()).expect("a whole log");
    assert_eq!(lines.len(), acknowledged.len(), "{reply:?}");
}
