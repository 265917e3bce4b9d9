//! Upstream peers: the only place that builds one.
//!
//! Each life of each app has its own pool key, so that no connection is ever used across a sleep,
//! and its own list of sockets, so that they can be shut before the VM stops: Pingora's pool has no
//! way to drop some of its connections, but it drops one that was shut.
//!
//! gRPC needs HTTP/2 all the way, and nothing else does: it has a peer and a key of its own.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream as StdStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use http::Version;
use http::header::{CONTENT_TYPE, HeaderValue};
use pingora_core::connectors::l4::Connect;
use pingora_core::protocols::l4::socket::SocketAddr as PingoraAddr;
use pingora_core::protocols::l4::stream::Stream;
use pingora_core::upstreams::peer::{HttpPeer, Tracer, Tracing};
use pingora_core::{Error, ErrorType, Result};
use pingora_http::RequestHeader;
use rouse_gate::{Dialer, Upstream};
use rouse_protocol::app::{AppId, Generation};
use tokio::net::TcpStream;

/// How many streams one HTTP/2 connection to an app takes at once; more open another. Below what
/// agents and common servers take.
const MAX_STREAMS: usize = 100;
/// How much of one stream may be on its way unread, in bytes.
const STREAM_WINDOW: u32 = 256 * 1024;
/// All streams at their bound: so a visitor who does not read holds up no other.
const CONNECTION_WINDOW: u32 = MAX_STREAMS as u32 * STREAM_WINDOW;

/// How apps are connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connecting {
    /// How long a connect may take.
    pub connect: Duration,
    /// How long a connection to an app that sleeps may lie unused. Shorter than what common servers
    /// keep theirs open (5 s), so that a request is not sent into one that is just being closed.
    /// A connection to an origin lies until the origin closes it or the pool is full.
    pub idle: Duration,
}

impl Default for Connecting {
    fn default() -> Self {
        Self { connect: Duration::from_secs(1), idle: Duration::from_millis(3_500) }
    }
}

/// Makes [`Connections`].
#[derive(Debug)]
pub(crate) struct PingoraDialer {
    pub(crate) connecting: Connecting,
}

/// The connections to one life of one app.
pub(crate) struct Connections {
    http1: HttpPeer,
    /// Made when the first call comes: a peer is large, and few apps speak gRPC.
    http2: OnceLock<Box<HttpPeer>>,
    sockets: Arc<Sockets>,
}

impl Dialer for PingoraDialer {
    fn upstream(
        &self,
        _app: &AppId,
        endpoint: SocketAddr,
        generation: Generation,
    ) -> Arc<dyn Upstream> {
        #[expect(clippy::disallowed_methods, reason = "a socket address: nothing to resolve")]
        let mut peer = HttpPeer::new(endpoint, false, String::new());
        peer.group_key = key();
        peer.options.connection_timeout = Some(self.connecting.connect);
        let sockets = Arc::new(Sockets::default());
        // An app that never sleeps (generation 0) has no life that ends.
        if generation > Generation(0) {
            let dial = Dial { sockets: sockets.clone(), timeout: self.connecting.connect };
            peer.options.custom_l4 = Some(Arc::new(dial));
            peer.options.idle_timeout = Some(self.connecting.idle);
        }
        Arc::new(Connections { http1: peer, http2: OnceLock::new(), sockets })
    }
}

/// A pool's key. Unlike a hash of app and generation, a number never meets another.
fn key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Connections {
    fn http2(&self) -> &HttpPeer {
        self.http2.get_or_init(|| {
            let mut http2 = Box::new(self.http1.clone());
            http2.group_key = key();
            // Both ends at 2, without TLS: by prior knowledge.
            http2.options.set_http_version(2, 2);
            http2.options.max_h2_streams = MAX_STREAMS;
            http2.options.h2_stream_window_size = Some(STREAM_WINDOW);
            http2.options.h2_connection_window_size = Some(CONNECTION_WINDOW);
            http2
        })
    }
}

impl Upstream for Connections {
    fn shut(&self) {
        self.sockets.shut();
    }
}

/// A peer for one request to what `upstream` leads to.
pub(crate) fn peer(upstream: &dyn Upstream, grpc: bool) -> Option<Box<HttpPeer>> {
    let any: &dyn std::any::Any = upstream;
    any.downcast_ref::<Connections>().map(|connections| {
        let peer = if grpc { connections.http2() } else { &connections.http1 };
        Box::new(peer.clone())
    })
}

/// Whether a request is gRPC: over HTTP/2 and by its type. Not gRPC-Web, which is made for HTTP/1
/// and whose servers may speak nothing else.
pub(crate) fn is_grpc(request: &RequestHeader) -> bool {
    const GRPC: &str = "application/grpc";
    if request.version != Version::HTTP_2 {
        return false;
    }
    let kind = request.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.split_at_checked(GRPC.len()).is_some_and(|(start, rest)| {
        start.eq_ignore_ascii_case(GRPC.as_bytes())
            && matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'\t'))
    })
}

#[derive(Debug, Default)]
struct Sockets {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Duplicates of the descriptors in use: as long as one is here the connection stays open, so
    /// it has to go when Pingora drops its own.
    open: HashMap<u64, StdStream>,
    next: u64,
    shut: bool,
}

impl Sockets {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a new connection; none when this life is over already.
    fn add(self: &Arc<Self>, stream: &TcpStream) -> io::Result<Option<Entry>> {
        let twin = StdStream::from(stream.as_fd().try_clone_to_owned()?);
        let mut table = self.lock();
        if table.shut {
            return Ok(None);
        }
        let number = table.next;
        table.next += 1;
        table.open.insert(number, twin);
        Ok(Some(Entry { sockets: self.clone(), number }))
    }

