//! An app's log: what was acknowledged stays, as it was.

use std::collections::{BTreeMap, HashSet};

use rouse_tests::{LogHead, LogLine};

use crate::told::Told;
use crate::trouble::At;

/// What an app's log was heard to hold.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// What visitors have sent, each text once, acknowledged or not.
    sent: HashSet<String>,
    /// By number.
    acknowledged: BTreeMap<u64, Acknowledged>,
    highest: Told<u64>,
}

#[derive(Debug)]
struct Acknowledged {
    hash: String,
    entry: String,
    at: At,
}

impl Entries {
    /// `entry` is sent, and may be in the log from now on.
    pub(crate) fn sent(&mut self, entry: &str) {
        self.sent.insert(entry.to_owned());
    }

    /// How many entries were acknowledged.
    pub(crate) fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    /// `entry`, sent at `began`, was acknowledged at `ended` as `head`.
    pub(crate) fn appended(
        &mut self,
        entry: &str,
        LogHead { n, hash }: &LogHead,
        began: At,
        ended: At,
    ) -> Result<(), String> {
        if let Some(before) = self.highest.before(began).filter(|before| *before >= n) {
            return Err(format!("entry {n} was appended after entry {before} was acknowledged"));
        }
        if let Some(other) = self.acknowledged.get(n) {
            return Err(format!("entry {n} was acknowledged twice, first as {:?}", other.entry));
        }
        let (hash, entry) = (hash.clone(), entry.to_owned());
        self.acknowledged.insert(*n, Acknowledged { hash, entry, at: ended });
        self.highest.at(ended, *n);
        Ok(())
    }

    /// A visitor who came at `began` was told that `head` is the last entry.
    pub(crate) fn head(&self, LogHead { n, hash }: &LogHead, began: At) -> Result<(), String> {
        if let Some(before) = self.highest.before(began).filter(|before| *before > n) {
            return Err(format!("the log ends at {n}, and entry {before} was acknowledged"));
        }
        match self.acknowledged.get(n) {
            Some(acknowledged) if acknowledged.hash != *hash => {
                Err(format!("entry {n} is not the one that was acknowledged"))
            }
            _ => Ok(()),
        }
    }

    /// A visitor who came at `began` was given the whole log.
    pub(crate) fn log(&self, lines: &[LogLine], began: At) -> Result<(), String> {
        let mut seen = HashSet::new();
        for line in lines {
            if !self.sent.contains(&line.entry) {
                return Err(format!("entry {} was sent by nobody: {:?}", line.n, line.entry));
            }
            if !seen.insert(&line.entry) {
                return Err(format!("entry {} was sent once and is there twice", line.n));
            }
        }
        for (n, acknowledged) in &self.acknowledged {
            let line = usize::try_from(*n).ok().and_then(|n| lines.get(n.checked_sub(1)?));
            match line {
                None if acknowledged.at < began => {
                    return Err(format!(
                        "entry {n} is missing, and was acknowledged at {:.3}",
                        acknowledged.at.as_secs_f64()
                    ));
                }
                // Acknowledged while the log was read.
                None => {}
                Some(line)
                    if line.hash != acknowledged.hash || line.entry != acknowledged.entry =>
                {
                    return Err(format!("entry {n} is not the one that was acknowledged"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> At {
        At::from_millis(ms)
    }

    fn head(n: u64, hash: &str) -> LogHead {
        LogHead { n, hash: hash.into() }
    }

    fn lines(entries: &[&str]) -> Vec<LogLine> {
        let line = |(n, entry): (u64, &&str)| LogLine {
            n,
            prev: String::new(),
            hash: format!("#{entry}"),
            entry: (*entry).to_owned(),
        };
        (1..).zip(entries).map(line).collect()
    }

    /// `a` and `b` were acknowledged at 1 and 3; `c` was sent, and its visitor saw no answer.
    fn entries() -> Entries {
        let mut entries = Entries::default();
        ["a", "b", "c"].iter().for_each(|entry| entries.sent(entry));
        entries.appended("a", &head(1, "#a"), ms(0), ms(1)).unwrap();
        entries.appended("b", &head(2, "#b"), ms(2), ms(3)).unwrap();
        entries
    }

    #[test]
    fn logs_that_can_be_true() {
        let entries = entries();
        assert_eq!(entries.acknowledged(), 2);
        for (log, began) in [
            (&["a", "b"][..], 4),
            (&["a", "b", "c"], 4),
            // Read while `b` was appended.
            (&["a"], 2),
            (&[], 0),
        ] {
            assert_eq!(entries.log(&lines(log), ms(began)), Ok(()), "{log:?} at {began}");
        }
        for (n, hash, began) in [(2, "#b", 4), (3, "#c", 4), (1, "#a", 2), (0, "", 0)] {
            assert_eq!(entries.head(&head(n, hash), ms(began)), Ok(()), "{n} at {began}");
        }
    }

    #[test]
    fn logs_that_can_not() {
        let entries = entries();
        for (log, why) in [
            (&[][..], "is missing"),
            (&["a"], "is missing"),
            (&["a", "c"], "not the one"),
            (&["b", "a"], "not the one"),
            (&["a", "b", "x"], "sent by nobody"),
            (&["a", "b", "c", "c"], "there twice"),
        ] {
            let error = entries.log(&lines(log), ms(4)).expect_err(&format!("{log:?}"));
            assert!(error.contains(why), "{log:?}: {error}");
        }
        for (n, hash) in [(1, "#a"), (0, ""), (2, "#c")] {
            entries.head(&head(n, hash), ms(4)).expect_err(&format!("{n} {hash}"));
        }
    }

    #[test]
    fn an_entry_can_not_take_the_place_of_another() {
        for (n, began) in [(2, 4), (1, 4), (2, 0)] {
            let error = entries().appended("c", &head(n, "#c"), ms(began), ms(9));
            error.expect_err(&format!("{n} at {began}"));
        }
        // At the same time as `b`, and before it.
        let mut early = Entries::default();
        early.sent("b");
        early.appended("b", &head(2, "#b"), ms(2), ms(3)).unwrap();
        early.appended("a", &head(1, "#a"), ms(1), ms(4)).unwrap();
        assert_eq!(early.acknowledged(), 2);
    }
}
