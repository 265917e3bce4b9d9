//! A guest: an agent that answers the gate, and an app behind it that does as it is told.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};
use rouse_protocol::app::Generation;
use rouse_protocol::signature::{AgentKey, AgentState, DEFAULT_GATE_PATH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What the guest does with one request of a visitor.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// 200, with this body, once the request is whole.
    Page(&'static str),
    /// The agent says, signed, that the app is down, without reading the body.
    SignedDown,
    /// The same, once more of the body has come than can be kept for a replay.
    SignedDownLate,
    /// These very bytes, once the request's header is there.
    Raw(String),
    /// Closes without a byte, once the request's header is there.
    Close,
    /// 200 after this long.
    Slow(Duration),
    /// Over HTTP/2: 200 and a `grpc-status`, in a header that is the whole answer.
    TrailersOnly(&'static str),
    /// Over HTTP/2: resets the stream.
    Reset,
}

/// A request as the app saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The port that it came from: which connection.
    pub(crate) from: u16,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .split("\r\n")
            .filter_map(|line| line.split_once(": "))
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

struct State {
    agent: AgentState,
    script: VecDeque<Act>,
    /// After the script.
    page: &'static str,
    seen: Vec<Seen>,
    probes: usize,
    closed: usize,
}

pub(crate) struct Guest {
    pub(crate) endpoint: SocketAddr,
    pub(crate) key: AgentKey,
    state: Arc<Mutex<State>>,
    _server: JoinSet<()>,
}

impl Guest {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap();
        let key = AgentKey::generate();
        let state = Arc::new(Mutex::new(State {
            agent: AgentState::Serving,
            script: VecDeque::new(),
            page: "page",
            seen: Vec::new(),
            probes: 0,
            closed: 0,
        }));
        let mut server = JoinSet::new();
        server.spawn({
            let (key, state) = (key.clone(), state.clone());
            async move {
                let mut connections = JoinSet::new();
                loop {
                    let (stream, from) = listener.accept().await.unwrap();
                    let (key, state) = (key.clone(), state.clone());
                    connections.spawn(async move {
                        if speaks_http2(&stream).await {
                            serve_http2(stream, from.port(), &key, &state).await;
                        } else {
                            serve(stream, from.port(), &key, &state).await;
                        }
                        state.lock().unwrap().closed += 1;
                    });
                }
            }
        });
        Self { endpoint, key, state, _server: server }
    }

    /// What the agent says of the app to the gate.
    pub(crate) fn agent(&self, state: AgentState) {
        self.state.lock().unwrap().agent = state;
    }

    /// What happens to the next requests; after that every one gets a page.
    pub(crate) fn script(&self, acts: impl IntoIterator<Item = Act>) {
        self.state.lock().unwrap().script.extend(acts);
    }

    /// Another page than `page`.
    pub(crate) fn page(&self, page: &'static str) {
        self.state.lock().unwrap().page = page;
    }

    /// The requests that the app has seen.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }

    pub(crate) fn probes(&self) -> usize {
        self.state.lock().unwrap().probes
    }

    /// How many connections are over.
    pub(crate) fn closed(&self) -> usize {
        self.state.lock().unwrap().closed
    }

    /// The agent's error of another time, as an app would copy it.
    pub(crate) fn copied_down(&self) -> String {
        let app = "hello".parse().unwrap();
        let word = self.key.sign(&app, Generation(1), AgentState::Down, "an-old-nonce");
        format!(
            "HTTP/1.1 503 Service Unavailable\r\nRouse-Agent: {word}\r\nContent-Length: 4\r\n\r\ncopy"
        )
    }
}

async fn serve(mut stream: TcpStream, from: u16, key: &AgentKey, state: &Mutex<State>) {
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            match stream.read_buf(&mut buffer).await {
                Ok(n) if n > 0 => {}
                _ => return,
            }
        };
        let head: Vec<_> = buffer.drain(..end).collect();
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut seen = Seen { head, body: Vec::new(), from };
        let nonce = seen.header("rouse-nonce").unwrap_or_default().to_owned();
        let signed = |said: AgentState| {
            let word = key.sign(&"hello".parse().unwrap(), Generation(1), said, &nonce);
            format!("HTTP/1.1 503 No\r\nRouse-Agent: {word}\r\nContent-Length: 0\r\n\r\n")
        };
        if seen.head.starts_with(&format!("GET {DEFAULT_GATE_PATH} ")) {
            let said = {
                let mut state = state.lock().unwrap();
                state.probes += 1;
                state.agent
            };
            if stream.write_all(signed(said).as_bytes()).await.is_err() {
                return;
            }
            continue;
        }
        let act = {
            let mut state = state.lock().unwrap();
            state.script.pop_front().unwrap_or(Act::Page(state.page))
        };
        let answer = match act {
            Act::SignedDown | Act::SignedDownLate => {
                let mut much = vec![0; 128 << 10];
                if matches!(act, Act::SignedDownLate) && stream.read_exact(&mut much).await.is_err()
                {
                    return;
                }
                // As a good agent does: says it, and reads what is under way.
                let down = signed(AgentState::Down);
                if stream.write_all(down.as_bytes()).await.is_err() {
                    return;
                }
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest).await;
                return;
            }
            Act::Close => {
                state.lock().unwrap().seen.push(seen);
                return;
            }
            Act::Raw(bytes) => {
                state.lock().unwrap().seen.push(seen);
                let _ = stream.write_all(bytes.as_bytes()).await;
                continue;
            }
            Act::Page(body) => (body, Duration::ZERO),
            Act::Slow(wait) => ("slow", wait),
            Act::TrailersOnly(_) | Act::Reset => panic!("{act:?} is for HTTP/2"),
        };
        let Some(body) = body(&mut stream, &mut buffer, &seen).await else { return };
        seen.body = body;
        state.lock().unwrap().seen.push(seen);
        tokio::time::sleep(answer.1).await;
        let page = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nRouse-Secret: x\r\nX-App: yes\r\n\r\n{}",
            answer.0.len(),
            answer.0
        );
        if stream.write_all(page.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The body of a request, or none if it ended before it was whole.
async fn body(stream: &mut TcpStream, buffer: &mut Vec<u8>, seen: &Seen) -> Option<Vec<u8>> {
    if seen.header("transfer-encoding").is_some() {
        let mut body = Vec::new();
        loop {
            let line = until(stream, buffer, b"\r\n").await?;
            let size = usize::from_str_radix(std::str::from_utf8(&line).ok()?, 16).ok()?;
            let chunk = take(stream, buffer, size + 2).await?;
            if size == 0 {
                return Some(body);
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }
    let length = seen.header("content-length").map_or(0, |n| n.parse().unwrap());
    take(stream, buffer, length).await
}

async fn take(stream: &mut TcpStream, buffer: &mut Vec<u8>, n: usize) -> Option<Vec<u8>> {
    while buffer.len() < n {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    Some(buffer.drain(..n).collect())
}

async fn until(stream: &mut TcpStream, buffer: &mut Vec<u8>, end: &[u8]) -> Option<Vec<u8>> {
    loop {
        if let Some(at) = buffer.windows(end.len()).position(|w| w == end) {
            let line = buffer.drain(..at).collect();
            buffer.drain(..end.len());
            return Some(line);
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

/// Whether the connection begins as one of HTTP/2 does.
async fn speaks_http2(stream: &TcpStream) -> bool {
    let mut start = [0; 3];
    loop {
        match stream.peek(&mut start).await {
            Ok(3) => return start == *b"PRI",
            Ok(n) if n > 0 => tokio::task::yield_now().await,
            _ => return false,
        }
    }
}

async fn serve_http2(stream: TcpStream, from: u16, key: &AgentKey, state: &Arc<Mutex<State>>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let mut streams = JoinSet::new();
    while let Some(Ok((request, answer))) = connection.accept().await {
        let (key, state) = (key.clone(), state.clone());
        streams.spawn(async move { stream_of_http2(request, answer, from, &key, &state).await });
    }
}

async fn stream_of_http2(
    request: Request<RecvStream>,
    mut answer: SendResponse<Bytes>,
    from: u16,
    key: &AgentKey,
    state: &Mutex<State>,
) -> Option<()> {
    let mut head = format!("{} {} HTTP/2\r\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        head += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    let mut seen = Seen { head, body: Vec::new(), from };
    let nonce = seen.header("rouse-nonce").unwrap_or_default().to_owned();
    let act = state.lock().unwrap().script.pop_front().unwrap_or(Act::Page("page"));
    let head = Response::builder().header("content-type", "application/grpc");
    let page = match act {
        Act::Page(page) => page,
        Act::SignedDown => {
            let word = key.sign(&"hello".parse().unwrap(), Generation(1), AgentState::Down, &nonce);
            let down = Response::builder().status(503).header("rouse-agent", word);
            answer.send_response(down.body(()).unwrap(), true).ok()?;
            return Some(());
        }
        Act::TrailersOnly(status) => {
            state.lock().unwrap().seen.push(seen);
            let head = head.header("grpc-status", status).header("rouse-secret", "x");
            answer.send_response(head.body(()).unwrap(), true).ok()?;
            return Some(());
        }
        Act::Reset => {
            state.lock().unwrap().seen.push(seen);
            answer.send_reset(h2::Reason::REFUSED_STREAM);
            return Some(());
        }
        act => panic!("{act:?} is for HTTP/1"),
    };
    let mut body = request.into_body();
    while let Some(data) = body.data().await {
        let data = data.ok()?;
        body.flow_control().release_capacity(data.len()).ok()?;
        seen.body.extend_from_slice(&data);
    }
    state.lock().unwrap().seen.push(seen);
    let mut stream = answer.send_response(head.body(()).unwrap(), false).ok()?;
    stream.send_data(page.into(), false).ok()?;
    let trailers = [("grpc-status", "0"), ("x-sum", "7")]
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    stream.send_trailers(trailers.into_iter().collect()).ok()
}
