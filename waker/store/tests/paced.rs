//! S3 that is slow, and has much.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{faults, faulty, key, options, read, server};
use http::Method;
use rouse_s3::Fault;
use rouse_store::{Condition, S3, Span, Store};

#[tokio::test]
async fn connections_share_the_bandwidth_and_an_answer_begins_when_it_may() {
    let Some((server, store)) = faulty().await else { return };
    let bytes = Bytes::from(vec![7; 2_000_000]);
    store.put(&key("a"), bytes.clone(), Condition::Always).await.unwrap();
    let faults = faults(&server);
    let before = (faults.bytes_out(), faults.requests(&Method::GET));
    faults.bandwidth(Some(20_000_000));
    let begun = Instant::now();
    let at = key("a");
    let read4 = (0..4).map(|_| read(&store, &at, Span::All));
    for got in futures_util::future::join_all(read4).await {
        assert_eq!(got, bytes);
    }
    // 8 MB at 20 MB/s, less what a clock may catch up with.
    assert!(begun.elapsed() >= Duration::from_millis(380), "{:?}", begun.elapsed());
    assert_eq!(faults.bytes_out() - before.0, 8_000_000);
    assert_eq!(faults.requests(&Method::GET) - before.1, 4);
    faults.clear();
    faults.latency(Duration::from_millis(30));
    let begun = Instant::now();
    store.head(&at).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(30));
}

#[tokio::test]
async fn a_fault_meets_whom_it_is_for() {
    let Some((server, store)) = faulty().await else { return };
    store.put(&key("a"), Bytes::from_static(b"0123456789"), Condition::Always).await.unwrap();
    faults(&server).when(Some(1), |m, p| m == Method::GET && p.contains("/a"), Fault::Flip(3));
    store.head(&key("a")).await.unwrap();
    // A byte that is damaged on its way down is for the reader to find out, by its own sums.
    assert_eq!(read(&store, &key("a"), Span::All).await, b"012\xcc456789");
    assert_eq!(read(&store, &key("a"), Span::All).await, b"0123456789");
}

#[tokio::test]
async fn more_parts_and_uploads_than_a_page_has_are_all_told() {
    let server = server().await;
    let store = S3::open(options(&server)).await.unwrap();
    let upload = store.begin(&key("p/a")).await.unwrap();
    for number in (1..=1003).rev() {
        store.put_part(&upload, number, Bytes::from_static(b"x")).await.unwrap();
    }
    let parts = store.parts(&upload).await.unwrap();
    assert!(parts.iter().map(|part| part.number).eq(1..=1003));
    for _ in 0..1002 {
        store.begin(&key("p/b")).await.unwrap();
    }
    let uploads = store.uploads(&key("p")).await.unwrap();
    assert_eq!(uploads.len(), 1003);
    assert_eq!(uploads[0].id, upload.id);
    assert!(uploads.iter().all(|upload| upload.begun_unix_ms.is_some()));
}
