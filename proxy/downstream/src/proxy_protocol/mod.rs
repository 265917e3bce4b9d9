//! PROXY protocol, as HAProxy's `proxy-protocol.txt` has it: section 2.1 is version 1 (text), 2.2 is
//! version 2 (binary).
//!
//! The decoder is ours: the header has a dozen fields, and what matters is what a crate leaves to its
//! caller: how much to read and not a byte more, a bound, and the checksum.

mod prefixed;
mod read;
mod v1;
mod v2;

use std::net::SocketAddr;

pub use prefixed::Prefixed;
pub use read::{Accepted, Header, ReadError, accept, read_header};

/// Whether the connections of a listener begin with a PROXY protocol header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// They don't, and one that does is no HTTP.
    #[default]
    Off,
    /// Every one does, and only [trusted](crate::trusted) peers may connect. It can't be optional:
    /// who may choose whether to send one may choose the address it is known by (section 2).
    On,
}

/// What a header says of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Nothing: it is the front's own (a health check), or of a kind without an IP address. The
    /// socket's addresses hold.
    Socket,
    /// The front speaks for somebody else.
    Proxied {
        /// The client, v4-mapped addresses as v4.
        source: SocketAddr,
        /// Where the client connected to.
        destination: SocketAddr,
        /// The client came over TLS, which the front ended (`PP2_TYPE_SSL`, section 2.2.6).
        tls: bool,
    },
}

/// What is at the start of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// The start of a header. It takes this many bytes more at the least.
    Partial(usize),
    /// A header.
    Whole {
        /// What it says.
        addresses: Addresses,
        /// How many bytes it has; the rest is the client's.
        length: usize,
    },
}

/// Why bytes are no header of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// They start like no version that is known.
    #[error(
        "the connection does not start with a PROXY protocol header; turn it on at the front, or off here"
    )]
    Signature,
    /// A v1 line of more than 107 bytes, or without its CR LF (section 2.1).
    #[error("the PROXY v1 line does not end with CR LF within {} bytes", v1::MAX)]
    LineLength,
    /// A v1 line of another form than section 2.1 gives.
    #[error("the PROXY v1 line is malformed")]
    Line,
    /// A v2 version or command that section 2.2 does not have.
    #[error("the PROXY v2 header has the unknown version and command {0:#04x}")]
    Command(u8),
    /// A v2 address family or transport that section 2.2 does not have.
    #[error("the PROXY v2 header has the unknown family and transport {0:#04x}")]
    Family(u8),
    /// A v2 header shorter than the addresses of its family.
    #[error("the PROXY v2 header has {0} bytes, too few for its addresses")]
    Short(usize),
    /// A v2 header longer than we take.
    #[error("the PROXY v2 header has {0} bytes; the limit is {max}; let the front send fewer TLVs", max = v2::MAX)]
    Long(usize),
    /// TLVs that don't fill their space, or one that must come once and comes twice.
    #[error("the PROXY v2 header has malformed TLVs")]
    Tlv,
    /// The CRC32C TLV does not match (section 2.2.3).
    #[error("the PROXY v2 header does not match its checksum")]
    Checksum,
}

impl DecodeError {
    /// One word for a metric or a log; there are nine.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Signature => "signature",
            Self::LineLength => "line_length",
            Self::Line => "line",
            Self::Command(_) => "command",
            Self::Family(_) => "family",
            Self::Short(_) => "short",
            Self::Long(_) => "long",
            Self::Tlv => "tlv",
            Self::Checksum => "checksum",
        }
    }
}

/// Looks for a header at the start of `bytes`. Pure, and allocates nothing.
pub fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let starts = |signature: &[u8]| {
        let n = bytes.len().min(signature.len());
        bytes[..n] == signature[..n]
    };
    if starts(&v2::SIGNATURE) {
        v2::decode(bytes)
    } else if starts(v1::SIGNATURE) {
        v1::decode(bytes)
    } else {
        Err(DecodeError::Signature)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_panic_and_no_length_is_beyond_them(
            signature in 0..3usize, rest in prop::collection::vec(any::<u8>(), 0..300)
        ) {
            let start: &[u8] = [&v2::SIGNATURE[..], v1::SIGNATURE, b""][signature];
            let bytes = [start, &rest].concat();
            match decode(&bytes) {
                Ok(Decoded::Whole { length, .. }) => prop_assert!(length <= bytes.len()),
                Ok(Decoded::Partial(more)) => prop_assert!(more > 0 && bytes.len() + more <= v2::MAX),
                Err(error) => prop_assert!(!error.kind().is_empty()),
            }
        }

        #[test]
        fn what_is_missing_is_asked_for_and_never_too_much(port in any::<u16>(), v6 in any::<u128>()) {
            let v6 = std::net::Ipv6Addr::from_bits(v6);
            let line = format!("PROXY TCP6 {v6} ::1 {port} 443\r\n");
            let mut binary = v2::SIGNATURE.to_vec();
            binary.extend([0x21, 0x21, 0, 36]);
            binary.extend(v6.octets());
            binary.extend([0; 15]);
            binary.push(1);
            binary.extend(port.to_be_bytes());
            binary.extend(443u16.to_be_bytes());
            let whole = Addresses::Proxied {
                source: SocketAddr::new(std::net::IpAddr::from(v6).to_canonical(), port),
                destination: ([0, 0, 0, 0, 0, 0, 0, 1], 443).into(),
                tls: false,
            };
            for bytes in [line.into_bytes(), binary] {
                for cut in 0..bytes.len() {
                    let Ok(Decoded::Partial(more)) = decode(&bytes[..cut]) else {
                        return Err(TestCaseError::fail("a part was taken for a whole"));
                    };
                    prop_assert!(more > 0 && cut + more <= bytes.len());
                }
                let more = [&bytes[..], b"GET / HTTP/1.1"].concat();
                let expected = Decoded::Whole { addresses: whole, length: bytes.len() };
                prop_assert_eq!(decode(&more), Ok(expected));
            }
        }
    }

    #[test]
    fn what_is_no_header_is_told_at_the_first_wrong_byte() {
        for bytes in [&b"G"[..], b"GET / HTTP/1.1\r\n", b"\r\n\r\nX", b"PROXX", b"\x16\x03\x01"] {
            assert_eq!(decode(bytes), Err(DecodeError::Signature), "{bytes:?}");
        }
    }
}
