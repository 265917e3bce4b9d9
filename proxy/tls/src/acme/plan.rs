//! When a certificate is ordered.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::names::CertificateName;

/// The first wait after a failure. With doubling it makes four orders in the first hour; Let's
/// Encrypt allows five failed validations of a host in that time.
const FIRST: Duration = Duration::from_secs(5 * 60);
/// The longest wait after failures.
const LONGEST: Duration = Duration::from_secs(12 * 3600);

/// From when to when a certificate is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// When it began.
    pub not_before: SystemTime,
    /// When it ends.
    pub not_after: SystemTime,
}

/// The orders that failed since the last that did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failures {
    /// How many.
    pub(crate) count: u32,
    /// When the last one did; none if none has.
    pub(crate) last: Option<SystemTime>,
}

impl Failures {
    /// With one more, at `now`.
    #[must_use]
    pub(crate) fn and(self, now: SystemTime) -> Self {
        Self { count: self.count.saturating_add(1), last: Some(now) }
    }

    /// How long until the next try; none if it is due. `place` is from 0 to 1.
    pub(crate) fn wait(self, place: f64, now: SystemTime) -> Option<Duration> {
        // A clock that was set back makes nobody wait for longer.
        let since = now.duration_since(self.last?).ok()?;
        backoff(self.count, place).checked_sub(since).filter(|left| !left.is_zero())
    }
}

/// How many orders run at once, which bounds what a slow CA and a crowd of new names hold here.
/// Public CAs allow no more than a few orders a minute in the long run.
pub(crate) const AT_ONCE: usize = 4;
/// How long nothing is looked at, at most: clocks are set.
const LOOK: Duration = Duration::from_secs(3600);

/// All names, and what there is to be done for them.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    names: BTreeMap<CertificateName, Item>,
    running: usize,
}

#[derive(Debug)]
struct Item {
    place: f64,
    life: Option<Life>,
    failures: Failures,
    running: bool,
}

impl Agenda {
    /// Adds a name, with the life of its certificate if it has a good one.
    pub(crate) fn add(&mut self, name: CertificateName, life: Option<Life>) {
        let item =
            Item { place: place(&name), life, failures: Failures::default(), running: false };
        self.names.insert(name, item);
    }

    /// How long until there is something to be done; zero if it is now. While as many orders run as
    /// may, the end of one of them comes first.
    pub(crate) fn wait(&self, now: SystemTime) -> Duration {
        if self.running >= AT_ONCE {
            return LOOK;
        }
        let steps = self.names.values().filter(|item| !item.running).map(|item| {
            match next(item.place, item.life, item.failures, now) {
                Step::Order => Duration::ZERO,
                Step::Wait(wait) => wait,
            }
        });
        steps.min().map_or(LOOK, |wait| wait.min(LOOK))
    }

    /// The names whose orders begin now. Those that failed least come first, so that no name is
    /// kept waiting by others that never succeed.
    pub(crate) fn begin(&mut self, now: SystemTime) -> Vec<CertificateName> {
        let mut due: Vec<_> = self
            .names
            .iter_mut()
            .filter(|(_, item)| {
                !item.running && next(item.place, item.life, item.failures, now) == Step::Order
            })
            .collect();
        due.sort_by_key(|(_, item)| item.failures.count);
        due.truncate(AT_ONCE.saturating_sub(self.running));
        self.running += due.len();
        let begun = due.into_iter().map(|(name, item)| {
            item.running = true;
            name.clone()
        });
        begun.collect()
    }

    /// An order is over: `life` is that of the new certificate; none if it failed.
    pub(crate) fn end(&mut self, name: &CertificateName, life: Option<Life>, now: SystemTime) {
        let Some(item) = self.names.get_mut(name).filter(|item| item.running) else { return };
        self.running -= 1;
        item.running = false;
        match life {
            // Never in a circle, even if a CA signs what has expired already.
            Some(_) if next(item.place, life, Failures::default(), now) == Step::Order => {
                (item.life, item.failures) = (life, item.failures.and(now));
            }
            Some(_) => (item.life, item.failures) = (life, Failures::default()),
            None => item.failures = item.failures.and(now),
        }
    }
}

/// What there is to be done for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A certificate is to be ordered now.
    Order,
    /// Nothing, for so long.
    Wait(Duration),
}

/// What there is to be done for a name, whose certificate is good for `life`, if it has one.
///
/// A certificate is renewed after two thirds of its life, or up to a twelfth of it sooner: each name
/// has its own `place` in that, from 0 to 1 and always the same, so that many names do not all come
/// at once.
pub(crate) fn next(place: f64, life: Option<Life>, failures: Failures, now: SystemTime) -> Step {
    let due = life.map(|life| {
        let length = life.not_after.duration_since(life.not_before).unwrap_or_default();
        life.not_before.checked_add(length * 2 / 3 - (length / 12).mul_f64(place))
    });
    match due.flatten().and_then(|due| until(due, now)).max(failures.wait(place, now)) {
        Some(wait) => Step::Wait(wait),
        None => Step::Order,
    }
}

fn until(at: SystemTime, now: SystemTime) -> Option<Duration> {
    at.duration_since(now).ok().filter(|wait| !wait.is_zero())
}

