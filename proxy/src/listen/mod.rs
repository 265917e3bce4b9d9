//! Where visitors come in: sockets, TLS, PROXY protocol, and how many may be there.
//!
//! Pingora's own listeners know neither stateless tickets nor PROXY protocol in the clear, nor limits;
//! a port for HTTP/2 in the clear would hang on a short request. So connections are accepted here and
//! given to Pingora when they are ready for HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora_core::apps::{HttpServerApp, ServerApp};
use pingora_core::protocols::TcpKeepalive;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::l4::ext::set_tcp_keepalive;
use pingora_proxy::HttpProxy;
use rouse_downstream::proxy_protocol::{self, Addresses, Prefixed, ProxyProtocol, ReadError};
use rouse_downstream::trusted::Live;
use rouse_downstream::{Connections, Full, Peer};
use rouse_proxy::{Connected, Fresh, FreshCount, PeerCertificate, Rouse};
use rouse_tls::{Accepted, Alpn, HandshakeError, Tls, Version};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::socket::Socket;
use self::stream::{Bytes, Downstream};
use crate::service::Proxy;

pub(crate) mod handover;
mod socket;
pub(crate) mod sockets;
mod stream;

/// How long to wait when no connection can be accepted (no descriptors, no memory) before the next try.
const BREATH: Duration = Duration::from_millis(50);

/// For how long a connection is kept for another request, in seconds: what Pingora has.
const KEPT: u64 = 60;

/// When a silent peer is asked whether it is there, and given up: after two minutes (tcp(7)).
const KEEPALIVE: TcpKeepalive = TcpKeepalive {
    idle: Duration::from_secs(60),
    interval: Duration::from_secs(15),
    count: 4,
    user_timeout: Duration::ZERO,
};

/// What is spoken on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    /// HTTP/1 in the clear.
    Http,
    /// TLS, and within it what is agreed on.
    Https,
    /// HTTP/2 in the clear, by prior knowledge (RFC 9113, section 3.3).
    H2c,
}

impl Speaks {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::H2c => "h2c",
        }
    }
}

/// A port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listener {
    pub(crate) address: SocketAddr,
    pub(crate) speaks: Speaks,
    pub(crate) proxy_protocol: ProxyProtocol,
    /// Requests are to come again by HTTPS.
    pub(crate) redirect: bool,
}

/// What all connections share.
pub(crate) struct Door {
    pub(crate) rouse: Rouse,
    pub(crate) app: Arc<HttpProxy<Proxy>>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) trusted: Arc<Live>,
    pub(crate) connections: Arc<Connections>,
    /// For a PROXY protocol header, and for the header of a request.
    pub(crate) header: Duration,
    /// Connections without a request so far.
    pub(crate) fresh: FreshCount,
    /// True: no more requests on a connection.
    pub(crate) closing: watch::Receiver<bool>,
    /// Every connection.
    pub(crate) tracker: TaskTracker,
}

/// Why a connection came to nothing.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Full(#[from] Full),
    #[error(transparent)]
    ProxyProtocol(#[from] ReadError),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("there is no TLS on this port")]
    NoTls,
}

impl Refused {
    /// A word for metrics.
    fn kind(&self) -> &'static str {
        match self {
            Self::Full(full) => full.kind(),
            Self::ProxyProtocol(error) => error.kind(),
            Self::Handshake(error) => error.kind(),
            Self::NoTls => "no-tls",
        }
    }
}

