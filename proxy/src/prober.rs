//! Probing over plain TCP, byte by byte: what counts is whether one byte came back.

use std::io;

use async_trait::async_trait;
use rouse_gate::verdict::Heard;
use rouse_gate::{Probe, Prober};
use rouse_protocol::signature::{AGENT_HEADER, DEFAULT_GATE_PATH, NONCE_HEADER};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// The longest response header, in bytes, that is searched for the agent's word.
const MAX_HEAD: usize = 64 * 1024;
/// The most header lines that are searched.
const MAX_HEADERS: usize = 128;
/// The most values of `Rouse-Agent` that are looked at.
const MAX_VALUES: usize = 4;

/// Probes with one connection each.
#[derive(Debug)]
pub(crate) struct TcpProber;

#[async_trait]
impl Prober for TcpProber {
    async fn probe(&self, probe: &Probe) -> (Heard, Option<Instant>) {
        let mut head = Vec::new();
        let silence = match timeout(probe.patience, first_bytes(probe, &mut head)).await {
            Ok(Ok(stream)) => {
                let first_byte = Instant::now();
                // It has answered. What follows can only tell whose word it is.
                let agent = timeout(probe.patience, rest(stream, &mut head)).await;
                return (Heard::Answer { agent: agent.unwrap_or_default() }, Some(first_byte));
            }
            Ok(Err(error)) => silence(&error),
            Err(_elapsed) => Heard::TimedOut,
        };
        (silence, None)
    }
}

/// What an error before the first byte means.
fn silence(error: &io::Error) -> Heard {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Heard::Refused,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe => Heard::Reset,
        io::ErrorKind::UnexpectedEof => Heard::Closed,
        io::ErrorKind::TimedOut => Heard::TimedOut,
        _ => Heard::Unreachable,
    }
}

/// Asks, and waits for the first bytes of an answer.
async fn first_bytes(probe: &Probe, head: &mut Vec<u8>) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(probe.endpoint).await?;
    stream.set_nodelay(true)?;
    stream.write_all(request(probe).as_bytes()).await?;
    head.reserve(1024);
    match stream.read_buf(head).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(stream),
    }
}

fn request(probe: &Probe) -> String {
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
    let path = Some(&*probe.path).filter(|p| p.starts_with('/') && plain(p));
    let path = path.unwrap_or(DEFAULT_GATE_PATH);
    let Probe { host, nonce, .. } = probe;
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: rouse-gate\r\nAccept: */*\r\n\
         {NONCE_HEADER}: {nonce}\r\nConnection: close\r\n\r\n"
    )
}

/// Reads on to the end of the response header; the values of `Rouse-Agent` in it, if it is one.
async fn rest(mut stream: TcpStream, head: &mut Vec<u8>) -> Vec<String> {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        match response.parse(head) {
            Ok(httparse::Status::Complete(_)) => {
                return response
                    .headers
                    .iter()
                    .filter(|h| h.name.eq_ignore_ascii_case(AGENT_HEADER))
                    .filter_map(|h| std::str::from_utf8(h.value).ok())
                    .map(str::to_owned)
                    .take(MAX_VALUES)
                    .collect();
            }
            Ok(httparse::Status::Partial) if head.len() < MAX_HEAD => {}
            _no_header_of_http => return Vec::new(),
        }
        match stream.read_buf(head).await {
            Ok(0) | Err(_) => return Vec::new(),
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use super::*;

    /// What is heard from a server that reads the request, sends `answer` in pieces and closes.
    async fn hear(answer: &'static [&'static [u8]]) -> (Heard, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap();
        let mut server = JoinSet::new();
        server.spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert!(stream.read_buf(&mut request).await.unwrap() > 0);
            }
            for piece in answer {
                stream.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            String::from_utf8(request).unwrap()
        });
        let heard = TcpProber.probe(&probe(endpoint, Duration::from_secs(60))).await.0;
        (heard, server.join_next().await.unwrap().unwrap())
    }

    fn probe(endpoint: std::net::SocketAddr, patience: Duration) -> Probe {
        let text = str::to_owned;
        Probe {
            endpoint,
            host: text("a.example"),
            path: text("/gate"),
            nonce: text("n1"),
            patience,
        }
    }

    fn answer(agent: &[&str]) -> Heard {
        Heard::Answer { agent: agent.iter().map(|a| (*a).to_owned()).collect() }
    }

    #[tokio::test]
    async fn one_byte_is_an_answer_and_none_is_not() {
        assert_eq!(hear(&[]).await.0, Heard::Closed);
        assert_eq!(hear(&[b"H"]).await.0, answer(&[]));
        assert_eq!(hear(&[b"\x16\x03\x01 what is this"]).await.0, answer(&[]));
        assert_eq!(hear(&[b"HTTP/1.1 500 No\r\n\r\n"]).await.0, answer(&[]));
        let signed: &[&[u8]] =
            &[b"HTTP/1.1 503 No\r\nrouse-A", b"gent: v=1; x\r\nRouse-Agent: b\r\n\r\n"];
        assert_eq!(hear(signed).await.0, answer(&["v=1; x", "b"]));
    }

    #[tokio::test]
    async fn the_request_is_bodiless_and_carries_the_nonce() {
        let request = hear(&[b"x"]).await.1;
        assert!(request.starts_with("GET /gate HTTP/1.1\r\nHost: a.example\r\n"), "{request}");
        assert!(request.contains("\r\nrouse-nonce: n1\r\n"), "{request}");
    }

    #[test]
    fn a_path_that_would_break_the_request_is_not_sent() {
        for bad in ["/a b", "/a\r\nX: y", "", "a"] {
            let mut probe = probe(([127, 0, 0, 1], 1).into(), Duration::ZERO);
            bad.clone_into(&mut probe.path);
            assert!(request(&probe).starts_with("GET /.well-known/rouse-gate HTTP/1.1\r\n"));
        }
    }

    #[tokio::test]
    async fn refused_and_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap();
        // It accepts, as the kernel does for it, and never says a word.
        let silent = TcpProber.probe(&probe(endpoint, Duration::from_millis(50))).await;
        assert_eq!(silent, (Heard::TimedOut, None));
        drop(listener);
        let refused = TcpProber.probe(&probe(endpoint, Duration::from_secs(60))).await;
        assert_eq!(refused, (Heard::Refused, None));
    }
}
