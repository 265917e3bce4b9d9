//! Small texts of headers: addresses out and in, lists, values.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::HeaderValue;

/// The longest text of an element that is looked at: a v6 address in brackets with a port has 47.
const MAX_ELEMENT: usize = 64;

/// The longest text of a v4 address.
const V4_TEXT: usize = "255.255.255.255".len();

/// Writes an address.
pub(crate) fn push_address(text: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            let (bytes, length) = v4(address);
            text.extend_from_slice(&bytes[..length]);
        }
        IpAddr::V6(address) => text.extend_from_slice(address.to_string().as_bytes()),
    }
}

/// An address as a value. For a v4 one it allocates once.
pub(crate) fn address_value(address: IpAddr) -> Option<HeaderValue> {
    match address {
        IpAddr::V4(address) => {
            let (bytes, length) = v4(address);
            HeaderValue::from_bytes(&bytes[..length]).ok()
        }
        IpAddr::V6(address) => HeaderValue::try_from(address.to_string()).ok(),
    }
}

/// The text of a v4 address and its length. Every request needs one, and the formatting machinery
/// takes twenty times as long.
fn v4(address: Ipv4Addr) -> ([u8; V4_TEXT], usize) {
    let (mut text, mut at) = ([0; V4_TEXT], 0);
    let mut push = |b: u8| {
        text[at] = b;
        at += 1;
    };
    for (i, octet) in address.octets().into_iter().enumerate() {
        if i > 0 {
            push(b'.');
        }
        if octet >= 100 {
            push(b'0' + octet / 100);
        }
        if octet >= 10 {
            push(b'0' + octet / 10 % 10);
        }
        push(b'0' + octet % 10);
    }
    (text, at)
}

/// An address as it stands in a header: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`,
/// `[2001:db8::1]`, `[2001:db8::1]:80`. Anything else, names and zones too, is none.
pub(crate) fn parse_address(text: &[u8]) -> Option<(IpAddr, Option<u16>)> {
    if text.len() > MAX_ELEMENT {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let (address, port) = if let Ok(address) = text.parse::<IpAddr>() {
        (address, None)
    } else if let Some(inner) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        (IpAddr::V6(inner.parse().ok()?), None)
    } else {
        // A zone's number would be lost, and with it a difference between two clients.
        let socket = text.parse::<SocketAddr>().ok().filter(|_| !text.contains('%'))?;
        (socket.ip(), Some(socket.port()))
    };
    Some((address.to_canonical(), port))
}

/// A port number of digits alone, not 0.
pub(crate) fn parse_port(text: &[u8]) -> Option<u16> {
    let digits = (1..=5).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    let port = digits.then(|| std::str::from_utf8(text).ok()?.parse().ok())??;
    (port != 0).then_some(port)
}

/// A text of ours as a value, without a copy. None for a control character, which none has.
pub(crate) fn value(text: Vec<u8>) -> Option<HeaderValue> {
    HeaderValue::try_from(text).ok()
}

/// `text` without the blanks around it (RFC 9110, section 5.6.3: SP and HTAB).
pub(crate) fn trim(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// The elements of lists in the values of one header, the last first; empty ones don't count
/// (RFC 9110, section 5.6.1.2).
pub(crate) fn from_right<'h>(
    values: impl DoubleEndedIterator<Item = &'h HeaderValue>,
) -> impl Iterator<Item = &'h [u8]> {
    values
        .rev()
        .flat_map(|value| value.as_bytes().rsplit(|b| *b == b','))
        .map(trim)
        .filter(|element| !element.is_empty())
}

/// Whether `list` has `token`, in any case, between its commas.
pub(crate) fn has_token(list: &[u8], token: &str) -> bool {
    list.split(|b| *b == b',').any(|item| trim(item).eq_ignore_ascii_case(token.as_bytes()))
}

/// A character of a token (RFC 9110, section 5.6.2).
pub(crate) fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_ever() {
        let text = |address: IpAddr| {
            let mut text = Vec::new();
            push_address(&mut text, address);
            assert_eq!(address_value(address).unwrap().as_bytes(), text);
            String::from_utf8(text).unwrap()
        };
        for octet in 0..=255u8 {
            let address = IpAddr::from([octet, 255 - octet, 0, octet / 2]);
            assert_eq!(text(address), address.to_string());
        }
        assert_eq!(text("2001:db8::1".parse().unwrap()), "2001:db8::1");
    }

    #[test]
    fn addresses_are_read() {
        for (text, expected) in [
            ("192.0.2.1", Some(("192.0.2.1", None))),
            ("192.0.2.1:80", Some(("192.0.2.1", Some(80)))),
            ("2001:DB8::1", Some(("2001:db8::1", None))),
            ("[2001:db8::1]", Some(("2001:db8::1", None))),
            ("[2001:db8::1]:443", Some(("2001:db8::1", Some(443)))),
            ("::ffff:192.0.2.1", Some(("192.0.2.1", None))),
            ("", None),
            ("unknown", None),
            ("_hidden", None),
            ("192.0.2.1:", None),
            ("192.0.2.1:65536", None),
            ("192.0.2", None),
            ("192.0.2.01", None),
            ("[192.0.2.1]", None),
            ("fe80::1%eth0", None),
            ("[fe80::1%1]:80", None),
            ("a.example", None),
            ("\"192.0.2.1\"", None),
        ] {
            let expected = expected.map(|(ip, port)| (ip.parse().unwrap(), port));
            assert_eq!(parse_address(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(parse_address(&[b'1'; 1000]), None);
        assert_eq!(parse_address(b"\xff"), None);
        assert_eq!(
            [&b"80"[..], b"0", b"", b"+1", b"65536", b"000080"].map(parse_port),
            [Some(80), None, None, None, None, None]
        );
    }

    #[test]
    fn lists_from_the_right() {
        let values = ["a, b", "", " ,\tc ,,"].map(HeaderValue::from_static);
        let got: Vec<_> = from_right(values.iter()).collect();
        assert_eq!(got, [b"c", b"b", b"a"]);
        assert!(has_token(b"keep-alive, UPGRADE", "upgrade") && !has_token(b"upgrades", "upgrade"));
    }
}
