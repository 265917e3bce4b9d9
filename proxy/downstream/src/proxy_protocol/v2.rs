//! Version 2: sixteen bytes, addresses, TLVs (section 2.2).

use std::net::{IpAddr, SocketAddr};

use super::{Addresses, DecodeError, Decoded};

/// What every v2 header starts with, and no HTTP request or TLS handshake does.
pub(super) const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// The signature, version and command, family and transport, length.
pub(super) const FIXED: usize = 16;

/// The longest header we take, in bytes. The format goes to 64 KiB. Addresses have 216 at the most,
/// and the TLVs that fronts are known to send (authority, unique id, the names of a TLS session, a
/// cloud's endpoint id) are hundreds; only a whole client certificate would be more, and we don't read it.
pub(super) const MAX: usize = 4096;

/// TLV types (section 2.2.2 and on).
const CRC32C: u8 = 0x03;
const SSL: u8 = 0x20;
/// The client came over TLS (section 2.2.6).
const CLIENT_SSL: u8 = 0x01;

pub(super) fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let Some((fixed, _)) = bytes.split_first_chunk::<FIXED>() else {
        return Ok(Decoded::Partial(FIXED - bytes.len()));
    };
    let [.., command, family, high, low] = *fixed;
    if !matches!(command, 0x20 | 0x21) {
        return Err(DecodeError::Command(command));
    }
    let length = FIXED + usize::from(u16::from_be_bytes([high, low]));
    if length > MAX {
        return Err(DecodeError::Long(length));
    }
    let Some(header) = bytes.get(..length) else {
        return Ok(Decoded::Partial(length - bytes.len()));
    };
    let addresses = match command {
        // The front's own connection; what follows must be discarded, family and all.
        0x20 => Addresses::Socket,
        _ => proxied(family, header)?,
    };
    Ok(Decoded::Whole { addresses, length })
}

/// What a whole `header` with the command PROXY says.
fn proxied(family: u8, header: &[u8]) -> Result<Addresses, DecodeError> {
    // Datagrams too: a front that ends QUIC says so of its clients.
    let (family, transport) = (family >> 4, family & 0x0f);
    if family > 3 || transport > 2 {
        return Err(DecodeError::Family(family << 4 | transport));
    }
    let short = DecodeError::Short(header.len());
    let body = &header[FIXED..];
    let (ends, size) = match family {
        1 => {
            let (both, _) = body.split_first_chunk::<12>().ok_or(short)?;
            let [a, b, c, d, e, f, g, h, ports @ ..] = *both;
            (Some((IpAddr::from([a, b, c, d]), IpAddr::from([e, f, g, h]), ports)), 12)
        }
        2 => {
            let (source, rest) = body.split_first_chunk::<16>().ok_or(short)?;
            let (destination, rest) = rest.split_first_chunk::<16>().ok_or(short)?;
            let (ports, _) = rest.split_first_chunk::<4>().ok_or(short)?;
            (Some((IpAddr::from(*source), IpAddr::from(*destination), *ports)), 36)
        }
        3 => (None, 216),
        // Unspecified: whatever is there must be ignored.
        _ => return Ok(Addresses::Socket),
    };
    if body.len() < size {
        return Err(short);
    }
    let tls = tlvs(header, FIXED + size)?;
    Ok(match ends {
        // Paths of a Unix socket, or a transport that is not told, are nothing to know a client by.
        Some((source, destination, [a, b, c, d])) if transport != 0 => Addresses::Proxied {
            source: SocketAddr::new(source.to_canonical(), u16::from_be_bytes([a, b])),
            destination: SocketAddr::new(destination.to_canonical(), u16::from_be_bytes([c, d])),
            tls,
        },
        _ => Addresses::Socket,
    })
}

