//! When a certificate is ordered.

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
pub struct Failures {
    /// How many.
    pub count: u32,
    /// When the last one did; none if none has.
    pub last: Option<SystemTime>,
}

impl Failures {
    /// With one more, at `now`.
    #[must_use]
    pub fn and(self, now: SystemTime) -> Self {
        Self { count: self.count.saturating_add(1), last: Some(now) }
    }
}

/// What there is to be done for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A certificate is to be ordered now.
    Order,
    /// Nothing, for so long.
    Wait(Duration),
}

/// What there is to be done for `name`, whose certificate is good for `life`, if it has one.
///
/// A certificate is renewed after two thirds of its life, or up to a twelfth of it sooner: each name
/// has its own place in that, always the same, so that many names do not all come at once.
pub fn next(
    name: &CertificateName,
    life: Option<Life>,
    failures: Failures,
    now: SystemTime,
) -> Step {
    let place = place(name);
    let due = life.map(|life| {
        let length = life.not_after.duration_since(life.not_before).unwrap_or_default();
        life.not_before.checked_add(length * 2 / 3 - (length / 12).mul_f64(place))
    });
    let retry = failures.last.map(|last| last.checked_add(backoff(failures.count, place)));
    let wait = |at: SystemTime| at.duration_since(now).ok().filter(|wait| !wait.is_zero());
    match due.flatten().and_then(wait).max(retry.flatten().and_then(wait)) {
        Some(wait) => Step::Wait(wait),
        None => Step::Order,
    }
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
        assert_eq!(next(&name("a"), None, Failures::default(), at(0)), Step::Order);
    }

    #[test]
    fn it_is_renewed_between_seven_twelfths_and_two_thirds() {
        let life = Some(Life { not_before: at(100), not_after: at(190) });
        let step =
            |name: &str, day| next(&name.parse().unwrap(), life, Failures::default(), at(day));
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
            let Step::Wait(wait) = next(&name("a"), None, failures, now) else {
                panic!("at once after {failures:?}");
            };
            waits.push(wait);
            now += wait;
            assert_eq!(next(&name("a"), None, failures, now), Step::Order);
        }
        assert!((2..=4).contains(&within_the_hour), "{within_the_hour}");
        assert!(waits.is_sorted() && waits[11] <= LONGEST * 5 / 4, "{waits:?}");
    }

    proptest! {
        #[test]
        fn no_times_do_any_harm(a: u64, b: u64, c: u64, count: u32, now: u64) {
            let at = |s: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(s >> 2);
            let life = Life { not_before: at(a), not_after: at(b) };
            let failures = Failures { count, last: Some(at(c)) };
            next(&name("a"), Some(life), failures, at(now));
        }
    }
}
