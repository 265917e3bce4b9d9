//! A visitor meets a sleep.

use std::time::Duration;

use rouse_protocol::client::ClientError;
use rouse_protocol::wake::SleepRefusal;
use rouse_tests::{Counter, Node, Visit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_visitor_in_the_middle_of_a_sleep_is_served() {
    let node = Node::start().await;
    let mut last: Counter = node.get("/counter").await.expect_status(200).json();
    let allowed = [SleepRefusal::Busy, SleepRefusal::Cancelled].map(SleepRefusal::as_str);
    let mut ends = Vec::new();

    // The times are the input: how far the sleep has come when the visitor arrives.
    for after_ms in [0, 0, 1, 2, 3, 5, 8, 12, 20, 40, 80, 200] {
        let visit = async {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            node.visit(&Visit::get("/counter")).await
        };
        let (sleep, reply) = tokio::join!(node.try_sleep("hello"), visit);
        let end = match sleep {
            Ok(_) => "slept".to_owned(),
            Err(ClientError::Refused(problem)) => problem.code().to_owned(),
            Err(error) => panic!("{after_ms} ms: the sleep has an answer: {error}"),
        };
        let expected = end == "slept" || allowed.contains(&&*end);
        assert!(expected, "{after_ms} ms: slept or gave way to the visitor: {end}");
        ends.push((after_ms, end));

        let next: Counter = reply.expect_status(200).json();
        let counted = Counter { counter: last.counter + 1, boot: last.boot };
        assert_eq!(next, counted, "{after_ms} ms: from the same memory, once: {ends:?}");
        last = next;
    }
    println!("sleeps ended: {ends:?}");
    node.sleep("hello").await;
    node.get("/").await.expect_status(200);
}
