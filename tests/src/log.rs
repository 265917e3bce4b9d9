//! The test app's log on its disk: one line an entry, each bound to the one before it.
//!
//! A line is `n prev hash entry`: the entry's number from 1 without a gap, the hash of the line
//! before it, its own hash over the three others, and the text that was posted.

use serde::Deserialize;

use crate::pages::sha256;

/// `POST /log` and `GET /log/head`: the entry that was appended, or the last one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct LogHead {
    /// Its number; 0 when there is none yet.
    pub n: u64,
    /// Its hash.
    pub hash: String,
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Its number, from 1.
    pub n: u64,
    /// The hash of the entry before it.
    pub prev: String,
    /// Its own.
    pub hash: String,
    /// What was posted.
    pub entry: String,
}

/// Why a text is no log.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LogError {
    /// The last line has no end.
    #[error("the log ends in the middle of line {0}")]
    Torn(usize),
    /// A line without its four parts.
    #[error("line {0} of the log is not `n prev hash entry`: {1:?}")]
    Form(usize, String),
    /// A number that does not follow the one before.
    #[error("line {0} of the log has the number {1}")]
    Number(usize, u64),
    /// A line that does not name the hash of the one before.
    #[error("line {0} of the log does not follow from the line before it")]
    Chain(usize),
    /// A line whose hash is another's.
    #[error("line {0} of the log was changed: its hash does not match")]
    Hash(usize),
}

impl LogLine {
    /// The hash that an entry has.
    pub fn hash(prev: &str, n: u64, entry: &str) -> String {
        sha256(format!("{prev} {n} {entry}").as_bytes())
    }
}

/// Reads `GET /log` and checks the chain.
pub fn read_log(text: &str) -> Result<Vec<LogLine>, LogError> {
    let mut lines: Vec<LogLine> = Vec::new();
    for (at, text) in text.split_inclusive('\n').enumerate() {
        let at = at + 1;
        let text = text.strip_suffix('\n').ok_or(LogError::Torn(at))?;
        let line = line(text).ok_or_else(|| LogError::Form(at, text.to_owned()))?;
        if line.n != at as u64 {
            return Err(LogError::Number(at, line.n));
        }
        if lines.last().is_some_and(|before| before.hash != line.prev) {
            return Err(LogError::Chain(at));
        }
        if LogLine::hash(&line.prev, line.n, &line.entry) != line.hash {
            return Err(LogError::Hash(at));
        }
        lines.push(line);
    }
    Ok(lines)
}

fn line(text: &str) -> Option<LogLine> {
    let mut parts = text.splitn(4, ' ');
    let n = parts.next()?.parse().ok()?;
    let [prev, hash, entry] = [parts.next()?, parts.next()?, parts.next()?].map(str::to_owned);
    Some(LogLine { n, prev, hash, entry })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(entries: &[&str]) -> String {
        let (mut text, mut prev) = (String::new(), "0".repeat(64));
        for (n, entry) in (1..).zip(entries) {
            let hash = LogLine::hash(&prev, n, entry);
            text.push_str(&format!("{n} {prev} {hash} {entry}\n"));
            prev = hash;
        }
        text
    }

    #[test]
    fn a_whole_log_is_read() {
        assert_eq!(read_log("").unwrap(), []);
        let lines = read_log(&log(&["a", "b c", ""])).unwrap();
        let entries: Vec<_> = lines.iter().map(|line| (line.n, &*line.entry)).collect();
        assert_eq!(entries, [(1, "a"), (2, "b c"), (3, "")]);
    }

    #[test]
    fn whatever_is_wrong_is_found() {
        let whole = log(&["a", "b", "c"]);
        let lines: Vec<&str> = whole.split_inclusive('\n').collect();
        let other = log(&["x", "b", "c"]);
        let others: Vec<&str> = other.split_inclusive('\n').collect();
        for (text, error) in [
            (whole.trim_end().to_owned(), LogError::Torn(3)),
            (format!("{}\n", lines[0]), LogError::Form(2, String::new())),
            (format!("{}{}", lines[0], lines[2]), LogError::Number(2, 3)),
            (format!("{}{}", lines[0], others[1]), LogError::Chain(2)),
            (whole.replace(" b\n", " B\n"), LogError::Hash(2)),
        ] {
            assert_eq!(read_log(&text).unwrap_err(), error);
        }
    }
}