/// How long to wait after so many failures: doubling, and up to a quarter more.
fn backoff(failures: u32, place: f64) -> Duration {
    let doubled = FIRST.saturating_mul(2u32.saturating_pow(failures.saturating_sub(1)));
    doubled.min(LONGEST).mul_f64(1.0 + place / 4.0)
}

/// A number from 0 to 1 that is the name's own.
fn place(name: &CertificateName) -> f64 {
    let [first, second, ..] = <[u8; 32]>::from(Sha256::digest(name.to_string()));
    f64::from(u16::from_be_bytes([first, second])) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn at(days: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + DAY * days
    }

    fn name(text: &str) -> CertificateName {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_without_a_certificate_is_due_at_once() {
        assert_eq!(next(place(&name("a")), None, Failures::default(), at(0)), Step::Order);
    }

    #[test]
    fn it_is_renewed_between_seven_twelfths_and_two_thirds() {
        let life = Some(Life { not_before: at(100), not_after: at(190) });
        let step = |name: &str, day| {
            next(place(&name.parse().unwrap()), life, Failures::default(), at(day))
        };
        for i in 0..50 {
            let name = format!("{i}.example");
            assert!(matches!(step(&name, 152), Step::Wait(wait) if wait <= DAY * 8), "{name}");
            assert_eq!(step(&name, 160), Step::Order, "{name}");
            assert_eq!(step(&name, 500), Step::Order, "{name}");
        }
        let days: std::collections::HashSet<_> = (0..50)
            .map(|i| match step(&format!("{i}.example"), 152) {
                Step::Wait(wait) => wait.as_secs() / 86_400,
                Step::Order => 0,
            })
            .collect();
        assert!(days.len() > 4, "they are spread: {days:?}");
    }

    #[test]
    fn failures_wait_longer_and_longer() {
        let mut failures = Failures::default();
        let mut now = at(1);
        let mut within_the_hour = 0;
        let mut waits = Vec::new();
        for _ in 0..12 {
            if now < at(1) + Duration::from_secs(3600) {
                within_the_hour += 1;
            }
            failures = failures.and(now);
            let Step::Wait(wait) = next(place(&name("a")), None, failures, now) else {
                panic!("at once after {failures:?}");
            };
            waits.push(wait);
            now += wait;
            assert_eq!(next(place(&name("a")), None, failures, now), Step::Order);
        }
        // The clock was set back: it is not waited for.
        assert_eq!(next(place(&name("a")), None, failures, at(0)), Step::Order);
        assert!((2..=4).contains(&within_the_hour), "{within_the_hour}");
        assert!(waits.is_sorted() && waits[11] <= LONGEST * 5 / 4, "{waits:?}");
    }

    #[test]
    fn only_so_many_orders_run_and_a_failure_holds_up_nobody() {
        let mut agenda = Agenda::default();
        for i in 0..10 {
            agenda.add(name(&format!("n{i}")), None);
        }
        let fresh = Life { not_before: at(1), not_after: at(91) };
        agenda.add(name("fresh"), Some(fresh));
        assert_eq!(agenda.wait(at(1)), Duration::ZERO);
        let first = agenda.begin(at(1));
        assert_eq!(first.len(), AT_ONCE);
        assert_eq!((agenda.begin(at(1)).len(), agenda.wait(at(1))), (0, LOOK));
        // All of the first fail; the others come before they are tried again.
        for name in &first {
            agenda.end(name, None, at(1));
        }
        let second = agenda.begin(at(2));
        assert!(second.len() == AT_ONCE && second.iter().all(|name| !first.contains(name)));
        agenda.end(&second[0], Some(Life { not_before: at(2), not_after: at(92) }), at(2));
        // Twice over, or of nobody: nothing.
        agenda.end(&second[0], None, at(2));
        agenda.end(&name("nobody"), None, at(2));
        assert_eq!(agenda.begin(at(2)).len(), 1);
        for name in &second[1..] {
            agenda.end(name, None, at(2));
        }
        // One that was never tried, then those that failed.
        let third = agenda.begin(at(3));
        assert_eq!(third[0], name("n9"));
        assert!(third.len() == 3 && !third.contains(&second[0]), "{third:?}");
        assert_eq!(Agenda::default().wait(at(0)), LOOK);
    }

    #[test]
    fn a_certificate_that_has_expired_already_is_not_ordered_in_a_circle() {
        let mut agenda = Agenda::default();
        agenda.add(name("a"), None);
        let names = agenda.begin(at(100));
        agenda.end(&names[0], Some(Life { not_before: at(1), not_after: at(9) }), at(100));
        assert!(agenda.begin(at(100)).is_empty());
        assert!(agenda.wait(at(100)) >= FIRST);
    }

    proptest! {
        #[test]
        fn no_times_do_any_harm(a: u64, b: u64, c: u64, count: u32, now: u64) {
            let at = |s: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(s >> 2);
            let life = Life { not_before: at(a), not_after: at(b) };
            let failures = Failures { count, last: Some(at(c)) };
            next(place(&name("a")), Some(life), failures, at(now));
        }
    }
}
