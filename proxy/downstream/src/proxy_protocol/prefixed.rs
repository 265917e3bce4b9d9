//! A stream that gives back what was read from it too early.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// `S`, with some bytes before the first that it will give.
#[derive(Debug)]
pub struct Prefixed<S> {
    prefix: Vec<u8>,
    given: usize,
    stream: S,
}

impl<S> Prefixed<S> {
    /// `stream`, which gives `prefix` first. An empty one costs a comparison a read.
    pub fn new(prefix: Vec<u8>, stream: S) -> Self {
        Self { prefix, given: 0, stream }
    }

    /// What was not given back yet.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix[self.given..]
    }

    /// The stream itself. Reading from it would leave the prefix out.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// What was not given back yet, and the stream.
    pub fn into_parts(mut self) -> (Vec<u8>, S) {
        self.prefix.drain(..self.given);
        (self.prefix, self.stream)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let left = &this.prefix[this.given..];
        if left.is_empty() {
            return Pin::new(&mut this.stream).poll_read(context, buffer);
        }
        let n = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..n]);
        this.given += n;
        if this.given == this.prefix.len() {
            // The connection may live for hours.
            this.prefix = Vec::new();
            this.given = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn the_prefix_comes_first_and_once() {
        let (mut far, near) = tokio::io::duplex(64);
        far.write_all(b"def").await.unwrap();
        far.shutdown().await.unwrap();
        let mut stream = Prefixed::new(b"abc".to_vec(), near);
        let mut one = [0];
        stream.read_exact(&mut one).await.unwrap();
        assert_eq!((&one, stream.prefix()), (b"a", &b"bc"[..]));
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "bcdef");
        assert!(stream.prefix().is_empty());
    }

    #[tokio::test]
    async fn writes_pass_through_and_parts_are_whole() {
        let (mut far, near) = tokio::io::duplex(64);
        let mut stream = Prefixed::new(b"abc".to_vec(), near);
        let slices = [IoSlice::new(b"1"), IoSlice::new(b"23")];
        assert!(stream.is_write_vectored());
        assert_eq!(stream.write_vectored(&slices).await.unwrap(), 3);
        let mut got = [0; 3];
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"123");
        stream.read_exact(&mut got[..1]).await.unwrap();
        assert_eq!(stream.into_parts().0, b"bc");
    }
}
