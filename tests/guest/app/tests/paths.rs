//! Each path of the app, over HTTP.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command};
use std::time::Duration;

/// The app, on a loopback address of this process's own.
struct App {
    child: Child,
    address: SocketAddr,
}

impl App {
    fn start(last: u8) -> Self {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let address = SocketAddr::from(([127, 128 | (high & 63), low, last], 3000));
        let child = Command::new(env!("CARGO_BIN_EXE_rouse-test-app"))
            .args(["--listen", &address.to_string()])
            .spawn()
            .unwrap();
        Self { child, address }
    }

    /// The whole answer to `request`, which must ask to close.
    fn raw(&self, request: &str) -> String {
        // The tests' runner has a time limit of its own for an app that never comes.
        let mut stream = loop {
            match TcpStream::connect(self.address) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(&self, path: &str) -> (u16, String) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = self.raw(&request);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

impl Drop for App {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_path_shows_its_thing() {
    let app = App::start(1);
    for (path, status, part) in [
        ("/", 200, "/logo.png"),
        ("/style.css", 200, "font:"),
        ("/counter", 200, r#""counter":1"#),
        ("/counter", 200, r#""counter":2"#),
        ("/echo/a%20b?c", 200, r#""path":"/echo/a%20b?c""#),
        ("/status/502", 502, "itself answers 502"),
        ("/status/102", 400, "code: "),
        ("/status/x", 400, "code: "),
        ("/slow?ms=1", 200, r#""slept_ms":1"#),
        ("/slow?ms=-1", 400, "ms: "),
        ("/slow?s=1", 400, "s: "),
        ("/drip?bytes=3&every_ms=1", 200, "..."),
        ("/drip?bytes=67108865", 400, "bytes: "),
        ("/sse?count=2&every_ms=1", 200, "data: event 2"),
        ("/time", 200, "monotonic_ms"),
        ("/random", 200, "kernel"),
        ("/dirty?mb=2", 200, r#""held_mb":2"#),
        ("/trailers", 200, "two\n"),
        ("/agent-copy", 503, "urn:rouse:error:down"),
        ("/ws", 426, "WebSocket"),
        ("/nothing", 404, "nothing at this path"),
    ] {
        let (got, body) = app.get(path);
        assert_eq!(got, status, "{path}: {body}");
        assert!(body.contains(part), "{path}: {body}");
    }
    let size = app.get("/drip?bytes=100000&every_ms=0").1.len();
    assert_eq!(size, 100_000);
}

#[test]
fn a_body_is_hashed_and_its_id_counted() {
    let app = App::start(2);
    for seen in 1..=2 {
        let answer = app.raw(
            "POST /echo HTTP/1.1\r\nHost: a\r\nX-Request-Id: r1\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
        );
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(answer.contains(&format!(r#""body_sha256":"{sum}""#)), "{answer}");
        assert!(answer.contains(r#""body_bytes":3"#), "{answer}");
        assert!(answer.contains(&format!(r#""seen":{seen}"#)), "{answer}");
    }
}

#[test]
fn a_crash_is_answered_first() {
    let mut app = App::start(3);
    assert_eq!(app.get("/crash").0, 202);
    assert_eq!(app.child.wait().unwrap().code(), Some(42));
}
