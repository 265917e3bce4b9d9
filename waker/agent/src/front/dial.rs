//! Connections to the app.

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::Shared;
use super::body::Upward;

/// How long connecting over loopback may take. It takes long only when the app's backlog is full.
const CONNECT: Duration = Duration::from_secs(5);

/// Connects to the app's port.
pub(super) async fn connect(app: SocketAddr) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(CONNECT, TcpStream::connect(app))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    // Works without, only later.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Speaks HTTP/1.1 on `stream`. A task of `shared` drives it until its sender is dropped and the
/// last exchange is over.
pub(super) async fn handshake(
    shared: &Shared,
    stream: TcpStream,
) -> hyper::Result<SendRequest<Upward>> {
    let (sender, connection) =
        http1::Builder::new().preserve_header_case(true).handshake(TokioIo::new(stream)).await?;
    let stop = shared.stop.clone();
    shared.tasks.spawn(async move {
        // A broken connection is seen by the exchange on it.
        let _ = stop.run_until_cancelled(connection.with_upgrades()).await;
    });
    Ok(sender)
}

/// The connection to the app that one visitor's connection keeps for its next request.
#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<Option<SendRequest<Upward>>>);

impl Kept {
    /// The kept connection, if it can take a request now.
    pub(super) fn take(&self) -> Option<SendRequest<Upward>> {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        sender.filter(SendRequest::is_ready)
    }

    /// Keeps `sender`, in place of the one kept before.
    pub(super) fn put(&self, sender: SendRequest<Upward>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    }
}
