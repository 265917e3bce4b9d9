//! The ledger: who was told what, and whether it all can be true.
//!
//! Pure: it is told what visitors met and what chaos did, each with its time. An answer is
//! acknowledged when the visitor has read it to its end, and binds every visit that begins later.

use std::collections::BTreeMap;

use rouse_tests::LogHead;

use crate::answer::{Answer, Ask};
use crate::counters::Counters;
use crate::entries::Entries;
use crate::trouble::{At, Met, Trouble, Troubles};

/// The most violations that are kept; the first are the ones to read.
const KEPT: usize = 100;

/// Something that must never be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// When it was seen.
    pub(crate) at: At,
    /// What.
    pub(crate) what: String,
}

/// All that was told.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    troubles: Troubles,
    counters: BTreeMap<String, Counters>,
    entries: BTreeMap<String, Entries>,
    violations: Vec<Violation>,
    more: usize,
}

impl Ledger {
    /// Trouble begins.
    pub(crate) fn begin(&mut self, trouble: Trouble, at: At) {
        self.troubles.begin(trouble, at);
    }

    /// Trouble ends.
    pub(crate) fn end(&mut self, trouble: &Trouble, at: At) {
        self.troubles.end(trouble, at);
    }

    /// A visitor is about to ask. An entry may be in the log from now on, whatever becomes of the
    /// visit.
    pub(crate) fn asked(&mut self, app: &str, ask: &Ask) {
        if let Ask::Append(entry) = ask {
            self.entries.entry(app.to_owned()).or_default().sent(entry);
        }
    }

    /// A visitor of `app` who came at `began` had his answer, or knows that none comes, at `ended`.
    pub(crate) fn answered(&mut self, app: &str, ask: &Ask, began: At, ended: At, answer: &Answer) {
        let wrong = match answer {
            Answer::Right => Ok(()),
            Answer::Counter(counter) => {
                self.counters.entry(app.to_owned()).or_default().told(counter, began, ended)
            }
            Answer::Appended(head) => self.appended(app, ask, began, ended, head),
            Answer::Head(head) => self.entries.entry(app.to_owned()).or_default().head(head, began),
            Answer::Log(lines) => self.entries.entry(app.to_owned()).or_default().log(lines, began),
            Answer::Wrong(what) => Err(what.clone()),
            Answer::Silence => Err("no answer at all".into()),
            Answer::Error(code) => self.excuse(app, Met::Error(code), began, ended),
            Answer::AgentError(code) => self.excuse(app, Met::AgentError(code), began, ended),
            Answer::Cut(_) => self.excuse(app, Met::Cut, began, ended),
            Answer::NoConnection(_) => self.excuse(app, Met::NoConnection, began, ended),
        };
        if let Err(why) = wrong {
            let told = match answer {
                Answer::Cut(error) | Answer::NoConnection(error) => format!("{why}: {error}"),
                _ => why,
            };
            let came = began.as_secs_f64();
            self.violated(ended, format!("{app}: {} at {came:.3}: {told}", ask.word()));
        }
    }

    /// Something else that must never be was seen. Returns whether it is to be shown: it is new,
    /// and not one of too many.
    pub(crate) fn violated(&mut self, at: At, what: String) -> bool {
        if self.violations.iter().any(|violation| violation.what == what) {
            return false;
        }
        if self.violations.len() == KEPT {
            self.more += 1;
            return false;
        }
        self.violations.push(Violation { at, what });
        true
    }

    /// What must never be and was, in the order in which it was seen.
    pub(crate) fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// How many more there were.
    pub(crate) fn more_violations(&self) -> usize {
        self.more
    }

    /// How many entries of `app` were acknowledged.
    pub(crate) fn acknowledged(&self, app: &str) -> usize {
        self.entries.get(app).map_or(0, Entries::acknowledged)
    }

    fn appended(
        &mut self,
        app: &str,
        ask: &Ask,
        began: At,
        ended: At,
        head: &LogHead,
    ) -> Result<(), String> {
        let Ask::Append(entry) = ask else {
            return Err("an entry that nobody has sent".into());
        };
        self.entries.entry(app.to_owned()).or_default().appended(entry, head, began, ended)
    }

    fn excuse(&self, app: &str, met: Met<'_>, began: At, ended: At) -> Result<(), String> {
        if self.troubles.excuse(app, met, began, ended) {
            return Ok(());
        }
        Err(format!("{met:?} that no trouble explains (on now: {:?})", self.troubles.on()))
    }
}

