//! What may a client take of the proxy, and does anybody else notice?
#![forbid(unsafe_code)]

mod connections;
mod sizes;
mod times;

#[path = "../cdn/peer.rs"]
mod peer;

use std::net::Ipv4Addr;

use rouse_tests::{DEFAULT_HOST, Front, ORIGIN_HOST};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The address of those who want too much.
const GREEDY: Ipv4Addr = peer::STRANGER;
/// The address of somebody else.
const OTHER: Ipv4Addr = peer::CDN;

/// The whole of a request that leaves the connection open.
fn get() -> String {
    format!("GET /page HTTP/1.1\r\nHost: {ORIGIN_HOST}\r\n\r\n")
}

/// Asks on an open connection; none: it was closed.
async fn page(stream: &mut TcpStream) -> Option<String> {
    stream.write_all(get().as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\npage") {
        let read = tokio::time::timeout(rouse_tests::patience(), stream.read_buf(&mut answer));
        let read = read.await.unwrap_or_else(|_| panic!("no answer: {answer:?}")).ok()?;
        if read == 0 {
            return None;
        }
    }
    Some(String::from_utf8_lossy(&answer).into_owned())
}

/// Connects from `from`, and is served; none: it was closed.
async fn served(front: &Front, from: Ipv4Addr) -> Option<TcpStream> {
    let mut stream = peer::connect(from, front.http()).await;
    page(&mut stream).await.map(|_| stream)
}

/// The status that curl gets for `path` of the test app by TLS.
async fn curl(front: &Front, path: &str, args: &[&str]) -> String {
    let (port, certificate) = (front.https().port(), front.certificate());
    let resolve = format!("{DEFAULT_HOST}:{port}:127.0.0.1");
    let url = format!("https://{DEFAULT_HOST}:{port}{path}");
    let certificate = certificate.to_str().expect("a path in UTF-8");
    let known = ["-sS", "--max-time", "60", "--cacert", certificate, "--resolve", &resolve];
    let told = ["-o", "/dev/null", "-w", "%{http_version} %{http_code}", &url];
    rouse_tests::run("curl", &[&known[..], args, &told].concat(), "").await.text
}

/// Somebody else is served.
async fn unharmed(front: &Front) {
    assert!(served(front, OTHER).await.is_some(), "somebody else is served");
}
