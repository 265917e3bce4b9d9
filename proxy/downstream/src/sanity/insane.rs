//! Why a request is refused, each with its status.

use http::StatusCode;

/// What is wrong with a request's head. Each is answered by [`Self::status`], and its connection closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Insane {
    /// A version that is not spoken here.
    #[error("the version of HTTP is not 1.0, 1.1 or 2")]
    Version,
    /// No token, or a very long one (RFC 9110, section 9.1).
    #[error("the method is no token of at most {} bytes", super::MAX_METHOD)]
    Method,
    /// This is no forward proxy.
    #[error("CONNECT is not served")]
    Connect,
    /// Longer than [`MAX_TARGET`](super::MAX_TARGET).
    #[error("the target has more than {} bytes", super::MAX_TARGET)]
    TargetLength,
    /// A control character, a blank or a fragment.
    #[error("the target has a character that no target has")]
    TargetCharacter,
    /// Neither a path nor a URI of http or https, nor `OPTIONS *` (RFC 9112, section 3.2).
    #[error("the target is neither a path nor a URI of http or https")]
    TargetForm,
    /// A name or password in the authority (RFC 9110, section 4.2.4).
    #[error("the authority has user information")]
    UserInfo,
    /// More than [`MAX_FIELDS`](super::MAX_FIELDS).
    #[error("there are more than {} header fields", super::MAX_FIELDS)]
    FieldCount,
    /// More than [`MAX_BYTES`](super::MAX_BYTES) of names and values.
    #[error("the header fields have more than {} bytes", super::MAX_BYTES)]
    FieldBytes,
    /// CR, LF, NUL or another control character (RFC 9110, section 5.5).
    #[error("a header field has a control character in its value")]
    FieldCharacter,
    /// `Content_Length` or `Transfer_Encoding`: to some apps the same name.
    #[error(
        "a header field is named like Content-Length or Transfer-Encoding, but with an underscore"
    )]
    Shadow,
    /// Digits alone, or it is none (RFC 9112, section 6.3).
    #[error("Content-Length is no number")]
    Length,
    /// More than one, though they be the same.
    #[error("there is more than one Content-Length")]
    LengthTwice,
    /// Both (RFC 9112, section 6.1).
    #[error("there are both Content-Length and Transfer-Encoding")]
    LengthAndEncoding,
    /// Anything but `chunked`, once.
    #[error("Transfer-Encoding is not chunked, once")]
    Encoding,
    /// In HTTP/1.0 it means nothing (RFC 9112, section 6.1).
    #[error("there is a Transfer-Encoding in HTTP/1.0")]
    EncodingVersion,
    /// A field of one HTTP/1 connection in HTTP/2 (RFC 9113, section 8.2.2).
    #[error("a header field belongs to a connection of HTTP/1, and this is HTTP/2")]
    ConnectionSpecific,
    /// `Connection` names a field that is for the app, or what is no name.
    #[error("Connection names a header field that is not of the connection")]
    Nominated,
    /// More than one `Host` (RFC 9112, section 3.2).
    #[error("there is more than one Host")]
    HostTwice,
    /// No `Host` in HTTP/1.1, and neither it nor `:authority` in HTTP/2.
    #[error("there is no Host")]
    HostMissing,
    /// Neither a name nor an address, with or without a port.
    #[error("the host is neither a name nor an address")]
    Host,
    /// `Host` and the target's authority are two hosts. The target's would hold (RFC 9112, section
    /// 3.2.2), but not every app knows.
    #[error("Host and the target name different hosts")]
    HostDiffers,
    /// An expectation other than `100-continue` (RFC 9110, section 10.1.1).
    #[error("an expectation is not 100-continue")]
    Expectation,
    /// A body before an upgrade that has none: it would be the first bytes of the tunnel.
    #[error("an upgrade to a WebSocket has a body")]
    UpgradeBody,
}

impl Insane {
    /// What to answer.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Self::Connect => StatusCode::METHOD_NOT_ALLOWED,
            Self::TargetLength => StatusCode::URI_TOO_LONG,
            Self::FieldCount | Self::FieldBytes => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Expectation => StatusCode::EXPECTATION_FAILED,
            Self::Method
            | Self::TargetCharacter
            | Self::TargetForm
            | Self::UserInfo
            | Self::FieldCharacter
            | Self::Shadow
            | Self::Length
            | Self::LengthTwice
            | Self::LengthAndEncoding
            | Self::Encoding
            | Self::EncodingVersion
            | Self::ConnectionSpecific
            | Self::Nominated
            | Self::HostTwice
            | Self::HostMissing
            | Self::Host
            | Self::HostDiffers
            | Self::UpgradeBody => StatusCode::BAD_REQUEST,
        }
    }

    /// One word for a metric or a log; as many as there are variants.
    pub fn word(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::Method => "method",
            Self::Connect => "connect",
            Self::TargetLength => "target_length",
            Self::TargetCharacter => "target_character",
            Self::TargetForm => "target_form",
            Self::UserInfo => "user_info",
            Self::FieldCount => "field_count",
            Self::FieldBytes => "field_bytes",
            Self::FieldCharacter => "field_character",
            Self::Shadow => "shadow",
            Self::Length => "length",
            Self::LengthTwice => "length_twice",
            Self::LengthAndEncoding => "length_and_encoding",
            Self::Encoding => "encoding",
            Self::EncodingVersion => "encoding_version",
            Self::ConnectionSpecific => "connection_specific",
            Self::Nominated => "nominated",
            Self::HostTwice => "host_twice",
            Self::HostMissing => "host_missing",
            Self::Host => "host",
            Self::HostDiffers => "host_differs",
            Self::Expectation => "expectation",
            Self::UpgradeBody => "upgrade_body",
        }
    }
}
