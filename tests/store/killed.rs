//! A waker that dies at any step of sending and fetching.

use rouse_s3::Server;
use rouse_tests::{Counter, Node, eventually};

use super::{assert_log, builder, count, lose_everything, over, sent, wipe};

const KILL: &str = "return(kill)";

async fn dies(node: &mut Node, what: &str) {
    eventually(what, async || (!node.waker.runs()).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_any_step_of_sending_it_is_here_or_there_and_whole() {
    let store = tempfile::tempdir().expect("a directory");
    let mut node = builder("a", store.path()).start().await;
    let (mut before, _) = count(&node).await;
    let mut acknowledged = vec![node.log("before any sleep").await];
    let points = ["memory", "layers", "manifest", "freeing", "freed"];
    // Once with what the node has, once without.
    for (point, lost) in points.into_iter().flat_map(|point| [(point, false), (point, true)]) {
        let when = format!("killed at store-{point}, lost: {lost}");
        // What is lost below is in the store by then.
        node.sleep("hello").await;
        sent(&node, 1.0).await;
        let (now, _) = count(&node).await;
        let unsent = node.log(&when).await;
        node.waker.stop().await;
        node.waker.set_env("FAILPOINTS", format!("store-{point}={KILL}"));
        node.start_waker().await;
        node.sleep("hello").await;
        dies(&mut node, &when).await;
        node.waker.unset_env("FAILPOINTS");
        if lost {
            wipe(&node);
        }
        node.start_waker().await;
        let (after, reply) = count(&node).await;
        assert_eq!(reply.header("rouse-wake"), "resumed", "{when}: {reply:?}");
        // Only the last step tells the store of it.
        let sent = !lost || point == "freed";
        let last = if sent { &now } else { &before };
        assert_eq!(after, Counter { counter: last.counter + 1, boot: last.boot.clone() }, "{when}");
        if sent {
            acknowledged.push(unsent);
        }
        assert_log(&node, &acknowledged, &when).await;
        before = after;
        // A fresh waker counts anew.
        node.waker.stop().await;
        node.start_waker().await;
        acknowledged.push(node.log(&format!("after {when}")).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_any_step_of_fetching_it_is_fetched_again() {
    let store = tempfile::tempdir().expect("a directory");
    let mut node = builder("a", store.path()).start().await;
    let (mut before, _) = count(&node).await;
    let mut acknowledged = vec![node.log("before any sleep").await];
    for point in ["taking", "taken", "fetching", "fetched", "adopted"] {
        let when = format!("killed at store-{point}");
        node.sleep("hello").await;
        sent(&node, 1.0).await;
        node.waker.set_env("FAILPOINTS", format!("store-{point}={KILL}"));
        lose_everything(&mut node).await;
        let _ = node.wake_events("hello").await;
        dies(&mut node, &when).await;
        node.waker.unset_env("FAILPOINTS");
        node.start_waker().await;
        let (after, reply) = count(&node).await;
        assert_eq!(reply.header("rouse-wake"), "resumed", "{when}: {reply:?}");
        assert_eq!(
            after,
            Counter { counter: before.counter + 1, boot: before.boot.clone() },
            "{when}"
        );
        before = after;
        assert_log(&node, &acknowledged, &when).await;
        acknowledged.push(node.log(&when).await);
        node.waker.stop().await;
        node.start_waker().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_any_step_of_a_wake_that_does_not_wait_nothing_is_lost() {
    let server = Server::start().await.expect("an S3 server");
    let mut node = over(crate::demanded::store(&server)).start().await;
    let (mut before, _) = count(&node).await;
    let mut acknowledged = vec![node.log("before any sleep").await];
    for point in ["mounted", "begun", "runs"] {
        let when = format!("killed at store-{point}");
        node.sleep("hello").await;
        sent(&node, 1.0).await;
        node.waker.set_env("FAILPOINTS", format!("store-{point}={KILL}"));
        lose_everything(&mut node).await;
        let _ = node.wake_events("hello").await;
        dies(&mut node, &when).await;
        node.waker.unset_env("FAILPOINTS");
        node.start_waker().await;
        let (after, reply) = count(&node).await;
        // What is about to run is not fetched once more: it might have run.
        if point == "runs" {
            assert_eq!(reply.header("rouse-wake"), "cold", "{when}: {reply:?}");
            let reply = node.get("/log").await.expect_status(200);
            let lines = rouse_tests::read_log(reply.text()).expect("a whole log");
            assert_eq!(lines.len(), acknowledged.len(), "{when}: its disk is whole: {reply:?}");
            break;
        }
        assert_eq!(reply.header("rouse-wake"), "resumed", "{when}: {reply:?}");
        let expected = Counter { counter: before.counter + 1, boot: before.boot.clone() };
        assert_eq!(after, expected, "{when}");
        before = after;
        assert_log(&node, &acknowledged, &when).await;
        acknowledged.push(node.log(&when).await);
        node.waker.stop().await;
        node.start_waker().await;
    }
}
