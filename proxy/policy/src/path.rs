//! Paths made plain, and patterns of them that nothing slips past.

use std::borrow::Cow;
use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

use crate::pattern::{MAX_PATTERN, glob};

/// The longest path that is looked at, in bytes; a longer one is not plain.
pub const MAX_PATH: usize = 4096;

/// `raw` with its percent-encoding, empty segments, `.` and `..` resolved and without a final `/`,
/// or none where it could be read in more than one way: broken or double encoding, an encoded `/`,
/// a `\`, a control character, no UTF-8, `..` with a parameter or above the root (RFC 3986, 5.2.4
/// would ignore that last one, but nobody honest sends it), or longer than [`MAX_PATH`].
///
/// Allocates only when there is something to resolve.
pub fn plain(raw: &str) -> Option<Cow<'_, str>> {
    if !raw.starts_with('/') || raw.len() > MAX_PATH {
        return None;
    }
    let ambiguous = |b: u8| b == b'\\' || b.is_ascii_control();
    if raw.bytes().any(ambiguous) {
        return None;
    }
    if !raw.contains('%') && !raw.contains("//") && !raw.contains("/.") {
        return Some(Cow::Borrowed(trim(raw)));
    }
    let decoded = decode(raw)?;
    let mut segments = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop()?;
            }
            // Some servers take `..;x` for `..`.
            _ if matches!(segment.split_once(';'), Some(("." | "..", _))) => return None,
            _ => segments.push(segment),
        }
    }
    Some(Cow::Owned(format!("/{}", segments.join("/"))))
}

fn trim(path: &str) -> &str {
    match path.strip_suffix('/') {
        Some("") | None => path,
        Some(path) => path,
    }
}

fn decode(raw: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let byte = hex(bytes.next()?)? << 4 | hex(bytes.next()?)?;
        if matches!(byte, b'/' | b'\\') || byte.is_ascii_control() {
            return None;
        }
        decoded.push(byte);
    }
    // An app that decodes twice would read something else.
    let again = decoded
        .windows(3)
        .any(|w| matches!(w, [b'%', a, b] if hex(*a).is_some() && hex(*b).is_some()));
    if again { None } else { String::from_utf8(decoded).ok() }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|n| u8::try_from(n).ok())
}

/// A pattern of plain paths, such as `/api/*`, `/*/health` or `/a/**/b`.
///
/// `*` stands for any characters within a segment and `**` for any number of segments. A pattern
/// that ends in `/*` or `/**` means all that is beneath, at any depth, and the directory itself.
/// A final `/` makes no difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PathPattern(Box<str>);

/// Why a text is no [`PathPattern`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathPatternError {
    /// It does not start at the root.
    #[error("a pattern of paths starts with `/`; `{0}` does not")]
    Relative(String),
    /// It could never match, since what it is compared with is resolved.
    #[error(
        "`{0}` has what no plain path has: write it decoded, without `%`, `\\`, `?`, `#`, `;`, `//`, `.` or `..`"
    )]
    NotPlain(String),
    /// `**` beside something else.
    #[error("in `{0}`, `**` is not a segment of its own; write `*` for a part of one")]
    Stars(String),
    /// It is too long.
    #[error("a pattern of paths has at most {MAX_PATTERN} characters")]
    Length,
}

impl TryFrom<String> for PathPattern {
    type Error = PathPatternError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.len() > MAX_PATTERN {
            return Err(PathPatternError::Length);
        }
        if !text.starts_with('/') {
            return Err(PathPatternError::Relative(text));
        }
        if text.contains(['%', '?', '#', ';']) || plain(&text).as_deref() != Some(trim(&text)) {
            return Err(PathPatternError::NotPlain(text));
        }
        if segments(&text).any(|segment| segment.contains("**") && segment != "**") {
            return Err(PathPatternError::Stars(text));
        }
        Ok(Self(trim(&text).into()))
    }
}

impl std::str::FromStr for PathPattern {
    type Err = PathPatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.to_owned().try_into()
    }
}