#[cfg(test)]
mod tests {
    use rouse_tests::Counter;

    use super::*;

    const fn s(seconds: u64) -> At {
        At::from_secs(seconds)
    }

    fn counter(counter: u64) -> Answer {
        Answer::Counter(Counter { counter, boot: "x".into() })
    }

    fn head(n: u64) -> LogHead {
        LogHead { n, hash: format!("#{n}") }
    }

    /// What a ledger says to visits of the app `a`: when each began and ended, and its answer.
    fn violations(ledger: &mut Ledger, visits: &[(u64, u64, Ask, Answer)]) -> Vec<String> {
        for (began, ended, ask, answer) in visits {
            ledger.asked("a", ask);
            ledger.answered("a", ask, s(*began), s(*ended), answer);
        }
        ledger.violations().iter().map(|violation| violation.what.clone()).collect()
    }

    #[test]
    fn a_quiet_history_holds() {
        let visits = [
            (0, 1, Ask::Page, Answer::Right),
            (1, 2, Ask::Counter, counter(1)),
            (1, 3, Ask::Append("e".into()), Answer::Appended(head(1))),
            (4, 5, Ask::Head, Answer::Head(head(1))),
            (5, 6, Ask::Counter, counter(2)),
        ];
        let mut ledger = Ledger::default();
        assert_eq!(violations(&mut ledger, &visits), [""; 0]);
        assert_eq!(ledger.acknowledged("a"), 1);
        assert_eq!(ledger.acknowledged("b"), 0);
    }

    #[test]
    fn what_can_not_be_is_told_with_app_ask_and_reason() {
        let append = || Ask::Append("e".into());
        for (visits, why) in [
            (
                vec![(1, 2, Ask::Page, Answer::Wrong("another body".into()))],
                "a: GET / at 1.000: another",
            ),
            (vec![(1, 2, Ask::Page, Answer::Silence)], "no answer at all"),
            (vec![(1, 2, Ask::Counter, counter(2)), (3, 4, Ask::Counter, counter(2))], "went back"),
            (
                vec![
                    (1, 2, append(), Answer::Appended(head(1))),
                    (3, 4, Ask::Head, Answer::Head(head(0))),
                ],
                "a: GET /log/head at 3.000: the log ends at 0",
            ),
            (
                vec![
                    (1, 2, append(), Answer::Appended(head(1))),
                    (3, 4, Ask::Log, Answer::Log(Vec::new())),
                ],
                "entry 1 is missing",
            ),
            (vec![(1, 2, Ask::Page, Answer::Error("parked".into()))], "no trouble explains"),
            (vec![(1, 2, Ask::Page, Answer::AgentError("app-broke".into()))], "no trouble"),
            (vec![(1, 2, Ask::Page, Answer::Cut("reset".into()))], "(on now: {}): reset"),
            (vec![(1, 2, Ask::Page, Answer::NoConnection("refused".into()))], "refused"),
        ] {
            let told = violations(&mut Ledger::default(), &visits);
            assert!(told.len() == 1 && told[0].contains(why), "{visits:?}: {told:?}");
        }
    }

    #[test]
    fn trouble_excuses_errors_and_never_a_wrong_answer() {
        let visits = [
            (11, 12, Ask::Page, Answer::NoConnection("refused".into())),
            (11, 12, Ask::Page, Answer::Cut("reset".into())),
            (11, 12, Ask::Page, Answer::Error("waker-unreachable".into())),
        ];
        let mut ledger = Ledger::default();
        ledger.begin(Trouble::Proxy, s(10));
        assert_eq!(violations(&mut ledger, &visits), [""; 0]);
        let wrong = [(12, 13, Ask::Page, Answer::Wrong("another body".into()))];
        assert_eq!(violations(&mut ledger, &wrong).len(), 1);
        ledger.end(&Trouble::Proxy, s(20));
        let late = [(100, 101, Ask::Page, Answer::NoConnection("refused".into()))];
        assert_eq!(violations(&mut ledger, &late).len(), 2);
    }

    #[test]
    fn violations_are_told_once_and_not_without_end() {
        let mut ledger = Ledger::default();
        for n in 0..KEPT + 5 {
            ledger.violated(s(1), format!("{n}"));
            ledger.violated(s(2), format!("{}", n.min(KEPT - 1)));
        }
        assert_eq!((ledger.violations().len(), ledger.more_violations()), (KEPT, 5));
    }
}
