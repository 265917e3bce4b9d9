//! Visitors: HTTP/1.1 clients with one connection a request.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::wait::patience;

/// The host that a visit is for when it names none: the test app's.
pub const DEFAULT_HOST: &str = "hello.localhost";

/// How much of a chunked body goes into one chunk. Of no power of two, so that chunks and
/// anybody's buffers do not begin together.
const CHUNK: usize = 10_007;

/// Why a visit ended without an answer.
#[derive(Debug, thiserror::Error)]
pub enum VisitError {
    /// Nobody listens.
    #[error("no connection: {0}")]
    Connect(#[from] std::io::Error),
    /// The connection broke, or what came was not HTTP.
    #[error("no whole answer: {0}")]
    Http(#[from] hyper::Error),
    /// Nothing came for far longer than anything should take.
    #[error("no answer in {0:?}")]
    Silence(Duration),
}

/// A request as a visitor makes it. It goes out when it is [sent](Self::send), and the visitor
/// leaves when what `send` or [`open`](Self::open) gave is dropped.
#[derive(Clone, Debug)]
pub struct Visit {
    method: Method,
    path: String,
    host: String,
    headers: Vec<(String, String)>,
    body: Bytes,
    chunked: bool,
}

impl fmt::Display for Visit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} to {}", self.method, self.path, self.host)
    }
}

impl Visit {
    /// A request without a body.
    pub fn new(method: Method, path: &str) -> Self {
        Self {
            method,
            path: path.to_owned(),
            host: DEFAULT_HOST.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
            chunked: false,
        }
    }

    /// A `GET`.
    pub fn get(path: &str) -> Self {
        Self::new(Method::GET, path)
    }

    /// A `POST` with a `Content-Length`.
    pub fn post(path: &str, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::new(Method::POST, path) }
    }

    /// Sends the body in chunks, its length not told.
    pub fn chunked(mut self) -> Self {
        self.chunked = true;
        self
    }

    /// For another host. It is sent as it stands.
    pub fn host(mut self, host: &str) -> Self {
        host.clone_into(&mut self.host);
        self
    }

    /// With one more header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Makes the request over a connection of its own and reads the whole answer.
    pub async fn send(&self, to: SocketAddr) -> Result<Reply, VisitError> {
        self.open(to).await?.whole().await
    }

    /// Makes the request over a connection of its own and returns with the answer's head.
    pub async fn open(&self, to: SocketAddr) -> Result<Open, VisitError> {
        let limit = 5 * patience();
        let answer = async {
            let stream = TcpStream::connect(to).await?;
            stream.set_nodelay(true)?;
            exchange(stream, self.request()).await
        };
        tokio::time::timeout(limit, answer).await.map_err(|_| VisitError::Silence(limit))?
    }

    fn request(&self) -> Request<UnsyncBoxBody<Bytes, Infallible>> {
        let body = if self.chunked {
            let frames: Vec<_> = self
                .body
                .chunks(CHUNK)
                .map(|chunk| Ok(Frame::data(self.body.slice_ref(chunk))))
                .collect();
            StreamBody::new(stream::iter(frames)).boxed_unsync()
        } else {
            Full::new(self.body.clone()).boxed_unsync()
        };
        let request = Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .header(header::HOST, &self.host);
        self.headers
            .iter()
            .fold(request, |request, (name, value)| request.header(name, value))
            .body(body)
            .expect("a test makes requests that can be written")
    }
}

/// `visitors` make the same request at once, each over a connection of its own.
pub async fn crowd(
    to: SocketAddr,
    visit: &Visit,
    visitors: usize,
) -> Vec<Result<Reply, VisitError>> {
    let mut all = JoinSet::new();
    for _ in 0..visitors {
        let visit = visit.clone();
        all.spawn(async move { visit.send(to).await });
    }
    all.join_all().await
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Reply {
    /// A header, or nothing.
    pub fn header(&self, name: &str) -> &str {
        text_of(&self.headers, name)
    }

    /// The body as text. Panics when it is none.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or_else(|e| panic!("no text: {e}: {self:?}"))
    }

    /// The body read as JSON. Panics when it is none, or of another shape.
    pub fn json<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("not the JSON expected: {e}: {self:?}"))
    }

    /// Panics, showing all of it, when the status is another.
    pub fn expect_status(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "the status: {self:?}");
        self
    }
}