impl From<PathPattern> for String {
    fn from(pattern: PathPattern) -> Self {
        pattern.0.into()
    }
}

impl Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PathPattern {
    /// Whether a [`plain`] path is one of these.
    pub fn matches(&self, path: &str) -> bool {
        matches(&self.0, path, Reading::AsWritten)
    }

    /// As [`Self::matches`], but in doubt yes, for what is denied: all that is beneath a match is
    /// one too (but `/` is only the root), and letter case and `;parameters` of segments, which some
    /// apps ignore, are ignored.
    pub fn covers(&self, path: &str) -> bool {
        matches(&self.0, path, Reading::Loose)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Reading {
    AsWritten,
    Loose,
}

fn segments(path: &str) -> impl Iterator<Item = &str> + Clone {
    path.split('/').filter(|segment| !segment.is_empty())
}

fn matches(pattern: &str, path: &str, reading: Reading) -> bool {
    let (mut wanted, mut given) = (segments(pattern), segments(path));
    // Where to go on when what follows the last `**` does not fit: that takes one segment more.
    let mut back = None;
    loop {
        let fits = match wanted.next() {
            Some("*" | "**") if wanted.clone().next().is_none() => return true,
            Some("**") => {
                back = Some((wanted.clone(), given.clone()));
                true
            }
            Some(want) => match given.next() {
                None => return false,
                Some(segment) if reading == Reading::Loose => {
                    let bare = segment.split_once(';').map_or(segment, |(bare, _)| bare);
                    glob(want.as_bytes(), bare.as_bytes(), true)
                        || glob(want.as_bytes(), segment.as_bytes(), true)
                }
                Some(segment) => glob(want.as_bytes(), segment.as_bytes(), false),
            },
            None if reading == Reading::Loose && pattern != "/" => return true,
            None if given.clone().next().is_none() => return true,
            None => false,
        };
        if fits {
            continue;
        }
        let Some((after, taken)) = &mut back else { return false };
        if taken.next().is_none() {
            return false;
        }
        (wanted, given) = (after.clone(), taken.clone());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_are_made_plain() {
        let table = [
            ("/", Some("/")),
            ("/a/b", Some("/a/b")),
            ("/a/", Some("/a")),
            ("//a///b//", Some("/a/b")),
            ("/a/./b/../c", Some("/a/c")),
            ("/%61dmin", Some("/admin")),
            ("/x/%2e%2E/admin", Some("/admin")),
            ("/caf%C3%A9", Some("/café")),
            ("/100%25", Some("/100%")),
            ("/.well-known/x", Some("/.well-known/x")),
            ("/a;x=1/b", Some("/a;x=1/b")),
            ("/%2561dmin", None),
            ("/a%2fb", None),
            ("/a%5Cb", None),
            ("/a\\b", None),
            ("/a%00", None),
            ("/a%0a", None),
            ("/a%", None),
            ("/a%4", None),
            ("/a%zz", None),
            ("/%ff", None),
            ("/../a", None),
            ("/open/..;x/admin", None),
            ("/open/%2e%2e%3bx/admin", None),
            ("*", None),
            ("", None),
        ];
        for (raw, expected) in table {
            assert_eq!(plain(raw).as_deref(), expected, "{raw}");
        }
        assert_eq!(plain(&"/a".repeat(MAX_PATH)), None);
        assert!(matches!(plain("/a/b/"), Some(Cow::Borrowed("/a/b"))));
    }

    #[test]
    fn patterns() {
        let table = [
            ("/", "/", true),
            ("/", "/a", false),
            ("/*", "/", true),
            ("/*", "/a/b", true),
            ("/api/*", "/api", true),
            ("/api/*", "/api/a/b", true),
            ("/api/*", "/apis", false),
            ("/api", "/api/a", false),
            ("/api*", "/apis", true),
            ("/api*", "/apis/a", false),
            ("/*/health", "/a/health", true),
            ("/*/health", "/a/b/health", false),
            ("/**/health", "/health", true),
            ("/**/health", "/a/b/health", true),
            ("/a/**/b/**/c", "/a/x/b/b/y/c", true),
            ("/a/**/b/**/c", "/a/x/b/b/y", false),
            ("/a/**/b", "/a/b/c", false),
            ("/*.php", "/x.php", true),
            ("/Api", "/api", false),
        ];
        for (pattern, path, expected) in table {
            let parsed: PathPattern = pattern.parse().unwrap();
            assert_eq!(parsed.matches(path), expected, "{pattern} {path}");
        }
        let admin: PathPattern = "/admin/*".parse().unwrap();
        for path in ["/admin", "/ADMIN/x", "/admin;x=1/y", "/admin/a/b"] {
            assert!(admin.covers(path), "{path}");
        }
        assert!(!admin.covers("/administration"));
        let table = [
            ("/admin", "/admin/x", true),
            ("/admin", "/administration", false),
            ("/wp-*", "/WP-admin/setup.php", true),
            ("/**/.git", "/a/.git/config", true),
            ("/a/**/b/c", "/a/b/x/b/c/d", true),
            ("/", "/", true),
            ("/", "/a", false),
        ];
        for (pattern, path, expected) in table {
            let parsed: PathPattern = pattern.parse().unwrap();
            assert_eq!(parsed.covers(path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn patterns_that_can_never_match_are_refused() {
        use PathPatternError::{Length, NotPlain, Relative, Stars};
        let of = |text: &str| text.parse::<PathPattern>().unwrap_err();
        assert_eq!(of("api"), Relative("api".into()));
        for text in ["/a/../b", "/a//b", "/%61", "/a?b", "/a#b", "/a\\b", "/./a", "/a;b"] {
            assert_eq!(of(text), NotPlain(text.into()), "{text}");
        }
        assert_eq!(of("/a**"), Stars("/a**".into()));
        assert_eq!(of("/***"), Stars("/***".into()));
        assert_eq!(of(&"/a".repeat(200)), Length);
    }

    /// What a pattern means, in so many words.
    fn naive(wanted: &[&str], given: &[&str]) -> bool {
        match (wanted, given) {
            (["*" | "**"], _) => true,
            (["**", rest @ ..], _) => (0..=given.len()).any(|n| naive(rest, &given[n..])),
            ([want, rest @ ..], [segment, after @ ..]) => {
                glob(want.as_bytes(), segment.as_bytes(), false) && naive(rest, after)
            }
            ([], []) => true,
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn a_pattern_means_what_it_says(
            pattern in "(/([ab]{1,2}|\\*|\\*\\*|a\\*)){1,5}",
            path in "(/[ab]{1,2}){1,6}",
        ) {
            let wanted: Vec<_> = segments(&pattern).collect();
            let given: Vec<_> = segments(&path).collect();
            let parsed: PathPattern = pattern.parse().unwrap();
            prop_assert_eq!(parsed.matches(&path), naive(&wanted, &given));
            let beneath = (0..=given.len()).any(|n| naive(&wanted, &given[..n]));
            prop_assert_eq!(parsed.covers(&path), beneath);
        }

        #[test]
        fn what_is_plain_is_plain(raw in "[/.%;a2eE5cf\\\\é]{0,24}") {
            if let Some(path) = plain(&raw) {
                prop_assert!(path.starts_with('/') && !path.contains("//"));
                prop_assert!(segments(&path).all(|s| s != "." && s != ".."));
                if !path.contains('%') {
                    prop_assert_eq!(plain(&path), Some(path.clone()));
                }
            }
        }

        #[test]
        fn encoding_hides_nothing(path in "(/[a-z.]{1,4}){1,4}", which in any::<u64>()) {
            let encode = |(i, b): (usize, u8)| match b != b'/' && which >> (i % 64) & 1 == 1 {
                true => format!("%{b:02x}"),
                false => char::from(b).to_string(),
            };
            let encoded: String = path.bytes().enumerate().map(encode).collect();
            prop_assert_eq!(plain(&encoded), plain(&path));
        }
    }
}
