//! S3 when something goes wrong.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::io;
use std::time::Duration;

use bytes::Bytes;
use common::{faults, faulty, key, options, read, server, try_read};
use http::{Method, StatusCode};
use rouse_s3::{Fault, Server};
use rouse_store::{Condition, Encryption, OpenS3Error, S3, S3Options, Span, Store, StoreError};

const SOME: &[u8] = b"0123456789";

async fn with_object() -> Option<(Server, S3)> {
    let (server, store) = faulty().await?;
    store.put(&key("a"), Bytes::from_static(SOME), Condition::Always).await.unwrap();
    Some((server, store))
}

#[tokio::test]
async fn each_answer_of_the_store_is_its_own_error() {
    let Some((server, store)) = with_object().await else { return };
    let at = key("a");
    for (status, code, is) in [
        (503, "SlowDown", "throttled"),
        (429, "TooManyRequests", "throttled"),
        (500, "InternalError", "unavailable"),
        (403, "AccessDenied", "denied"),
        (400, "ExpiredToken", "denied"),
        (404, "NoSuchKey", "not found"),
        (404, "NoSuchBucket", "refused"),
        (409, "ConditionalRequestConflict", "changed"),
        (400, "BadDigest", "corrupt"),
        (507, "QuotaExceeded", "full"),
        (501, "NotImplemented", "unsupported"),
        (400, "InvalidArgument", "refused"),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        faults(&server).next(2, Fault::Code(status, code));
        let put = store.put(&at, Bytes::from_static(b"x"), Condition::Always).await.unwrap_err();
        let got = try_read(&store, &at, Span::All).await.unwrap_err();
        assert_eq!((name(&put), name(&got)), (is, is), "{code}: {put} / {got}");
    }
    // Without a body, as an answer to HEAD never has one.
    for (status, is) in [
        (503, "throttled"),
        (500, "unavailable"),
        (502, "unavailable"),
        (504, "unavailable"),
        (403, "denied"),
        (404, "not found"),
        (412, "changed"),
    ] {
        faults(&server).next(1, Fault::Status(StatusCode::from_u16(status).unwrap()));
        let e = store.head(&at).await.unwrap_err();
        assert_eq!(name(&e), is, "{e}");
    }
    assert_eq!(read(&store, &at, Span::All).await, SOME);
}

fn name(e: &StoreError) -> &'static str {
    match e {
        StoreError::NotFound { .. } => "not found",
        StoreError::Denied { .. } => "denied",
        StoreError::Changed { .. } => "changed",
        StoreError::Throttled { .. } => "throttled",
        StoreError::Corrupt { .. } => "corrupt",
        StoreError::Unsupported(_) => "unsupported",
        StoreError::Full { .. } => "full",
        StoreError::Unavailable { .. } => "unavailable",
        StoreError::Refused { .. } => "refused",
    }
}

#[tokio::test]
async fn a_failure_is_tried_once() {
    let Some((server, store)) = with_object().await else { return };
    let before = faults(&server).all_requests();
    faults(&server).when(None, |_, _| true, Fault::SlowDown);
    store.head(&key("a")).await.unwrap_err();
    try_read(&store, &key("a"), Span::All).await.unwrap_err();
    assert_eq!(faults(&server).all_requests(), before + 2);
}

#[tokio::test]
async fn a_body_that_is_cut_short_is_an_error_wherever_it_is_cut() {
    let Some((server, store)) = with_object().await else { return };
    for cut in [0, 1, 5, 9] {
        faults(&server).next(1, Fault::Truncate(cut));
        let got = try_read(&store, &key("a"), Span::All).await;
        assert!(matches!(got, Err(StoreError::Unavailable { .. })), "{cut}: {got:?}");
    }
    faults(&server).next(1, Fault::Truncate(2));
    let got = try_read(&store, &key("a"), Span::Range(3..8)).await;
    assert!(matches!(got, Err(StoreError::Unavailable { .. })), "{got:?}");
    // A listing too.
    faults(&server).next(1, Fault::Truncate(60));
    let e = store.list(&key("a"), None).await.unwrap_err();
    assert!(e.is_transient(), "{e}");
}

