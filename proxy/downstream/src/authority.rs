//! A host, with or without a port, as it stands in `Host` and its like.

use std::fmt;

use http::HeaderValue;

use crate::text::parse_port;

/// The longest host: a name of 253 characters and its dot (RFC 1035, section 2.3.4), a colon and a port.
const MAX: usize = 260;

/// The bytes of a name.
const IN_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        table[byte] = b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        byte += 1;
    }
    table
};

/// A host that was found good: letters, digits, `-`, `_` and `.`, or a v6 address in brackets, and
/// perhaps a port. So it can be put into any header or log as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority(HeaderValue);

impl Authority {
    /// Takes `value` if it is one. Costs no copy.
    pub fn of(value: &HeaderValue) -> Option<Self> {
        split(value.as_bytes()).map(|_| Self(value.clone()))
    }

    /// Takes a part of a value, or a text from elsewhere, if it is one.
    pub fn parse(text: &[u8]) -> Option<Self> {
        split(text).and_then(|_| HeaderValue::from_bytes(text).ok()).map(Self)
    }

    /// The host and its port, as it came.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The port, if it has one.
    pub fn port(&self) -> Option<u16> {
        split(self.as_bytes()).and_then(|(_, port)| port)
    }

    /// It as the value of a header, without a copy.
    pub fn to_value(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().unwrap_or_default())
    }
}

/// The host and the port of `text`, if it is an authority without user information.
pub(crate) fn split(text: &[u8]) -> Option<(&[u8], Option<u16>)> {
    if text.len() > MAX {
        return None;
    }
    let literal = text.first() == Some(&b'[');
    let end = if literal {
        text.iter().position(|b| *b == b']')? + 1
    } else {
        text.iter().position(|b| *b == b':').unwrap_or(text.len())
    };
    let (host, port) = text.split_at(end);
    let good = if literal {
        std::str::from_utf8(&host[1..end - 1]).ok()?.parse::<std::net::Ipv6Addr>().is_ok()
    } else {
        // Each request's host is looked at, so by table and without a way out in the middle.
        let allowed = |good, b: &u8| good & IN_NAME[usize::from(*b)];
        !host.is_empty() && host.iter().fold(true, allowed) && host != b"."
    };
    let port = match port {
        [] => None,
        [b':', digits @ ..] => Some(parse_port(digits)?),
        _ => return None,
    };
    good.then_some((host, port))
}

/// Whether two authorities are one: case, one dot at the end, and a port that the scheme implies make
/// no difference. None where one of them is no authority.
pub(crate) fn same(a: &[u8], b: &[u8]) -> Option<bool> {
    let ((a, a_port), (b, b_port)) = (split(a)?, split(b)?);
    let bare = |host: &'_ [u8]| host.strip_suffix(b".").map_or(host.len(), <[u8]>::len);
    let hosts = a[..bare(a)].eq_ignore_ascii_case(&b[..bare(b)]);
    let implied = |port: Option<u16>| matches!(port, None | Some(80 | 443));
    Some(
        hosts
            && (a_port == b_port
                || (a_port.is_none() || b_port.is_none()) && implied(a_port) && implied(b_port)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities() {
        for (text, port) in [
            ("a.example", None),
            ("A_b-c.example.", None),
            ("a.example:8443", Some(8443)),
            ("127.0.0.1:80", Some(80)),
            ("[::1]", None),
            ("[2001:db8::1]:443", Some(443)),
        ] {
            let authority = Authority::parse(text.as_bytes()).unwrap();
            assert_eq!((authority.port(), authority.to_string()), (port, text.to_owned()));
        }
        let long = "a".repeat(MAX + 1);
        for text in [
            "",
            ".",
            ":80",
            "a:",
            "a:0",
            "a:x",
            "a:+80",
            "a:80:80",
            "a:65536",
            "u@a",
            "a b",
            "a/b",
            "a,b",
            "a\\b",
            "[::1",
            "::1",
            "[::1]x",
            "[a]",
            "[127.0.0.1]",
            "[]",
            "[fe80::1%1]",
            "ä",
            "a%41",
            "a\t",
            "a?b",
            "a#b",
            &long,
        ] {
            assert_eq!(Authority::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn one_host_in_two_spellings() {
        for (a, b, expected) in [
            ("a.example", "A.Example.", Some(true)),
            ("a.example:443", "a.example", Some(true)),
            ("a.example", "a.example:80", Some(true)),
            ("a.example:80", "a.example:443", Some(false)),
            ("a.example:8080", "a.example", Some(false)),
            ("a.example", "b.example", Some(false)),
            ("[::1]:80", "[::1]", Some(true)),
            ("u@a", "a", None),
            ("a", "", None),
        ] {
            assert_eq!(same(a.as_bytes(), b.as_bytes()), expected, "{a} {b}");
        }
    }
}