/// Walks the TLVs from `at` to the end of `header`, verifies the checksum where there is one, and
/// tells whether the client came over TLS.
fn tlvs(header: &[u8], mut at: usize) -> Result<bool, DecodeError> {
    let (mut tls, mut sum) = (None, None);
    while at < header.len() {
        let &[kind, high, low, ref rest @ ..] = &header[at..] else { return Err(DecodeError::Tlv) };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let value = rest.get(..length).ok_or(DecodeError::Tlv)?;
        let start = at + 3;
        let twice = match kind {
            CRC32C => {
                let value = value.try_into().map_err(|_| DecodeError::Tlv)?;
                sum.replace((start, u32::from_be_bytes(value))).is_some()
            }
            // One byte of flags, four of the front's verdict, then TLVs of its own.
            SSL => {
                let (client, _) = value.split_first_chunk::<5>().ok_or(DecodeError::Tlv)?;
                tls.replace(client[0] & CLIENT_SSL != 0).is_some()
            }
            _ => false,
        };
        if twice {
            return Err(DecodeError::Tlv);
        }
        at = start + length;
    }
    if let Some((start, sum)) = sum {
        // Over the whole header, with zeros where the sum itself stands.
        let computed = crc32c::crc32c(&header[..start]);
        let computed = crc32c::crc32c_append(computed, &[0; 4]);
        if crc32c::crc32c_append(computed, &header[start + 4..]) != sum {
            return Err(DecodeError::Checksum);
        }
    }
    Ok(tls.unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes
    }

    const V4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0, 7, 1, 187];

    fn v4(tls: bool) -> Addresses {
        Addresses::Proxied {
            source: "192.0.2.1:7".parse().unwrap(),
            destination: "198.51.100.2:443".parse().unwrap(),
            tls,
        }
    }

    fn got(bytes: &[u8]) -> Result<Addresses, DecodeError> {
        match decode(bytes)? {
            Decoded::Whole { addresses, length } => {
                assert_eq!(length, bytes.len());
                Ok(addresses)
            }
            Decoded::Partial(_) => panic!("partial"),
        }
    }

    /// A header whose CRC32C TLV is right, with `before` and `after` around it.
    fn summed(before: &[u8], after: &[u8]) -> Vec<u8> {
        let body = [&V4[..], before, &[CRC32C, 0, 4, 0, 0, 0, 0], after].concat();
        let mut bytes = header(0x21, 0x11, &body);
        let sum = crc32c::crc32c(&bytes).to_be_bytes();
        let at = FIXED + V4.len() + before.len() + 3;
        bytes[at..at + 4].copy_from_slice(&sum);
        bytes
    }

    #[test]
    fn commands_and_families() {
        assert_eq!(got(&header(0x21, 0x11, &V4)), Ok(v4(false)));
        assert_eq!(got(&header(0x21, 0x12, &V4)), Ok(v4(false)));
        let mapped = [&[0; 10][..], &[255, 255, 192, 0, 2, 1], &[0; 15], &[1, 0, 7, 0, 8]].concat();
        let expected = Addresses::Proxied {
            source: "192.0.2.1:7".parse().unwrap(),
            destination: "[::1]:8".parse().unwrap(),
            tls: false,
        };
        assert_eq!(got(&header(0x21, 0x21, &mapped)), Ok(expected));
        for (command, family, body) in [
            (0x20, 0x00, &[][..]),
            (0x20, 0x11, &V4),
            (0x20, 0x99, b"anything"),
            (0x21, 0x00, b"anything"),
            (0x21, 0x10, &V4),
            (0x21, 0x31, &[b'/'; 216]),
        ] {
            assert_eq!(
                got(&header(command, family, body)),
                Ok(Addresses::Socket),
                "{command} {family}"
            );
        }
        for command in [0x00, 0x11, 0x22, 0x31] {
            assert_eq!(got(&header(command, 0x11, &V4)), Err(DecodeError::Command(command)));
        }
        for family in [0x13, 0x41, 0xff] {
            assert_eq!(got(&header(0x21, family, &V4)), Err(DecodeError::Family(family)));
        }
        assert_eq!(got(&header(0x21, 0x11, &V4[..11])), Err(DecodeError::Short(27)));
        assert_eq!(got(&header(0x21, 0x21, &[0; 35])), Err(DecodeError::Short(51)));
        assert_eq!(got(&header(0x21, 0x31, &[0; 215])), Err(DecodeError::Short(231)));
    }

    #[test]
    fn tlvs_are_walked() {
        let with = |tlvs: &[u8]| got(&header(0x21, 0x11, &[&V4[..], tlvs].concat()));
        assert_eq!(with(&[4, 0, 0]), Ok(v4(false)));
        assert_eq!(with(&[SSL, 0, 5, 1, 0, 0, 0, 0]), Ok(v4(true)));
        assert_eq!(with(&[SSL, 0, 5, 6, 0, 0, 0, 0, 0xea, 0, 1, 7]), Ok(v4(false)));
        for bad in [
            &[4][..],
            &[4, 0],
            &[4, 0, 1],
            &[4, 0xff, 0xff, 0],
            &[SSL, 0, 4, 1, 0, 0, 0],
            &[SSL, 0, 5, 1, 0, 0, 0, 0, SSL, 0, 5, 0, 0, 0, 0, 0],
            &[CRC32C, 0, 3, 0, 0, 0],
        ] {
            assert_eq!(with(bad), Err(DecodeError::Tlv), "{bad:?}");
        }
    }

    #[test]
    fn a_checksum_is_verified_wherever_it_stands() {
        for (before, after) in [(&[][..], &[][..]), (&[4, 0, 2, 1, 2], &[5, 0, 1, 9])] {
            let good = summed(before, after);
            assert_eq!(got(&good), Ok(v4(false)));
            // Any bit after the length: an address, a TLV or the sum itself.
            for at in FIXED..FIXED + V4.len() {
                let mut bad = good.clone();
                bad[at] ^= 1;
                assert_eq!(got(&bad), Err(DecodeError::Checksum), "{at}");
            }
        }
        let twice = [&V4[..], &[CRC32C, 0, 4, 0, 0, 0, 0], &[CRC32C, 0, 4, 0, 0, 0, 0]].concat();
        assert_eq!(got(&header(0x21, 0x11, &twice)), Err(DecodeError::Tlv));
    }

    #[test]
    fn a_header_is_bounded_before_it_is_read() {
        let mut bytes = header(0x21, 0x11, &[]);
        bytes[14..16].copy_from_slice(&0xffffu16.to_be_bytes());
        assert_eq!(decode(&bytes), Err(DecodeError::Long(65_551)));
        let most = u16::try_from(MAX - FIXED).unwrap();
        bytes[14..16].copy_from_slice(&most.to_be_bytes());
        assert_eq!(decode(&bytes), Ok(Decoded::Partial(MAX - FIXED)));
    }
}