#[tokio::test]
async fn a_reset_is_unavailable() {
    let Some((server, store)) = with_object().await else { return };
    faults(&server).next(1, Fault::Reset);
    let got = try_read(&store, &key("a"), Span::All).await;
    assert!(matches!(got, Err(StoreError::Unavailable { .. })), "{got:?}");
    faults(&server).next(1, Fault::Reset);
    let put = store.put(&key("a"), Bytes::from_static(b"x"), Condition::Always).await;
    assert!(matches!(put, Err(StoreError::Unavailable { .. })), "{put:?}");
    assert_eq!(read(&store, &key("a"), Span::All).await, SOME);
}

#[tokio::test]
async fn a_store_that_hangs_is_given_up() {
    let Some((server, _)) = with_object().await else { return };
    let options = S3Options { call_timeout: Duration::from_millis(200), ..options(&server) };
    let store = S3::open(options).await.unwrap();
    faults(&server).next(2, Fault::Hang);
    let got = try_read(&store, &key("a"), Span::All).await;
    assert!(matches!(got, Err(StoreError::Unavailable { .. })), "{got:?}");
    let put = store.put(&key("a"), Bytes::from_static(b"x"), Condition::Always).await;
    assert!(matches!(put, Err(StoreError::Unavailable { .. })), "{put:?}");
}

#[tokio::test]
async fn bytes_damaged_on_their_way_up_are_refused() {
    let Some((server, store)) = with_object().await else { return };
    faults(&server).next(1, Fault::FlipSent(3));
    let put = store.put(&key("a"), Bytes::from_static(b"abcdef"), Condition::Always).await;
    assert!(matches!(put, Err(StoreError::Corrupt { .. })), "{put:?}");
    let upload = store.begin(&key("b")).await.unwrap();
    faults(&server).next(1, Fault::FlipSent(70_000));
    let part = store.put_part(&upload, 1, Bytes::from(vec![1; 100_000])).await;
    assert!(matches!(part, Err(StoreError::Corrupt { .. })), "{part:?}");
    assert!(store.parts(&upload).await.unwrap().is_empty());
    store.abort(&upload).await.unwrap();
    assert_eq!(read(&store, &key("a"), Span::All).await, SOME);
    let header = faults(&server).last_header(&Method::PUT).unwrap();
    assert!(header.contains_key("content-md5"));
}

#[tokio::test]
async fn an_error_in_an_answer_of_success_is_an_error() {
    let Some((server, store)) = with_object().await else { return };
    let upload = store.begin(&key("b")).await.unwrap();
    let part = store.put_part(&upload, 1, Bytes::from_static(b"x")).await.unwrap();
    for (code, is) in [("InternalError", "unavailable"), ("SlowDown", "throttled")] {
        faults(&server).next(1, Fault::Code(StatusCode::OK, code));
        let done = store.complete(&upload, std::slice::from_ref(&part), Condition::Absent).await;
        assert_eq!(name(&done.unwrap_err()), is);
    }
    faults(&server).next(1, Fault::Status(StatusCode::OK));
    let done = store.complete(&upload, std::slice::from_ref(&part), Condition::Absent).await;
    assert!(matches!(done, Err(StoreError::Corrupt { .. })), "{done:?}");
    store.complete(&upload, &[part], Condition::Absent).await.unwrap();
}

#[tokio::test]
async fn a_wrong_secret_is_denied() {
    let server = server().await;
    let wrong = server.credentials_of("ROUSETESTKEY", "wrong").unwrap();
    let store = S3::open(S3Options { credentials_file: Some(wrong), ..options(&server) });
    let store = store.await.unwrap();
    let put = store.put(&key("a"), Bytes::from_static(b"x"), Condition::Always).await;
    assert!(matches!(put, Err(StoreError::Denied { .. })), "{put:?}");
    let e = store.list(&key("a"), None).await.unwrap_err();
    assert!(matches!(e, StoreError::Denied { .. }), "{e}");
    assert!(!server.is_own() || e.to_string().contains("SignatureDoesNotMatch"), "{e}");
}

