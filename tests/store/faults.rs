//! A store, and a way to it, that are at their worst.

use std::sync::atomic::{AtomicU32, Ordering};

use http::{Method, StatusCode};
use rouse_s3::{Fault, Faults, Server};
use rouse_tests::{Counter, Store, assert_eventually};

use super::{assert_log, bucket, count, lose_everything, over, sent};

/// Each kind of fault meets some of the requests that come.
fn spoil(faults: &Faults) {
    for (every, fault) in [
        (11, Fault::Status(StatusCode::INTERNAL_SERVER_ERROR)),
        (13, Fault::SlowDown),
        (17, Fault::Truncate(40_000)),
        (19, Fault::Reset),
        (23, Fault::Flip(9_000)),
        (29, Fault::FlipSent(300)),
    ] {
        let seen = AtomicU32::new(1);
        let due =
            move |_: &Method, _: &str| seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(every);
        faults.when(None, due, fault);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_goes_there_and_back_all_the_same() {
    let server = Server::start().await.expect("an S3 server");
    goes_there_and_back(&server, bucket("a", &server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn and_so_it_does_while_it_runs() {
    let server = Server::start().await.expect("an S3 server");
    goes_there_and_back(&server, crate::demanded::store(&server)).await;
}

async fn goes_there_and_back(server: &Server, store: Store) {
    let faults = server.faults().expect("it is our own");
    let mut node = over(store).start().await;
    let (mut before, _) = count(&node).await;
    let mut acknowledged = vec![node.log("before any sleep").await];
    for round in 1..=3 {
        let when = format!("round {round}");
        spoil(faults);
        node.sleep("hello").await;
        sent(&node, 1.0).await;
        lose_everything(&mut node).await;
        let mut now = None;
        // Where a small request has bad luck as often as it is tried, the wake fails, and another comes.
        assert_eventually!(
            {
                let reply = node.get("/counter").await;
                now = (reply.status == 200).then(|| reply.json::<Counter>());
                now.is_some()
            },
            "{when}: it comes back"
        );
        faults.clear();
        let expected = Counter { counter: before.counter + 1, boot: before.boot };
        let now = now.expect("it came");
        assert_eq!(now, expected, "{when}");
        before = now;
        assert_log(&node, &acknowledged, &when).await;
        acknowledged.push(node.log(&when).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_is_waited_for_and_what_is_here_is_kept() {
    let server = Server::start().await.expect("an S3 server");
    let faults = server.faults().expect("it is our own");
    let node = over(bucket("a", &server)).start().await;
    let (first, _) = count(&node).await;
    faults.when(None, |_, _| true, Fault::Status(StatusCode::SERVICE_UNAVAILABLE));
    node.sleep("hello").await;
    // It was not made free, so nobody has to be asked.
    let (second, reply) = count(&node).await;
    assert_eq!(reply.header("rouse-wake"), "resumed", "{reply:?}");
    assert_eq!(second, Counter { counter: first.counter + 1, boot: first.boot.clone() });
    node.sleep("hello").await;
    assert_eventually!(
        {
            let metrics = node.waker_metrics().await;
            metrics.sum("rouse_waker_store_sent_total", &[("end", "failed")]) > 0.0
        },
        "it is tried in vain"
    );
    faults.clear();
    sent(&node, 1.0).await;
    let (third, _) = count(&node).await;
    assert_eq!(third, Counter { counter: first.counter + 2, boot: first.boot });
}
