//! Version 1: one line of text (section 2.1).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use super::{Addresses, DecodeError, Decoded};

pub(super) const SIGNATURE: &[u8] = b"PROXY ";

/// The longest line, with its CR LF (section 2.1: 107 and a trailing zero that is never sent).
pub(super) const MAX: usize = 107;

/// The shortest line that says anything.
const MIN: usize = b"PROXY UNKNOWN\r\n".len();

pub(super) fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let window = &bytes[..bytes.len().min(MAX)];
    let Some(end) = window.iter().position(|b| *b == b'\n') else {
        if window.len() == MAX {
            return Err(DecodeError::LineLength);
        }
        // With its CR there, one byte is missing; else CR and LF are, and no line is below the least.
        let tail = if window.last() == Some(&b'\r') { 1 } else { 2 };
        return Ok(Decoded::Partial(
            MIN.saturating_sub(window.len()).max(tail).min(MAX - window.len()),
        ));
    };
    let line = window[..end].strip_suffix(b"\r").ok_or(DecodeError::Line)?;
    let line = std::str::from_utf8(line).map_err(|_| DecodeError::Line)?;
    let fields = line.strip_prefix("PROXY ").ok_or(DecodeError::Line)?;
    let addresses = parse(fields).ok_or(DecodeError::Line)?;
    Ok(Decoded::Whole { addresses, length: end + 1 })
}

fn parse(fields: &str) -> Option<Addresses> {
    // What comes after UNKNOWN must be ignored.
    if fields == "UNKNOWN" || fields.starts_with("UNKNOWN ") {
        return Some(Addresses::Socket);
    }
    // Exactly one space between two fields, so an empty field is a mistake that the parsers find.
    let mut fields = fields.split(' ');
    let family = fields.next()?;
    let [source, destination] = match family {
        "TCP4" => pair::<Ipv4Addr>(&mut fields)?,
        "TCP6" => pair::<Ipv6Addr>(&mut fields)?,
        _ => return None,
    };
    let (from, to) = (port(fields.next()?)?, port(fields.next()?)?);
    if fields.next().is_some() {
        return None;
    }
    Some(Addresses::Proxied {
        source: SocketAddr::new(source, from),
        destination: SocketAddr::new(destination, to),
        tls: false,
    })
}

fn pair<'f, A: FromStr + Into<IpAddr>>(
    fields: &mut impl Iterator<Item = &'f str>,
) -> Option<[IpAddr; 2]> {
    let mut one = || fields.next()?.parse::<A>().ok().map(|address| address.into().to_canonical());
    Some([one()?, one()?])
}

/// A port in decimal without leading zeros.
fn port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    (digits && (text == "0" || !text.starts_with('0'))).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let proxied = |source: &str, destination: &str| Addresses::Proxied {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            tls: false,
        };
        let longest = format!("PROXY UNKNOWN {}\r\n", "f".repeat(MAX - 16));
        assert_eq!(longest.len(), MAX);
        for (line, addresses) in [
            (
                "PROXY TCP4 192.0.2.1 198.51.100.2 1 65535\r\n",
                proxied("192.0.2.1:1", "198.51.100.2:65535"),
            ),
            ("PROXY TCP6 2001:db8::1 ::1 0 443\r\n", proxied("[2001:db8::1]:0", "[::1]:443")),
            (
                "PROXY TCP6 ::ffff:192.0.2.1 ::ffff:192.0.2.2 5 6\r\n",
                proxied("192.0.2.1:5", "192.0.2.2:6"),
            ),
            ("PROXY UNKNOWN\r\n", Addresses::Socket),
            ("PROXY UNKNOWN x y z\r\n", Addresses::Socket),
            (&longest, Addresses::Socket),
        ] {
            let bytes = [line.as_bytes(), b"GET"].concat();
            assert_eq!(
                decode(&bytes),
                Ok(Decoded::Whole { addresses, length: line.len() }),
                "{line}"
            );
        }
    }

    #[test]
    fn lines_that_are_none() {
        for line in [
            "PROXY \r\n",
            "PROXY TCP4\r\n",
            "PROXY UNKNOWNX\r\n",
            "PROXY tcp4 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
            "PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n",
            "PROXY TCP4 ::1 ::1 1 2\r\n",
            "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n",
            "PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
        ] {
            assert_eq!(decode(line.as_bytes()), Err(DecodeError::Line), "{line:?}");
        }
        let long = format!("PROXY UNKNOWN {}\r\n", "f".repeat(MAX - 15));
        assert_eq!(decode(long.as_bytes()), Err(DecodeError::LineLength));
        assert_eq!(decode(b"PROXY \xff\r\n"), Err(DecodeError::Line));
    }
}
