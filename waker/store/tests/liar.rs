//! S3 that answers what it should not. Nothing that comes panics, or fills the memory.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use common::{key, try_read};
use rouse_store::{Condition, S3, S3Options, Span, Store, StoreError, Upload};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Answers each request with `header`, `body`, and `body` again until the client has enough or
/// `times` are over. Tells how many bytes went out.
async fn liar(
    header: &str,
    body: &'static [u8],
    times: usize,
) -> (S3, JoinSet<()>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let header = header.replace('\n', "\r\n") + "\r\n\r\n";
    let (mut tasks, sent) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    let count = sent.clone();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            answer(stream, &header, body, times, &count).await;
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let credentials = dir.path().join("credentials");
    std::fs::write(&credentials, "[default]\naws_access_key_id = k\naws_secret_access_key = s\n")
        .unwrap();
    let options = S3Options {
        endpoint: Some(endpoint),
        path_style: true,
        credentials_file: Some(credentials),
        ..S3Options::new("bucket")
    };
    (S3::open(options).await.unwrap(), tasks, sent)
}

async fn answer(
    mut stream: TcpStream,
    header: &str,
    body: &[u8],
    times: usize,
    sent: &AtomicUsize,
) {
    let mut seen = Vec::new();
    while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut seen).await.unwrap_or(0) == 0 {
            return;
        }
    }
    if stream.write_all(header.as_bytes()).await.is_err() {
        return;
    }
    for _ in 0..times {
        if stream.write_all(body).await.is_err() {
            return;
        }
        sent.fetch_add(body.len(), Ordering::Relaxed);
    }
    let _ = stream.shutdown().await;
}

#[tokio::test]
async fn a_range_that_was_not_asked_for_is_corrupt() {
    let tag = "ETag: \"x\"\nConnection: close";
    for (header, asked) in [
        ("HTTP/1.1 206 X\nContent-Length: 4\nContent-Range: bytes 1-4/9", Span::Range(0..4)),
        ("HTTP/1.1 206 X\nContent-Length: 4\nContent-Range: bytes 0-4/9", Span::Range(0..4)),
        ("HTTP/1.1 206 X\nContent-Length: 4\nContent-Range: bytes 4-1/9", Span::Range(0..4)),
        ("HTTP/1.1 206 X\nContent-Length: 4\nContent-Range: bytes 0-3/2", Span::Range(0..4)),
        (
            "HTTP/1.1 206 X\nContent-Length: 4\nContent-Range: bytes 0-18446744073709551615/4",
            Span::Range(0..4),
        ),
        ("HTTP/1.1 206 X\nContent-Length: 4\nContent-Range: all of it", Span::Range(0..4)),
        // It knows no ranges, and sends the object from its begin.
        ("HTTP/1.1 200 X\nContent-Length: 4", Span::Range(1..3)),
        ("HTTP/1.1 200 X\nContent-Length: 4", Span::Last(2)),
        // Nor how long it is.
        ("HTTP/1.1 200 X", Span::All),
        ("HTTP/1.1 206 X\nContent-Length: 4\nContent-Range: bytes 0-3/9", Span::All),
    ] {
        let (store, _tasks, _) = liar(&format!("{header}\n{tag}"), b"abcd", 1).await;
        let got = try_read(&store, &key("a"), asked).await;
        assert!(matches!(got, Err(StoreError::Corrupt { .. })), "{header}: {got:?}");
    }
}

#[tokio::test]
async fn what_has_no_tag_is_corrupt() {
    let header = "HTTP/1.1 200 X\nContent-Length: 4\nConnection: close";
    let (store, _tasks, _) = liar(header, b"abcd", 1).await;
    let got = try_read(&store, &key("a"), Span::All).await;
    assert!(matches!(got, Err(StoreError::Corrupt { .. })), "{got:?}");
    let put = store.put(&key("a"), Bytes::from_static(b"x"), Condition::Always).await;
    assert!(matches!(put, Err(StoreError::Corrupt { .. })), "{put:?}");
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    static ZEROS: [u8; 64 << 10] = [b' '; 64 << 10];
    for status in ["200 X", "500 X"] {
        let header = format!("HTTP/1.1 {status}\nConnection: close");
        let (store, _tasks, sent) = liar(&header, &ZEROS, 16 << 10).await;
        let e = store.list(&key("a"), None).await.unwrap_err();
        assert!(e.is_transient(), "{e}");
        let got = try_read(&store, &key("a"), Span::All).await;
        assert!(got.is_err());
        // Two answers of what is read at most, and what sockets hold.
        let sent = sent.load(Ordering::Relaxed);
        assert!(sent < 64 << 20, "{sent}");
    }
}

#[tokio::test]
async fn a_listing_that_goes_on_for_ever_ends() {
    let upload = Upload { key: key("a"), id: "x".to_owned(), begun_unix_ms: None };
    let header = "HTTP/1.1 200 X\nContent-Type: application/xml\nConnection: close";
    for body in [
        &b"<R><IsTruncated>true</IsTruncated></R>"[..],
        b"<R><IsTruncated>true</IsTruncated><NextPartNumberMarker>1</NextPartNumberMarker>\
          <NextKeyMarker>a</NextKeyMarker><NextUploadIdMarker>b</NextUploadIdMarker>\
          <NextContinuationToken>c</NextContinuationToken>\
          <Part><PartNumber>1</PartNumber><ETag>x</ETag><Size>1</Size></Part>\
          <Upload><Key>p/a</Key><UploadId>b</UploadId></Upload></R>",
        b"<R><IsTruncated>tr",
        b"<R><Part><PartNumber>-1</PartNumber></Part><Contents><Key>p/a</Key><Size>-1</Size>\
          </Contents></R>",
        b"",
        b"\xff\xfe",
    ] {
        let (store, _tasks, _) = liar(header, body, 1).await;
        // They have an end, and all but the first page of a listing is an error.
        let parts = store.parts(&upload).await;
        let uploads = store.uploads(&key("p")).await;
        let page = store.list(&key("p"), Some("c".to_owned())).await;
        let said = (parts.is_err(), uploads.is_err(), page.is_err());
        let text = String::from_utf8_lossy(body);
        assert!(said.0 && said.2, "{text}: {said:?}");
        assert!(said.1 || !text.contains("IsTruncated"), "{text}: {said:?}");
    }
}
