//! A client that stops after its handshake, and sees what it was shown.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rouse_tests::patience;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// A connection with TLS.
pub(crate) type Secure = TlsStream<TcpStream>;

/// A handshake for `host` over a connection of its own, which believes these certificates.
pub(crate) async fn to(
    address: SocketAddr,
    host: &str,
    believed: &[PathBuf],
) -> io::Result<Secure> {
    over(TcpStream::connect(address).await?, host, believed).await
}

/// A handshake for `host` over this connection.
pub(crate) async fn over(
    stream: TcpStream,
    host: &str,
    believed: &[PathBuf],
) -> io::Result<Secure> {
    let mut roots = RootCertStore::empty();
    for file in believed {
        roots.add(certificate(file)).expect("it can be believed");
    }
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(host.to_owned()).expect("a name");
    let shaken = TlsConnector::from(Arc::new(config)).connect(name, stream);
    tokio::time::timeout(patience(), shaken).await.expect("the handshake comes to an end")
}

/// A certificate in a file.
pub(crate) fn certificate(file: &PathBuf) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(file).expect("a certificate")
}

/// The certificate that the server showed.
pub(crate) fn shown(stream: &Secure) -> CertificateDer<'static> {
    let shown = stream.get_ref().1.peer_certificates().expect("it showed some");
    shown[0].clone().into_owned()
}

/// The last request of a connection, and its answer.
pub(crate) async fn last(stream: &mut Secure, host: &str, path: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("it is open");
    let mut answer = Vec::new();
    let read = tokio::time::timeout(patience(), stream.read_to_end(&mut answer)).await;
    read.expect("an answer comes").expect("a whole one");
    String::from_utf8_lossy(&answer).into_owned()
}
