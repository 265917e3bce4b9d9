//! HTTP/1.0 and HTTP/1.1, byte by byte.

use rouse_tests::origin::Request;
use rouse_tests::{Raw, Visit};

use crate::{World, long};

const HOST: &str = "Host: origin.localhost\r\n";
const CLOSE: &str = "Host: origin.localhost\r\nConnection: close\r\n";

impl World {
    async fn raw(&self) -> Raw {
        Raw::connect(self.front.http()).await.expect("the proxy listens")
    }

    /// All that is answered, until the connection is closed.
    async fn say(&self, bytes: &str) -> String {
        let mut visitor = self.raw().await;
        visitor.write(bytes).await.expect("the proxy reads");
        visitor.read_to_end().await
    }

    fn last(&self) -> Request {
        self.origin.requests().pop().expect("the app has seen a request")
    }
}

/// A head in lower case, and what follows it.
fn split(answer: &str) -> (String, &str) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a whole head");
    (head.to_ascii_lowercase(), body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_0_closes_unless_asked_to_keep_alive() {
    let world = World::new().await;
    let answer = world.say(&format!("GET /page HTTP/1.0\r\n{HOST}\r\n")).await;
    let (head, body) = split(&answer);
    assert!(head.contains(" 200 ") && body == "page", "{answer}");

    let mut visitor = world.raw().await;
    for _ in 0..3 {
        let head = format!("GET /page HTTP/1.0\r\n{HOST}Connection: keep-alive\r\n\r\n");
        visitor.write(head).await.expect("the connection is kept");
        let head = visitor.read_until("\r\n\r\n").await.to_ascii_lowercase();
        assert!(head.contains("\r\nconnection: keep-alive\r\n"), "it is told so: {head}");
        visitor.read_until("page").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_0_is_told_no_chunks() {
    let world = World::new().await;
    for path in ["/chunked", "/trailers"] {
        let answer = world.say(&format!("GET {path} HTTP/1.0\r\n{HOST}\r\n")).await;
        let (head, body) = split(&answer);
        assert!(!head.contains("transfer-encoding"), "{answer}");
        assert_eq!(body, if path == "/chunked" { "onetwo" } else { "one" }, "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn head_is_get_without_a_body() {
    let world = World::new().await;
    let get = world.say(&format!("GET /page HTTP/1.1\r\n{CLOSE}\r\n")).await;
    let head = world.say(&format!("HEAD /page HTTP/1.1\r\n{CLOSE}\r\n")).await;
    let (get, head) = (split(&get), split(&head));
    assert_eq!(head.1, "", "there is no body");
    let plain = |head: &str| head.lines().filter(|l| !l.starts_with("date")).collect::<String>();
    assert_eq!(plain(&head.0), plain(&get.0), "with the same header");
    // And the next answer is where the body would have been.
    let mut visitor = world.raw().await;
    let both = format!("HEAD /page HTTP/1.1\r\n{HOST}\r\nGET /page HTTP/1.1\r\n{CLOSE}\r\n");
    visitor.write(both).await.expect("the proxy reads");
    let answers = visitor.read_to_end().await;
    assert_eq!(answers.matches("HTTP/1.1 200 ").count(), 2, "{answers}");
    assert_eq!(answers.matches("page").count(), 1, "{answers}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_are_the_apps_also_of_all_of_it() {
    let world = World::new().await;
    for target in ["/page", "*"] {
        let answer = world.say(&format!("OPTIONS {target} HTTP/1.1\r\n{CLOSE}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{target}: {answer}");
        let seen = world.last();
        assert_eq!((&*seen.method, &*seen.target), ("OPTIONS", target));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_a_page_comes_through() {
    let world = World::new().await;
    let answer =
        world.say(&format!("GET /range HTTP/1.1\r\n{CLOSE}Range: bytes=1-2\r\n\r\n")).await;
    let (head, body) = split(&answer);
    assert!(head.starts_with("http/1.1 206 ") && body == "ag", "{answer}");
    assert!(head.contains("\r\ncontent-range: bytes 1-2/4"), "{answer}");
    assert_eq!(world.last().header("range"), "bytes=1-2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_comes_before_the_body_that_it_does_not_want() {
    let world = World::new().await;
    let mut visitor = world.raw().await;
    let head = format!("POST /early HTTP/1.1\r\n{HOST}Content-Length: 10000000\r\n\r\n");
    visitor.write(head).await.expect("the proxy reads");
    visitor.write(vec![b'x'; 100_000]).await.expect("the proxy reads");
    let answer = visitor.read_until("large").await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "the app's own: {answer}");
    assert!(!answer.to_ascii_lowercase().contains("rouse-error"), "{answer}");
    drop(visitor);
    assert!(world.say(&format!("GET /page HTTP/1.1\r\n{CLOSE}\r\n")).await.ends_with("page"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_visitor_is_told_once_to_continue() {
    let world = World::new().await;
    for path in ["/continue", "/page"] {
        let mut visitor = world.raw().await;
        let head = format!(
            "POST {path} HTTP/1.1\r\n{CLOSE}Expect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        );
        visitor.write(head).await.expect("the proxy reads");
        // `/page` says nothing of its own: who waits for it in vain sends its body all the same.
        let first =
            if path == "/continue" { visitor.read_until("\r\n\r\n").await } else { String::new() };
        visitor.write("abc").await.expect("the proxy reads");
        let answer = first + &visitor.read_to_end().await;
        assert!(answer.matches("HTTP/1.1 100 ").count() <= 1, "{path}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 200 ").count(), 1, "{path}: {answer}");
        assert!(path == "/page" || answer.starts_with("HTTP/1.1 100 "), "{answer}");
        assert_eq!(world.last().body, b"abc", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunked_upload_with_trailers_arrives_whole() {
    let world = World::new().await;
    let mut visitor = world.raw().await;
    let head = format!(
        "POST /page HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
    );
    visitor.write(head).await.expect("the proxy reads");
    for chunk in ["1\r\n", "a\r", "\n2;x\r\nbc\r\n", "0\r\nX-Sum: 3\r\n", "\r\n"] {
        visitor.write(chunk).await.expect("the proxy reads");
    }
    assert!(visitor.read_until("page").await.starts_with("HTTP/1.1 200 "));
    assert_eq!(world.last().body, b"abc");
    // The connection is good for another.
    visitor.write(format!("GET /page HTTP/1.1\r\n{CLOSE}\r\n")).await.expect("the proxy reads");
    assert!(visitor.read_to_end().await.ends_with("page"));
    assert_eq!(world.origin.requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn some_answers_have_no_body_and_the_next_follows_them() {
    let world = World::new().await;
    for (path, status) in [("/no-content", 204), ("/not-modified", 304)] {
        let mut visitor = world.raw().await;
        let both = format!("GET {path} HTTP/1.1\r\n{HOST}\r\nGET /page HTTP/1.1\r\n{CLOSE}\r\n");
        visitor.write(both).await.expect("the proxy reads");
        let answers = visitor.read_to_end().await;
        let (head, rest) = split(&answers);
        assert!(head.starts_with(&format!("http/1.1 {status} ")), "{answers}");
        assert!(!head.contains("transfer-encoding"), "{answers}");
        assert!(status == 304 || !head.contains("content-length"), "{answers}");
        assert!(rest.starts_with("HTTP/1.1 200 ") && rest.ends_with("page"), "{answers}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_very_long_answer_comes_whole() {
    let world = World::new().await;
    let visit = Visit::get("/long").host("origin.localhost");
    let reply = visit.send(world.front.http()).await.expect("an answer").expect_status(200);
    assert!(reply.body == long(), "byte for byte");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blank_lines_before_a_request_are_nothing() {
    let world = World::new().await;
    let answer = world.say(&format!("\r\n\r\nGET /page HTTP/1.1\r\n{CLOSE}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("page"), "{answer}");
}
