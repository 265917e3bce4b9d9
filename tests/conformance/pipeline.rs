//! Requests that are sent before the answer to the one before has come.

use rouse_tests::{Node, Raw};

use crate::World;

const REQUESTS: usize = 20;

fn requests(host: &str, path: impl Fn(usize) -> String) -> String {
    let last = |n| if n == REQUESTS { "Connection: close\r\n" } else { "" };
    let one = |n| format!("GET {} HTTP/1.1\r\nHost: {host}\r\n{}\r\n", path(n), last(n));
    (1..=REQUESTS).map(one).collect()
}

/// Where in `answers` each of these is; all of them once, in this order.
fn assert_in_order(answers: &str, marks: impl Iterator<Item = String>) {
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), REQUESTS, "{answers}");
    let mut from = 0;
    for mark in marks {
        let at = answers[from..].find(&mark);
        from += at.unwrap_or_else(|| panic!("{mark} is not in its place: {answers}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_are_answered_in_order() {
    let world = World::new().await;
    let mut visitor = Raw::connect(world.front.http()).await.expect("the proxy listens");
    let all = requests("origin.localhost", |n| format!("/n/{n}"));
    visitor.write(all).await.expect("the proxy reads");
    let answers = visitor.read_to_end().await;
    assert_in_order(&answers, (1..=REQUESTS).map(|n| format!("[/n/{n}]")));
    assert_eq!(world.origin.requests().len(), REQUESTS, "each came once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_to_a_sleeping_app_are_held_and_answered_in_order() {
    let node = Node::start().await;
    let generation = node.generation("hello").await;
    let mut visitor = Raw::connect(node.http()).await.expect("the proxy listens");
    let all = requests("hello.localhost", |n| format!("/echo/{n}"));
    visitor.write(all).await.expect("the proxy reads");
    let answers = visitor.read_to_end().await;
    assert_in_order(&answers, (1..=REQUESTS).map(|n| format!("\"path\":\"/echo/{n}\"")));
    assert_eq!(node.generation("hello").await, generation + 1, "by one wake");
}
