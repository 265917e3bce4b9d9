//! `Forwarded` (RFC 7239): one element a front, each of pairs.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::FORWARDED;

use crate::authority::Authority;
use crate::client::{Client, MAX_ELEMENTS, Proto};
use crate::text::{is_token, parse_address, push_address, trim};
use crate::trusted::Trusted;

/// What one element says. A pair that is there twice, or no pair, spoils all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Element<'h> {
    client: Option<&'h [u8]>,
    proto: Option<&'h [u8]>,
    host: Option<&'h [u8]>,
}

/// Walks the elements from the right into `client`, as [`crate::client::client`] says.
pub(crate) fn read(client: &mut Client, trusted: &Trusted, headers: &HeaderMap) {
    let values = headers.get_all(FORWARDED).iter().rev();
    let elements = values.flat_map(|value| FromRight { left: Some(value.as_bytes()) });
    let mut seen = None;
    for element in elements.take(MAX_ELEMENTS) {
        let Some(element) = parse(element) else { break };
        let Some((address, port)) = element.client.and_then(parse_address) else { break };
        (client.address, client.port, seen) = (address, port, Some(element));
        if !trusted.contains(address) {
            break;
        }
    }
    let Some(element) = seen else { return };
    if let Some(proto) = element.proto.and_then(Proto::parse) {
        client.proto = proto;
    }
    client.host = element.host.and_then(Authority::parse);
}

/// Appends the element that tells of a client at `address`.
pub(crate) fn push(text: &mut Vec<u8>, address: IpAddr, proto: Proto, host: Option<&Authority>) {
    // A colon is no character of a token (section 4), so a v6 address and a port need quotes.
    if address.is_ipv6() {
        text.extend_from_slice(b"for=\"[");
        push_address(text, address);
        text.extend_from_slice(b"]\"");
    } else {
        text.extend_from_slice(b"for=");
        push_address(text, address);
    }
    if let Some(host) = host {
        text.extend_from_slice(b";host=\"");
        text.extend_from_slice(host.as_bytes());
        text.push(b'"');
    }
    text.extend_from_slice(b";proto=");
    text.extend_from_slice(proto.as_str().as_bytes());
}

/// The elements of one value, the last first. From the right, so that a quote that a client left
/// open can't swallow what a front wrote after it.
struct FromRight<'h> {
    left: Option<&'h [u8]>,
}

impl<'h> Iterator for FromRight<'h> {
    type Item = &'h [u8];

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let left = self.left?;
            let mut quoted = false;
            let comma = left.iter().rposition(|b| {
                quoted ^= *b == b'"';
                *b == b',' && !quoted
            });
            let (before, element) = match comma {
                Some(at) => (Some(&left[..at]), &left[at + 1..]),
                None => (None, left),
            };
            self.left = before;
            let element = trim(element);
            if !element.is_empty() {
                return Some(element);
            }
        }
    }
}

