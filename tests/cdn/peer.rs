//! Connections from an address of one's own choice.

use std::net::{Ipv4Addr, SocketAddr};

use rouse_tests::patience;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// A client's address, which nobody trusts.
pub(crate) const STRANGER: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// The address of a CDN, which the proxies here trust.
pub(crate) const CDN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A connection from `from`.
pub(crate) async fn connect(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket can be made");
    socket.bind((from, 0).into()).expect("the whole of 127.0.0.0/8 is this host's");
    socket.connect(to).await.expect("the proxy listens")
}

/// Sends these bytes and reads until the connection ends.
pub(crate) async fn say(stream: &mut TcpStream, bytes: impl AsRef<[u8]>) -> String {
    // Who is refused may see the end before all is written.
    let _ = stream.write_all(bytes.as_ref()).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(patience(), stream.read_to_end(&mut answer)).await;
    // A reset ends it as well.
    let _ = read.expect("the connection ends");
    String::from_utf8_lossy(&answer).into_owned()
}

/// A request with these header lines from `from`, and its answer.
pub(crate) async fn ask(from: Ipv4Addr, to: SocketAddr, head: &str) -> String {
    let mut stream = connect(from, to).await;
    say(&mut stream, format!("{head}Connection: close\r\n\r\n")).await
}
