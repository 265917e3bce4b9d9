//! Whom does an app take its client for, and what is refused since it could be read in two ways?

use tokio::io::AsyncWriteExt;

use super::*;

const TRUSTED: &str = "[downstream]\ntrusted_proxies = [\"127.0.0.1/32\"]\n";

#[tokio::test]
async fn a_strangers_word_on_its_address_is_not_taken() {
    let world = World::new("").await;
    let head = "GET / HTTP/1.1\r\nHost: hello.test\r\nX-Forwarded-For: 6.6.6.6\r\n\
                X-Forwarded-Proto: https\r\nX-Real-IP: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n\
                X_Forwarded_For: 6.6.6.6\r\n";
    assert_eq!(world.request(head).await.status, 200);
    let seen = &world.guest.seen()[0];
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("host"), Some("hello.test"));
    assert!(!seen.head.contains("6.6.6.6"), "{}", seen.head);
}

#[tokio::test]
async fn a_trusted_fronts_word_is() {
    let world = World::new(TRUSTED).await;
    let head = "GET / HTTP/1.1\r\nHost: hello.test\r\nX-Forwarded-For: 6.6.6.6, 192.0.2.7\r\n\
                X-Forwarded-Proto: https\r\n";
    assert_eq!(world.request(head).await.status, 200);
    let seen = &world.guest.seen()[0];
    assert_eq!(seen.header("x-forwarded-for"), Some("6.6.6.6, 192.0.2.7, 127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("https"));
}

#[tokio::test]
async fn addresses_come_by_the_proxy_protocol_in_both_versions() {
    let world = World::listening("proxy_protocol = \"on\"\n", TRUSTED).await;
    let mut v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    v2.extend_from_slice(&[192, 0, 2, 9, 127, 0, 0, 1, 0x12, 0x34, 0, 80]);
    let v1 = b"PROXY TCP4 192.0.2.8 127.0.0.1 4660 80\r\n".to_vec();
    for (header, client) in [(v1, "192.0.2.8"), (v2, "192.0.2.9")] {
        let mut stream = client::connect(world.proxy.http).await;
        stream.write_all(&header).await.unwrap();
        let head = "GET / HTTP/1.1\r\nHost: hello.test\r\nConnection: close\r\n\r\n";
        client::send(&mut stream, head, &[]).await;
        assert_eq!(client::read(&mut stream).await.status, 200);
        let seen = world.guest.seen();
        assert_eq!(seen[seen.len() - 1].header("x-forwarded-for"), Some(client));
    }
    // Without the header nobody is let in.
    let before = world.guest.seen().len();
    let mut stream = client::connect(world.proxy.http).await;
    let head = "GET / HTTP/1.1\r\nHost: hello.test\r\nConnection: close\r\n\r\n";
    client::send(&mut stream, head, &[]).await;
    assert_eq!(client::rest(&mut stream).await, b"");
    assert_eq!(world.guest.seen().len(), before);
}

#[tokio::test]
async fn what_could_be_read_in_two_ways_reaches_no_app() {
    let world = World::new("").await;
    assert_eq!(world.get("/").await.status, 200);
    let hidden = "GET /hidden HTTP/1.1\r\nHost: hello.test\r\n\r\n";
    for head in [
        "POST / HTTP/1.1\r\nHost: hello.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: hello.test\r\nContent-Length: 0\r\nContent-Length: 9\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: hello.test\r\nContent-Length: +0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: hello.test\r\nTransfer-Encoding: xchunked\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: hello.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: hello.test\r\nHost: other.test\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET http://other.test/ HTTP/1.1\r\nHost: hello.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: hello.test\r\nContent_Length: 3\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: hello.test\r\nConnection: host\r\n\r\n",
    ] {
        let mut stream = client::connect(world.proxy.http).await;
        client::send(&mut stream, head, hidden.as_bytes()).await;
        let answer = client::rest(&mut stream).await;
        let text = String::from_utf8_lossy(&answer);
        assert!(text.starts_with("HTTP/1.1 400 "), "{head:?}: {text}");
        assert_eq!(
            text.matches("HTTP/1.1 ").count(),
            1,
            "one answer, and closed: {head:?}: {text}"
        );
        assert_eq!(world.guest.seen().len(), 1, "{head:?} reached the app");
    }
    assert!(world.proxy.metrics().await.contains("rouse_requests_refused_total{reason="));
}

#[tokio::test]
async fn plain_requests_are_sent_to_https() {
    let world = World::listening("redirect_https = true\n", "").await;
    let reply =
        world.request("POST /a?b=c HTTP/1.1\r\nHost: hello.test:80\r\nContent-Length: 0\r\n").await;
    assert_eq!((reply.status, reply.header("location")), (308, Some("https://hello.test/a?b=c")));
    assert_eq!(world.waker.wakes(), 0, "nobody is woken for it");
    let health = world.get("/.well-known/rouse-health").await;
    assert_eq!((health.status, &*health.body), (200, "ok\n"), "a front's checks are answered");
}

#[tokio::test]
async fn who_came_to_a_front_by_https_is_not_sent_there_again() {
    let world = World::listening("redirect_https = true\n", TRUSTED).await;
    let head = "GET / HTTP/1.1\r\nHost: hello.test\r\nX-Forwarded-Proto: https\r\n";
    assert_eq!(world.request(head).await.status, 200);
    let head = "GET / HTTP/1.1\r\nHost: hello.test\r\nX-Forwarded-Proto: http\r\n";
    assert_eq!(world.request(head).await.status, 308);
}
