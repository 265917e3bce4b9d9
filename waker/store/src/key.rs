//! Keys that can't leave their prefix.

use std::fmt;

/// The longest key, in bytes: S3's 1024, with room for the prefix of a store.
const MAX_KEY: usize = 768;
/// The longest part of one, in bytes: a file's name in a directory, with room for what a draft adds.
const MAX_SEGMENT: usize = 200;

/// An object's name within a store: parts of `[A-Za-z0-9._-]`, none of which begins with a dot, with `/` between.
/// So it is a relative path that can't climb, whatever an app's id says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

/// Why a text is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no key: {why}")]
pub struct KeyError {
    /// The text, cut short.
    text: String,
    /// What is wrong with it.
    why: &'static str,
}

impl Key {
    /// The key that `text` is.
    pub fn new(text: impl Into<String>) -> Result<Self, KeyError> {
        let text = text.into();
        match fault(&text) {
            None => Ok(Self(text)),
            Some(why) => Err(KeyError { text: text.chars().take(80).collect(), why }),
        }
    }

    /// `part` under this key.
    pub fn join(&self, part: impl fmt::Display) -> Result<Self, KeyError> {
        Self::new(format!("{}/{part}", self.0))
    }

    /// As text, without a slash at either end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it lies under `prefix`, which it is not itself.
    pub fn is_under(&self, prefix: &Self) -> bool {
        self.0.strip_prefix(&prefix.0).is_some_and(|rest| rest.starts_with('/'))
    }
}

fn fault(text: &str) -> Option<&'static str> {
    if text.len() > MAX_KEY {
        return Some("it is too long");
    }
    for part in text.split('/') {
        if part.is_empty() {
            return Some("a part is empty");
        }
        if part.starts_with('.') {
            return Some("a part begins with a dot");
        }
        if part.len() > MAX_SEGMENT {
            return Some("a part is too long");
        }
        if !part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
            return Some("a part has something else than letters, digits, '.', '_' and '-'");
        }
    }
    None
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_climbs_out() {
        for text in
            ["", "/", "a/", "/a", "a//b", "..", "a/../b", ".hidden", "a\\b", "a b", "ä", "a\0"]
        {
            assert!(Key::new(text).is_err(), "{text:?}");
        }
        assert!(Key::new("a".repeat(201)).is_err());
        assert!(Key::new(vec!["a"; 400].join("/")).is_err());
        let apps = Key::new("apps").unwrap();
        let of = apps.join("hello").unwrap().join("gen-7.json").unwrap();
        assert_eq!(of.as_str(), "apps/hello/gen-7.json");
        assert!(apps.join("../x").is_err());
        assert!(of.is_under(&apps) && !apps.is_under(&apps));
        assert!(!Key::new("apps2/x").unwrap().is_under(&apps));
    }
}
