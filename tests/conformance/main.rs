//! Does the proxy keep to HTTP/1.0, HTTP/1.1 and HTTP/2, and do real clients get on with it?
#![forbid(unsafe_code)]

mod clients;
mod errors;
mod floods;
mod held;
mod one;
mod pipeline;
mod two;

use std::sync::Arc;

use h2::client::SendRequest;
use rouse_tests::origin::{Act, Request};
use rouse_tests::{Frames, Front, ORIGIN_HOST, RawOrigin};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// How long `/long` is.
const LONG: usize = 48 << 20;

/// A proxy and what is behind it.
struct World {
    front: Front,
    origin: RawOrigin,
}

impl World {
    async fn new() -> Self {
        let origin = RawOrigin::with(act).await;
        let front = Front::of(origin.address(), "").await;
        Self { front, origin }
    }

    /// Frames to the port for HTTP/2 without TLS.
    async fn frames(&self) -> Frames {
        Frames::connect(self.front.h2c(), &[]).await
    }

    /// The proxy serves whoever comes.
    async fn fine(&self) {
        let mut frames = self.frames().await;
        frames.get(1, ORIGIN_HOST, "/page").await;
        let answer = frames.stream(1).await;
        assert_eq!(answer.first().and_then(|f| f.status()), Some(200), "{answer:?}");
    }
}

/// What the origin says.
fn act(request: &Request) -> Act {
    let answer = |text: &str| Act::Answer(text.as_bytes().to_vec());
    if request.method == "HEAD" {
        return answer("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-App: yes\r\n\r\n");
    }
    match request.target.as_str() {
        "/page" => answer("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-App: yes\r\n\r\npage"),
        "/early" => Act::Early(
            b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge"
                .to_vec(),
        ),
        "/continue" => Act::Continue(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage".to_vec()),
        "/range" => answer(
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 1-2/4\r\nContent-Length: 2\r\n\r\nag",
        ),
        "/no-content" => answer("HTTP/1.1 204 No Content\r\nX-App: yes\r\n\r\n"),
        "/not-modified" => answer("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n"),
        "/chunked" => answer(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3;x=y\r\ntwo\r\n0\r\n\r\n",
        ),
        "/trailers" => answer(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n\
             3\r\none\r\n0\r\nX-End: whole\r\n\r\n",
        ),
        "/long" => Act::page(long()),
        target => Act::page(format!("[{target}]")),
    }
}

/// What `/long` says: nothing in it is twice near itself.
fn long() -> Vec<u8> {
    (0..LONG / 8)
        .flat_map(|n| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

/// TLS to the proxy, speaking `alpn`.
async fn tls(front: &Front, host: &'static str, alpn: &[u8]) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(front.certificate()).expect("a certificate");
    roots.add(certificate).expect("it can be believed");
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    let stream = TcpStream::connect(front.https()).await.expect("the proxy listens");
    let name = ServerName::try_from(host).expect("a name");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let stream = stream.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(alpn), "it is agreed on");
    stream
}

/// An HTTP/2 client, and the task that drives it.
async fn client(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> (SendRequest<bytes::Bytes>, JoinSet<()>) {
    let (client, connection) = h2::client::Builder::new()
        .initial_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .handshake(stream)
        .await
        .expect("the proxy speaks HTTP/2");
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        // A broken connection is seen by whoever reads the answer.
        let _ = connection.await;
    });
    (client, driver)
}

/// A request without a body.
fn get(host: &str, path: &str) -> http::Request<()> {
    let uri = format!("http://{host}{path}");
    http::Request::builder().uri(uri).body(()).expect("a request")
}

/// A body as a whole.
async fn whole(body: &mut h2::RecvStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.expect("a whole body");
        body.flow_control().release_capacity(data.len()).expect("it was taken");
        bytes.extend_from_slice(&data);
    }
    bytes
}
