//! Are the lines of a head what they seem?

use crate::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_that_can_be_cut_in_two_ways_are_refused() {
    let world = World::new().await;
    for head in [
        // Continued lines, also as the first.
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX: y\r\n z\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX: y\r\n\tz\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: origin.localhost\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX: y\r\n \r\n\r\n",
        // Blanks before a colon, or no colon.
        "GET / HTTP/1.1\r\nHost : origin.localhost\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX : y\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX\t: y\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\n: y\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX Y: z\r\n\r\n",
        // A CR, LF or NUL within.
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX: a\rY: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX: a\r\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX: a\0b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX\0: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX\r: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX: \u{1b}\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\nX: \u{7f}\r\n\r\n",
        // Names that are none.
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\n(X): a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: origin.localhost\r\n\u{e4}: a\r\n\r\n",
    ] {
        world.refused(head.as_bytes()).await;
    }
    world.fine().await;
}

/// A lone LF may end a line (RFC 9112, section 2.2), but then it ends it for the app as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bare_lf_is_no_end_or_one_for_all() {
    let world = World::new().await;
    for head in [
        "GET /a HTTP/1.1\nHost: origin.localhost\nConnection: close\n\n",
        "GET /a HTTP/1.1\r\nHost: origin.localhost\nConnection: close\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: origin.localhost\r\nConnection: close\r\n\n",
        "GET /a HTTP/1.1\r\nHost: origin.localhost\r\nConnection: close\n\r\n",
        "GET /a HTTP/1.1\r\nHost: origin.localhost\r\nX: a\nConnection: close\r\n\r\n",
    ] {
        if let Some(request) = world.refused_or_one(head.as_bytes()).await {
            assert_eq!((&*request.target, request.header("host")), ("/a", "origin.localhost"));
        }
    }
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_line_has_three_words() {
    let world = World::new().await;
    for line in [
        "GET / HTTP/1.1 HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET /\tHTTP/1.1",
        " GET / HTTP/1.1",
        "GET / HTTP/1.1\0",
        "GET a HTTP/1.1",
        "GET * HTTP/1.1",
        "GET ../a HTTP/1.1",
        "G\0T / HTTP/1.1",
        "G(T / HTTP/1.1",
        "G\u{e4}T / HTTP/1.1",
        "GET / HTTP/1.2",
        "GET / HTTP/2.0",
        "GET / HTTP/0.9",
        "GET / HTTP/1.1x",
        "GET / http/1.1",
        "GET / XTTP/1.1",
        "GET /",
        "GET",
        "/ HTTP/1.1",
    ] {
        world.refused(format!("{line}\r\nHost: origin.localhost\r\n\r\n").as_bytes()).await;
    }
    world.fine().await;
}

/// Pingora writes them as a URI would have them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_target_has_is_refused_or_encoded() {
    let world = World::new().await;
    for target in ["/a b", "/a  b", "/a\0b", "/a\u{1}b", "/a\u{7f}b", "/a#b", "/a\"b", "/a<b>"] {
        let lines = "Host: origin.localhost\r\nConnection: close\r\n";
        let head = format!("GET {target} HTTP/1.1\r\n{lines}\r\n");
        if let Some(request) = world.refused_or_one(head.as_bytes()).await {
            assert!(request.target.bytes().all(|b| b.is_ascii_graphic()), "{request:?}");
        }
    }
    world.fine().await;
}

/// Bytes above ASCII are in no URI, but nothing ends at one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_above_ascii_in_a_target_are_refused_or_stay_in_it() {
    let world = World::new().await;
    for target in [&b"/\xc3\xa4"[..], b"/\xff", b"/\x85", b"/\xa0HTTP/1.1", b"/?\xe2\x80\xa8"] {
        let head =
            [b"GET ", target, b" HTTP/1.1\r\nHost: origin.localhost\r\nConnection: close\r\n\r\n"];
        let answer = world.say(&head.concat()).await;
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{target:?}: {answer}");
        let bytes = world.origin.bytes().concat();
        let requests = bytes.windows(4).filter(|w| w == b"\r\n\r\n").count();
        let lines = bytes.windows(5).filter(|w| w == b"GET /").count();
        assert_eq!(requests, lines, "as many heads as request lines: {target:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_and_upgrades_to_http_2_make_no_tunnel() {
    let world = World::new().await;
    for head in [
        "CONNECT origin.localhost:80 HTTP/1.1\r\nHost: origin.localhost:80\r\n\r\n",
        "CONNECT origin.localhost HTTP/1.1\r\nHost: origin.localhost\r\nContent-Length: 0\r\n\r\n",
        "CONNECT / HTTP/1.1\r\nHost: origin.localhost\r\n\r\n",
    ] {
        world.refused(head.as_bytes()).await;
    }
    for upgrade in ["h2c", "h2c, websocket", "H2C", "TLS/1.0", "h2c\r\nUpgrade: foo"] {
        let head = format!(
            "GET /up HTTP/1.1\r\nHost: origin.localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n\
             Upgrade: {upgrade}\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n"
        );
        let close = head.replace("Connection: ", "Connection: close, ");
        for head in [head, close] {
            let before = world.origin.requests().len();
            let mut visitor = rouse_tests::Raw::connect(world.front.http()).await.unwrap();
            visitor.write(&head).await.unwrap();
            let answer = visitor.read_until("\r\n\r\n").await;
            assert!(!answer.starts_with("HTTP/1.1 101"), "{upgrade:?}: {answer}");
            for request in &world.origin.requests()[before..] {
                assert_eq!(request.header("http2-settings"), "", "{request:?}");
                let upgrade = request.all("upgrade").join(",").to_ascii_lowercase();
                assert!(!upgrade.contains("h2c"), "{request:?}");
            }
        }
    }
    world.fine().await;
}

/// What a client may name as its connection's own is taken off: so it may not be the app's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_takes_off_nothing_that_the_app_needs() {
    let world = World::new().await;
    for named in [
        "host",
        "close, Host",
        "Content-Length",
        "transfer-encoding",
        "X-Forwarded-For",
        "X-Forwarded-Proto",
        "x_forwarded_for",
        "Forwarded",
        "X-Real-IP",
        "Authorization",
        "Cookie",
        "Rouse-Nonce",
        "rouse-agent",
        "a, b, c, d, e, f, g, h, i, j, k",
        "X\u{b}Y",
        "\"close\"",
    ] {
        let head = format!(
            "POST / HTTP/1.1\r\nHost: origin.localhost\r\nContent-Length: 0\r\nConnection: {named}\r\n\r\n"
        );
        world.refused(head.as_bytes()).await;
    }
    let head = "GET / HTTP/1.1\r\nHost: origin.localhost\r\nConnection: close, X-Mine\r\n\
                X-Mine: a\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nTE: gzip\r\n\r\n";
    let request = world.one(head.as_bytes()).await;
    for name in ["x-mine", "keep-alive", "proxy-connection", "te"] {
        assert_eq!(request.header(name), "", "{name} is the connection's: {request:?}");
    }
    world.fine().await;
}
