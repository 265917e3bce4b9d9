//! A stream while its first message is read: what its first bytes are, and how many came.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The first byte of TLS (RFC 8446, section 5.1: a record of type handshake).
const HANDSHAKE: u8 = 22;
/// How much a client may send until its hello is whole, in bytes: 64 KiB, less the two by which
/// rustls' buffer would be full before we are asked. What came behind the hello is counted too, at
/// most the 4 KiB of one read.
pub(crate) const MAX_HELLO: usize = 64 * 1024 - 2;

/// Why the reading of a hello was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    NotTls { first: u8 },
    TooLong,
}

/// A stream that is read for a hello.
pub(crate) struct Look<'a, S> {
    stream: &'a mut S,
    read: usize,
    given_up: Option<GivenUp>,
}

impl<'a, S> Look<'a, S> {
    pub(crate) fn new(stream: &'a mut S) -> Self {
        Self { stream, read: 0, given_up: None }
    }

    pub(crate) fn given_up(&self) -> Option<GivenUp> {
        self.given_up
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Look<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut *self.stream).poll_read(cx, buf))?;
        let new = buf.filled().get(before..).unwrap_or_default();
        let given_up = match (self.read, new.first()) {
            (0, Some(&first)) if first != HANDSHAKE => Some(GivenUp::NotTls { first }),
            (read, _) if read + new.len() > MAX_HELLO => Some(GivenUp::TooLong),
            _ => None,
        };
        self.read += new.len();
        self.given_up = given_up;
        Poll::Ready(match given_up {
            Some(_) => Err(io::ErrorKind::InvalidData.into()),
            None => Ok(()),
        })
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Look<'_, S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }
}
