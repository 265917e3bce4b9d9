//! App ids, host names and generations.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of an app: 1 to 63 characters of `a-z`, `0-9`, `-` and `_`, starting with a letter or
/// a digit.
///
/// It becomes a directory name, a metric label and part of a header, so it can hold nothing that
/// any of these would have to escape.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AppId(String);

/// Why a text is no [`AppId`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AppIdError {
    /// The id has no characters, or more than 63.
    #[error("an app id has 1 to 63 characters, this one has {0}")]
    Length(usize),
    /// The id holds a character that is not allowed where it stands.
    #[error(
        "an app id starts with a-z or 0-9 and goes on with a-z, 0-9, '-' or '_'; {0:?} is none"
    )]
    Character(char),
}

impl AppId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for AppId {
    type Err = AppIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() || text.len() > 63 {
            return Err(AppIdError::Length(text.chars().count()));
        }
        for (i, c) in text.chars().enumerate() {
            let plain = c.is_ascii_lowercase() || c.is_ascii_digit();
            if !(plain || (i > 0 && matches!(c, '-' | '_'))) {
                return Err(AppIdError::Character(c));
            }
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for AppId {
    type Error = AppIdError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AppId> for String {
    fn from(id: AppId) -> Self {
        id.0
    }
}

impl fmt::Display for AppId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A host name as requests are routed by: lower case, without port and without trailing dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Host(String);

/// Why a text is no [`Host`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum HostError {
    /// Nothing is left once port and dot are taken off, or more than 253 characters are.
    #[error("a host name has 1 to 253 characters, this one has {0}")]
    Length(usize),
    /// A label without characters, or a port that is none.
    #[error("a host name is labels joined by single dots, and a port after it is digits")]
    Form,
    /// A port where only a name belongs.
    #[error("a host is configured without a port")]
    Port,
    /// A character that no host name has.
    #[error(
        "a host name has letters, digits, '-', '_' and '.' (or is an address in brackets); {0:?} is none"
    )]
    Character(char),
}

impl Host {
    /// Parses a `Host` header, an `:authority` or a configured name. Case, port and one trailing
    /// dot make no difference; an IPv6 literal keeps its brackets.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        Ok(Self(Self::normalize(text)?.into_owned()))
    }

    /// [`Self::parse`] without a copy where `text` is normal already, for look-ups by
    /// [`Borrow<str>`](std::borrow::Borrow).
    pub fn normalize(text: &str) -> Result<std::borrow::Cow<'_, str>, HostError> {
        let end = if text.starts_with('[') {
            text.find(']').map_or(text.len(), |end| end + 1)
        } else {
            text.find(':').unwrap_or(text.len())
        };
        let (name, port) = text.split_at(end);
        if !port.is_empty()
            && !port.strip_prefix(':').is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit()))
        {
            return Err(HostError::Form);
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.is_empty() || name.len() > 253 {
            return Err(HostError::Length(name.len()));
        }
        let literal = name.starts_with('[') && name.ends_with(']');
        let allowed = |c: char| {
            c.is_ascii_alphanumeric()
                || matches!(c, '-' | '_' | '.')
                || (literal && matches!(c, '[' | ']' | ':'))
        };
        if let Some(c) = name.chars().find(|c| !allowed(*c)) {
            return Err(HostError::Character(c));
        }
        if name.split('.').any(str::is_empty) {
            return Err(HostError::Form);
        }
        if name.bytes().any(|b| b.is_ascii_uppercase()) {
            Ok(name.to_ascii_lowercase().into())
        } else {
            Ok(name.into())
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Host {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Host {
    type Error = HostError;

    /// Stricter than [`Host::parse`]: in a configuration or a message a port is a mistake.
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let host = Self::parse(&text)?;
        if host.0.len() < text.strip_suffix('.').unwrap_or(&text).len() {
            return Err(HostError::Port);
        }
        Ok(host)
    }
}

impl From<Host> for String {
    fn from(host: Host) -> Self {
        host.0
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The number of an app's life between two sleeps, from 1. Endpoint, pool, image and disk carry it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    /// The life after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn app_ids() {
        for good in ["a", "hello", "0-a_b", &"x".repeat(63)] {
            assert_eq!(good.parse::<AppId>().unwrap().as_str(), good);
        }
        for (bad, why) in [
            ("", AppIdError::Length(0)),
            (&*"x".repeat(64), AppIdError::Length(64)),
            ("-a", AppIdError::Character('-')),
            ("A", AppIdError::Character('A')),
            ("a/b", AppIdError::Character('/')),
            ("..", AppIdError::Character('.')),
            ("a\0", AppIdError::Character('\0')),
            ("ä", AppIdError::Character('ä')),
        ] {
            assert_eq!(bad.parse::<AppId>().unwrap_err(), why);
        }
    }

    #[test]
    fn hosts_lose_case_port_and_dot() {
        for (text, host) in [
            ("a.example", "a.example"),
            ("A.Example", "a.example"),
            ("a.example:8443", "a.example"),
            ("a.example.", "a.example"),
            ("A.example.:80", "a.example"),
            ("[::1]:80", "[::1]"),
            ("[2001:DB8::1]", "[2001:db8::1]"),
            ("127.0.0.1:1", "127.0.0.1"),
        ] {
            assert_eq!(Host::parse(text).unwrap().as_str(), host, "{text}");
        }
        for bad in [
            "",
            ".",
            ":80",
            "a b",
            "a/b",
            "a@b",
            "a\r\nb",
            "a.example..:1\u{e4}",
            "[::1",
            "a..b",
            ".a",
            "a:b",
            "[::1]x",
        ] {
            assert!(Host::parse(bad).is_err(), "{bad:?}");
        }
    }
}
