//! How large may a request's header be?

use rouse_tests::{DEFAULT_HOST, Front, Node, RawOrigin};

use crate::{GREEDY, curl, peer, unharmed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_is_refused_by_its_name_and_wakes_nobody() {
    let node = Node::start().await;
    let origin = RawOrigin::start().await;
    let front = Front::beside(&node, origin.address(), "").await;
    let generation = node.generation("hello").await;
    let host = format!("Host: {DEFAULT_HOST}\r\n");
    let (long, large) = ("a".repeat(20_000), "a".repeat(100_000));
    let many: String = (0..200).map(|n| format!("X-{n}: a\r\n")).collect();
    let endless: String = (0..100_000).map(|n| format!("X-{n}: aaaaaaaa\r\n")).collect();
    for (head, status) in [
        (format!("GET /{long} HTTP/1.1\r\n{host}"), 414),
        (format!("GET / HTTP/1.1\r\n{host}X: {large}\r\n"), 431),
        (format!("GET / HTTP/1.1\r\n{host}{many}"), 431),
        (format!("{} / HTTP/1.1\r\n{host}", "A".repeat(100)), 400),
    ] {
        let answer = peer::ask(GREEDY, front.http(), &head).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
        assert!(answer.to_lowercase().contains("cache-control: no-store"), "{answer}");
        unharmed(&front).await;
    }
    // So much is not even read to its end.
    let answer =
        peer::ask(GREEDY, front.http(), &format!("GET / HTTP/1.1\r\n{host}{endless}")).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    unharmed(&front).await;
    assert_eq!(node.generation("hello").await, generation, "nobody was woken");
    // By HTTP/2, where the handshake has begun a wake already.
    let sized =
        async |path: &str, args: &[&str]| curl(&front, path, &[&["--http2"], args].concat()).await;
    assert_eq!(sized(&format!("/{long}"), &[]).await, "2 414");
    let fields: Vec<_> = (0..200).map(|n| format!("X-{n}: a")).collect();
    let fields: Vec<_> = fields.iter().flat_map(|field| ["-H", field]).collect();
    assert_eq!(sized("/", &fields).await, "2 431");
    // What is just within is served.
    let head = format!("GET /echo?{} HTTP/1.1\r\n{host}X: {}\r\n", &long[..8000], &large[..50_000]);
    let answer = peer::ask(GREEDY, front.http(), &head).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
