//! One handshake.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use rustls::server::Acceptor;
use rustls::{HandshakeKind, ProtocolVersion};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::config::{Alpn, ClientAuth, Version};
use crate::error::HandshakeError;
use crate::hello::{Hello, fold};
use crate::look::{GivenUp, Look};
use crate::server::{Tls, TlsError};

/// A fatal alert `unrecognized_name` in a record of its own (RFC 8446, sections 5.1 and 6).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];
/// The same for `missing_extension`: what is missing is the server name (section 9.2).
const MISSING_EXTENSION: [u8; 7] = [21, 3, 3, 0, 2, 2, 109];
/// What a client without TLS is told.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nRouse-Error: https-only\r\n\
    Content-Type: text/plain\r\nCache-Control: no-store\r\nContent-Length: 48\r\n\
    Connection: close\r\n\r\nThis port speaks HTTPS. Please ask by https://.\n";
/// How long, and for how many bytes, such a client is listened to afterwards: closing at once
/// would tear the answer out of its hands.
const DRAIN: (Duration, u64) = (Duration::from_secs(1), 64 * 1024);
/// The longest subject of a client's certificate that is told, in bytes.
const MAX_SUBJECT: usize = 1024;

/// How a handshake ended well.
#[derive(Debug)]
pub enum Accepted<S> {
    /// A visitor came in.
    Visitor(Box<TlsStream<S>>, Facts),
    /// An ACME server looked at the challenge's certificate. There is nothing left to do: the
    /// connection is closed.
    Challenge {
        /// The host that was asked for.
        server_name: Box<str>,
    },
}

/// What a handshake has brought to light.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The host that was asked for, in lower case and without a final dot.
    pub server_name: Option<Box<str>>,
    /// What is spoken within; none if the client did not say, which means HTTP/1.1.
    pub alpn: Option<Alpn>,
    /// The version of TLS.
    pub version: Version,
    /// Whether an earlier session was resumed.
    pub resumed: bool,
    /// The client's certificate, if it showed one. It has been checked.
    pub client: Option<ClientCertificate>,
}

/// A client's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// Its subject as text, such as `CN=cdn, O=Example`: without control characters, cut off after
    /// 1 KiB.
    pub subject: String,
    /// SHA-256 of its DER.
    pub sha256: [u8; 32],
    /// Its DER: as it came in the handshake, which bounds it.
    pub der: Box<[u8]>,
}

/// What a hello leads to.
enum Next {
    Visitor,
    Challenge(Box<str>),
    Nothing(Option<Box<str>>),
}

impl Tls {
    /// Shakes hands on `stream`, within the configured time. If that fails the stream is closed.
    ///
    /// `early` is called as soon as the client has said what it wants, if there is a certificate
    /// for that: the rest of the handshake takes one round trip more. It is a hint. It is not called
    /// for a challenge, nor where clients must show a certificate, for by then they have not.
    pub async fn accept<S>(
        &self,
        stream: S,
        early: impl FnOnce(&Hello<'_>),
    ) -> Result<Accepted<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        tokio::time::timeout(self.config.handshake, self.shake(stream, early))
            .await
            .unwrap_or(Err(HandshakeError::Timeout))
    }

    async fn shake<S>(
        &self,
        mut stream: S,
        early: impl FnOnce(&Hello<'_>),
    ) -> Result<Accepted<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let accepted = {
            let mut acceptor = LazyConfigAcceptor::new(Acceptor::default(), Look::new(&mut stream));
            match (&mut acceptor).await {
                Ok(StartHandshake { accepted, .. }) => accepted,
                Err(error) => {
                    let given_up = acceptor.take_io().and_then(|look| look.given_up());
                    return Err(refuse(&mut stream, given_up, error).await);
                }
            }
        };
        let next = {
            let hello = accepted.client_hello();
            self.next(&Hello::new(&hello), early)
        };
        let server = match &next {
            Next::Visitor => self.server().map_err(|error| match error {
                TlsError::Setup(error) => HandshakeError::Protocol(error),
                error => HandshakeError::Io(io::Error::other(error)),
            })?,
            Next::Challenge(_) => self.challenge(),
            Next::Nothing(name) => {
                let alert = if name.is_some() { UNRECOGNIZED_NAME } else { MISSING_EXTENSION };
                // It may have left already, which changes nothing.
                let _ = stream.write_all(&alert).await;
                let _ = stream.shutdown().await;
                return Err(HandshakeError::NoCertificate(name.clone()));
            }
        };
        let mut stream = StartHandshake::from_parts(accepted, stream).into_stream(server).await?;
        if let Next::Challenge(server_name) = next {
            let _ = stream.shutdown().await;
            return Ok(Accepted::Challenge { server_name });
        }
        let facts = facts(&stream);
        Ok(Accepted::Visitor(Box::new(stream), facts))
    }

    fn next(&self, hello: &Hello<'_>, early: impl FnOnce(&Hello<'_>)) -> Next {
        let name = hello.server_name();
        if hello.is_challenge() {
            return match name {
                Some(name) if self.store.challenge(name).is_some() => Next::Challenge(name.into()),
                name => Next::Nothing(name.map(Into::into)),
            };
        }
        if self.store.find(name, hello.schemes()).is_none() {
            return Next::Nothing(name.map(Into::into));
        }
        if self.config.client_auth != ClientAuth::Required {
            early(hello);
        }
        Next::Visitor
    }
}

/// Ends a connection that has not come as far as a hello.
async fn refuse<S>(stream: &mut S, given_up: Option<GivenUp>, error: io::Error) -> HandshakeError
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match given_up {
        // A method of HTTP is in capital letters.
        Some(GivenUp::NotTls { first }) if first.is_ascii_uppercase() => {
            let answer = async {
                stream.write_all(PLAIN_HTTP).await?;
                stream.shutdown().await?;
                tokio::io::copy(&mut stream.take(DRAIN.1), &mut tokio::io::sink()).await
            };
            let _ = tokio::time::timeout(DRAIN.0, answer).await;
            HandshakeError::PlainHttp
        }
        Some(GivenUp::NotTls { first }) => HandshakeError::NotTls(first),
        Some(GivenUp::TooLong) => HandshakeError::HelloTooLong,
        None => error.into(),
    }
}

fn facts<S>(stream: &TlsStream<S>) -> Facts {
    let (_, connection) = stream.get_ref();
    let alpn = connection.alpn_protocol();
    Facts {
        server_name: connection.server_name().map(|name| fold(name).into()),
        alpn: [Alpn::H2, Alpn::Http11].into_iter().find(|a| alpn == Some(a.as_str().as_bytes())),
        version: match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => Version::Tls12,
            // There is no third.
            _ => Version::Tls13,
        },
        resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
        client: connection.peer_certificates().and_then(|chain| chain.first()).map(|der| {
            ClientCertificate {
                subject: subject(der),
                sha256: Sha256::digest(der).into(),
                der: der.as_ref().into(),
            }
        }),
    }
}

fn subject(der: &[u8]) -> String {
    let mut text = String::new();
    if let Ok((_, certificate)) = X509Certificate::from_der(der) {
        let _ = write!(text, "{}", certificate.subject());
    }
    text.retain(|c| !c.is_control());
    text.truncate(text.floor_char_boundary(MAX_SUBJECT));
    text
}
