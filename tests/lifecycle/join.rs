//! Callers at the waker's socket.

use rouse_protocol::wake::{Outcome, WakeEvent};
use rouse_protocol::watch::AppState;
use rouse_tests::{App, Binaries, Node};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_join_one_wake() {
    let node = Node::start().await;
    let before = node.generation("hello").await;
    let wakes = node.wakes().await;
    let (one, two) = tokio::join!(node.wake_events("hello"), node.wake_events("hello"));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.generation.0, before + 1, "a new life");
    assert_eq!((one.generation, one.endpoint), (two.generation, two.endpoint), "the same for both");

    let third = node.wake_events("hello").await.expect("already awake is success");
    assert_eq!(third.outcome, Outcome::Awake, "and said to be so");
    assert_eq!((third.generation, third.endpoint), (one.generation, one.endpoint), "the same life");
    let after = node.wakes().await;
    assert_eq!(after - wakes, 1.0, "three callers, one wake");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_who_hangs_up_cancels_nothing() {
    let binaries = Binaries::find();
    let node = Node::builder(&binaries).app(App::hello(&binaries).cold()).start().await;
    let events = node.client().wake(&"hello".parse().unwrap()).await.unwrap();
    drop(events);
    let view = node
        .wait_state("hello", "awake though nobody waits for it", |state| {
            matches!(state, AppState::Awake(_))
        })
        .await;
    assert_eq!(view.generation.0, 1, "by the wake that was asked for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn phases_come_before_the_end() {
    let node = Node::start().await;
    let mut events = node.client().wake(&"hello".parse().unwrap()).await.unwrap();
    let mut phases = Vec::new();
    let ready = loop {
        match events.next().await.unwrap().expect("a last line comes") {
            WakeEvent::Phase(phase) => phases.push(phase.phase),
            WakeEvent::Ready(ready) => break ready,
            WakeEvent::Failed(failure) => panic!("the app wakes: {failure}"),
        }
    };
    assert_eq!(ready.outcome, Outcome::Resumed, "from its image");
    assert!(ready.key.is_some(), "with the key of its agent");
    assert!(!phases.is_empty() && phases.is_sorted(), "phases in their order: {phases:?}");
    assert_eq!(events.next().await.unwrap(), None, "the last line is the last");
}
