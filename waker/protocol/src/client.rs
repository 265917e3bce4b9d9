//! A small async client of the waker's socket: one connection a call, HTTP/1.1.

use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use crate::MAX_LINE;
use crate::app::AppId;
use crate::problem::Problem;
use crate::status::{AppStatus, WakeTrace};
use crate::wake::{
    Agreement, BootRequest, ParkRequest, PrewarmReport, ReleaseReport, Served, SleepReport,
    SleepRequest, WakeEvent,
};
use crate::watch::{AppView, WatchEvent};

/// The longest body, in bytes, of an answer that is not a stream.
const MAX_BODY: usize = 64 * 1024 * 1024;

/// Why a call to the waker gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens on the socket, or it can't be opened.
    #[error("the waker's socket {path} can't be reached: {source}")]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What connecting said.
        source: io::Error,
    },
    /// The connection broke, or what came over it was not HTTP.
    #[error("talking to the waker failed: {0}")]
    Transport(#[from] hyper::Error),
    /// The waker's own error.
    #[error("{} ({}): {}", .0.title, .0.code(), .0.detail)]
    Refused(Problem),
    /// An answer that this version can't read.
    #[error("the waker's answer can't be read: {0}")]
    Answer(#[from] serde_json::Error),
    /// A line or a body over the limit.
    #[error("the waker's answer is longer than {0} bytes")]
    TooLong(usize),
    /// A stream ended before its last line.
    #[error("the waker hung up before its answer was whole")]
    Ended,
}

/// Where the waker listens.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the waker that listens on `socket`. Nothing is opened yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// The socket's path.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Wakes `app`, or joins the wake that runs.
    pub async fn wake(&self, app: &AppId) -> Result<Lines<WakeEvent>, ClientError> {
        self.lines(Method::POST, &format!("/v1/apps/{app}/wake"), Bytes::new()).await
    }

    /// Boots `app` cold though it may have an image, or rolls it back.
    pub async fn boot(
        &self,
        app: &AppId,
        request: &BootRequest,
    ) -> Result<Lines<WakeEvent>, ClientError> {
        let body = serde_json::to_vec(request)?;
        self.lines(Method::POST, &format!("/v1/apps/{app}/boot"), body.into()).await
    }

    /// Puts `app` to sleep, and returns when it sleeps.
    pub async fn sleep(
        &self,
        app: &AppId,
        request: &SleepRequest,
    ) -> Result<SleepReport, ClientError> {
        self.json(Method::POST, &format!("/v1/apps/{app}/sleep"), Some(request)).await
    }

    /// Answers for this proxy whether a draining `app` may sleep.
    pub async fn agree(&self, app: &AppId, agreement: &Agreement) -> Result<(), ClientError> {
        let path = format!("/v1/apps/{app}/agreement");
        self.json::<_, serde_json::Value>(Method::POST, &path, Some(agreement)).await.map(drop)
    }

    /// Frees a parked `app`, and forgets the failures of one that is backing off.
    pub async fn clear(&self, app: &AppId) -> Result<(), ClientError> {
        let path = format!("/v1/apps/{app}/clear");
        self.json::<(), serde_json::Value>(Method::POST, &path, None).await.map(drop)
    }

    /// Ends `app`'s VM, if it has one, and lets nobody wake it until it is cleared.
    pub async fn park(&self, app: &AppId, request: &ParkRequest) -> Result<(), ClientError> {
        let path = format!("/v1/apps/{app}/park");
        self.json::<_, serde_json::Value>(Method::POST, &path, Some(request)).await.map(drop)
    }

    /// Has `app`'s image fetched from the store into the node's cache, ahead of a wake; ends when it is there.
    pub async fn prewarm(&self, app: &AppId) -> Result<PrewarmReport, ClientError> {
        let path = format!("/v1/apps/{app}/prewarm");
        self.json::<(), _>(Method::POST, &path, None).await
    }

    /// Makes `app`, which another node holds that will not come back, free for whichever node asks next.
    pub async fn release(&self, app: &AppId) -> Result<ReleaseReport, ClientError> {
        let path = format!("/v1/apps/{app}/release");
        self.json::<(), _>(Method::POST, &path, None).await
    }

    /// Tells that a first byte has gone out since the last wake.
    pub async fn served(&self, app: &AppId, served: &Served) -> Result<(), ClientError> {
        let path = format!("/v1/apps/{app}/served");
        self.json::<_, serde_json::Value>(Method::POST, &path, Some(served)).await.map(drop)
    }

    /// All apps with sizes and last wakes.
    pub async fn status(&self) -> Result<Vec<AppStatus>, ClientError> {
        self.json(Method::GET, "/v1/status", None::<&()>).await
    }

    /// The last wakes of `app`, the newest last.
    pub async fn trace(&self, app: &AppId) -> Result<Vec<WakeTrace>, ClientError> {
        self.json(Method::GET, &format!("/v1/apps/{app}/trace"), None::<&()>).await
    }

    /// All apps, without their keys.
    pub async fn apps(&self) -> Result<Vec<AppView>, ClientError> {
        self.json(Method::GET, "/v1/apps", None::<&()>).await
    }

    /// Every app and then every change. With a name (letters, digits, `-`, `_`, `.`) as a proxy
    /// whose agreement is needed before an app sleeps.
    pub async fn watch(&self, name: Option<&str>) -> Result<Lines<WatchEvent>, ClientError> {
        let query = name.map(|name| format!("?as={name}")).unwrap_or_default();
        self.lines(Method::GET, &format!("/v1/watch{query}"), Bytes::new()).await
    }

    async fn json<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<T, ClientError> {
        let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let (response, _connection) = self.send(method, path, body.into()).await?;
        Ok(serde_json::from_slice(&whole(response.into_body()).await?)?)
    }

    async fn lines<T>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Lines<T>, ClientError> {
        let (response, connection) = self.send(method, path, body).await?;
        Ok(Lines {
            body: response.into_body(),
            buffer: BytesMut::new(),
            _connection: connection,
            _line: PhantomData,
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(Response<Incoming>, JoinSet<()>), ClientError> {
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|source| ClientError::Unreachable { path: self.socket.clone(), source })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // The set owns the connection's task: it ends with whoever holds the answer.
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // A broken connection is seen by whoever reads the answer.
            let _ = connection.await;
        });
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "waker")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .expect("the paths we build are valid");
        let response = sender.send_request(request).await?;
        if response.status().is_success() {
            return Ok((response, driver));
        }
        let status = response.status().as_u16();
        let body = whole(response.into_body()).await?;
        let problem = serde_json::from_slice(&body).unwrap_or_else(|_| {
            Problem::new(status, "unknown", "the waker refused", String::from_utf8_lossy(&body))
        });
        Err(ClientError::Refused(problem))
    }
}

async fn whole(body: Incoming) -> Result<Bytes, ClientError> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err(error
            .downcast::<hyper::Error>()
            .map_or(ClientError::TooLong(MAX_BODY), |e| ClientError::Transport(*e))),
    }
}

/// A stream of JSON objects, one a line. Dropping it hangs up.
#[derive(Debug)]
pub struct Lines<T> {
    body: Incoming,
    buffer: BytesMut,
    _connection: JoinSet<()>,
    _line: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Lines<T> {
    /// The next line, or none when the waker has closed the stream between two lines. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(end + 1);
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if self.buffer.len() > MAX_LINE {
                return Err(ClientError::TooLong(MAX_LINE));
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(ClientError::Ended),
            }
        }
    }
}