/// An answer whose body is still coming. Dropped, the visitor leaves.
#[derive(Debug)]
pub struct Open {
    response: Response<Incoming>,
    _connection: JoinSet<()>,
}

impl Open {
    /// The status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// A header, or nothing.
    pub fn header(&self, name: &str) -> &str {
        text_of(self.response.headers(), name)
    }

    /// The next bytes of the body; none at its end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, VisitError> {
        let limit = patience();
        loop {
            let frame = tokio::time::timeout(limit, self.response.body_mut().frame());
            match frame.await.map_err(|_| VisitError::Silence(limit))? {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// The rest of the body, and with it the whole answer.
    pub async fn whole(mut self) -> Result<Reply, VisitError> {
        let mut body = BytesMut::new();
        while let Some(data) = self.next().await? {
            body.extend_from_slice(&data);
        }
        let (head, _) = self.response.into_parts();
        Ok(Reply { status: head.status, headers: head.headers, body: body.freeze() })
    }
}

fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<UnsyncBoxBody<Bytes, Infallible>>,
) -> Result<Open, VisitError> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        // A broken connection is seen by whoever reads the answer.
        let _ = connection.await;
    });
    let response = sender.send_request(request).await?;
    Ok(Open { response, _connection: driver })
}

/// `GET path` over a Unix socket.
pub async fn fetch_unix(socket: &Path, path: &str) -> Result<Reply, VisitError> {
    let stream = UnixStream::connect(socket).await?;
    exchange(stream, Visit::get(path).host("waker").request()).await?.whole().await
}

/// A WebSocket as a visitor of the test app opens it.
pub async fn websocket(
    to: SocketAddr,
    path: &str,
) -> Result<WebSocketStream<TcpStream>, tokio_tungstenite::tungstenite::Error> {
    websocket_for(to, DEFAULT_HOST, path).await
}

/// A WebSocket as a visitor of `host` opens it.
pub async fn websocket_for(
    to: SocketAddr,
    host: &str,
    path: &str,
) -> Result<WebSocketStream<TcpStream>, tokio_tungstenite::tungstenite::Error> {
    let stream = TcpStream::connect(to).await?;
    let request = format!("ws://{host}{path}").into_client_request()?;
    Ok(tokio_tungstenite::client_async(request, stream).await?.0)
}

/// A connection on which a test writes and reads the bytes themselves.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
    read: BytesMut,
}

impl Raw {
    /// Connects.
    pub async fn connect(to: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: BytesMut::new() })
    }

    /// Writes these bytes.
    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_ref()).await
    }

    /// Reads up to and including `end`, and returns it as text. Panics, showing what came, when
    /// the connection ends before or nothing comes for [`patience`].
    pub async fn read_until(&mut self, end: &str) -> String {
        loop {
            let found = self.read.windows(end.len()).position(|w| w == end.as_bytes());
            if let Some(at) = found {
                return String::from_utf8_lossy(&self.read.split_to(at + end.len())).into_owned();
            }
            assert!(self.more().await, "the connection ended before {end:?}: {:?}", self.read);
        }
    }

    /// Reads until the connection ends, and returns it as text. Panics when nothing comes for
    /// [`patience`].
    pub async fn read_to_end(&mut self) -> String {
        while self.more().await {}
        String::from_utf8_lossy(&self.read.split()).into_owned()
    }

    async fn more(&mut self) -> bool {
        let read = tokio::time::timeout(patience(), self.stream.read_buf(&mut self.read)).await;
        let read = read.unwrap_or_else(|_| panic!("nothing comes after {:?}", self.read));
        // A reset ends a connection as well as a FIN does.
        read.is_ok_and(|n| n > 0)
    }
}
