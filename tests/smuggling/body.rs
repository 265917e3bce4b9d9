//! Where does a request end?

use crate::{HIDDEN, World};

/// A POST with these header lines.
fn post(lines: &str, body: &str) -> Vec<u8> {
    format!("POST /body HTTP/1.1\r\nHost: origin.localhost\r\n{lines}\r\n{body}").into_bytes()
}

/// A chunked POST, after which the connection is closed.
fn chunked(body: &str) -> Vec<u8> {
    post("Transfer-Encoding: chunked\r\nConnection: close\r\n", body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_length_and_an_encoding_are_not_both_taken() {
    let world = World::new().await;
    for (lines, body) in [
        ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "0\r\n\r\n"),
        ("Content-Length: 0\r\ntransfer-encoding: CHUNKED\r\n", "0\r\n\r\n"),
        ("Content-Length: 4\r\nTransfer-Encoding: identity\r\n", "abcd"),
        ("Transfer-Encoding: chunked\r\nContent-Length: x\r\n", "0\r\n\r\n"),
    ] {
        world.refused(&post(lines, body)).await;
    }
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encoding_is_chunked_and_nothing_else() {
    let world = World::new().await;
    for coding in [
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunkedx",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked;q=1",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: ",
        "Transfer-Encoding: \u{b}chunked",
        "Transfer-Encoding: chunked\u{c}",
        "Transfer-Encoding: chun\u{0}ked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
        "Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding\t: chunked",
        " Transfer-Encoding: chunked",
        "X: y\r\n Transfer-Encoding: chunked",
        "Transfer-Encoding:\r\n chunked",
        "Transfer_Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer_Encoding: x",
        "X: y\nTransfer-Encoding: chunked\r\nContent-Length: 3",
        "X: y\rTransfer-Encoding: chunked",
        "\u{0}Transfer-Encoding: chunked",
    ] {
        world.refused(&post(&format!("{coding}\r\n"), "0\r\n\r\n")).await;
    }
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encoding_may_be_spelt_in_any_case_between_blanks() {
    let world = World::new().await;
    for coding in ["CHUNKED", "\tChunked", "chunked ", "  chunked\t"] {
        let lines = format!("Transfer-Encoding:{coding}\r\nConnection: close\r\n");
        let request = world.one(&post(&lines, "3\r\nabc\r\n0\r\n\r\n")).await;
        assert_eq!(request.body, b"abc", "{coding:?}");
        assert_eq!(request.header("transfer-encoding"), "chunked", "{coding:?}");
    }
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_length_is_one_plain_number() {
    let world = World::new().await;
    for length in [
        "Content-Length: 0\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5, 5",
        "Content-Length: 0, 5",
        "Content-Length: +5",
        "Content-Length: -5",
        "Content-Length: -0",
        "Content-Length: 0x5",
        "Content-Length: 5 5",
        "Content-Length: 5;",
        "Content-Length: 5.0",
        "Content-Length: 5e0",
        "Content-Length: ",
        "Content-Length: \u{b}5",
        "Content-Length: 5\u{0}",
        "Content-Length: \u{665}",
        "Content-Length: 18446744073709551616",
        "Content-Length: 18446744073709551621",
        "Content-Length: 99999999999999999999999999",
        "Content-Length : 5",
        "Content-Length:\r\n 5",
        "Content_Length: 5",
        "Content-Length: 0\r\nContent_Length: 5",
        "X: y\rContent-Length: 5",
    ] {
        world.refused(&post(&format!("{length}\r\n"), "")).await;
    }
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_length_counts_is_body_and_no_request() {
    let world = World::new().await;
    let length = HIDDEN.len();
    for lines in [
        format!("Content-Length: {length}\r\nConnection: close\r\n"),
        format!("Content-Length: 000{length}\r\nConnection: close\r\n"),
        format!("content-length:\t{length} \r\nConnection: close\r\n"),
    ] {
        let request = world.one(&post(&lines, HIDDEN)).await;
        assert_eq!(request.body, HIDDEN.as_bytes(), "{lines:?}");
        assert_eq!(request.target, "/body", "{lines:?}");
    }
    let get = format!(
        "GET /body HTTP/1.1\r\nHost: origin.localhost\r\nConnection: close\r\n\
         Content-Length: {length}\r\n\r\n{HIDDEN}"
    );
    assert_eq!(world.one(get.as_bytes()).await.body, HIDDEN.as_bytes(), "of a GET, too");
    let chunk = format!("{length:x}\r\n{HIDDEN}\r\n0\r\n\r\n");
    assert_eq!(world.one(&chunked(&chunk)).await.body, HIDDEN.as_bytes(), "in a chunk, too");
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_0_has_no_encoding() {
    let world = World::new().await;
    for lines in [
        "Transfer-Encoding: chunked\r\n",
        "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    ] {
        let head = format!("POST /body HTTP/1.0\r\nHost: origin.localhost\r\n{lines}\r\n0\r\n\r\n");
        world.refused(head.as_bytes()).await;
    }
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_heads_of_chunks_are_plain_or_the_request_breaks_off() {
    let world = World::new().await;
    for body in [
        "0x3\r\nabc\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
        "-3\r\nabc\r\n0\r\n\r\n",
        "3 3\r\nabc\r\n0\r\n\r\n",
        " 3\r\nabc\r\n0\r\n\r\n",
        "g\r\nabc\r\n0\r\n\r\n",
        "3\nabc\n0\n\n",
        "3\rabc\r0\r\r",
        "3;a\rb\r\nabc\r\n0\r\n\r\n",
        "3\u{0}\r\nabc\r\n0\r\n\r\n",
        "10000000000000003\r\nabc\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        "fffffffffffffffe\r\nabc\r\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        "3\r\nab\r\n0\r\n\r\n",
        "0x0\r\n\r\n",
        "0\u{0}\r\n\r\n",
    ] {
        let answer = world.say(&[&chunked(body)[..], HIDDEN.as_bytes()].concat()).await;
        assert!(answer.matches("HTTP/1.").count() <= 1, "once and closed: {body:?}: {answer}");
        // What was passed on before the bad head is a request that never ends: no app takes it for one.
        let (requests, rests) = world.origin.read();
        assert_eq!(requests, [], "no whole request comes of it: {body:?}");
        let rests = rests.concat();
        let rests = String::from_utf8_lossy(&rests);
        assert!(!rests.contains("hidden"), "and nothing of the next: {body:?}: {rests}");
    }
    let plain = "GET /plain HTTP/1.1\r\nHost: origin.localhost\r\nConnection: close\r\n\r\n";
    let answer = world.say(plain.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let (requests, _) = world.origin.read();
    assert_eq!(requests.len(), 1, "and the next has a connection of its own: {requests:#?}");
}

/// Pingora takes an empty size for 0, and a bare LF in an extension for a part of it. Both are made anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_heads_of_chunks_are_not_passed_on() {
    let world = World::new().await;
    for body in ["\r\nabc\r\n0\r\n\r\n", "3;a\nb\r\nabc\r\n0\r\n\r\n", "3;\n\r\nabc\r\n0\r\n\r\n"] {
        if let Some(request) = world.refused_or_one(&chunked(body)).await {
            assert!(request.body.is_empty() || request.body == b"abc", "{body:?}: {request:?}");
        }
    }
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_arrive_made_anew() {
    let world = World::new().await;
    for body in [
        "3\r\nabc\r\n0\r\n\r\n",
        "003\r\nabc\r\n000\r\n\r\n",
        "3;name=value\r\nabc\r\n0;last\r\n\r\n",
        "3;name=\"va;lue\"\r\nabc\r\n0\r\n\r\n",
        "1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
    ] {
        let request = world.one(&chunked(body)).await;
        assert_eq!(request.body, b"abc", "{body:?}");
    }
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_change_nothing_of_a_request() {
    let world = World::new().await;
    for trailer in [
        "Content-Length: 5",
        "Transfer-Encoding: chunked",
        "Host: other.localhost",
        "X-Forwarded-For: 6.6.6.6",
        "Rouse-Nonce: forged",
        "X: y",
    ] {
        let body = format!("3\r\nabc\r\n0\r\n{trailer}\r\n\r\n");
        if let Some(request) = world.refused_or_one(&chunked(&body)).await {
            assert_eq!(request.body, b"abc", "{trailer:?}");
            assert_eq!(request.header("host"), "origin.localhost", "{trailer:?}");
            let forged = |name: &str| ["host", "rouse-nonce", "x-forwarded-for"].contains(&name);
            let mut names = request.trailers.iter().map(|(name, _)| name.as_str());
            assert!(!names.any(forged), "{trailer:?} is passed on: {request:?}");
        }
    }
    world.fine().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_follows_a_body_is_the_next_request_or_nothing() {
    let world = World::new().await;
    for (lines, body) in [
        ("Content-Length: 3\r\n", "abc"),
        ("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"),
    ] {
        for garbage in ["xyz\r\n\r\n", "\0\0\0\0", "0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "\r\r\n"]
        {
            let before = world.origin.requests().len();
            let bytes = [&post(lines, body)[..], garbage.as_bytes(), HIDDEN.as_bytes()].concat();
            let answer = world.say(&bytes).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{lines:?} {garbage:?}: {answer}");
            let requests = world.origin.requests();
            assert_eq!(requests.len(), before + 1, "{lines:?} {garbage:?}: {requests:#?}");
            assert_eq!(requests[before].body, b"abc", "{lines:?} {garbage:?}");
        }
    }
    world.fine().await;
}
