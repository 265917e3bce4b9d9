//! A client that sees bytes, not a library's idea of them.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::PATIENCE;

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    /// The one value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str());
        let first = values.next();
        assert_eq!(values.next(), None, "{name} is there twice");
        first
    }

    /// `Rouse-Error`.
    pub(crate) fn error(&self) -> Option<&str> {
        self.header("rouse-error")
    }
}

pub(crate) async fn connect(to: SocketAddr) -> TcpStream {
    TcpStream::connect(to).await.unwrap()
}

/// One request on a connection of its own, and its answer.
pub(crate) async fn request(to: SocketAddr, head: &str, body: &[u8]) -> Reply {
    let mut stream = connect(to).await;
    send(&mut stream, &format!("{head}Connection: close\r\n\r\n"), body).await;
    read(&mut stream).await
}

pub(crate) async fn send(stream: &mut TcpStream, head: &str, body: &[u8]) {
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
}

/// The answer on a connection that is closed after it.
pub(crate) async fn read(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    tokio::time::timeout(PATIENCE, read).await.expect("an answer").expect("a whole answer");
    parse(&bytes)
}

/// The bytes until the connection is closed or reset, whatever they are.
pub(crate) async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    // A reset may take bytes with it; what is missing, the test finds.
    let _ = tokio::time::timeout(PATIENCE, read).await.expect("it is closed");
    bytes
}

/// One answer of a connection that stays open: what comes until its body, `page`, is there.
pub(crate) async fn one(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = async {
        while !bytes.ends_with(b"page") {
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("an answer");
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn parse(bytes: &[u8]) -> Reply {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<_> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let chunked = headers.iter().any(|(n, v)| n == "transfer-encoding" && v == "chunked");
    let body = if chunked { dechunk(body) } else { body.to_owned() };
    Reply { status, headers, body }
}

fn dechunk(mut text: &str) -> String {
    let mut body = String::new();
    loop {
        let (size, rest) = text.split_once("\r\n").expect("a chunk");
        let size = usize::from_str_radix(size, 16).expect("a chunk size");
        if size == 0 {
            return body;
        }
        body.push_str(&rest[..size]);
        text = rest[size..].strip_prefix("\r\n").expect("a chunk's end");
    }
}
