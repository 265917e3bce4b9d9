//! Which paths a rule is for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::normal::{decode_first, normalize};

/// The most segments that a prefix has: as many look-ups a request may cost.
pub const MAX_DEPTH: usize = 16;

/// The longest prefix, in bytes once decoded; so it is written with at most three times as many.
pub const MAX_PATH: usize = 512;

/// The path that a rule is for and all below it, by whole segments: `/api` is for `/api`, `/api/`
/// and `/api/x`, not for `/apix`. The default, `/`, is for every path.
///
/// A slash at the end makes no difference. Percent-encoded characters are the characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PathPrefix {
    /// Decoded, without the slash at the end; so nothing for `/`.
    bytes: Box<[u8]>,
}

/// Why a text is no [`PathPrefix`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PathPrefixError {
    /// It does not start at the root.
    #[error("a path starts with `/`")]
    Root,
    /// It is too long.
    #[error("a path has at most {MAX_PATH} bytes, this one has {0}")]
    Length(usize),
    /// It has too many segments.
    #[error("a path has at most {MAX_DEPTH} segments, this one has {0}")]
    Depth(usize),
    /// A space, a control character, or what only follows a path.
    #[error("a path has no {0:?}; write it percent-encoded")]
    Character(char),
    /// A percent sign that encodes nothing.
    #[error(
        "a `%` in a path is followed by two hexadecimal digits; write `%25` for the sign itself"
    )]
    Percent,
    /// Dot segments, empty ones, or an encoded slash: no request is matched by that.
    #[error(
        "a path has no segments `.` and `..`, no empty ones and no encoded `/`; is `{0}` what is meant?"
    )]
    Odd(PathPrefix),
}

impl PathPrefix {
    /// Whether it is for every path.
    pub fn is_root(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What it is matched by: empty, or a slash before each segment.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many segments it has; at most [`MAX_DEPTH`].
    pub fn depth(&self) -> usize {
        self.bytes.iter().filter(|b| **b == b'/').count()
    }
}

impl FromStr for PathPrefix {
    type Err = PathPrefixError;

    fn from_str(text: &str) -> Result<Self, PathPrefixError> {
        if !text.starts_with('/') {
            return Err(PathPrefixError::Root);
        }
        if text.len() > 3 * MAX_PATH {
            return Err(PathPrefixError::Length(text.len()));
        }
        let refused = |c: &char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#');
        if let Some(c) = text.chars().find(refused) {
            return Err(PathPrefixError::Character(c));
        }
        let mut plain = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        let mut odd = false;
        while let Some((byte, after)) = decode_first(rest) {
            let encoded = rest.len() - after.len() > 1;
            if byte == b'%' && !encoded {
                return Err(PathPrefixError::Percent);
            }
            odd |= byte == b'/' && encoded;
            plain.push(byte);
            rest = after;
        }
        let normal = normalize(text.as_bytes());
        odd |= normal.as_slice() != plain.as_slice();
        let bytes: Box<[u8]> = normal.strip_suffix(b"/").unwrap_or(&normal).into();
        let path = Self { bytes };
        match path.depth() {
            _ if path.bytes.len() > MAX_PATH => Err(PathPrefixError::Length(path.bytes.len())),
            _ if odd => Err(PathPrefixError::Odd(path)),
            depth if depth > MAX_DEPTH => Err(PathPrefixError::Depth(depth)),
            _ => Ok(path),
        }
    }
}

impl TryFrom<String> for PathPrefix {
    type Error = PathPrefixError;

    fn try_from(text: String) -> Result<Self, PathPrefixError> {
        text.parse()
    }
}

impl From<PathPrefix> for String {
    fn from(path: PathPrefix) -> Self {
        path.to_string()
    }
}

impl fmt::Display for PathPrefix {
    /// Percent-encoded but for what a path may hold as it is (RFC 3986 §3.3, `pchar`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return f.write_str("/");
        }
        for &b in &self.bytes {
            if b.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&b) {
                write!(f, "{}", char::from(b))?;
            } else {
                write!(f, "%{b:02X}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<PathPrefix, PathPrefixError> {
        text.parse()
    }

    #[test]
    fn paths() {
        for (text, plain) in [
            ("/", "/"),
            ("/api", "/api"),
            ("/api/", "/api"),
            ("/a/b.c/", "/a/b.c"),
            ("/%61", "/a"),
            ("/a%20b", "/a%20b"),
            ("/a%3fb", "/a%3Fb"),
            ("/café", "/caf%C3%A9"),
            ("/100%25", "/100%25"),
            ("/%2541", "/%2541"),
            ("/.well-known", "/.well-known"),
        ] {
            let path = parse(text).unwrap();
            assert_eq!(path.to_string(), plain, "{text}");
            assert_eq!(parse(plain), Ok(path));
        }
        let odd = |is: &str| PathPrefixError::Odd(is.parse().unwrap());
        for (bad, why) in [
            ("", PathPrefixError::Root),
            ("api", PathPrefixError::Root),
            ("*", PathPrefixError::Root),
            ("/a b", PathPrefixError::Character(' ')),
            ("/a?b", PathPrefixError::Character('?')),
            ("/a#", PathPrefixError::Character('#')),
            ("/a\0", PathPrefixError::Character('\0')),
            ("/a%", PathPrefixError::Percent),
            ("/a%2", PathPrefixError::Percent),
            ("/a%zz", PathPrefixError::Percent),
            ("//", odd("/")),
            ("/a//b", odd("/a/b")),
            ("/a/./b", odd("/a/b")),
            ("/a/../b", odd("/b")),
            ("/%2e%2e/b", odd("/b")),
            ("/..", odd("/")),
            ("/a%2Fb", odd("/a/b")),
        ] {
            assert_eq!(parse(bad).unwrap_err(), why, "{bad}");
        }
    }

    #[test]
    fn limits() {
        let long = |n: usize| format!("/{}", "x".repeat(n - 1));
        assert!(parse(&long(MAX_PATH)).is_ok());
        let why = parse(&long(MAX_PATH + 1)).unwrap_err();
        assert_eq!(why, PathPrefixError::Length(MAX_PATH + 1));
        assert_eq!(parse(&long(9999)).unwrap_err(), PathPrefixError::Length(9999));
        let encoded = parse(&format!("/{}", "é".repeat(255))).unwrap();
        assert_eq!(parse(&encoded.to_string()), Ok(encoded));
        assert_eq!(parse(&"/x".repeat(MAX_DEPTH)).unwrap().depth(), MAX_DEPTH);
        let why = parse(&"/x".repeat(MAX_DEPTH + 1)).unwrap_err();
        assert_eq!(why, PathPrefixError::Depth(MAX_DEPTH + 1));
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(text in "/[a-c/%0-9A-F.é~]{0,20}") {
            if let Ok(path) = parse(&text) {
                prop_assert_eq!(parse(&path.to_string()), Ok(path));
            }
        }
    }
}
