//! What becomes of HTTP/2, where every length is known, when it is written as HTTP/1?

use rouse_tests::Frames;
use rouse_tests::frames::{END_HEADERS, END_STREAM, Frame, fields, kind};
use rouse_tests::origin::Request;

use crate::{HIDDEN, World};

type Field<'a> = (&'a [u8], &'a [u8]);

const GET: [Field<'static>; 4] = [
    (b":method", b"GET"),
    (b":scheme", b"http"),
    (b":authority", b"origin.localhost"),
    (b":path", b"/two"),
];

/// [`GET`] with one field in another's place, or without it.
fn instead(name: &[u8], value: Option<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let kept = GET.iter().filter(|(n, _)| *n != name || value.is_some());
    let put =
        |(n, v): &Field<'_>| (n.to_vec(), if *n == name { value.unwrap_or(v) } else { v }.to_vec());
    kept.map(put).collect()
}

fn block(all: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    fields(&all.iter().map(|(n, v)| (&n[..], &v[..])).collect::<Vec<_>>())
}

/// [`GET`] and these after it.
fn and(more: &[Field<'_>]) -> Vec<u8> {
    fields(&[&GET[..], more].concat())
}

impl World {
    /// Sends a header block, and these DATA frames, on a connection of its own; what comes of its stream.
    #[allow(clippy::print_stdout, reason = "the test runner shows it with a failed test")]
    async fn stream(&self, block: &[u8], data: &[&[u8]]) -> Vec<Frame> {
        // Which one it was, when it fails.
        println!("{} {data:?}", block.escape_ascii());
        let mut visitor = Frames::connect(self.front.h2c(), &[]).await;
        let end = if data.is_empty() { END_STREAM } else { 0 };
        visitor.send(kind::HEADERS, END_HEADERS | end, 1, block).await;
        for (i, part) in data.iter().enumerate() {
            let end = if i + 1 == data.len() { END_STREAM } else { 0 };
            visitor.send(kind::DATA, end, 1, part).await;
        }
        visitor.stream(1).await
    }

    /// An error or a reset, and nothing reaches the app.
    async fn h2_refused(&self, what: &str, block: &[u8]) {
        let before = self.origin.bytes();
        let frames = self.stream(block, &[]).await;
        assert_eq!(self.origin.bytes(), before, "nothing reaches the app: {what}");
        assert!(is_refused(&frames), "it is refused: {what}: {frames:?}");
    }

    /// One request with one reading; what the app saw.
    async fn h2_one(&self, what: &str, block: &[u8], data: &[&[u8]]) -> Request {
        let before = self.origin.requests().len();
        let frames = self.stream(block, data).await;
        assert_eq!(frames.first().and_then(Frame::status), Some(200), "{what}: {frames:?}");
        let mut requests = self.origin.requests();
        assert_eq!(requests.len(), before + 1, "it is one request: {what}: {requests:#?}");
        requests.pop().expect("there is one")
    }
}

/// Whether a stream ended in an error, or its connection did.
fn is_refused(frames: &[Frame]) -> bool {
    let error = |frame: &Frame| {
        frame.status().is_some_and(|status| status >= 400)
            || frame.error().is_some_and(|error| error != 0)
    };
    // Hanging up says it as well.
    frames.iter().any(error) || frames.is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pseudo_headers_are_what_they_seem() {
    let world = World::new().await;
    for (name, value) in [
        (&b":path"[..], Some(&b"/ HTTP/1.1\r\nHost: b\r\n\r\nGET /hidden"[..])),
        (b":path", Some(b"/a b")),
        (b":path", Some(b"/a\0")),
        (b":path", Some(b"/a\n")),
        (b":path", Some(b"/a\r")),
        (b":path", Some(b"")),
        (b":path", Some(b"a")),
        (b":path", Some(b"*")),
        (b":path", Some(b"http://other.localhost/")),
        (b":path", None),
        (b":method", Some(b"GET / HTTP/1.1\r\nHost: b\r\n\r\nGET")),
        (b":method", Some(b"GET /hidden HTTP/1.1\r\n")),
        (b":method", Some(b"G T")),
        (b":method", Some(b"G\0T")),
        (b":method", Some(b"")),
        (b":method", None),
        (b":method", Some(b"CONNECT")),
        (b":authority", Some(b"origin.localhost\r\nX: y")),
        (b":authority", Some(b"a@origin.localhost")),
        (b":authority", Some(b"origin.localhost/other")),
        (b":authority", Some(b"origin.localhost other")),
        (b":authority", Some(b"origin.localhost:x")),
        (b":authority", Some(b"")),
        (b":authority", None),
        (b":scheme", None),
        (b":scheme", Some(b"http\r\nX: y")),
        (b":scheme", Some(b"http://other.localhost/?")),
    ] {
        let what = format!(
            "{} {:?}",
            name.escape_ascii(),
            value.map(|value| value.escape_ascii().to_string())
        );
        world.h2_refused(&what, &block(&instead(name, value))).await;
    }
    for more in [
        (&b":path"[..], &b"/hidden"[..]),
        (b":method", b"POST"),
        (b":authority", b"other.localhost"),
        (b":scheme", b"https"),
        (b":status", b"200"),
        (b":other", b"a"),
        (b":", b"a"),
    ] {
        let what = format!("one more {}", more.0.escape_ascii());
        world.h2_refused(&what, &and(&[more])).await;
        // And after a field that is none.
        world.h2_refused(&format!("late {what}"), &and(&[(b"x", b"y"), more])).await;
    }
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_the_authority() {
    let world = World::new().await;
    world.h2_refused("another Host", &and(&[(b"host", b"other.localhost")])).await;
    world
        .h2_refused("two", &and(&[(b"host", b"origin.localhost"), (b"host", b"origin.localhost")]))
        .await;
    let same = and(&[(b"host", b"origin.localhost")]);
    let plain = and(&[]);
    let mut only = instead(b":authority", None);
    only.push((b"host".to_vec(), b"origin.localhost".to_vec()));
    for (what, block) in [("both", same), ("an authority", plain), ("a Host", block(&only))] {
        let request = world.h2_one(what, &block, &[]).await;
        assert_eq!(request.header("host"), "origin.localhost", "{what}: {request:?}");
        assert_eq!((&*request.method, &*request.target), ("GET", "/two"), "{what}");
    }
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_that_would_be_lines_are_refused() {
    let world = World::new().await;
    for field in [
        (&b"x"[..], &b"a\r\nY: b"[..]),
        (b"x", b"a\nY: b"),
        (b"x", b"a\rY: b"),
        (b"x", b"a\0b"),
        (b"x", b"a\r\n\r\nGET /hidden HTTP/1.1\r\nHost: origin.localhost\r\n\r\n"),
        (b"x\r\ny", b"a"),
        (b"x: a\r\ny", b"b"),
        (b"x\0", b"a"),
        (b"x:", b"a"),
        (b"x y", b"a"),
        (b" x", b"a"),
        (b"", b"a"),
        (b"X", b"a"),
        (b"Transfer-Encoding", b"chunked"),
        (b"x\xc3\xa4", b"a"),
        (b"transfer-encoding", b"chunked"),
        (b"transfer-encoding", b"identity"),
        (b"connection", b"close"),
        (b"connection", b"host"),
        (b"keep-alive", b"timeout=5"),
        (b"proxy-connection", b"keep-alive"),
        (b"upgrade", b"websocket"),
        (b"upgrade", b"h2c"),
        (b"te", b"gzip"),
        (b"te", b"trailers, chunked"),
        (b"transfer_encoding", b"chunked"),
        (b"content_length", b"5"),
        (b"content-length", b"+0"),
        (b"content-length", b"0, 0"),
        (b"content-length", b"0x0"),
        (b"content-length", b""),
        (b"content-length", b"18446744073709551616"),
        (b"expect", b"200-ok"),
    ] {
        let what = format!("{}: {}", field.0.escape_ascii(), field.1.escape_ascii());
        world.h2_refused(&what, &and(&[field])).await;
    }
    let twice = and(&[(b"content-length", b"0"), (b"content-length", b"0")]);
    world.h2_refused("a length twice", &twice).await;
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_has_the_length_that_it_says() {
    let world = World::new().await;
    let mut post = instead(b":method", Some(b"POST"));
    post.push((b"content-length".to_vec(), b"5".to_vec()));
    let post = block(&post);
    for (what, data) in [
        ("less", &[&b"abc"[..]][..]),
        ("more", &[b"abcdefg"]),
        ("more, bit by bit", &[b"abc", b"defg"]),
        ("more by a request", &[b"abcde", HIDDEN.as_bytes()]),
        ("nothing", &[b""]),
    ] {
        let frames = world.stream(&post, data).await;
        assert!(is_refused(&frames), "it is refused: {what}: {frames:?}");
        // What was passed on may lie there broken off: no app takes it for a request.
        let (requests, rests) = world.origin.read();
        assert_eq!(requests, [], "{what}");
        let rests = rests.concat();
        assert!(!String::from_utf8_lossy(&rests).contains("hidden"), "{what}");
    }
    let frames = world.stream(&and(&[(b"content-length", b"5")]), &[]).await;
    assert!(is_refused(&frames), "a length without a body: {frames:?}");
    let plain = "GET /plain HTTP/1.1\r\nHost: origin.localhost\r\nConnection: close\r\n\r\n";
    assert!(world.say(plain.as_bytes()).await.starts_with("HTTP/1.1 200 "));
    let (requests, _) = world.origin.read();
    assert_eq!(requests.len(), 1, "the next has a connection of its own: {requests:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_looks_like_a_request_is_a_body() {
    let world = World::new().await;
    let post = instead(b":method", Some(b"POST"));
    let mut known = post.clone();
    known.push((b"content-length".to_vec(), HIDDEN.len().to_string().into_bytes()));
    let hidden = HIDDEN.as_bytes();
    let broken = format!("0\r\n\r\n{HIDDEN}");
    for (what, block, data) in [
        ("of known length", block(&known), &[hidden][..]),
        ("in two", block(&known), &[&hidden[..7], &hidden[7..]]),
        ("with an empty end", block(&known), &[hidden, b""]),
        ("of unknown length", block(&post), &[hidden]),
        ("of unknown length with an empty end", block(&post), &[hidden, b""]),
        ("with empty frames", block(&post), &[b"", hidden, b"", b""]),
        ("that would end a chunked one", block(&post), &[broken.as_bytes()]),
        ("of a GET", and(&[]), &[hidden]),
    ] {
        let request = world.h2_one(what, &block, data).await;
        assert_eq!(request.body, data.concat(), "{what}");
        assert_eq!(request.target, "/two", "{what}");
        // The connection to the app is clean after it.
        world.fine().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_change_nothing_of_a_request() {
    let world = World::new().await;
    let post = block(&instead(b":method", Some(b"POST")));
    for trailer in [
        (&b"content-length"[..], &b"5"[..]),
        (b"transfer-encoding", b"chunked"),
        (b"host", b"other.localhost"),
        (b"x-forwarded-for", b"6.6.6.6"),
        (b"rouse-nonce", b"forged"),
        (b":path", b"/hidden"),
        (b"x", b"a\r\n\r\nGET /hidden HTTP/1.1\r\nHost: b\r\n\r\n"),
        (b"x", b"y"),
    ] {
        let what = trailer.0.escape_ascii().to_string();
        let mut visitor = Frames::connect(world.front.h2c(), &[]).await;
        visitor.send(kind::HEADERS, END_HEADERS, 1, &post).await;
        visitor.send(kind::DATA, 0, 1, b"abc").await;
        let trailers = fields(&[trailer]);
        visitor.send(kind::HEADERS, END_HEADERS | END_STREAM, 1, &trailers).await;
        visitor.stream(1).await;
        let (requests, _) = world.origin.read();
        for request in requests {
            let name = request.target == "/two" || request.target == "/plain";
            assert!(name, "{what}: {request:?}");
            let forged = |name: &str| ["host", "rouse-nonce", "x-forwarded-for"].contains(&name);
            let mut names = request.trailers.iter().map(|(name, _)| name.as_str());
            assert!(!names.any(forged), "{what} is passed on: {request:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_speaks_as_the_proxy_or_as_another_client() {
    let world = World::new().await;
    for name in [
        &b"rouse-nonce"[..],
        b"rouse_nonce",
        b"rouse-agent",
        b"x-forwarded-for",
        b"x_forwarded_for",
        b"x-forwarded-host",
        b"x-real-ip",
        b"forwarded",
        b"true-client-ip",
    ] {
        let what = name.escape_ascii().to_string();
        let request = world.h2_one(&what, &and(&[(name, b"forged")]), &[]).await;
        let said = request.headers.iter().any(|(_, value)| value.contains("forged"));
        assert!(!said, "{what} arrives: {request:#?}");
        assert_eq!(request.header("x-forwarded-for"), "127.0.0.1", "{request:?}");
    }
    world.fine().await;
}

/// In HTTP/1 there is one Cookie (RFC 9113, section 8.2.3).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cookie_in_crumbs_is_whole_again() {
    let world = World::new().await;
    let crumbs = and(&[(b"cookie", b"a=1"), (b"cookie", b"b=2"), (b"te", b"trailers")]);
    let request = world.h2_one("crumbs", &crumbs, &[]).await;
    assert_eq!(request.header("cookie"), "a=1; b=2");
}
