//! What is known of a connection from a visitor, for as long as it stands.

use std::any::Any;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use http::HeaderValue;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use rouse_downstream::Peer;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// A connection. A server that accepts connections itself gives it to Pingora with the stream
/// ([`Connected::digest`]), and the plugin finds it again in each request of it.
#[derive(Debug)]
pub struct Connected {
    /// Who is at the other end, as far as the connection itself tells.
    pub peer: Peer,
    /// TLS, as `1.2` or `1.3`; none in the clear.
    pub tls: Option<&'static str>,
    /// The certificate that the peer showed, checked.
    pub certificate: Option<Box<PeerCertificate>>,
    /// Plain requests are to come again by HTTPS.
    pub redirect: bool,
    /// The socket. Where it is known, who leaves is missed at once and without being looked after.
    pub socket: Weak<TcpStream>,
    header: AtomicU8,
    /// How many headers were whole.
    requests: AtomicU32,
    /// Until the first of them.
    fresh: Mutex<Option<Fresh>>,
}

/// A peer's certificate, which was checked.
#[derive(Clone, Debug)]
pub struct PeerCertificate {
    /// Its subject as text, for the access log.
    pub subject: String,
    /// As an app is told of it: the field `Client-Cert` (RFC 9440, section 2.2).
    pub field: HeaderValue,
}

impl PeerCertificate {
    /// The certificate with this subject and this DER.
    pub fn new(subject: String, der: &[u8]) -> Self {
        // A Byte Sequence (RFC 8941, section 3.3.5).
        let field = format!(":{}:", STANDARD.encode(der));
        let field = HeaderValue::try_from(field).expect("base64 is ASCII");
        Self { subject, field }
    }
}

/// Connections that have not sent their first request yet: a server that goes down gives them the time to.
#[derive(Clone, Debug, Default)]
pub struct FreshCount(Arc<AtomicUsize>);

impl FreshCount {
    /// Counts a connection from now on.
    pub fn enter(&self) -> Fresh {
        self.0.fetch_add(1, Ordering::Relaxed);
        Fresh(self.clone())
    }

    /// How many there are.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// One of [`FreshCount`], until it is dropped.
#[derive(Debug)]
pub struct Fresh(FreshCount);

impl Drop for Fresh {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// No byte of the next request is there yet.
const IDLE: u8 = 0;
/// A request's header is being read.
const READING: u8 = 1;
/// The header is whole, and the request is being served.
const WHOLE: u8 = 2;

impl Connected {
    /// A connection that was accepted just now.
    pub fn new(peer: Peer, fresh: Fresh) -> Self {
        Self {
            peer,
            tls: None,
            certificate: None,
            redirect: false,
            socket: Weak::new(),
            header: AtomicU8::new(READING),
            requests: AtomicU32::new(0),
            fresh: Mutex::new(Some(fresh)),
        }
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

    /// Which request's header has begun and is not whole, if one: the time that it may take runs. A number that no
    /// two that follow each other share.
    pub fn reads_header(&self) -> Option<u32> {
        let reads = self.header.load(Ordering::Relaxed) == READING;
        reads.then(|| self.requests.load(Ordering::Relaxed))
    }

    /// Bytes have come.
    pub fn received(&self) {
        let _ = self.header.compare_exchange(IDLE, READING, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn header_whole(&self) {
        if self.header.swap(WHOLE, Ordering::Relaxed) != WHOLE
            && self.requests.fetch_add(1, Ordering::Relaxed) == 0
        {
            // Nothing panics under the lock.
            drop(self.fresh.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    /// The next bytes begin a request.
    pub(crate) fn request_over(&self) {
        self.header.store(IDLE, Ordering::Relaxed);
    }
}

/// Returns when the other side of `socket` sends no more, or the connection is broken. Takes nothing of what it has
/// sent: that may be a body, or the next request.
pub(crate) async fn departure(socket: &TcpStream) {
    // Of what is watched for, this matches the end only: bytes that wait would match READABLE.
    while let Ok(ready) = socket.ready(Interest::PRIORITY).await {
        if ready.is_read_closed() {
            return;
        }
    }
    // The runtime goes down, and with it every hold.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn who_leaves_is_seen_whatever_waits_unread() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for (half, abrupt) in [(false, false), (true, false), (false, true)] {
            let mut far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (near, _) = listener.accept().await.unwrap();
            far.write_all(b"unread").await.unwrap();
            near.readable().await.unwrap();
            let early = timeout(Duration::from_millis(50), departure(&near)).await;
            assert!(early.is_err(), "bytes are no departure");
            let mut left = Some(far);
            if half {
                left.as_mut().unwrap().shutdown().await.unwrap();
            } else {
                if abrupt {
                    left.as_ref().unwrap().set_zero_linger().unwrap();
                }
                left = None;
            }
            timeout(Duration::from_secs(10), departure(&near)).await.expect("it is seen");
            if !abrupt {
                assert_eq!(near.try_read(&mut [0; 6]).unwrap(), 6, "nothing was taken");
            }
            drop(left);
        }
    }
}
