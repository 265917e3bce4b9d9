//! Clients that others have written.

use std::process::Stdio;

use tokio::process::Command;

use crate::World;
use rouse_tests::patience;

/// What a program prints. Panics when it is not there, or fails.
async fn run(program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(2 * patience(), command.output()).await;
    let output = output.unwrap_or_else(|_| panic!("{program} does not end"));
    let output = output.unwrap_or_else(|e| panic!("{program} is not there ({e}): ./dev setup"));
    let text = [output.stdout, output.stderr].map(|o| String::from_utf8_lossy(&o).into_owned());
    assert!(output.status.success(), "{program} {args:?}: {text:?}");
    text.concat()
}

/// Names below `localhost` are known to curl only; these are told whom they ask.
const AUTHORITY: &str = ":authority: origin.localhost";

impl World {
    fn urls(&self) -> [String; 2] {
        [
            format!("http://{}/page", self.front.h2c()),
            format!("https://{}/page", self.front.https()),
        ]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nghttp_gets_pages() {
    let world = World::new().await;
    for url in world.urls() {
        let log = run("nghttp", &["-nv", "-y", "-H", AUTHORITY, &url]).await;
        assert!(log.contains(":status: 200"), "{log}");
        assert!(log.contains("recv SETTINGS frame"), "{log}");
        assert!(!log.contains("PROTOCOL_ERROR") && !log.contains("recv RST_STREAM"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h2load_gets_thousands_of_them() {
    let world = World::new().await;
    let load = ["-n", "2000", "-c", "10", "-m", "20"];
    for url in world.urls() {
        let connect = format!("--connect-to={}", url.split('/').nth(2).unwrap_or_default());
        let port = connect.rsplit(':').next().unwrap_or_default();
        let scheme = url.split(':').next().unwrap_or_default();
        let url = format!("{scheme}://origin.localhost:{port}/page");
        let log = run("h2load", &[&load[..], &[&connect, &url]].concat()).await;
        assert!(log.contains("status codes: 2000 2xx, 0 3xx, 0 4xx, 0 5xx"), "{log}");
        assert!(log.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{log}");
    }
    assert_eq!(world.origin.requests().len(), 4000, "each came once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_speaks_every_version() {
    let world = World::new().await;
    let certificate = world.front.certificate();
    let certificate = certificate.to_string_lossy();
    let [http, h2c, https] = [world.front.http(), world.front.h2c(), world.front.https()];
    let http = ("http", http.port());
    let (h2c, https) = (("http", h2c.port()), ("https", https.port()));
    for (args, (scheme, port), version) in [
        (&["--http1.0"][..], http, "1.1"),
        (&["--http1.1"], http, "1.1"),
        (&["--http2-prior-knowledge"], h2c, "2"),
        (&["--http1.1", "--cacert", &certificate], https, "1.1"),
        (&["--http2", "--cacert", &certificate], https, "2"),
        (&["--http2", "-d", "abc", "--cacert", &certificate], https, "2"),
        (&["--http2", "--tlsv1.2", "--tls-max", "1.2", "--cacert", &certificate], https, "2"),
        (&["-H", "Transfer-Encoding: chunked", "-d", "abc"], http, "1.1"),
        // Its upgrade is not taken, and the page comes by HTTP/1.1.
        (&["--http2"], http, "1.1"),
    ] {
        let url = format!("{scheme}://origin.localhost:{port}/page");
        let resolve = format!("origin.localhost:{port}:127.0.0.1");
        let fixed = ["-sS", "--resolve", &resolve, "-w", " %{http_code} %{http_version}", &url];
        let printed = run("curl", &[args, &fixed].concat()).await;
        assert_eq!(printed, format!("page 200 {version}"), "{args:?}");
    }
    let posted = world.origin.requests().into_iter().filter(|r| r.method == "POST");
    assert!(posted.map(|r| r.body).eq([b"abc", b"abc"]), "uploads arrive");
}