    fn shut(&self) {
        let mut table = self.lock();
        table.shut = true;
        for (_, socket) in table.open.drain() {
            // Only says that the other side was faster.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Told by Pingora when the connection is dropped.
#[derive(Clone, Debug)]
struct Entry {
    sockets: Arc<Sockets>,
    number: u64,
}

impl Tracing for Entry {
    fn on_connected(&self) {}

    fn on_disconnected(&self) {
        let twin = self.sockets.lock().open.remove(&self.number);
        drop(twin);
    }

    fn boxed_clone(&self) -> Box<dyn Tracing> {
        Box::new(self.clone())
    }
}

#[derive(Debug)]
struct Dial {
    sockets: Arc<Sockets>,
    timeout: Duration,
}

#[async_trait]
impl Connect for Dial {
    async fn connect(&self, addr: &PingoraAddr) -> Result<Stream> {
        let Some(addr) = addr.as_inet() else {
            return Error::e_explain(ErrorType::InternalError, "an app's endpoint is an address");
        };
        let stream = match tokio::time::timeout(self.timeout, TcpStream::connect(addr)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                let kind = kind(&error);
                return Error::e_because(kind, format!("connecting to {addr}"), error);
            }
            Err(_elapsed) => {
                return Error::e_explain(
                    ErrorType::ConnectTimedout,
                    format!("connecting to {addr}"),
                );
            }
        };
        let entry = self.sockets.add(&stream).map_err(|error| {
            Error::because(ErrorType::InternalError, "noting a connection", error)
        })?;
        let Some(entry) = entry else {
            return Error::e_explain(ErrorType::ConnectRefused, "the app went to sleep meanwhile");
        };
        let mut stream = Stream::from(stream);
        stream.tracer = Some(Tracer(Box::new(entry)));
        Ok(stream)
    }
}

/// Whether a failed connect is the other side's doing or ours.
fn kind(error: &io::Error) -> ErrorType {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => ErrorType::ConnectRefused,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            ErrorType::ConnectNoRoute
        }
        io::ErrorKind::TimedOut => ErrorType::ConnectTimedout,
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => {
            ErrorType::ConnectError
        }
        _ => ErrorType::InternalError,
    }
}

/// Whether a connection failed for want of something here (descriptors, ports, memory), so that the app may be
/// in the best of health.
pub(crate) fn for_want_of_ours(error: &Error) -> bool {
    use nix::errno::Errno;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            let number = io.raw_os_error().map(Errno::from_raw);
            return matches!(
                number,
                Some(
                    Errno::EMFILE
                        | Errno::ENFILE
                        | Errno::EADDRNOTAVAIL
                        | Errno::ENOBUFS
                        | Errno::ENOMEM
                )
            );
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    fn connections(endpoint: SocketAddr, generation: u64) -> Arc<dyn Upstream> {
        let dialer = PingoraDialer { connecting: Connecting::default() };
        dialer.upstream(&"a".parse().unwrap(), endpoint, Generation(generation))
    }

    #[tokio::test]
    async fn shutting_a_life_ends_its_connections_and_admits_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap();
        let upstream = connections(endpoint, 1);
        let options = peer(&*upstream, false).unwrap().options;
        let dial = options.custom_l4.unwrap();
        let kept = dial.connect(&endpoint.into()).await.unwrap();
        let dropped = dial.connect(&endpoint.into()).await.unwrap();
        let (mut far_kept, _) = listener.accept().await.unwrap();
        let (mut far_dropped, _) = listener.accept().await.unwrap();

        // The duplicate must not keep a dropped connection open.
        drop(dropped);
        assert_eq!(far_dropped.read(&mut [0; 1]).await.unwrap(), 0);

        upstream.shut();
        assert_eq!(far_kept.read(&mut [0; 1]).await.unwrap(), 0);
        let late = dial.connect(&endpoint.into()).await.unwrap_err();
        assert_eq!(*late.etype(), ErrorType::ConnectRefused);
        drop(kept);
    }

    #[test]
    fn no_two_lives_share_a_pool_nor_do_two_versions() {
        let at = ([127, 0, 0, 1], 80).into();
        let (one, other) = (connections(at, 1), connections(at, 1));
        let keys: HashSet<u64> = [(&one, true), (&one, false), (&other, true), (&other, false)]
            .map(|(upstream, grpc)| peer(&**upstream, grpc).unwrap().group_key)
            .into();
        assert_eq!(keys.len(), 4);
    }

    #[test]
    fn both_versions_are_shut_with_their_life() {
        let upstream = connections(([127, 0, 0, 1], 80).into(), 1);
        for grpc in [true, false] {
            let options = peer(&*upstream, grpc).unwrap().options;
            assert!(options.custom_l4.is_some() && options.idle_timeout.is_some());
        }
    }

    #[test]
    fn grpc_is_told_by_version_and_type() {
        let is = |version, kind: Option<&str>| {
            let mut request = RequestHeader::build("POST", b"/", None).unwrap();
            request.set_version(version);
            if let Some(kind) = kind {
                request.insert_header("content-type", kind).unwrap();
            }
            is_grpc(&request)
        };
        for kind in ["application/grpc", "Application/gRPC+proto", "application/grpc; a=b"] {
            assert!(is(Version::HTTP_2, Some(kind)), "{kind}");
            assert!(!is(Version::HTTP_11, Some(kind)), "{kind}");
        }
        for kind in [None, Some(""), Some("application/grpc-web"), Some("application/grpcx")] {
            assert!(!is(Version::HTTP_2, kind), "{kind:?}");
        }
    }
}
