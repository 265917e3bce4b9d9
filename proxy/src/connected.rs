//! What is known of a connection from a visitor, for as long as it stands.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use rouse_downstream::Peer;

/// A connection. A server that accepts connections itself gives it to Pingora with the stream
/// ([`Connected::digest`]), and the plugin finds it again in each request of it.
#[derive(Debug)]
pub struct Connected {
    /// Who is at the other end, as far as the connection itself tells.
    pub peer: Peer,
    /// TLS, as `1.2` or `1.3`; none in the clear.
    pub tls: Option<&'static str>,
    /// The subject of the certificate that the peer showed, checked.
    pub certificate: Option<Box<str>>,
    /// Plain requests are to come again by HTTPS.
    pub redirect: bool,
    header: AtomicU8,
}

/// No byte of the next request is there yet.
const IDLE: u8 = 0;
/// A request's header is being read.
const READING: u8 = 1;
/// The header is whole, and the request is being served.
const WHOLE: u8 = 2;

impl Connected {
    /// A connection that was accepted just now.
    pub fn new(peer: Peer) -> Self {
        Self { peer, tls: None, certificate: None, redirect: false, header: AtomicU8::new(READING) }
    }

    /// To be told to Pingora as the stream's `ProxyDigest`, which is what it keeps of a connection for
    /// each request, over HTTP/2 too.
    pub fn digest(self: &Arc<Self>) -> Option<Arc<ProxyDigest>> {
        let nothing = ResponseHeader::build(200, Some(0)).ok()?;
        let this: Box<dyn Any + Send + Sync> = Box::new(Arc::clone(self));
        Some(Arc::new(ProxyDigest::new(Box::new(nothing), Some(this))))
    }

    /// The connection of a request, if it came by one of these.
    pub fn of(session: &Session) -> Option<&Arc<Self>> {
        let digest = session.digest()?.proxy_digest.as_ref()?;
        digest.user_data.as_ref()?.downcast_ref()
    }

    /// Whether a request's header has begun and is not whole: the time that it may take runs.
    pub fn reads_header(&self) -> bool {
        self.header.load(Ordering::Relaxed) == READING
    }

    /// Bytes have come.
    pub fn received(&self) {
        let _ = self.header.compare_exchange(IDLE, READING, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn header_whole(&self) {
        self.header.store(WHOLE, Ordering::Relaxed);
    }

    /// The next bytes begin a request.
    pub(crate) fn request_over(&self) {
        self.header.store(IDLE, Ordering::Relaxed);
    }
}
