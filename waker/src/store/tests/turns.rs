//! Whose an app is.

use super::*;

#[tokio::test]
async fn it_goes_from_node_to_node_and_is_never_twice() {
    let world = World::new();
    let (a, b) = (world.node("a"), world.node("b"));
    let mut before = 0;
    for round in 1..=4_u8 {
        for (this, other) in [(&a, &b), (&b, &a)] {
            let value = round * 16 + u8::from(this.node.settings().node == "b");
            this.take("hello").await.unwrap();
            let refused = other.take("hello").await;
            assert!(matches!(refused, Err(TakeError::Elsewhere { .. })), "{refused:?}");
            let live = this.begin("hello");
            assert_eq!(check(&live), before, "round {round}");
            write(&live, value);
            this.end("hello", live);
            // It sleeps here, and nobody knows yet.
            let refused = other.take("hello").await;
            assert!(matches!(refused, Err(TakeError::Elsewhere { .. })), "{refused:?}");
            this.free("hello").await;
            before = value;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_nodes_that_want_it_one_gets_it() {
    let world = World::new();
    let first = world.node("first");
    first.live_once("hello", 1).await;
    first.free("hello").await;
    for round in 0..5 {
        let nodes: Vec<NodeWorld> = (0..6).map(|n| world.node(&format!("n{round}-{n}"))).collect();
        let tries = nodes.iter().map(|node| node.take("hello"));
        let outcomes = futures_util::future::join_all(tries).await;
        let got: Vec<usize> = (0..6).filter(|n| outcomes[*n].is_ok()).collect();
        assert_eq!(got.len(), 1, "{outcomes:?}");
        let winner = &nodes[got[0]];
        assert_eq!(winner.live_once("hello", round + 2).await, round + 1);
        winner.free("hello").await;
    }
}

#[tokio::test]
async fn what_was_fetched_and_never_ran_is_free_again() {
    let world = World::new();
    let (a, b, c) = (world.node("a"), world.node("b"), world.node("c"));
    a.live_once("hello", 3).await;
    a.free("hello").await;
    // There was no room for its VM, say.
    b.take("hello").await.unwrap();
    let freed = b.free("hello").await;
    assert!(freed.was_there && freed.bytes == 0, "{freed:?}");
    assert_eq!(c.live_once("hello", 4).await, 3);
}

#[tokio::test]
async fn who_has_lost_an_app_by_force_does_not_publish_it() {
    let world = World::new();
    let (a, b) = (world.node("a"), world.node("b"));
    a.live_once("hello", 3).await;
    a.free("hello").await;
    a.live_once("hello", 4).await;
    // An operator has decided that a is dead.
    assert_eq!(b.node.release(&app("hello")).await.unwrap(), "a");
    let again = b.node.release(&app("hello")).await;
    assert!(matches!(again, Err(ReleaseError::Free)), "{again:?}");
    let refused = a.node.free(&a.up("hello")).await;
    assert!(matches!(refused, Err(UploadError::Taken { .. })), "{refused:?}");
    // It is kept for the operator, and not woken once it is free again.
    assert_eq!(b.take("hello").await.unwrap().unwrap().generation, Generation(1));
    let ours = b.node.release(&app("hello")).await;
    assert!(matches!(ours, Err(ReleaseError::Ours)), "{ours:?}");
    assert_eq!(b.live_once("hello", 5).await, 3);
    b.free("hello").await;
    let refused = a.node.free(&a.up("hello")).await;
    assert!(matches!(refused, Err(UploadError::Taken { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_store_that_was_emptied_is_told_and_filled_again() {
    let world = World::new();
    let a = world.node("a");
    a.live_once("hello", 3).await;
    a.free("hello").await;
    let empty = World::new();
    // What is here is woken all the same.
    let moved = NodeStore::new(Arc::clone(&empty.store), a.node.settings().clone(), None);
    let a = NodeWorld { node: moved, ..a };
    assert_eq!(a.live_once("hello", 4).await, 3);
    a.free("hello").await;
    // With nothing here it is an error: an empty disk is no answer.
    fs::remove_dir_all(a.dir("hello").path().join("gen-2")).unwrap();
    let emptied = World::new();
    let lost = NodeStore::new(Arc::clone(&emptied.store), a.node.settings().clone(), None);
    let a = NodeWorld { node: lost, ..a };
    let refused = a.take("hello").await;
    assert!(matches!(refused, Err(TakeError::Lost(Generation(2)))), "{refused:?}");
}
