//! What a CA looks at, on loopback: names, port 80 and port 443 of the hosts under test.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rouse_tls::Tls;
use rouse_tls::acme::Tokens;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

/// It answers as long as it lives.
pub(crate) struct Responder {
    pub(crate) dns: SocketAddr,
    pub(crate) http: u16,
    pub(crate) tls: u16,
    /// Whether what the CA is answered over HTTP is wrong.
    pub(crate) lies: Arc<AtomicBool>,
    _tasks: JoinSet<()>,
}

impl Responder {
    pub(crate) async fn new(tls: Arc<Tls>, tokens: Tokens) -> Self {
        let names = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let web = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let secure = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let lies = Arc::new(AtomicBool::new(false));
        let dns = names.local_addr().unwrap();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let ports = (port(&web), port(&secure));
        let mut tasks = JoinSet::new();
        tasks.spawn(answer_names(names));
        tasks.spawn(answer_http(web, tokens, lies.clone()));
        tasks.spawn(async move {
            let mut running = JoinSet::new();
            while let Ok((stream, _)) = secure.accept().await {
                let tls = tls.clone();
                running.spawn(async move { drop(tls.accept(stream, |_| {}).await) });
            }
        });
        Self { dns, http: ports.0, tls: ports.1, lies, _tasks: tasks }
    }
}

/// Every host is 127.0.0.1, but those below `nowhere`, which are not there (RFC 1035, section 4).
async fn answer_names(socket: UdpSocket) {
    let mut packet = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut packet).await {
        let mut at = 12;
        let mut labels = Vec::new();
        while let Some(label) = packet.get(at + 1..at + 1 + usize::from(packet[at])) {
            at += 1 + label.len();
            if label.is_empty() {
                break;
            }
            labels.push(label.to_ascii_lowercase());
        }
        let end = (at + 4).min(length);
        let asks_a = packet.get(at..at + 2) == Some(&[0, 1]);
        let nowhere = labels.last().is_some_and(|label| label == b"nowhere");
        let found = u8::from(asks_a && !nowhere);
        let mut answer = packet[..end].to_vec();
        // It is an answer, with authority; one question, and what was found.
        answer[2..12].copy_from_slice(&[
            0x84,
            if nowhere { 3 } else { 0 },
            0,
            1,
            0,
            found,
            0,
            0,
            0,
            0,
        ]);
        if found == 1 {
            // The question's name, A, IN, 1 s, 4 bytes.
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
        }
        let _ = socket.send_to(&answer, from).await;
    }
}

async fn answer_http(listener: TcpListener, tokens: Tokens, lies: Arc<AtomicBool>) {
    while let Ok((stream, _)) = listener.accept().await {
        let mut stream = BufReader::new(stream);
        let (mut first, mut line) = (String::new(), String::from("-"));
        let _ = stream.read_line(&mut first).await;
        while !line.trim().is_empty() {
            line.clear();
            let _ = stream.read_line(&mut line).await;
        }
        let found = first.split(' ').nth(1).and_then(|path| tokens.get(path));
        let (status, mut body) = match found {
            Some(body) => ("200 OK", body.into_string()),
            None => ("404 Not Found", String::new()),
        };
        if lies.load(Ordering::SeqCst) {
            body.push_str("-not");
        }
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
    }
}
