//! A visitor's connection as Pingora wants it.

use std::io::{self, IoSlice};
use std::mem;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use pingora_core::protocols::l4::socket::SocketAddr;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::tls::SslDigest;
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use rouse_downstream::proxy_protocol::Prefixed;
use rouse_proxy::Connected;
use rouse_tls::TlsStream;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::socket::Socket;

/// What is written is gathered up to so many bytes until it is flushed, so that a header and a small
/// body go out together: as one segment, and as one TLS record. Pingora flushes at the end of an answer
/// only; so what is gathered also goes when there is nothing to read, for then it waits for the app.
const GATHER: usize = 4096;

/// Room for an answer's usual header and a small body, in bytes.
const SMALL: usize = 1024;

/// The connection's bytes.
#[derive(Debug)]
pub(super) enum Bytes {
    Plain(Prefixed<Socket>),
    Tls(Box<TlsStream<Prefixed<Socket>>>),
}

/// A visitor's connection.
#[derive(Debug)]
pub(super) struct Downstream {
    bytes: Bytes,
    http2: bool,
    connected: Arc<Connected>,
    proxy: Option<Arc<ProxyDigest>>,
    socket: Arc<SocketDigest>,
    tls: Option<Arc<SslDigest>>,
    since: SystemTime,
    /// What was written and is not sent. Has no room while it is empty: a held visitor writes nothing.
    gathered: Vec<u8>,
    sent: usize,
    /// Since the last write there was nothing to read, and the task has been woken to see it again.
    nudged: bool,
    /// How long the header of a request may take.
    header: Duration,
    late: Option<Pin<Box<Sleep>>>,
    /// Which request's header `late` is for.
    late_for: Option<u32>,
}

impl Downstream {
    pub(super) fn new(
        bytes: Bytes,
        http2: bool,
        connected: Arc<Connected>,
        header: Duration,
    ) -> Self {
        let fd = socket_of(&bytes).as_raw_fd();
        let socket = SocketDigest::from_raw_fd(fd);
        // Nobody has set it before: the digest is new.
        let _ = socket.peer_addr.set(Some(SocketAddr::Inet(connected.peer.address)));
        let tls = connected.tls.map(|version| {
            let digest = SslDigest::new("", version, None, None, Vec::new());
            Arc::new(digest)
        });
        Self {
            http2,
            proxy: connected.digest(),
            socket: Arc::new(socket),
            tls,
            since: SystemTime::now(),
            gathered: Vec::new(),
            sent: 0,
            nudged: false,
            header,
            late: None,
            late_for: None,
            bytes,
            connected,
        }
    }

    pub(super) fn http2(&self) -> bool {
        self.http2
    }

    fn send_gathered(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.gathered.len() {
            let left = &self.gathered[self.sent..];
            let n = ready!(write(&mut self.bytes, context, left))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += n;
        }
        self.gathered_is_sent();
        Poll::Ready(Ok(()))
    }

    fn send_and_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.send_gathered(context))?;
        match &mut self.bytes {
            Bytes::Plain(stream) => Pin::new(stream).poll_flush(context),
            Bytes::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn gathered_is_sent(&mut self) {
        self.sent = 0;
        if self.gathered.capacity() > 0 {
            drop(mem::take(&mut self.gathered));
        }
    }

    /// What is gathered and then `buffer`, in one go; how much of `buffer` went.
    fn send_with(&mut self, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        while self.sent < self.gathered.len() {
            let left = &self.gathered[self.sent..];
            let both = [IoSlice::new(left), IoSlice::new(buffer)];
            let n = ready!(write_vectored(&mut self.bytes, context, &both))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let rest = left.len();
            if n > rest {
                self.gathered_is_sent();
                return Poll::Ready(Ok(n - rest));
            }
            self.sent += n;
        }
        self.gathered_is_sent();
        write(&mut self.bytes, context, buffer)
    }

    /// Whether the header has taken too long. Only asked when there is nothing to read.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let reads = self.connected.reads_header();
        if self.late_for != reads {
            self.late = None;
            self.late_for = reads;
        }
        if reads.is_none() {
            return false;
        }
        let header = self.header;
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(header)));
        late.as_mut().poll(context).is_ready()
    }
}

fn socket_of(bytes: &Bytes) -> &TcpStream {
    match bytes {
        Bytes::Plain(stream) => stream.get_ref().stream(),
        Bytes::Tls(stream) => stream.get_ref().0.get_ref().stream(),
    }
}

fn write(bytes: &mut Bytes, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
    match bytes {
        Bytes::Plain(stream) => Pin::new(stream).poll_write(context, buffer),
        Bytes::Tls(stream) => Pin::new(stream).poll_write(context, buffer),
    }
}

fn write_vectored(
    bytes: &mut Bytes,
    context: &mut Context<'_>,
    buffers: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    match bytes {
        Bytes::Plain(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
        Bytes::Tls(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
    }
}

impl AsyncRead for Downstream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = match &mut this.bytes {
            Bytes::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Bytes::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        if read.is_pending() && !this.gathered.is_empty() {
            if this.nudged {
                // An error shows at the next write.
                let _ = this.send_and_flush(context);
            } else {
                // The body may be there already, and then goes with its header.
                this.nudged = true;
                context.waker().wake_by_ref();
            }
        }
        match read {
            Poll::Pending if this.is_late(context) => {
                let why = "the request's header took too long";
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
            }
            Poll::Ready(Ok(())) => {
                this.connected.received();
                Poll::Ready(Ok(()))
            }
            other => other,
        }
    }
}

impl AsyncWrite for Downstream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.nudged = false;
        // HTTP/2 gathers frames itself.
        if !this.http2 && this.gathered.len() + buffer.len() <= GATHER {
            if this.gathered.capacity() == 0 {
                this.gathered.reserve(SMALL.max(buffer.len()));
            }
            this.gathered.extend_from_slice(buffer);
            return Poll::Ready(Ok(buffer.len()));
        }
        this.send_with(context, buffer)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.send_gathered(context))?;
        write_vectored(&mut this.bytes, context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.http2
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().send_and_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.send_gathered(context))?;
        match &mut this.bytes {
            Bytes::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Bytes::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[async_trait]
impl Shutdown for Downstream {
    async fn shutdown(&mut self) {
        // The other side may have been faster.
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for Downstream {
    fn id(&self) -> UniqueIDType {
        socket_of(&self.bytes).as_raw_fd()
    }
}

impl Ssl for Downstream {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        self.tls.clone()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        // Also without TLS: whoever comes to a port for HTTP/2 knows it.
        Some(if self.http2 { ALPN::H2 } else { ALPN::H1 })
    }
}

impl GetTimingDigest for Downstream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        vec![Some(TimingDigest { established_ts: self.since, ..TimingDigest::default() })]
    }
}

impl GetProxyDigest for Downstream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.proxy.clone()
    }
}

impl GetSocketDigest for Downstream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        Some(Arc::clone(&self.socket))
    }
}

#[async_trait]
impl Peek for Downstream {}
