//! Which headers a request must have.

use std::fmt;

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most headers that a rule asks for.
pub const MAX_HEADERS: usize = 8;

/// The longest value that a rule asks for, in bytes.
pub const MAX_VALUE: usize = 256;

/// A header that a request must have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderMatch {
    /// Its name.
    pub name: HeaderName,
    /// What must be true of it.
    pub want: Want,
}

/// What must be true of a header.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Want {
    /// It is there.
    Present,
    /// One of its lines is exactly this.
    Value(HeaderValue),
}

/// Why headers are none that a rule can ask for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum HeaderError {
    /// No name of a header (RFC 9110 §5.1).
    #[error("{0:?} is no header name")]
    Name(String),
    /// No value that a request can bring (RFC 9110 §5.5).
    #[error(
        "no request has the value {value:?} in `{name}`: it has no control characters and no space at either end"
    )]
    Value {
        /// The header.
        name: HeaderName,
        /// What was asked for.
        value: String,
    },
    /// The value is too long.
    #[error("the value of `{name}` has at most {MAX_VALUE} bytes, this one has {length}")]
    Length {
        /// The header.
        name: HeaderName,
        /// The length of what was asked for, in bytes.
        length: usize,
    },
    /// The host is matched by the rule's host.
    #[error("`host` is no header to match; use the rule's host")]
    Host,
    /// A visitor can't bring a header of ours: it is stripped.
    #[error("`{0}` never comes from a visitor: headers that start with `rouse-` are stripped")]
    Ours(HeaderName),
    /// A header twice.
    #[error("`{0}` is there twice")]
    Twice(HeaderName),
    /// Too many headers.
    #[error("a rule has at most {MAX_HEADERS} headers, this one has {0}")]
    Count(usize),
}

impl HeaderMatch {
    /// A match of the header `name`, with `value` or with any.
    pub fn new(name: &str, value: Option<&str>) -> Result<Self, HeaderError> {
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
            return Err(HeaderError::Name(name.chars().take(MAX_VALUE).collect()));
        };
        let want = match value {
            None => Want::Present,
            Some(text) if text.len() > MAX_VALUE => {
                return Err(HeaderError::Length { name, length: text.len() });
            }
            Some(text) => match HeaderValue::from_bytes(text.as_bytes()) {
                // What is around a value on the wire is not part of it.
                Ok(value) if text.trim_matches([' ', '\t']) == text => Want::Value(value),
                _ => return Err(HeaderError::Value { name, value: text.to_owned() }),
            },
        };
        Ok(Self { name, want })
    }

    fn matches(&self, headers: &HeaderMap) -> bool {
        match &self.want {
            Want::Present => headers.contains_key(&self.name),
            Want::Value(wanted) => headers.get_all(&self.name).iter().any(|value| value == wanted),
        }
    }
}

/// The headers that a request must all have, sorted by name; each name is there once.
///
/// In a file and in a message they are a table of name to value, or to `true` where any value will do:
/// `{ "x-beta" = "1", "x-debug" = true }`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HeaderMatches(Box<[HeaderMatch]>);

impl HeaderMatches {
    /// Headers that a request must all have; the order makes no difference.
    pub fn new(mut matches: Vec<HeaderMatch>) -> Result<Self, HeaderError> {
        if matches.len() > MAX_HEADERS {
            return Err(HeaderError::Count(matches.len()));
        }
        if let Some(ours) = matches.iter().find(|m| m.name.as_str().starts_with("rouse-")) {
            return Err(HeaderError::Ours(ours.name.clone()));
        }
        if matches.iter().any(|m| m.name == HOST) {
            return Err(HeaderError::Host);
        }
        matches.sort_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
        let twice = matches.iter().zip(matches.iter().skip(1)).find(|(a, b)| a.name == b.name);
        match twice {
            Some((a, _)) => Err(HeaderError::Twice(a.name.clone())),
            None => Ok(Self(matches.into())),
        }
    }

    /// The headers, sorted by name.
    pub fn as_slice(&self) -> &[HeaderMatch] {
        &self.0
    }

    /// Whether a request with `headers` has them all.
    pub fn matches(&self, headers: &HeaderMap) -> bool {
        self.0.iter().all(|one| one.matches(headers))
    }
}

impl fmt::Display for HeaderMatches {
    /// As `x-beta: 1, x-debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, HeaderMatch { name, want }) in self.0.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{name}")?;
            if let Want::Value(value) = want {
                write!(f, ": {}", String::from_utf8_lossy(value.as_bytes()))?;
            }
        }
        Ok(())
    }
}

