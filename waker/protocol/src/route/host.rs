//! Which hosts a rule is for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::app::{Host, HostError};

/// Which hosts a rule is for, written as `a.example`, `*.example` or `*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum HostPattern {
    /// This host.
    Exact(Host),
    /// Exactly one label before this: of `*.example`, `a.example` is one, `a.b.example` and
    /// `example` are none.
    Wildcard(Host),
    /// Every host.
    Any,
}

/// Why a text is no [`HostPattern`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum HostPatternError {
    /// A star that is not the whole first label, or not the only one.
    #[error(
        "a `*` is a whole host, or all of its first label and stands for exactly one: write `*`, or `*.` and a name"
    )]
    Star,
    /// A star before a part of an address.
    #[error("an address has no wildcards: write the whole address, or `*` for every host")]
    Address,
    /// The name itself.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl FromStr for HostPattern {
    type Err = HostPatternError;

    /// Case and one trailing dot make no difference; a port is a mistake.
    fn from_str(text: &str) -> Result<Self, HostPatternError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let (wildcard, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        if name.contains('*') {
            return Err(HostPatternError::Star);
        }
        if wildcard && name.starts_with('[') {
            return Err(HostPatternError::Address);
        }
        let host = Host::try_from(name.to_owned())?;
        if !wildcard {
            return Ok(Self::Exact(host));
        }
        // A host whose last label is a number is an IPv4 address, or none (WHATWG URL, "ends in a number").
        let last = host.as_str().rsplit('.').next().unwrap_or_default();
        if last.bytes().all(|b| b.is_ascii_digit()) {
            return Err(HostPatternError::Address);
        }
        Ok(Self::Wildcard(host))
    }
}

impl TryFrom<String> for HostPattern {
    type Error = HostPatternError;

    fn try_from(text: String) -> Result<Self, HostPatternError> {
        text.parse()
    }
}

impl From<HostPattern> for String {
    fn from(pattern: HostPattern) -> Self {
        pattern.to_string()
    }
}

impl From<Host> for HostPattern {
    fn from(host: Host) -> Self {
        Self::Exact(host)
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => host.fmt(f),
            Self::Wildcard(host) => write!(f, "*.{host}"),
            Self::Any => f.write_str("*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (text, plain) in [
            ("*", "*"),
            ("A.Example.", "a.example"),
            ("*.Example.com", "*.example.com"),
            ("*.localhost", "*.localhost"),
            ("*.4you.example", "*.4you.example"),
            ("[::1]", "[::1]"),
            ("127.0.0.1", "127.0.0.1"),
        ] {
            let pattern: HostPattern = text.parse().unwrap();
            assert_eq!(pattern.to_string(), plain);
            assert_eq!(plain.parse::<HostPattern>().unwrap(), pattern);
        }
        for (bad, why) in [
            ("", HostPatternError::Host(HostError::Length(0))),
            ("*.", HostPatternError::Host(HostError::Length(0))),
            ("**", HostPatternError::Star),
            ("**.example", HostPatternError::Star),
            ("*.*.example", HostPatternError::Star),
            ("a*.example", HostPatternError::Star),
            ("a.*.example", HostPatternError::Star),
            ("*example", HostPatternError::Star),
            ("*.example:80", HostPatternError::Host(HostError::Port)),
            ("a.example:80", HostPatternError::Host(HostError::Port)),
            ("*.a..b", HostPatternError::Host(HostError::Form)),
            ("*.0.0.1", HostPatternError::Address),
            ("*.1", HostPatternError::Address),
            ("*.[::1]", HostPatternError::Address),
            ("ä.example", HostPatternError::Host(HostError::Character('ä'))),
        ] {
            assert_eq!(bad.parse::<HostPattern>().unwrap_err(), why, "{bad}");
        }
    }
}
