//! Each path of the app, over HTTP.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

/// The app, on a loopback address of this process's own.
struct App {
    child: Child,
    address: SocketAddr,
}

impl App {
    fn start(last: u8) -> Self {
        Self::on(Path::new("/nowhere"), last)
    }

    /// With its disk at `data`, where the environment file is too.
    fn on(data: &Path, last: u8) -> Self {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let address = SocketAddr::from(([127, 128 | (high & 63), low, last], 3000));
        let child = Command::new(env!("CARGO_BIN_EXE_rouse-test-app"))
            .args(["--listen", &address.to_string()])
            .args(["--ssh", &SocketAddr::new(address.ip(), 2222).to_string()])
            .args([OsStr::new("--data"), data.as_os_str()])
            .args([OsStr::new("--env-file"), data.join("env").as_os_str()])
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
        self.ask("GET", path, "")
    }

    fn post(&self, path: &str, body: &str) -> (u16, String) {
        self.ask("POST", path, body)
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
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
        ("/dirty", 200, r#""mib":0"#),
        ("/dirty?mib=2", 400, "mib: "),
        ("/zero", 405, "POST"),
        ("/log", 503, "no disk"),
        ("/log/head", 503, "no disk"),
        ("/disk", 503, "no disk"),
        ("/env?name=A", 404, "nothing at this path"),
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

#[test]
fn the_log_outlives_the_app() {
    let data = tempfile::tempdir().unwrap();
    std::fs::create_dir(data.path().join("app")).unwrap();
    let app = App::on(data.path(), 4);
    let (status, first) = app.post("/log?entry=a%20b", "");
    assert_eq!((status, first.contains(r#""n":1"#)), (200, true), "{first}");
    assert_eq!(app.post("/log", "two\nlines").0, 400);
    assert_eq!(app.post("/log", &"x".repeat(4097)).0, 400);
    assert_eq!(app.post("/log?entry=", "").0, 400);
    std::thread::scope(|scope| {
        for i in 0..8 {
            let app = &app;
            scope.spawn(move || assert_eq!(app.post("/log", &format!("entry {i}")).0, 200));
        }
    });
    let (log, head) = (app.get("/log").1, app.get("/log/head").1);
    assert_eq!((log.lines().count(), log.split(' ').nth(3)), (9, Some("a")), "{log}");
    // Dropped, it is killed.
    drop(app);
    let app = App::on(data.path(), 4);
    assert_eq!((app.get("/log").1, app.get("/log/head").1), (log, head));
    assert!(app.post("/log", "c").1.contains(r#""n":10"#));
    drop(app);
    std::fs::write(data.path().join("app/log"), "1 2 3 4\n").unwrap();
    let app = App::on(data.path(), 4);
    for (status, body) in [app.get("/log"), app.get("/log/head"), app.post("/log", "d")] {
        assert_eq!((status, body.contains("line 1")), (500, true), "{body}");
    }
    assert_eq!(app.get("/disk").0, 200);
}

#[test]
fn memory_is_known_by_its_hash() {
    let app = App::start(5);
    let empty = app.get("/dirty");
    let first = app.post("/dirty?mib=2&seed=1", "");
    assert_eq!((first.0, app.get("/dirty")), (200, first.clone()));
    assert_eq!(app.post("/zero?mib=1", "").1.trim(), r#"{"zero_mib":1}"#);
    assert_eq!(app.get("/dirty"), first);
    assert_ne!(app.post("/dirty?mib=2&seed=2", ""), first);
    assert_eq!(app.post("/dirty?mib=2&seed=1", ""), first);
    assert_eq!(app.post("/dirty?mib=0", ""), empty);
    assert_eq!(app.post("/dirty?mib=513", "").0, 400);
}

#[test]
fn the_environment_is_read_as_it_is_now() {
    let data = tempfile::tempdir().unwrap();
    let app = App::on(data.path(), 6);
    assert_eq!(app.get("/env?name=A").0, 404);
    std::fs::write(data.path().join("env"), "A='a b'\n").unwrap();
    assert_eq!(app.get("/env?name=A"), (200, "a b".to_owned()));
    assert_eq!(app.get("/env").0, 400);
}

#[test]
fn an_ssh_client_is_greeted() {
    let app = App::start(7);
    // It greets before it serves.
    app.get("/time");
    let mut stream = TcpStream::connect((app.address.ip(), 2222)).unwrap();
    stream.write_all(b"SSH-2.0-client\r\n").unwrap();
    let mut greeting = String::new();
    stream.read_to_string(&mut greeting).unwrap();
    assert_eq!(greeting, "SSH-2.0-rouse-test\r\n");
}