#[tokio::test]
async fn a_wrong_bucket_or_endpoint_says_what_is_wrong() {
    let server = server().await;
    let store = S3::open(S3Options { bucket: "no-such".to_owned(), ..options(&server) });
    let e = store.await.unwrap().list(&key("a"), None).await.unwrap_err();
    if server.is_own() {
        assert!(matches!(e, StoreError::Refused { .. }), "{e}");
        assert!(e.to_string().contains("there is no bucket `no-such`"), "{e}");
    }
    // Nobody listens on a port that was just given back.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = Some(format!("http://127.0.0.1:{port}"));
    let e = S3::open(S3Options { endpoint, ..options(&server) }).await.unwrap();
    let e = e.head(&key("a")).await.unwrap_err();
    assert!(matches!(e, StoreError::Unavailable { .. }), "{e}");
    assert!(e.to_string().contains("Connection refused"), "{e}");
}

#[tokio::test]
async fn a_store_keeps_to_its_prefix() {
    let server = server().await;
    let at = |prefix: &str| S3Options {
        prefix: Some(key(server.prefix()).join(prefix).unwrap()),
        ..options(&server)
    };
    let one = S3::open(at("one")).await.unwrap();
    let other = S3::open(at("one-more")).await.unwrap();
    for store in [&one, &other] {
        store.put(&key("p/a"), Bytes::from_static(b"x"), Condition::Absent).await.unwrap();
        store.begin(&key("p/b")).await.unwrap();
    }
    let listed = one.list(&key("p"), None).await.unwrap().objects;
    assert_eq!(listed.iter().map(|o| o.0.as_str()).collect::<Vec<_>>(), ["p/a"]);
    assert_eq!(one.uploads(&key("p")).await.unwrap().len(), 1);
    one.delete(&key("p/a")).await.unwrap();
    assert_eq!(other.list(&key("p"), None).await.unwrap().objects.len(), 1);
    if let Some(keys) = server.keys() {
        assert!(keys.iter().all(|key| key.starts_with(server.prefix())), "{keys:?}");
    }
}

#[tokio::test]
async fn what_is_no_key_of_ours_is_passed_by_in_a_listing() {
    let server = Server::start().await.unwrap();
    let store = S3::open(options(&server)).await.unwrap();
    store.put(&key("p/a"), Bytes::new(), Condition::Always).await.unwrap();
    for strange in ["p/with space", "p/../b", "p/", "p/é", "p/.hidden", "p/a<b>&amp;"] {
        server.plant(&format!("{}/{strange}", server.prefix())).await.unwrap();
    }
    let listed = store.list(&key("p"), None).await.unwrap().objects;
    assert_eq!(listed.iter().map(|o| o.0.as_str()).collect::<Vec<_>>(), ["p/a"]);
}

#[tokio::test]
async fn a_store_without_conditions_is_found_out_and_then_writes_nothing() {
    let server = Server::start().await.unwrap();
    for refuses in [false, true] {
        let store = S3::open(options(&server)).await.unwrap();
        server.ignore_conditions(!refuses);
        server.refuse_conditions(refuses);
        let found = store.conditions(&key("scratch")).await.unwrap();
        assert!(!found.absent && !found.unchanged);
        assert!(server.keys().unwrap().is_empty());
        let old = store.put(&key("a"), Bytes::from_static(b"1"), Condition::Always).await.unwrap();
        let upload = store.begin(&key("a")).await.unwrap();
        let part = [store.put_part(&upload, 1, Bytes::from_static(b"2")).await.unwrap()];
        for condition in [Condition::Absent, Condition::Unchanged(&old)] {
            let put = store.put(&key("a"), Bytes::from_static(b"2"), condition).await;
            assert!(matches!(put, Err(StoreError::Unsupported(_))), "{put:?}");
            let done = store.complete(&upload, &part, condition).await;
            assert!(matches!(done, Err(StoreError::Unsupported(_))), "{done:?}");
        }
        assert_eq!(read(&store, &key("a"), Span::All).await, b"1");
        store.delete(&key("a")).await.unwrap();
        // A store that has learnt them is found out, too.
        server.ignore_conditions(false);
        server.refuse_conditions(false);
        assert!(store.conditions(&key("scratch")).await.unwrap().absent);
        store.put(&key("a"), Bytes::from_static(b"3"), Condition::Absent).await.unwrap();
        store.delete(&key("a")).await.unwrap();
    }
}

