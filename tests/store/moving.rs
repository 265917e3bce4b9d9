//! Nodes that share a store.

use rouse_s3::Server;
use rouse_tests::{Counter, Store};

use super::{assert_log, bucket, builder, count, over, sent, server};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_woken_by_whichever_node_asks_and_by_no_other_then() {
    let server = server().await;
    let a = over(bucket("a", &server)).start().await;
    let b = over(bucket("b", &server)).without_slot().start().await;
    let (first, _) = count(&a).await;
    let mut acknowledged = vec![a.log("on a").await];

    // It runs there.
    let refused = b.get("/counter").await.expect_status(503);
    assert_eq!(refused.header("rouse-error"), "elsewhere", "{refused:?}");
    a.sleep("hello").await;
    sent(&a, 1.0).await;

    let (second, reply) = count(&b).await;
    assert_eq!(reply.header("rouse-wake"), "resumed", "{reply:?}");
    assert_eq!(
        second,
        Counter { counter: first.counter + 1, boot: first.boot.clone() },
        "it goes on"
    );
    assert_log(&b, &acknowledged, "on b").await;
    acknowledged.push(b.log("on b").await);

    // What is there still is not woken: it would be the same app twice.
    for _ in 0..2 {
        let refused = a.get("/counter").await.expect_status(503);
        assert_eq!(refused.header("rouse-error"), "elsewhere", "{refused:?}");
    }
    b.sleep("hello").await;
    sent(&b, 1.0).await;
    let (third, _) = count(&a).await;
    assert_eq!(third, Counter { counter: first.counter + 2, boot: first.boot }, "and back");
    assert_log(&a, &acknowledged, "on a again").await;
    let refused = b.get("/counter").await.expect_status(503);
    assert_eq!(refused.header("rouse-error"), "elsewhere", "{refused:?}");
    assert_eq!(b.status("hello").await.failures, 0, "it is no failure of the app's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_apps_do_not_move_the_other_node_says_so() {
    let store = tempfile::tempdir().expect("a directory");
    let stays = |waker: &mut rouse_tests::WakerConfig| {
        if let Some(Store { moving, .. }) = &mut waker.store {
            *moving = Some(false);
        }
    };
    let a = builder("a", store.path()).waker(stays).start().await;
    let (first, _) = count(&a).await;
    a.sleep("hello").await;
    sent(&a, 1.0).await;
    let b = builder("b", store.path()).waker(stays).without_slot().start().await;
    let refused = b.get("/counter").await.expect_status(503);
    assert_eq!(refused.header("rouse-error"), "elsewhere", "{refused:?}");
    let trace = b.trace("hello").await.expect("it was tried");
    let error = trace.error.expect("in vain");
    assert!(error.contains("node a") && error.contains("store.moving"), "{error}");
    let (second, _) = count(&a).await;
    assert_eq!(second, Counter { counter: first.counter + 1, boot: first.boot });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_conditional_writes_is_good_for_one_node() {
    let server = Server::start().await.expect("an S3 server");
    server.ignore_conditions(true);
    let a = over(bucket("a", &server)).start().await;
    assert!(
        a.waker.log().contains("the store has no conditional writes"),
        "it says so at its start"
    );
    let (first, _) = count(&a).await;
    a.sleep("hello").await;
    sent(&a, 1.0).await;
    let b = over(bucket("b", &server)).without_slot().start().await;
    let refused = b.get("/counter").await.expect_status(503);
    assert_eq!(refused.header("rouse-error"), "elsewhere", "{refused:?}");
    let error = b.trace("hello").await.and_then(|trace| trace.error).expect("in vain");
    assert!(error.contains("no conditional writes"), "{error}");
    let (second, _) = count(&a).await;
    assert_eq!(second, Counter { counter: first.counter + 1, boot: first.boot });
}
