//! Images on this node's disk that are in the store, too.

use rouse_tests::{App, Binaries, Counter, Node, Store, Visit, eventually};

use super::{builder, count, sent};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_slept_here_is_woken_without_its_bytes_coming_from_the_store() {
    let store = tempfile::tempdir().expect("a directory");
    let node = builder("a", store.path()).start().await;
    let (mut before, _) = count(&node).await;
    for round in 1..=3 {
        node.sleep("hello").await;
        sent(&node, f64::from(round)).await;
        eventually("its image is in the cache", async || {
            let entries = node.waker_metrics().await.sum("rouse_waker_cache_entries", &[]);
            (entries == 1.0).then_some(())
        })
        .await;
        let (now, reply) = count(&node).await;
        assert_eq!(reply.header("rouse-wake"), "resumed", "{reply:?}");
        assert_eq!(now, Counter { counter: before.counter + 1, boot: before.boot });
        before = now;
        let metrics = node.waker_metrics().await;
        let fetched = |end| metrics.sum("rouse_waker_store_fetched_total", &[("end", end)]);
        assert_eq!((fetched("cached"), fetched("done")), (f64::from(round), 0.0));
    }
}

/// An app at a host of its own.
fn app(binaries: &Binaries, number: usize) -> App {
    let mut app = App::hello(binaries).cold();
    app.id = format!("app{number}");
    app.hosts = vec![format!("app{number}.test")];
    app.vm.memory_mib = 128;
    app
}

async fn visit(node: &Node, number: usize) -> Counter {
    let visit = Visit::get("/counter").host(&format!("app{number}.test"));
    node.visit(&visit).await.expect_status(200).json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_apps_than_the_cache_has_room_for_come_back_all_the_same() {
    const APPS: usize = 4;
    let (binaries, store) = (Binaries::find(), tempfile::tempdir().expect("a directory"));
    let mut builder = Node::builder(&binaries).waker(|waker| {
        waker.store = Some(Store::directory("a", store.path()));
        // For one image of the test app, and not for two.
        waker.cache.max_mib = Some(100);
    });
    for number in 0..APPS {
        builder = builder.app(app(&binaries, number));
    }
    let node = builder.start().await;
    let mut counters: Vec<Option<Counter>> = (0..APPS).map(|_| None).collect();
    let mut sends = 0.0;
    for number in [0, 1, 2, 3, 3, 0, 1, 1] {
        let now = visit(&node, number).await;
        if let Some(before) = &counters[number] {
            let expected = Counter { counter: before.counter + 1, boot: before.boot.clone() };
            assert_eq!(now, expected, "app{number} goes on");
        }
        counters[number] = Some(now);
        node.sleep(&format!("app{number}")).await;
        sends += 1.0;
        sent(&node, sends).await;
        let metrics = node.waker_metrics().await;
        let bytes = |kind| metrics.sum("rouse_waker_cache_bytes", &[("kind", kind)]);
        assert!(bytes("allocated") + bytes("reserved") <= bytes("high"), "within its budget");
    }
    let metrics = node.waker_metrics().await;
    let fetched = |end| metrics.sum("rouse_waker_store_fetched_total", &[("end", end)]);
    assert_eq!((fetched("cached"), fetched("done")), (2.0, 2.0), "two were there, two had gone");
}
