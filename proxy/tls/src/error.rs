//! How a handshake fails.

use std::io;

use rustls::{AlertDescription, InvalidMessage};

/// How a handshake failed. None of them is a fault of ours, but [`HandshakeError::NoCertificate`]
/// may be one of who runs us.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// It was not over in time.
    #[error("the handshake took too long")]
    Timeout,
    /// A host is asked for that has no certificate here, and there is no default.
    #[error("no certificate is for {}", match .0 { Some(name) => name, None => "a client that names no host" })]
    NoCertificate(Option<Box<str>>),
    /// The client's certificate is missing or no good.
    #[error("the client's certificate was refused: {0}")]
    ClientCertificate(rustls::Error),
    /// The client broke off and said why: it may not trust our certificate.
    #[error("the client broke off the handshake: {0:?}")]
    Alert(AlertDescription),
    /// It speaks HTTP without TLS. It was answered 400.
    #[error("the client speaks plain HTTP on a TLS port")]
    PlainHttp,
    /// Its first byte is none of TLS.
    #[error("the client does not speak TLS: its first byte is {0:#04x}")]
    NotTls(u8),
    /// Its first message is longer than 64 KiB.
    #[error("the client's first message has more than {} bytes", crate::look::MAX_HELLO)]
    HelloTooLong,
    /// The connection ended before the handshake did.
    #[error("the client closed the connection during the handshake")]
    Closed,
    /// The connection can't be read or written.
    #[error("the connection failed during the handshake: {0}")]
    Io(io::Error),
    /// Client and server have nothing in common, or the client does not keep to the protocol.
    #[error("the handshake failed: {0}")]
    Protocol(rustls::Error),
}

impl HandshakeError {
    /// A word for it, of a fixed set: a metric's label.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::NoCertificate(_) => "no_certificate",
            Self::ClientCertificate(_) => "client_certificate",
            Self::Alert(_) => "alert",
            Self::PlainHttp => "plain_http",
            Self::NotTls(_) => "not_tls",
            Self::HelloTooLong => "hello_too_long",
            Self::Closed => "closed",
            Self::Io(_) => "io",
            Self::Protocol(_) => "protocol",
        }
    }
}

impl From<rustls::Error> for HandshakeError {
    fn from(error: rustls::Error) -> Self {
        use rustls::Error;
        match error {
            // On this end a certificate that is checked is always a client's.
            Error::NoCertificatesPresented | Error::InvalidCertificate(_) => {
                Self::ClientCertificate(error)
            }
            Error::AlertReceived(alert) => Self::Alert(alert),
            Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge) => Self::HelloTooLong,
            error => Self::Protocol(error),
        }
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, UnexpectedEof};
        if matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected | UnexpectedEof) {
            return Self::Closed;
        }
        match error.downcast::<rustls::Error>() {
            Ok(error) => error.into(),
            Err(error) => Self::Io(error),
        }
    }
}