impl Serialize for HeaderMatches {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for HeaderMatch { name, want } in &self.0 {
            match want {
                Want::Present => map.serialize_entry(name.as_str(), &true)?,
                Want::Value(value) => {
                    // It was made of text, unless somebody has made it by hand.
                    let text = std::str::from_utf8(value.as_bytes())
                        .map_err(|_| serde::ser::Error::custom("a header's value is not UTF-8"))?;
                    map.serialize_entry(name.as_str(), text)?;
                }
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for HeaderMatches {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Headers)
    }
}

struct Headers;

impl<'de> Visitor<'de> for Headers {
    type Value = HeaderMatches;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of header names, each with a value, or `true` for any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderMatches, A::Error> {
        let mut matches = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let value: Value = map.next_value()?;
            if matches.len() == MAX_HEADERS {
                return Err(A::Error::custom(HeaderError::Count(MAX_HEADERS + 1)));
            }
            let value = value.0.as_deref();
            matches.push(HeaderMatch::new(&name, value).map_err(A::Error::custom)?);
        }
        HeaderMatches::new(matches).map_err(A::Error::custom)
    }
}

/// A value to match, or none for any.
struct Value(Option<String>);

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a header's value as a string, or `true` for any value")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
                Ok(Value(Some(text.to_owned())))
            }

            fn visit_bool<E: serde::de::Error>(self, any: bool) -> Result<Value, E> {
                if any {
                    Ok(Value(None))
                } else {
                    Err(E::custom("a header can't be asked to be absent; leave it out"))
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<HeaderMatches, String> {
        serde_json::from_str(json).map_err(|e| e.to_string())
    }

    #[test]
    fn what_matches() {
        let mut headers = HeaderMap::new();
        headers.append("x-beta", HeaderValue::from_static("0"));
        headers.append("x-beta", HeaderValue::from_static("1"));
        headers.append("x-empty", HeaderValue::from_static(""));
        for (json, matches) in [
            ("{}", true),
            (r#"{"x-beta": "1"}"#, true),
            (r#"{"X-Beta": "0"}"#, true),
            (r#"{"x-beta": "2"}"#, false),
            (r#"{"x-beta": "0, 1"}"#, false),
            (r#"{"x-beta": ""}"#, false),
            (r#"{"x-beta": true}"#, true),
            (r#"{"x-empty": ""}"#, true),
            (r#"{"x-empty": true}"#, true),
            (r#"{"x-none": true}"#, false),
            (r#"{"x-none": ""}"#, false),
            (r#"{"x-beta": "1", "x-empty": true}"#, true),
            (r#"{"x-beta": "1", "x-none": true}"#, false),
        ] {
            assert_eq!(read(json).unwrap().matches(&headers), matches, "{json}");
        }
    }

    #[test]
    fn order_and_case_make_no_difference() {
        let a = read(r#"{"x-b": true, "X-A": "1"}"#).unwrap();
        assert_eq!(a, read(r#"{"x-a": "1", "X-B": true}"#).unwrap());
        assert_eq!(a.to_string(), "x-a: 1, x-b");
        assert_eq!(serde_json::to_string(&a).unwrap(), r#"{"x-a":"1","x-b":true}"#);
    }

    #[test]
    fn refusals() {
        let many: Vec<_> = (0..=MAX_HEADERS).map(|i| format!("\"x-{i}\": true")).collect();
        for (json, why) in [
            (r#"{"a b": "1"}"#, "is no header name"),
            (r#"{"": "1"}"#, "is no header name"),
            (r#"{"x": "a\nb"}"#, "no request has the value"),
            (r#"{"x": " a"}"#, "no request has the value"),
            (r#"{"x": 1}"#, "a header's value as a string, or `true`"),
            (r#"{"x": false}"#, "can't be asked to be absent"),
            (r#"{"host": "a"}"#, "use the rule's host"),
            (r#"{"Rouse-Agent": true}"#, "`rouse-agent` never comes from a visitor"),
            (r#"{"x-a": "1", "X-A": "2"}"#, "`x-a` is there twice"),
            (&*format!("{{\"x\": \"{}\"}}", "v".repeat(MAX_VALUE + 1)), "has at most 256 bytes"),
            (&*format!("{{{}}}", many.join(",")), "at most 8 headers"),
            ("[]", "a table of header names"),
        ] {
            let got = read(json).unwrap_err();
            assert!(got.contains(why), "{json}: {got}");
        }
    }
}
