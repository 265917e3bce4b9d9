//! Does gRPC work through a hold, with its streams, trailers and cancellations?
#![forbid(unsafe_code)]

mod client;

use std::time::Duration;

use client::{Client, Said, Say, say};
use futures_util::stream;
use rouse_protocol::client::ClientError;
use rouse_tests::{Node, assert_eventually, patience};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::{Code, Streaming};

/// The next message; none at the stream's end.
async fn next(stream: &mut Streaming<Said>) -> Option<Said> {
    let message = tokio::time::timeout(patience(), stream.message()).await;
    message.expect("a message comes").expect("the stream is well")
}

/// A stream without an end.
fn endless(every_ms: u32) -> Say {
    Say { text: "again".into(), number: 0, every_ms }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_to_a_sleeping_app_is_held_and_answered() {
    let node = Node::start().await;
    let before = node.generation("hello").await;
    let client = Client::of(node.h2c()).await;
    let reply = client.unary("Say", say("hi")).await.expect("the call is held, not refused");
    assert_eq!(node.generation("hello").await, before + 1, "it woke the app");
    let woken = reply.metadata().get("rouse-wake").and_then(|word| word.to_str().ok());
    assert_eq!(woken, Some("resumed"), "and was told so: {reply:?}");
    assert_eq!(reply.metadata().get("rouse-agent"), None, "the agent's word stays inside");
    let status = reply.metadata().get("grpc-status").and_then(|status| status.to_str().ok());
    assert_eq!(status, Some("0"), "the trailers came: {reply:?}");
    assert_eq!(reply.into_inner(), Said { text: "hi".into(), number: 1 });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_calls_at_once_are_one_wake() {
    let node = Node::start().await;
    let client = Client::of(node.h2c()).await;
    let mut calls = JoinSet::new();
    for n in 0..50 {
        let client = client.clone();
        calls.spawn(async move {
            // Longer than a stream's window, together longer than many a connection's.
            let text = format!("{n} ").repeat(30_000);
            let reply = client.unary("Say", say(&text)).await.expect("each call is answered");
            assert!(reply.into_inner().text == text, "each with its own");
        });
    }
    calls.join_all().await;
    assert!(node.wakes().await <= 1.0, "they join one wake");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_pass_each_way_as_they_are_made() {
    let node = Node::start().await;
    let client = Client::of(node.h2c()).await;
    let few = Say { text: "again".into(), number: 5, every_ms: 20 };
    let mut few = client.repeat(few).await.unwrap().into_inner();
    for number in 1..=5 {
        assert_eq!(next(&mut few).await, Some(Said { text: "again".into(), number }));
    }
    assert_eq!(next(&mut few).await, None, "and its end");

    let (mouth, ears) = mpsc::channel(1);
    let says = stream::unfold(ears, |mut ears| async { Some((ears.recv().await?, ears)) });
    let mut talk = client.talk(says).await.unwrap().into_inner();
    for number in 1..=5 {
        // The next is said only once this one is answered.
        mouth.send(say("word")).await.unwrap();
        assert_eq!(next(&mut talk).await, Some(Said { text: "word".into(), number }));
    }
    drop(mouth);
    assert_eq!(next(&mut talk).await, None, "whoever is through hears the app's end");
    let left = client.unary("Left", say("")).await.unwrap().into_inner();
    assert_eq!(left.number, 0, "nobody was cut off");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_cancels_is_missed_by_the_app() {
    let node = Node::start().await;
    let client = Client::of(node.h2c()).await;
    // One that is being sent to, and one that the app has nothing for.
    for every_ms in [10, 600_000] {
        let mut stream = client.repeat(endless(every_ms)).await.unwrap().into_inner();
        assert!(next(&mut stream).await.is_some());
    }
    let left = async || client.unary("Left", say("")).await.unwrap().into_inner().number;
    assert_eventually!(left().await == 2, "the app sees both leave");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_apps_own_status_passes_untouched() {
    let node = Node::start().await;
    let client = Client::of(node.h2c()).await;
    for code in [Code::NotFound, Code::Unavailable] {
        let fail = Say { text: "the app's, 100 % so".into(), number: code as u32, every_ms: 0 };
        let status = client.unary("Fail", fail).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, "the app's, 100 % so"), "{status:?}");
        assert_eq!(status.details(), b"\x00the app's own details\xff", "{status:?}");
    }
    let status = client.unary("Nothing", say("")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
    assert!(node.wakes().await <= 1.0, "no error of the app's is a wake");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_stream_keeps_the_app_awake() {
    let node = Node::with_app(|app| app.sleep.idle_seconds = 1).await;
    let client = Client::of(node.h2c()).await;
    let mut stream = client.repeat(endless(100)).await.unwrap().into_inner();
    let before = node.generation("hello").await;
    match node.try_sleep("hello").await {
        Err(ClientError::Refused(problem)) => assert_eq!(problem.code(), "busy", "{problem:?}"),
        other => panic!("an app with a stream open does not sleep: {other:?}"),
    }
    // Three times as long as an idle app stays up.
    for _ in 0..30 {
        assert!(next(&mut stream).await.is_some(), "the stream goes on");
    }
    assert_eq!(node.generation("hello").await, before, "in the same life");

    drop(stream);
    node.wait_asleep("hello").await;
    let reply = client.unary("Say", say("back")).await.expect("it wakes again");
    assert_eq!(reply.into_inner().text, "back");
    assert_eq!(node.generation("hello").await, before + 1, "in a new life");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_to_an_app_that_crashed_is_held_until_it_is_back() {
    let node = Node::start().await;
    let client = Client::of(node.h2c()).await;
    client.unary("Say", say("hi")).await.expect("it wakes");
    node.crash("hello", Duration::from_secs(2)).await;
    let reply = client.unary("Say", say("back")).await.expect("a signed down is a hold");
    assert_eq!(reply.into_inner().text, "back");
}
