//! How a path is read for matching: see the crate's page.

use rouse_protocol::route::{MAX_DEPTH, NormalPath, normalize};

/// A path as it is matched, and where its first segments end.
pub(crate) struct Segments<'p> {
    path: Normal<'p>,
    ends: [usize; MAX_DEPTH],
    depth: usize,
}

enum Normal<'p> {
    AsSent(&'p [u8]),
    Rewritten(NormalPath),
}

impl<'p> Segments<'p> {
    /// Reads a request's path; a query may follow it.
    pub(crate) fn of(path: &'p str) -> Self {
        let end = path.bytes().position(|b| matches!(b, b'?' | b'#')).unwrap_or(path.len());
        let path = &path.as_bytes()[..end];
        let path = if path.first() != Some(&b'/') {
            Normal::AsSent(b"")
        } else if is_normal(path) {
            Normal::AsSent(path)
        } else {
            Normal::Rewritten(normalize(path))
        };
        let mut this = Self { path, ends: [0; MAX_DEPTH], depth: 0 };
        this.find_ends();
        this
    }

    fn find_ends(&mut self) {
        let (mut ends, mut depth) = ([0; MAX_DEPTH], 0);
        let path = self.path();
        let slashes = path.iter().enumerate().skip(1).filter(|(_, b)| **b == b'/').map(|(i, _)| i);
        // After a trailing slash no segment is left.
        let last = (path.len() > 1 && path.last() != Some(&b'/')).then_some(path.len());
        for (end, found) in ends.iter_mut().zip(slashes.chain(last)) {
            *end = found;
            depth += 1;
        }
        (self.ends, self.depth) = (ends, depth);
    }

    /// The path in its normal form. Empty where what was sent is no path.
    pub(crate) fn path(&self) -> &[u8] {
        match &self.path {
            Normal::AsSent(path) => path,
            Normal::Rewritten(path) => path,
        }
    }

    /// The first `depth` segments, from the first slash; none where there are fewer, or for 0.
    pub(crate) fn first(&self, depth: usize) -> Option<&[u8]> {
        if depth > self.depth {
            return None;
        }
        let end = *self.ends.get(depth.checked_sub(1)?)?;
        self.path().get(..end)
    }
}

/// Whether `path` surely is what [`normalize`] would make of it. A dot after a slash is left to that.
fn is_normal(path: &[u8]) -> bool {
    let mut after_slash = false;
    for &b in path {
        if b == b'%' || (after_slash && matches!(b, b'/' | b'.')) {
            return false;
        }
        after_slash = b == b'/';
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn normal(path: &str) -> String {
        String::from_utf8(Segments::of(path).path().to_vec()).unwrap()
    }

    #[test]
    fn what_is_made_of_a_path() {
        for (path, expected) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b/"),
            ("/a?b/c", "/a"),
            ("/a#b", "/a"),
            ("/a%3fb", "/a?b"),
            ("//a///b", "/a/b"),
            ("/./a/./b/.", "/a/b/"),
            ("/a/../b", "/b"),
            ("/a/b/..", "/a/"),
            ("/../../a", "/a"),
            ("/..", "/"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/.%2e", "/"),
            ("/a%2fb", "/a/b"),
            ("/a%2F..%2f..%2fb", "/b"),
            ("/%61pi", "/api"),
            ("/%2561pi", "/%61pi"),
            ("/a%", "/a%"),
            ("/a%2", "/a%2"),
            ("/a%zz", "/a%zz"),
            ("/a%%2f", "/a%/"),
            ("/...", "/..."),
            ("/.a/..b", "/.a/..b"),
            ("/a/..;/b", "/a/..;/b"),
            ("/a\\..\\b", "/a\\..\\b"),
            ("", ""),
            ("*", ""),
            ("?/a", ""),
            ("a/b", ""),
        ] {
            assert_eq!(normal(path), expected, "{path}");
        }
    }

    #[test]
    fn segments_end_where_they_do() {
        let first = |path: &str, depth: usize| {
            Segments::of(path).first(depth).map(|p| String::from_utf8(p.to_vec()).unwrap())
        };
        assert_eq!(first("/a/b", 1).as_deref(), Some("/a"));
        assert_eq!(first("/a/b", 2).as_deref(), Some("/a/b"));
        assert_eq!(first("/a/b/", 2).as_deref(), Some("/a/b"));
        for (path, depth) in [("/a/b", 3), ("/a/b/", 3), ("/a", 0), ("/", 1), ("", 1), ("*", 1)] {
            assert_eq!(first(path, depth), None, "{path} {depth}");
        }
        let deep = "/x".repeat(MAX_DEPTH + 2);
        assert_eq!(first(&deep, MAX_DEPTH).map(|p| p.len()), Some(2 * MAX_DEPTH));
        assert_eq!(first(&deep, MAX_DEPTH + 1), None);
    }

    proptest! {
        #[test]
        fn the_short_cut_agrees_and_nothing_odd_is_left(path in "/[a/.%2eEfF5?;]{0,24}") {
            let sent = path.split('?').next().unwrap().as_bytes();
            let normal = normalize(sent);
            let segments = Segments::of(&path);
            prop_assert_eq!(segments.path(), normal.as_slice());
            prop_assert!(normal.len() <= sent.len());
            prop_assert_eq!(normal[0], b'/');
            let text = String::from_utf8_lossy(&normal);
            let inner = text.strip_suffix('/').unwrap_or(&text);
            prop_assert!(inner.split('/').skip(1).all(|s| !matches!(s, "" | "." | "..")), "{}", text);
        }

        #[test]
        fn no_path_is_too_odd(path in ".{0,300}") {
            let segments = Segments::of(&path);
            for depth in 0..=MAX_DEPTH {
                if let Some(first) = segments.first(depth) {
                    prop_assert!(segments.path().starts_with(first));
                }
            }
        }
    }
}
