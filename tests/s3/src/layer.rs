//! The reverse proxy in which requests meet faults. It changes nothing that a signature covers.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::faults::{Fault, Faults};
use crate::shape::Bucket;

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The most of a body that passes in one piece, in bytes: connections take turns by it.
const PIECE: usize = 64 << 10;

pub(crate) struct Layer {
    upstream: String,
    client: Client<HttpConnector, Body>,
    faults: Arc<Faults>,
}

/// Where a connection was broken off on purpose.
#[derive(Debug, thiserror::Error)]
#[error("broken off")]
struct Broken;

fn broken() -> io::Error {
    io::Error::other(Broken)
}

impl Layer {
    pub(crate) fn new(upstream: SocketAddr, faults: Arc<Faults>) -> Self {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(http);
        Self { upstream: upstream.to_string(), client, faults }
    }

    /// Serves until it is dropped.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener, tls: Option<TlsAcceptor>) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                    connections.spawn(self.clone().connection(stream, tls.clone()));
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, tls: Option<TlsAcceptor>) {
        // A second handle keeps the socket open past hyper's, so that it can end in a reset.
        let Ok((stream, kept)) = doubled(stream) else { return };
        let reset = Arc::new(AtomicBool::new(false));
        match tls {
            None => self.http(stream, &reset).await,
            Some(tls) => {
                if let Ok(stream) = tls.accept(stream).await {
                    self.http(stream, &reset).await;
                }
            }
        }
        if reset.load(Ordering::Relaxed) {
            let _ = socket2::SockRef::from(&kept).set_linger(Some(std::time::Duration::ZERO));
        } else {
            let _ = kept.shutdown(std::net::Shutdown::Write);
        }
    }

    async fn http<S>(self: Arc<Self>, stream: S, reset: &Arc<AtomicBool>)
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let service = service_fn(|request| {
            let (layer, reset) = (self.clone(), reset.clone());
            async move { layer.answer(request, &reset).await }
        });
        let http = hyper::server::conn::http1::Builder::new();
        // An error is the client's hanging up, or a fault.
        let _ = http.serve_connection(TokioIo::new(stream), service).await;
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        reset: &AtomicBool,
    ) -> io::Result<Response<Body>> {
        let begun = Instant::now();
        let path = request.uri().path_and_query().map_or("/", |p| p.as_str()).to_owned();
        let (fault, latency) = self.faults.meet(request.method(), &path, request.headers());
        let canned = match &fault {
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Reset) => {
                reset.store(true, Ordering::Relaxed);
                return Err(broken());
            }
            Some(Fault::Status(status)) => Some(error(*status, None)),
            Some(Fault::Code(status, code)) => Some(error(*status, Some(code))),
            Some(Fault::SlowDown) => Some(error(StatusCode::SERVICE_UNAVAILABLE, Some("SlowDown"))),
            _ => None,
        };
        let answer = match canned {
            Some(answer) => {
                // A client that is still sending would else meet a closed connection.
                let mut body = request.into_body();
                while let Some(Ok(_)) = body.frame().await {}
                answer
            }
            None => self.forward(request, &path, fault).await,
        };
        tokio::time::sleep_until((begun + latency).into()).await;
        Ok(answer)
    }

    async fn forward(
        self: Arc<Self>,
        request: Request<Incoming>,
        path: &str,
        fault: Option<Fault>,
    ) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let uri = Uri::builder().scheme("http").authority(&*self.upstream).path_and_query(path);
        let Ok(uri) = uri.build() else { return error(StatusCode::BAD_REQUEST, None) };
        parts.uri = uri;
        let (flip_sent, flip, cut) = match fault {
            Some(Fault::FlipSent(at)) => (Some(at), None, None),
            Some(Fault::Flip(at)) => (None, Some(at), None),
            Some(Fault::Truncate(at)) => (None, None, Some(at)),
            _ => (None, None, None),
        };
        let sent = Passing::new(&self.faults, true, flip_sent, None);
        let request = Request::from_parts(parts, sent.body(body));
        match self.client.request(request).await {
            Ok(response) => {
                let (mut parts, body) = response.into_parts();
                // Each side's connections are its own.
                parts.headers.remove(CONNECTION);
                let passing = Passing::new(&self.faults, false, flip, cut);
                Response::from_parts(parts, passing.body(body))
            }
            Err(_) => error(StatusCode::BAD_GATEWAY, None),
        }
    }
}

fn doubled(stream: TcpStream) -> io::Result<(TcpStream, std::net::TcpStream)> {
    stream.set_nodelay(true)?;
    let kept = stream.into_std()?;
    Ok((TcpStream::from_std(kept.try_clone()?)?, kept))
}

fn never(e: Infallible) -> io::Error {
    match e {}
}

fn error(status: StatusCode, code: Option<&str>) -> Response<Body> {
    let body = match code {
        None => Empty::new().map_err(never).boxed_unsync(),
        Some(code) => Full::from(format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code>\
             <Message>made up by the test</Message></Error>"
        ))
        .map_err(never)
        .boxed_unsync(),
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/xml"));
    response
}

/// A body on its way, in either direction.
struct Passing {
    faults: Arc<Faults>,
    up: bool,
    flip: Option<u64>,
    cut: Option<u64>,
    /// Its own; a connection carries one body at a time.
    alone: Bucket,
}

impl Passing {
    fn new(faults: &Arc<Faults>, up: bool, flip: Option<u64>, cut: Option<u64>) -> Self {
        let each = faults.each.load(Ordering::Relaxed);
        let alone = Bucket::default();
        alone.rate((each > 0).then_some(each));
        Self { faults: Arc::clone(faults), up, flip, cut, alone }
    }

    fn bucket(&self) -> &Bucket {
        if self.up { &self.faults.up } else { &self.faults.down }
    }

    fn body(self, body: Incoming) -> Body {
        // Without a body its length must stay known, or it would be sent as one without end.
        if hyper::body::Body::is_end_stream(&body) {
            return Empty::new().map_err(never).boxed_unsync();
        }
        let frames = stream::try_unfold(
            (self, body, Bytes::new(), 0_u64),
            |(passing, mut body, mut left, at)| async move {
                if left.is_empty() {
                    match body.frame().await {
                        None => return Ok(None),
                        Some(Err(e)) => return Err(io::Error::other(e)),
                        Some(Ok(frame)) => match frame.into_data() {
                            Ok(data) => left = data,
                            Err(trailers) => {
                                return Ok(Some((trailers, (passing, body, left, at))));
                            }
                        },
                    }
                }
                if passing.cut == Some(at) {
                    return Err(broken());
                }
                let room = passing.cut.map_or(u64::MAX, |cut| cut - at);
                let len = left.len().min(PIECE).min(usize::try_from(room).unwrap_or(PIECE));
                let piece = passing.damaged(left.split_to(len), at);
                passing.alone.pass(len).await;
                passing.bucket().pass(len).await;
                if !passing.up {
                    passing.faults.bytes_out.fetch_add(len as u64, Ordering::Relaxed);
                }
                Ok(Some((Frame::data(piece), (passing, body, left, at + len as u64))))
            },
        );
        StreamBody::new(frames).boxed_unsync()
    }

    fn damaged(&self, piece: Bytes, at: u64) -> Bytes {
        let place = self.flip.and_then(|flip| usize::try_from(flip.checked_sub(at)?).ok());
        match place.filter(|place| *place < piece.len()) {
            None => piece,
            Some(place) => {
                let mut bytes = piece.to_vec();
                bytes[place] ^= 0xff;
                bytes.into()
            }
        }
    }
}
