//! Clients that do not come to a handshake.

use std::time::Duration;

use proptest::prelude::*;
use rouse_tls::{Config, HandshakeError, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::early::hello;
use crate::support::{World, tls};

/// What becomes of a client that sends `bytes` and no more, and what it is told. If `leaves`, it
/// closes its end.
async fn send(tls: &Tls, bytes: &[u8], leaves: bool) -> (HandshakeError, Vec<u8>) {
    let (ours, mut theirs) = tokio::io::duplex(256 * 1024);
    theirs.write_all(bytes).await.unwrap();
    if leaves {
        theirs.shutdown().await.unwrap();
    }
    let error = tls.accept(ours, |_| {}).await.unwrap_err();
    let mut told = Vec::new();
    theirs.read_to_end(&mut told).await.unwrap();
    (error, told)
}

#[tokio::test(start_paused = true)]
async fn half_a_hello_is_waited_for_only_so_long() {
    let world = World::new();
    let config = Config { handshake: Duration::from_secs(7), ..world.config(&["a.example"]) };
    let (tls, hello) = (tls(&config), hello("a.example"));
    for n in [0, 1, 5, hello.len() / 2, hello.len() - 1, hello.len()] {
        let began = tokio::time::Instant::now();
        let (error, _) = send(&tls, &hello[..n], false).await;
        assert_eq!(error.kind(), "timeout", "{n}: {error}");
        assert_eq!(began.elapsed().as_secs(), 7);
        let (error, _) = send(&tls, &hello[..n], true).await;
        assert_eq!(error.kind(), "closed", "{n}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn plain_http_is_told_so() {
    let tls = tls(&World::new().config(&["a.example"]));
    for leaves in [true, false] {
        let request = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
        let (error, told) = send(&tls, request, leaves).await;
        assert_eq!(error.kind(), "plain_http");
        let told = String::from_utf8(told).unwrap();
        assert!(
            told.starts_with("HTTP/1.1 400 Bad Request\r\nRouse-Error: https-only\r\n"),
            "{told}"
        );
        let (head, body) = told.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{told}");
    }
}

#[tokio::test]
async fn what_is_no_tls_is_told_nothing() {
    let tls = tls(&World::new().config(&["a.example"]));
    for first in [0u8, 21, 23, b'a', 0x80, 255] {
        let (error, told) = send(&tls, &[first, 3, 1, 0, 5, 1, 0, 0, 1, 0], true).await;
        assert_eq!((error.kind(), told.len()), ("not_tls", 0), "{first}");
    }
}

#[tokio::test]
async fn a_hello_without_end_is_cut_off() {
    let tls = tls(&World::new().config(&["a.example"]));
    // A ClientHello that says it has so many bytes, in records of 16,384 or of one.
    for (said, record) in [(0x00ff_ffffu32, 16_384), (0xffff, 16_384), (0xfffe, 1)] {
        let mut message = said.to_be_bytes();
        message[0] = 1;
        let mut message = message.to_vec();
        message.resize(70_000, 0);
        let mut bytes = Vec::new();
        for part in message.chunks(record) {
            bytes.extend([22, 3, 1]);
            bytes.extend(u16::try_from(part.len()).unwrap().to_be_bytes());
            bytes.extend(part);
        }
        bytes.truncate(200_000);
        let (error, _) = send(&tls, &bytes, false).await;
        assert_eq!(error.kind(), "hello_too_long", "{said} {record}: {error}");
    }
}

#[tokio::test]
async fn a_broken_hello_is_a_breach_of_protocol() {
    let tls = tls(&World::new().config(&["a.example"]));
    let (error, told) = send(&tls, &[22, 3, 1, 0, 5, 1, 0, 0, 1, 0], true).await;
    assert_eq!(error.kind(), "protocol", "{error}");
    assert_eq!(told.first(), Some(&21), "an alert");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn no_bytes_do_any_harm(at in 0usize..300, with in proptest::collection::vec(any::<u8>(), 1..64)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            thread_local!(static TLS: Tls = tls(&World::new().config(&["a.example"])));
            let tls = TLS.with(|tls| Tls::new(tls.store().clone(), &Config::default()).unwrap());
            let mut bytes = hello("a.example");
            let at = at.min(bytes.len() - 1);
            let end = (at + with.len()).min(bytes.len());
            bytes.splice(at..end, with.iter().copied());
            send(&tls, &bytes, true).await;
        });
    }
}
