//! The log's lines: `n previous-hash hash entry`, each hash over the one before it, so that a line
//! lost, changed or put elsewhere is seen.

use sha2::{Digest, Sha256};

/// The longest entry, in bytes.
pub(crate) const MAX_ENTRY: usize = 4096;

/// Where a chain ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// How many lines there are; they count from 1.
    pub(crate) n: u64,
    /// The last line's hash, in hexadecimal digits; 64 zeros before the first.
    pub(crate) hash: String,
}

impl Default for Head {
    fn default() -> Self {
        Self { n: 0, hash: "0".repeat(64) }
    }
}

impl Head {
    /// The head with `entry` behind it. The hash is SHA-256 of `previous-hash n entry`.
    pub(crate) fn next(&self, entry: &str) -> Self {
        let n = self.n + 1;
        let hash = Sha256::digest(format!("{} {n} {entry}", self.hash));
        Self { n, hash: hex::encode(hash) }
    }

    /// The line that leads from here to `next`.
    pub(crate) fn line(&self, next: &Self, entry: &str) -> String {
        format!("{} {} {} {entry}\n", next.n, self.hash, next.hash)
    }
}

/// A text that is no entry.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a text of 1 to {MAX_ENTRY} bytes without control characters")]
pub(crate) struct NoEntry;

/// `text`, if a line can hold it.
pub(crate) fn entry(text: &str) -> Result<&str, NoEntry> {
    let fits = (1..=MAX_ENTRY).contains(&text.len()) && !text.contains(char::is_control);
    if fits { Ok(text) } else { Err(NoEntry) }
}

/// A line that does not follow from those before it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the log does not follow from the one before it: {why}")]
pub(crate) struct Broken {
    /// Which, from 1.
    pub(crate) line: u64,
    why: &'static str,
}

/// Walks the chain in `bytes`: its head, and how many bytes its whole lines have. What comes after
/// the last line end was never acknowledged, and is not looked at.
pub(crate) fn verify(bytes: &[u8]) -> Result<(Head, usize), Broken> {
    let mut head = Head::default();
    let mut whole = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let Some(text) = line.strip_suffix(b"\n") else { break };
        let broken = |why| Broken { line: head.n + 1, why };
        let text = std::str::from_utf8(text).map_err(|_| broken("it is not UTF-8"))?;
        let mut words = text.splitn(4, ' ');
        let mut word = || words.next().ok_or_else(|| broken("a part is missing"));
        let (n, previous, hash, text) = (word()?, word()?, word()?, word()?);
        let text = entry(text).map_err(|_| broken("its entry is none"))?;
        let next = head.next(text);
        if n != next.n.to_string() {
            return Err(broken("its number is another"));
        }
        if previous != head.hash {
            return Err(broken("it names another line before it"));
        }
        if hash != next.hash {
            return Err(broken("its hash is another"));
        }
        head = next;
        whole += line.len();
    }
    Ok((head, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(entries: &[&str]) -> String {
        let mut head = Head::default();
        let mut log = String::new();
        for entry in entries {
            let next = head.next(entry);
            log += &head.line(&next, entry);
            head = next;
        }
        log
    }

    #[test]
    fn a_chain_holds() {
        assert_eq!(verify(b""), Ok((Head::default(), 0)));
        let log = log(&["a", "b  c ", "\u{e4}"]);
        let (head, whole) = verify(log.as_bytes()).unwrap();
        assert_eq!((head.n, whole), (3, log.len()));
        assert_eq!(log.lines().last().unwrap().split(' ').nth(2).unwrap(), head.hash);
        // What sha256sum says of 64 zeros and " 1 a".
        assert_eq!(
            Head::default().next("a").hash,
            "03ba311f523e15a306e099a2c09ccb9a7fa9853f58d26578ba2d09ddfa972fda"
        );
    }

    #[test]
    fn only_a_torn_end_is_passed_over() {
        let log = log(&["a", "b"]);
        let first = log.find('\n').unwrap() + 1;
        for end in first..log.len() {
            let (head, whole) = verify(&log.as_bytes()[..end]).unwrap();
            assert_eq!((head.n, whole), (1, first));
        }
    }

    #[test]
    fn any_other_byte_breaks_it() {
        let log = log(&["a", "b", "c"]);
        for at in 0..log.len() - 1 {
            let mut bytes = log.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(verify(&bytes).is_err(), "byte {at}");
        }
    }

    #[test]
    fn lines_lost_or_moved_break_it() {
        let log = log(&["a", "b", "c"]);
        let lines: Vec<&str> = log.split_inclusive('\n').collect();
        for (order, line) in
            [(&[1, 2][..], 1), (&[0, 2], 2), (&[1, 0, 2], 1), (&[0, 0], 2), (&[0, 2, 1], 2)]
        {
            let bytes: String = order.iter().map(|at| lines[*at]).collect();
            assert_eq!(verify(bytes.as_bytes()).unwrap_err().line, line, "{order:?}");
        }
    }

    #[test]
    fn an_entry_is_one_line() {
        for bad in ["", "a\nb", "a\0", "\u{85}", &"x".repeat(MAX_ENTRY + 1)] {
            assert_eq!(entry(bad), Err(NoEntry), "{bad:?}");
        }
        for good in [" ", "a b", &"x".repeat(MAX_ENTRY)] {
            assert_eq!(entry(good), Ok(good));
        }
    }
}
