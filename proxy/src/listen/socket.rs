//! A visitor's socket, which whoever holds its request may watch while Pingora has it.

use std::io::{self, ErrorKind, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// A connection. One owner reads and writes; others may wait for what happens to it.
#[derive(Debug)]
pub(super) struct Socket(Arc<TcpStream>);

impl Socket {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self(Arc::new(stream))
    }

    /// To watch it by. It is closed when its owner drops it, unless somebody watches just then.
    pub(super) fn watched(&self) -> Weak<TcpStream> {
        Arc::downgrade(&self.0)
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.0
    }

    fn poll_write_with(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match write(&self.0) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                wrote => return Poll::Ready(wrote),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            let mut read = None;
            let tried = self.0.try_io(Interest::READABLE, || {
                let room = buffer.remaining();
                let n = self.0.try_read_buf(buffer)?;
                read = Some(n);
                // Less than there was room for is all there is, as tokio has it for its own streams: said so
                // here, the next look costs no call that fails.
                if n > 0 && n < room { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match tried {
                _ if read.is_some() => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return Poll::Ready(other),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(context, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (far, Socket::new(listener.accept().await.unwrap().0))
    }

    #[tokio::test]
    async fn every_byte_passes_both_ways_in_pieces_of_any_size() {
        let (far, mut near) = pair().await;
        let (mut from, mut to) = far.into_split();
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let send = async {
            for piece in sent.chunks(7_919) {
                to.write_all(piece).await.unwrap();
            }
            to.shutdown().await.unwrap();
        };
        let echo = async {
            // Some reads fill the buffer, and some do not.
            let mut buffer = vec![0; 10_000];
            loop {
                match near.read(&mut buffer).await.unwrap() {
                    0 => break,
                    n => near.write_all(&buffer[..n]).await.unwrap(),
                }
            }
            near.shutdown().await.unwrap();
        };
        let receive = async {
            let mut all = Vec::new();
            from.read_to_end(&mut all).await.unwrap();
            all
        };
        let (back, (), ()) = tokio::join!(receive, send, echo);
        assert!(back == sent, "what came back is what was sent");
    }

    #[tokio::test]
    async fn it_is_closed_when_its_owner_drops_it() {
        let (mut far, near) = pair().await;
        let watched = near.watched();
        assert!(watched.upgrade().is_some());
        drop(near);
        assert!(watched.upgrade().is_none());
        assert_eq!(far.read(&mut [0; 1]).await.unwrap(), 0);
    }
}