fn parse(element: &[u8]) -> Option<Element<'_>> {
    // A quote that is escaped looks another from the right than from the left.
    if element.contains(&b'\\') {
        return None;
    }
    let mut parsed = Element::default();
    let mut rest = element;
    while !rest.is_empty() {
        let mut quoted = false;
        let end = rest.iter().position(|b| {
            quoted ^= *b == b'"';
            *b == b';' && !quoted
        });
        let end = end.unwrap_or(rest.len());
        let pair = trim(&rest[..end]);
        rest = rest.get(end + 1..).unwrap_or_default();
        if pair.is_empty() {
            continue;
        }
        let equals = pair.iter().position(|b| *b == b'=')?;
        let (name, value) = (&pair[..equals], &pair[equals + 1..]);
        let value = match value {
            [b'"', inner @ .., b'"'] if !inner.contains(&b'"') => inner,
            // A v6 address or a port without its quotes is seen often, and has one meaning.
            _ if value.iter().all(|b| is_token(*b) || b"[]:".contains(b)) => value,
            _ => return None,
        };
        if name.is_empty() || !name.iter().copied().all(is_token) {
            return None;
        }
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        let twice = if is("for") {
            parsed.client.replace(value).is_some()
        } else if is("proto") {
            parsed.proto.replace(value).is_some()
        } else if is("host") {
            parsed.host.replace(value).is_some()
        } else {
            false
        };
        if twice {
            return None;
        }
    }
    Some(parsed)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;
    use crate::client::{Peer, Rules, client};

    fn of(values: &[&str]) -> Client {
        let trusted: Trusted = ["10.0.0.0/8".parse().unwrap()].into_iter().collect();
        let peer = Peer::new("10.0.0.1:5".parse().unwrap(), false, &trusted);
        let rules = Rules { forwarded: true, ..Rules::default() };
        let mut headers = HeaderMap::new();
        headers.append("x-forwarded-for", HeaderValue::from_static("9.9.9.9"));
        for value in values {
            headers.append(FORWARDED, HeaderValue::from_str(value).unwrap());
        }
        client(&peer, &rules, &trusted, &headers)
    }

    #[test]
    fn the_walk_from_the_right() {
        for (values, address) in [
            (&["for=192.0.2.1"][..], "192.0.2.1"),
            (&["For=\"[2001:db8::1]:4711\""], "2001:db8::1"),
            (&["for=[2001:db8::1]"], "2001:db8::1"),
            (&["for=1.1.1.1, for=192.0.2.1;by=10.0.0.9 , for=10.0.0.2"], "192.0.2.1"),
            (&["for=1.1.1.1", "for=192.0.2.1", "for=10.0.0.2"], "192.0.2.1"),
            (&["for=192.0.2.1, for=unknown"], "10.0.0.1"),
            (&["for=192.0.2.1, for=_hidden, for=10.0.0.2"], "10.0.0.2"),
            (&["for=192.0.2.1, proto=https"], "10.0.0.1"),
            (&["for=192.0.2.1;for=192.0.2.2"], "10.0.0.1"),
            (&["for=192.0.2.1;;"], "192.0.2.1"),
            (&["for=1.1.1.1;ext=\"a,b;c\", for=192.0.2.1"], "192.0.2.1"),
            (&["by=10.0.0.1;ext=\"a,b;for=1.1.1.1\";for=192.0.2.1"], "192.0.2.1"),
            // Quotes and backslashes of a client's reach nothing that was written after them.
            (&["for=\"1.1.1.1, for=192.0.2.1"], "192.0.2.1"),
            (&["for=\"x\\\", for=192.0.2.1"], "192.0.2.1"),
            (&["for=\"x\\\", for=10.0.0.2"], "10.0.0.2"),
            (&["for=192.0.2.1;ext=\"a\\b\""], "10.0.0.1"),
            (&["nonsense"], "10.0.0.1"),
            (&["for=\"192.0.2.1"], "10.0.0.1"),
            (&[""], "10.0.0.1"),
        ] {
            assert_eq!(of(values).address, address.parse::<IpAddr>().unwrap(), "{values:?}");
        }
    }

    #[test]
    fn scheme_and_host_are_of_the_element_that_tells_the_client() {
        let got = of(&[
            "for=1.1.1.1;proto=http;host=evil.example, for=192.0.2.1:7;proto=https;host=\"a.example:8443\", \
             for=10.0.0.2;proto=http;host=inside",
        ]);
        assert_eq!((got.proto, got.port), (Proto::Https, Some(7)));
        assert_eq!(got.host.unwrap().to_string(), "a.example:8443");
        let got = of(&["for=192.0.2.1;proto=gopher;host=\"a b\""]);
        assert_eq!((got.proto, got.host), (Proto::Http, None));
    }

    #[test]
    fn what_is_written_is_read() {
        let host = Authority::parse(b"a.example:8443");
        for (address, text) in [
            ("192.0.2.1", "for=192.0.2.1;host=\"a.example:8443\";proto=https"),
            ("2001:db8::1", "for=\"[2001:db8::1]\";host=\"a.example:8443\";proto=https"),
        ] {
            let mut written = Vec::new();
            push(&mut written, address.parse().unwrap(), Proto::Https, host.as_ref());
            assert_eq!(std::str::from_utf8(&written).unwrap(), text);
            let got = of(&[text]);
            assert_eq!((got.address.to_string(), got.proto), (address.to_owned(), Proto::Https));
            assert_eq!(got.host, host);
        }
    }

    proptest! {
        #[test]
        fn what_is_put_before_changes_nothing(before in "[ -~]{0,60}|[a-z=\";,\\\\ ]{0,60}") {
            let list = "for=198.51.100.1;proto=https, for=\"10.0.0.2:5\"";
            prop_assert_eq!(of(&[list]), of(&[&format!("{before}, {list}")]));
        }
    }
}
