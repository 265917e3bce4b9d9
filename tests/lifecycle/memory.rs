//! Restored, not rebooted.

use rouse_protocol::wake::Phase;
use rouse_tests::{Counter, Node, Visit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_counter_goes_on_over_three_sleeps() {
    let node = Node::start().await;
    let mut last: Counter = node.get("/counter").await.expect_status(200).json();
    for cycle in 1..=3 {
        let generation = node.generation("hello").await;
        let report = node.sleep("hello").await;
        assert_eq!(report.generation.0, generation, "the life that was, sleeps");
        node.wait_asleep("hello").await;

        let next: Counter = node.get("/counter").await.expect_status(200).json();
        let expected = Counter { counter: last.counter + 1, boot: last.boot };
        assert_eq!(next, expected, "cycle {cycle}: the same process counts on");
        assert_eq!(node.generation("hello").await, generation + 1, "cycle {cycle}: in a new life");
        last = next;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_answer_tells_of_the_wake() {
    let node = Node::start().await;
    let first = node.get("/").await.expect_status(200);
    assert_eq!(first.header("rouse-wake"), "resumed", "it was restored: {first:?}");
    let timing = first.header("server-timing");
    let named = |phase: Phase| {
        let is = |entry: &str| {
            let mut parts = entry.trim().split(';');
            let name = parts.next() == Some(phase.as_str());
            let took = parts.find_map(|p| p.trim().strip_prefix("dur=")?.parse::<f64>().ok());
            name && took.is_some_and(|ms| ms >= 0.0)
        };
        timing.split(',').any(is)
    };
    let missing: Vec<_> = Phase::ALL.into_iter().filter(|phase| !named(*phase)).collect();
    assert!(missing.is_empty(), "every phase with its duration, without {missing:?}: {timing}");

    let second = node.get("/").await.expect_status(200);
    assert_eq!(second.header("rouse-wake"), "", "a later answer belongs to no wake: {second:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_life_gets_no_old_connection() {
    // A connection that was kept alive over a sleep would hang or be reset.
    let node = Node::start().await;
    for _ in 0..3 {
        for _ in 0..5 {
            node.get("/").await.expect_status(200);
        }
        node.sleep("hello").await;
    }
    let post = Visit::post("/echo", "x");
    node.visit(&post).await.expect_status(200);
}
