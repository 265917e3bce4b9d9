//! How long may a client take?

use std::time::{Duration, Instant};

use rouse_tests::{DEFAULT_HOST, Front, Node, ORIGIN_HOST, RawOrigin, assert_eventually, patience};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{GREEDY, page, peer, unharmed};

/// Writes `first` and then `again` byte by byte until it is cut off. Panics when it is not.
async fn drip(stream: &mut TcpStream, first: &[u8], again: &[u8]) -> Duration {
    let began = Instant::now();
    let pause = Duration::from_millis(200);
    let mut bytes = first.to_vec();
    for next in again.iter().cycle() {
        assert!(began.elapsed() < patience(), "it may drip for ever");
        if stream.write_all(&bytes).await.is_err() {
            break;
        }
        bytes = vec![*next];
        let mut read = [0; 1024];
        // An answer that says why is as good.
        if let Ok(Ok(0) | Err(_)) = tokio::time::timeout(pause, stream.read(&mut read)).await {
            break;
        }
    }
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_that_drips_is_cut_on_every_port_and_wakes_nobody() {
    let node = Node::start().await;
    let origin = RawOrigin::start().await;
    let times = "[downstream]\nheader_seconds = 1\n";
    let builder = Front::build(origin.address()).beside(&node).more(times);
    let front = builder.tls("handshake_seconds = 1\n").start().await;
    let generation = node.generation("hello").await;
    let mut idle = peer::connect(GREEDY, front.http()).await;
    assert!(page(&mut idle).await.is_some());

    let head = format!("GET / HTTP/1.1\r\nHost: {DEFAULT_HOST}\r\nX-Slow: ");
    for (port, first, again) in [
        (front.http(), head.as_bytes(), &b"a"[..]),
        (front.http(), b"G", b"E"),
        (front.h2c(), b"P", b"RI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        // The head of a record, and of a hello in it, that promise more.
        (front.https(), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"a"),
    ] {
        let mut stream = peer::connect(GREEDY, port).await;
        let ((), took) = tokio::join!(unharmed(&front), drip(&mut stream, first, again));
        assert!(took > Duration::from_millis(500), "it had its time: {took:?}");
    }
    assert_eventually!(front.refused("timeout").await >= 1.0, "the handshake is counted");
    // The second header of a connection has no more time than the first.
    let mut second = peer::connect(GREEDY, front.http()).await;
    assert!(page(&mut second).await.is_some());
    drip(&mut second, head.as_bytes(), b"a").await;

    assert!(page(&mut idle).await.is_some(), "who is idle may be");
    assert_eq!(node.generation("hello").await, generation, "nobody was woken");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_never_begins_is_cut() {
    let origin = RawOrigin::start().await;
    let builder = Front::build(origin.address()).tls("handshake_seconds = 1\n");
    let front = builder.start().await;
    let mut silent = peer::connect(GREEDY, front.https()).await;
    let before = front.refused("timeout").await;
    assert_eq!(peer::say(&mut silent, "").await, "");
    assert_eventually!(front.refused("timeout").await == before + 1.0, "it is counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_stops_coming_is_told_so_and_frees_its_place() {
    let origin = RawOrigin::start().await;
    let front = Front::of(origin.address(), "").await;
    let mut stalled = peer::connect(GREEDY, front.http()).await;
    let head =
        format!("POST /page HTTP/1.1\r\nHost: {ORIGIN_HOST}\r\nContent-Length: 10\r\n\r\nabc");
    stalled.write_all(head.as_bytes()).await.expect("it is read");
    let mut answer = Vec::new();
    // It is a minute, which is all the patience that there is for anything else.
    let read = tokio::time::timeout(2 * patience(), stalled.read_to_end(&mut answer)).await;
    read.expect("it does not wait for ever").expect("it is closed well");
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    assert!(answer.starts_with("http/1.1 408 "), "{answer}");
    assert!(answer.contains("rouse-error: request-timeout"), "{answer}");
    assert_eventually!(
        front.metrics().await.sum("rouse_in_flight", &[]) == 0.0,
        "nobody is there any more"
    );
    unharmed(&front).await;
}
