//! The thin shell: a header off a stream, by a deadline, from a peer that may send one.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use super::{Addresses, DecodeError, Decoded, Prefixed, decode, v1, v2};
use crate::trusted::Trusted;

/// Why a connection that should begin with a header is closed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The peer may not say who is behind it.
    #[error(
        "{0} may not send a PROXY protocol header; if it is a front of ours, add it to `trusted_proxies`"
    )]
    Untrusted(SocketAddr),
    /// The peer closed before the header was whole. Without one byte it is a port scan or a health check.
    #[error("the connection ended after {0} bytes of a PROXY protocol header")]
    Closed(usize),
    /// The header was not whole in time.
    #[error("no whole PROXY protocol header came in time")]
    Deadline,
    /// The stream broke.
    #[error("reading the PROXY protocol header: {0}")]
    Io(#[from] io::Error),
    /// What came is no header.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

impl ReadError {
    /// One word for a metric or a log; there are four and those of [`DecodeError::kind`].
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Untrusted(_) => "untrusted",
            Self::Closed(_) => "closed",
            Self::Deadline => "deadline",
            Self::Io(_) => "io",
            Self::Decode(error) => error.kind(),
        }
    }
}

/// A header that was read.
#[derive(Debug, PartialEq, Eq)]
pub struct Header {
    /// What it says.
    pub addresses: Addresses,
    /// What was read after it: the client's first bytes, to be read before the stream. Always
    /// empty after a v2 header.
    pub rest: Vec<u8>,
}

/// A connection whose header was taken off.
#[derive(Debug)]
pub struct Accepted<S> {
    /// What the header says.
    pub addresses: Addresses,
    /// The connection, from the first byte after the header.
    pub stream: Prefixed<S>,
}

/// Reads the header that `stream` begins with.
///
/// Of a v2 header never a byte too many is read. A v1 header has no length, so up to what a line
/// may have is read at once, and what was too much is in [`Header::rest`].
pub async fn read_header<S>(stream: &mut S, deadline: Instant) -> Result<Header, ReadError>
where
    S: AsyncRead + Unpin,
{
    tokio::time::timeout_at(deadline, read(stream)).await.unwrap_or(Err(ReadError::Deadline))
}

/// [`read_header`] for a connection from `peer`, which must be one of `trusted`; another is refused
/// before a byte is read.
pub async fn accept<S>(
    mut stream: S,
    peer: SocketAddr,
    trusted: &Trusted,
    deadline: Instant,
) -> Result<Accepted<S>, ReadError>
where
    S: AsyncRead + Unpin,
{
    if !trusted.contains(peer.ip()) {
        return Err(ReadError::Untrusted(peer));
    }
    let Header { addresses, rest } = read_header(&mut stream, deadline).await?;
    Ok(Accepted { addresses, stream: Prefixed::new(rest, stream) })
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Header, ReadError> {
    // Room for the usual header of either version; only TLVs need more.
    let mut bytes = Vec::with_capacity(v1::MAX);
    loop {
        let more = match decode(&bytes)? {
            Decoded::Whole { addresses, length } => {
                bytes.drain(..length);
                return Ok(Header { addresses, rest: bytes });
            }
            // A line is read to its possible end at once rather than byte by byte; not before it is
            // known to be a line, so that a v2 header is never read too far.
            Decoded::Partial(_) if bytes.starts_with(v1::SIGNATURE) => v1::MAX - bytes.len(),
            Decoded::Partial(more) => more.min(v2::MAX),
        };
        let at = bytes.len();
        let limit = u64::try_from(more).unwrap_or(u64::MAX);
        bytes.reserve(more);
        let n = (&mut *stream).take(limit).read_buf(&mut bytes).await?;
        if n == 0 {
            return Err(ReadError::Closed(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn v2(body: &[u8]) -> Vec<u8> {
        let mut bytes = v2::SIGNATURE.to_vec();
        bytes.extend([0x21, 0x11]);
        bytes.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes
    }

    const BODY: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0, 7, 1, 187];

    /// What is read of `bytes` when they come in pieces of `piece`, and what the client then gets to say.
    async fn pieces(bytes: &[u8], piece: usize) -> (Addresses, Vec<u8>, Vec<u8>) {
        let (mut far, near) = tokio::io::duplex(piece);
        let write = async {
            for piece in bytes.chunks(piece) {
                far.write_all(piece).await.unwrap();
            }
            far.shutdown().await.unwrap();
        };
        let read = async {
            let trusted: Trusted = ["10.0.0.0/8".parse().unwrap()].into_iter().collect();
            let peer = "10.1.2.3:4".parse().unwrap();
            let mut accepted = accept(near, peer, &trusted, soon()).await.unwrap();
            let rest = accepted.stream.prefix().to_vec();
            let mut all = Vec::new();
            accepted.stream.read_to_end(&mut all).await.unwrap();
            (accepted.addresses, rest, all)
        };
        tokio::join!(write, read).1
    }

    #[tokio::test]
    async fn either_version_in_any_pieces_and_nothing_is_lost() {
        let request = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
        let expected = Addresses::Proxied {
            source: "192.0.2.1:7".parse().unwrap(),
            destination: "198.51.100.2:443".parse().unwrap(),
            tls: false,
        };
        let line = b"PROXY TCP4 192.0.2.1 198.51.100.2 7 443\r\n";
        let tlv = [&BODY[..], &[4, 3, 0], &[0; 768]].concat();
        for piece in [1, 2, 7, 12, 15, 16, 17, 40, 4096] {
            for (header, binary) in [(line.to_vec(), false), (v2(&BODY), true), (v2(&tlv), true)] {
                let (addresses, rest, all) = pieces(&[&header[..], request].concat(), piece).await;
                assert_eq!(addresses, expected);
                assert_eq!(all, request, "pieces of {piece}");
                assert!(!binary || rest.is_empty(), "a v2 header was read too far");
            }
        }
    }

    #[tokio::test]
    async fn a_stranger_is_refused_before_a_byte_is_read() {
        let (mut far, near) = tokio::io::duplex(64);
        far.write_all(&v2(&BODY)).await.unwrap();
        let peer = "192.0.2.9:1".parse().unwrap();
        let error = accept(near, peer, &Trusted::default(), soon()).await.unwrap_err();
        assert_eq!(error.kind(), "untrusted");
        assert!(error.to_string().starts_with("192.0.2.9:1 may not"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_header_meets_its_deadline() {
        let (mut far, mut near) = tokio::io::duplex(64);
        far.write_all(b"PROXY TCP4 ").await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(3);
        let error = read_header(&mut near, deadline).await.unwrap_err();
        assert_eq!((error.kind(), Instant::now()), ("deadline", deadline));
    }

    #[tokio::test]
    async fn an_end_or_a_wrong_start_is_told() {
        for (bytes, kind) in [
            (&b""[..], "closed"),
            (b"PROXY TCP4 1", "closed"),
            (b"\r\n\r\n\0\r\nQUIT\n\x21", "closed"),
            (b"GET / HTTP/1.1\r\n", "signature"),
            (b"PROXY X\r\n", "line"),
        ] {
            let (mut far, mut near) = tokio::io::duplex(64);
            far.write_all(bytes).await.unwrap();
            drop(far);
            let error = read_header(&mut near, soon()).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{bytes:?}");
        }
    }
}