impl Door {
    /// Accepts connections until `stop`. Then those that have come already are taken in, and the socket
    /// is closed here; another process may have it still.
    pub(crate) async fn accept(
        self: Arc<Self>,
        listener: Listener,
        socket: TcpListener,
        stop: CancellationToken,
    ) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                accepted = socket.accept() => accepted,
            };
            self.take_in(listener, accepted).await;
        }
        // Whoever is in the queue has been told that it is connected.
        while let Some(accepted) = at_once(&socket) {
            self.take_in(listener, accepted).await;
            // Else the runtime's budget for this task looks like an empty queue.
            tokio::task::yield_now().await;
        }
    }

    async fn take_in(
        self: &Arc<Self>,
        listener: Listener,
        accepted: io::Result<(TcpStream, SocketAddr)>,
    ) {
        match accepted {
            Ok((socket, address)) => {
                let (door, fresh) = (Arc::clone(self), self.fresh.enter());
                self.tracker
                    .spawn(async move { door.serve(listener, socket, address, fresh).await });
            }
            Err(error) => {
                self.rouse.connection_refused("accept");
                tracing::warn!(address = %listener.address, %error, "can't accept a connection");
                tokio::time::sleep(BREATH).await;
            }
        }
    }

    async fn serve(
        &self,
        listener: Listener,
        socket: TcpStream,
        address: SocketAddr,
        fresh: Fresh,
    ) {
        // Answers go out when they are there.
        let _ = socket.set_nodelay(true);
        // Who is gone without a word is no visitor: its app may sleep.
        let _ = set_tcp_keepalive(&socket, &KEEPALIVE);
        match Box::pin(self.enter(listener, socket, address, fresh)).await {
            Ok(Some((stream, _counted))) => {
                self.rouse.connection_opened(listener.speaks.as_str());
                if stream.http2() {
                    self.app.process_new(Box::new(stream), &self.closing).await;
                } else {
                    self.http1(stream).await;
                }
                self.rouse.connection_closed(listener.speaks.as_str());
            }
            Ok(None) => {}
            Err(refused) => {
                self.rouse.connection_refused(refused.kind());
                tracing::debug!(%address, port = listener.speaks.as_str(), %refused, "a connection is refused");
            }
        }
    }

    /// One request after the other, as Pingora's `process_new` has it for HTTP/1. Its future has room for HTTP/2
    /// as well, some 4 KiB, and thousands may be held.
    async fn http1(&self, stream: Downstream) {
        let mut session = ServerSession::new_http1(Box::new(stream));
        session.set_keepalive(if *self.closing.borrow() { None } else { Some(KEPT) });
        while let Some(reused) = self.app.process_new_http(session, &self.closing).await {
            let (stream, settings) = reused.consume();
            session = ServerSession::new_http1(stream);
            if let Some(settings) = settings {
                settings.apply_to_session(&mut session);
            }
        }
    }

    /// From a socket to a connection that is ready for HTTP; none: it was a challenge's.
    async fn enter(
        &self,
        listener: Listener,
        socket: TcpStream,
        address: SocketAddr,
        fresh: Fresh,
    ) -> Result<Option<(Downstream, rouse_downstream::Connection)>, Refused> {
        let mut counted = self.connections.enter()?;
        let socket = Socket::new(socket);
        let trusted = self.trusted.current();
        let secure = listener.speaks == Speaks::Https;
        let (socket, peer) = match listener.proxy_protocol {
            ProxyProtocol::Off => {
                (Prefixed::new(Vec::new(), socket), Peer::new(address, secure, &trusted))
            }
            ProxyProtocol::On => {
                let deadline = Instant::now() + self.header;
                let accepted = proxy_protocol::accept(socket, address, &trusted, deadline).await?;
                let peer = Peer::proxied(address, accepted.addresses, secure, &trusted);
                if matches!(accepted.addresses, Addresses::Proxied { .. }) && !peer.trusted {
                    counted.count_for(peer.address.ip())?;
                }
                (accepted.stream, peer)
            }
        };
        // A front's connections are those of many.
        if listener.proxy_protocol == ProxyProtocol::Off && !peer.trusted {
            counted.count_for(peer.address.ip())?;
        }
        let mut connected = Connected::new(peer, fresh);
        connected.redirect = listener.redirect;
        connected.socket = socket.get_ref().watched();
        let (bytes, http2) = match listener.speaks {
            Speaks::Http => (Bytes::Plain(socket), false),
            Speaks::H2c => (Bytes::Plain(socket), true),
            Speaks::Https => {
                let tls = self.tls.as_ref().ok_or(Refused::NoTls)?;
                let client = peer.address.ip();
                let early = |hello: &rouse_tls::Hello<'_>| {
                    // Behind a front a wake would be charged to the front.
                    if !peer.trusted
                        && let Some(name) = hello.server_name()
                    {
                        self.rouse.early(name, client);
                    }
                };
                match tls.accept(socket, early).await? {
                    Accepted::Visitor(stream, facts) => {
                        connected.tls = Some(match facts.version {
                            Version::Tls12 => "1.2",
                            Version::Tls13 => "1.3",
                        });
                        connected.certificate = facts.client.map(|client| {
                            Box::new(PeerCertificate::new(client.subject, &client.der))
                        });
                        (Bytes::Tls(stream), facts.alpn == Some(Alpn::H2))
                    }
                    Accepted::Challenge { server_name } => {
                        tracing::info!(server_name, "a certificate authority has looked");
                        return Ok(None);
                    }
                }
            }
        };
        let stream = Downstream::new(bytes, http2, Arc::new(connected), self.header);
        Ok(Some((stream, counted)))
    }
}

/// A connection that is waiting to be accepted.
fn at_once(socket: &TcpListener) -> Option<io::Result<(TcpStream, SocketAddr)>> {
    use std::task::{Context, Poll, Waker};
    match socket.poll_accept(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(accepted)) => Some(Ok(accepted)),
        // What can't be accepted now never will be.
        Poll::Ready(Err(_)) | Poll::Pending => None,
    }
}
