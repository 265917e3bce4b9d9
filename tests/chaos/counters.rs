//! An app's counter: it lives in memory, and memory must neither go back nor come back.

use std::collections::BTreeMap;

use rouse_tests::Counter;

use crate::told::Told;
use crate::trouble::At;

/// What an app's processes were heard to count.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    boots: BTreeMap<String, Boot>,
}

/// One process of the app: the same memory, over any number of sleeps.
#[derive(Debug)]
struct Boot {
    /// When the first answer of it was had.
    first: At,
    /// The highest number had.
    counter: Told<u64>,
    /// The latest that a visitor came whom it answered.
    began: Told<At>,
}

impl Counters {
    /// A visitor who came at `began` had `counter` at `ended`.
    pub(crate) fn told(&mut self, counter: &Counter, began: At, ended: At) -> Result<(), String> {
        let wrong = self.wrong(counter, began);
        let boot = self.boots.entry(counter.boot.clone()).or_insert_with(|| Boot {
            first: ended,
            counter: Told::default(),
            began: Told::default(),
        });
        boot.counter.at(ended, counter.counter);
        boot.began.at(ended, began);
        wrong.map_or(Ok(()), Err)
    }

    fn wrong(&self, Counter { counter, boot }: &Counter, began: At) -> Option<String> {
        let own = self.boots.get(boot)?;
        if let Some(before) = own.counter.before(began).filter(|before| *before >= counter) {
            return Some(format!("memory went back: {counter} after {before} (process {boot})"));
        }
        // Another process took over after this one, and was heard before this visitor came.
        let successor = self.boots.iter().find(|(name, other)| {
            *name != boot && other.began.before(began).is_some_and(|came| *came > own.first)
        });
        successor.map(|(name, _)| {
            format!("old memory came back: {counter} of process {boot}, after process {name}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> At {
        At::from_millis(ms)
    }

    /// Each visit: when it began and ended, the process, the number. Whether all can be true.
    fn holds(visits: &[(u64, u64, &str, u64)]) -> Result<(), String> {
        let mut counters = Counters::default();
        visits.iter().try_for_each(|&(began, ended, boot, counter)| {
            counters.told(&Counter { counter, boot: boot.into() }, ms(began), ms(ended))
        })
    }

    #[test]
    fn histories_that_can_be_true() {
        for visits in [
            &[(0, 1, "a", 1), (2, 3, "a", 2), (4, 5, "a", 9)][..],
            // At the same time: either may be counted first.
            &[(0, 5, "a", 2), (1, 6, "a", 1)],
            // The slower visitor was counted before the faster.
            &[(0, 1, "a", 1), (2, 4, "a", 3), (2, 9, "a", 2)],
            // Cold boots.
            &[(0, 1, "a", 7), (2, 3, "b", 1), (4, 5, "b", 2), (6, 7, "c", 1)],
            // An answer of the old process that was on its way when the new one began.
            &[(0, 1, "a", 1), (2, 9, "a", 2), (3, 4, "b", 1)],
            // Who came before the new process was heard may have met the old one.
            &[(0, 1, "a", 1), (2, 5, "b", 1), (3, 6, "a", 2)],
        ] {
            assert_eq!(holds(visits), Ok(()), "{visits:?}");
        }
    }

    #[test]
    fn histories_that_can_not() {
        for (visits, why) in [
            (&[(0, 1, "a", 5), (2, 3, "a", 5)][..], "memory went back"),
            (&[(0, 1, "a", 5), (2, 3, "a", 4)], "memory went back"),
            (&[(0, 5, "a", 5), (1, 2, "a", 6), (3, 4, "a", 6)], "memory went back"),
            (&[(0, 1, "a", 1), (2, 3, "b", 1), (4, 5, "a", 2)], "old memory came back"),
            (
                &[(0, 1, "a", 1), (2, 3, "b", 1), (4, 5, "c", 1), (6, 7, "b", 2)],
                "old memory came back",
            ),
        ] {
            let error = holds(visits).expect_err(&format!("{visits:?}"));
            assert!(error.contains(why), "{visits:?}: {error}");
        }
    }
}