#[tokio::test]
async fn a_store_that_looks_at_conditions_in_a_put_only_ends_no_upload_under_one() {
    let server = Server::start().await.unwrap();
    let store = S3::open(options(&server)).await.unwrap();
    server.ignore_conditions_of_uploads(true);
    let found = store.conditions(&key("scratch")).await.unwrap();
    assert!(found.absent && found.unchanged);
    assert!(store.uploads(&key("scratch")).await.unwrap().is_empty());
    let old = store.put(&key("a"), Bytes::from_static(b"1"), Condition::Absent).await.unwrap();
    let upload = store.begin(&key("a")).await.unwrap();
    let part = [store.put_part(&upload, 1, Bytes::from_static(b"2")).await.unwrap()];
    for condition in [Condition::Absent, Condition::Unchanged(&old)] {
        let done = store.complete(&upload, &part, condition).await;
        assert!(matches!(done, Err(StoreError::Unsupported(_))), "{done:?}");
    }
    store.complete(&upload, &part, Condition::Always).await.unwrap();
}

#[tokio::test]
async fn a_stale_listing_does_not_hide_what_is_there() {
    let server = Server::start().await.unwrap();
    let store = S3::open(options(&server)).await.unwrap();
    server.freeze_listings(true);
    store.put(&key("p/a"), Bytes::from_static(b"1"), Condition::Always).await.unwrap();
    assert!(store.list(&key("p"), None).await.unwrap().objects.is_empty());
    assert_eq!(read(&store, &key("p/a"), Span::All).await, b"1");
    server.freeze_listings(false);
    assert_eq!(store.list(&key("p"), None).await.unwrap().objects.len(), 1);
}

#[tokio::test]
async fn an_authority_of_ones_own_is_trusted_when_it_is_named() {
    let server = Server::start_tls().await.unwrap();
    let store = S3::open(options(&server)).await.unwrap();
    store.put(&key("a"), Bytes::from_static(SOME), Condition::Absent).await.unwrap();
    assert_eq!(read(&store, &key("a"), Span::Last(3)).await, b"789");
    let without = S3::open(S3Options { ca_file: None, ..options(&server) }).await.unwrap();
    let e = without.head(&key("a")).await.unwrap_err();
    assert!(matches!(e, StoreError::Unavailable { .. }), "{e}");
    assert!(e.to_string().contains("certificate"), "{e}");
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for text in ["no pem", "", broken] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        std::fs::write(&path, text).unwrap();
        let e = S3::open(S3Options { ca_file: Some(path), ..options(&server) }).await.unwrap_err();
        assert!(matches!(e, OpenS3Error::Authorities { .. }), "{e}");
    }
    let gone = Some("/nowhere/ca.pem".into());
    let e = S3::open(S3Options { ca_file: gone, ..options(&server) }).await.unwrap_err();
    assert!(
        matches!(&e, OpenS3Error::File { source, .. } if source.kind() == io::ErrorKind::NotFound)
    );
}

#[tokio::test]
async fn the_encryption_that_was_asked_for_is_asked_of_the_store() {
    let server = Server::start().await.unwrap();
    let (sse, id) = ("x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id");
    for (encryption, told, key_id) in [
        (Encryption::Bucket, None, None),
        (Encryption::Aes256, Some("AES256"), None),
        (Encryption::Kms { key_id: None }, Some("aws:kms"), None),
        (Encryption::Kms { key_id: Some("k1".to_owned()) }, Some("aws:kms"), Some("k1")),
    ] {
        let store = S3::open(S3Options { encryption, ..options(&server) }).await.unwrap();
        store.put(&key("a"), Bytes::from_static(b"x"), Condition::Always).await.unwrap();
        let upload = store.begin(&key("b")).await.unwrap();
        for method in [Method::PUT, Method::POST] {
            let header = faults(&server).last_header(&method).unwrap();
            assert_eq!(header.get(sse).map(|v| v.to_str().unwrap()), told, "{method}");
            assert_eq!(header.get(id).map(|v| v.to_str().unwrap()), key_id, "{method}");
        }
        store.put_part(&upload, 1, Bytes::from_static(b"x")).await.unwrap();
        // Only what makes an object says how it is kept.
        assert_eq!(faults(&server).last_header(&Method::PUT).unwrap().get(sse), None);
    }
}
