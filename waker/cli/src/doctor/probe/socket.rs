//! The waker's socket, and whether somebody answers there.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

/// How long the waker may take to answer: it does so at once, whatever it does besides.
const PATIENCE: Duration = Duration::from_secs(2);

/// The socket's file.
#[derive(Debug)]
pub(in crate::doctor) struct File {
    /// It is one.
    pub(in crate::doctor) socket: bool,
    pub(in crate::doctor) mode: u32,
    pub(in crate::doctor) uid: u32,
    pub(in crate::doctor) gid: u32,
}

/// Who listens.
#[derive(Clone, Copy, Debug)]
pub(in crate::doctor) struct Peer {
    pub(in crate::doctor) pid: i32,
    pub(in crate::doctor) uid: u32,
}

/// The answer to `GET /healthz`.
#[derive(Debug)]
pub(in crate::doctor) enum Health {
    /// Nobody could be asked.
    Unreached,
    /// This HTTP status.
    Answered(u16),
    /// Something else, or the end of the connection.
    Broke(String),
    /// None for so many seconds.
    Silent(u64),
}

/// What was found.
#[derive(Debug)]
pub(in crate::doctor) struct Seen {
    pub(in crate::doctor) file: io::Result<File>,
    /// Who is at the other end, if the kernel tells.
    pub(in crate::doctor) connected: io::Result<Option<Peer>>,
    pub(in crate::doctor) health: Health,
}

impl Seen {
    /// The waker's process.
    pub(in crate::doctor) fn peer(&self) -> Option<Peer> {
        self.connected.as_ref().ok().copied().flatten()
    }
}

pub(in crate::doctor) async fn look(path: &Path) -> Seen {
    let file = std::fs::metadata(path).map(|meta| File {
        socket: meta.file_type().is_socket(),
        mode: meta.permissions().mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
    });
    let (connected, health) = match UnixStream::connect(path).await {
        Ok(stream) => {
            let peer = stream.peer_cred().ok();
            let peer = peer.and_then(|cred| Some(Peer { pid: cred.pid()?, uid: cred.uid() }));
            (Ok(peer), ask(stream).await)
        }
        Err(error) => (Err(error), Health::Unreached),
    };
    Seen { file, connected, health }
}

async fn ask(stream: UnixStream) -> Health {
    match tokio::time::timeout(PATIENCE, healthz(stream)).await {
        Ok(Ok(status)) => Health::Answered(status),
        Ok(Err(error)) => Health::Broke(error.to_string()),
        Err(_) => Health::Silent(PATIENCE.as_secs()),
    }
}

async fn healthz(stream: UnixStream) -> hyper::Result<u16> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = http::Request::get("/healthz")
        .header(http::header::HOST, "waker")
        .body(Empty::<Bytes>::new())
        .expect("the request is valid");
    let answer = async { sender.send_request(request).await.map(|r| r.status().as_u16()) };
    // The answer comes by way of the connection, which is driven until then.
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        ended = connection => match ended {
            Ok(()) => answer.await,
            Err(error) => Err(error),
        },
    }
}
