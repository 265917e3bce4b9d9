use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::*;

fn rate(wakes: u32, per_seconds: u32, burst: u32) -> Option<Rate> {
    Some(Rate { wakes, per_seconds, burst })
}

fn ip(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn of(n: u32) -> Option<IpAddr> {
    Some(IpAddr::V4(n.into()))
}

#[test]
fn without_a_rate_there_is_no_bound() {
    let now = Instant::now();
    let budgets = Budgets::new(None, None, now);
    assert!((0..10_000).all(|_| budgets.charge(ip("::1"), now).is_ok()));
    assert_eq!(budgets.addresses(), 0);
}

#[test]
fn a_budget_comes_back_to_the_millisecond() {
    let start = Instant::now();
    // One in 333⅓ ms.
    let budgets = Budgets::new(rate(3, 1, 2), None, start);
    let denied = |after| Err(Denied::AppBudget { retry_after: ms(after) });
    assert_eq!(budgets.charge(None, start), Ok(()));
    assert_eq!(budgets.charge(None, start), Ok(()));
    assert_eq!(budgets.charge(None, start), denied(334));
    assert_eq!(budgets.check(None, start + ms(333)), denied(1));
    assert_eq!(budgets.charge(None, start + ms(334)), Ok(()));
    // The 2/3 of a millisecond that was left over is not lost.
    assert_eq!(budgets.charge(None, start + ms(666)), denied(1));
    assert_eq!(budgets.charge(None, start + ms(667)), Ok(()));
    assert_eq!(budgets.charge(None, start + ms(1000)), Ok(()));
    assert_eq!(budgets.check(None, start + ms(1000)), denied(334));
    // Time that goes backwards brings nothing and breaks nothing.
    assert!(budgets.charge(None, start).is_err());
}

#[test]
fn what_is_given_back_is_one_wake_and_never_more_than_full() {
    let now = Instant::now();
    let budgets = Budgets::new(rate(1, 3600, 2), rate(1, 3600, 1), now);
    budgets.charge(of(1), now).unwrap();
    budgets.refund(of(1), now);
    budgets.refund(of(1), now);
    budgets.refund(of(2), now);
    assert_eq!(budgets.addresses(), 1, "nobody is remembered for being given something");
    budgets.charge(of(1), now).unwrap();
    assert!(matches!(budgets.check(of(1), now), Err(Denied::AddressBudget { .. })));
    budgets.charge(of(2), now).unwrap();
    assert!(matches!(budgets.check(of(3), now), Err(Denied::AppBudget { .. })));
}

#[test]
fn clocks_read_out_of_order_bring_nothing_twice() {
    let start = Instant::now();
    // Of two that ask at once, the one that read the clock first may be charged last.
    let budgets = Budgets::new(rate(1, 1, 2), None, start);
    assert_eq!(budgets.charge(None, start + ms(1000)), Ok(()));
    assert_eq!(budgets.charge(None, start), Ok(()));
    assert!(budgets.charge(None, start + ms(1999)).is_err());
    assert_eq!(budgets.charge(None, start + ms(2000)), Ok(()));
    assert!(budgets.charge(None, start + ms(2999)).is_err());
}

#[test]
fn checking_is_free() {
    let now = Instant::now();
    let budgets = Budgets::new(rate(1, 60, 1), rate(1, 60, 1), now);
    assert!((0..100).all(|_| budgets.check(ip("10.0.0.1"), now).is_ok()));
    assert_eq!(budgets.addresses(), 0);
    assert_eq!(budgets.charge(ip("10.0.0.1"), now), Ok(()));
}

#[test]
fn a_charge_is_of_both_or_of_none() {
    let now = Instant::now();
    let budgets = Budgets::new(rate(2, 60, 2), rate(1, 60, 1), now);
    assert_eq!(budgets.charge(ip("10.0.0.1"), now), Ok(()));
    for _ in 0..10 {
        let retry_after = ms(60_000);
        let denied = Err(Denied::AddressBudget { retry_after });
        assert_eq!(budgets.charge(ip("10.0.0.1"), now), denied);
    }
    // The app has lost nothing by those.
    assert_eq!(budgets.charge(ip("10.0.0.2"), now), Ok(()));
    let denied = Err(Denied::AppBudget { retry_after: ms(30_000) });
    assert_eq!(budgets.charge(ip("10.0.0.3"), now), denied);
    // Who was refused is not remembered.
    assert_eq!(budgets.addresses(), 2);
}

#[test]
fn one_subscriber_is_one_client() {
    let same = [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", true),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", false),
        ("10.0.0.1", "::ffff:10.0.0.1", true),
        ("10.0.0.1", "10.0.0.2", false),
    ];
    for (one, other, is) in same {
        let now = Instant::now();
        let budgets = Budgets::new(None, rate(1, 60, 1), now);
        budgets.charge(ip(one), now).unwrap();
        assert_eq!(budgets.charge(ip(other), now).is_err(), is, "{one} {other}");
    }
}

#[test]
fn memory_is_bounded_and_the_worst_are_remembered_longest() {
    let now = Instant::now();
    let budgets = Budgets::new(None, rate(10, 3600, 10), now);
    // The attacker uses up all of theirs, then comes from many addresses.
    for _ in 0..10 {
        budgets.charge(of(0), now).unwrap();
    }
    for n in 1..=5000 {
        budgets.charge(of(n), now).unwrap();
        assert!(budgets.addresses() <= MAX_ADDRESSES);
    }
    assert!(budgets.check(of(0), now).is_err());
    // A newcomer is never refused for others.
    assert_eq!(budgets.check(of(9999), now), Ok(()));
    // What is full again makes room first.
    let later = now + Duration::from_secs(3600);
    budgets.charge(of(6000), later).unwrap();
    assert_eq!(budgets.addresses(), 1);
}

#[test]
fn of_many_at_once_no_more_get_one_than_there_are() {
    let now = Instant::now();
    let budgets = Budgets::new(rate(1, 3600, 7), rate(1, 3600, 100), now);
    let (got, start) = (AtomicU32::new(0), Barrier::new(8));
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (budgets, got, start) = (&budgets, &got, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..50 {
                    if budgets.charge(of(n), now).is_ok() {
                        got.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(got.into_inner(), 7);
}

#[test]
fn another_rate_keeps_what_is_left() {
    let now = Instant::now();
    let budgets = Budgets::new(rate(4, 60, 4), rate(2, 60, 2), now);
    budgets.charge(of(1), now).unwrap();
    budgets.charge(of(1), now).unwrap();
    budgets.change(rate(4, 60, 4), rate(2, 60, 2), now);
    assert!(matches!(budgets.check(of(1), now), Err(Denied::AddressBudget { .. })));
    budgets.change(rate(8, 30, 100), None, now);
    assert_eq!(budgets.addresses(), 0);
    let left = (0..10).filter(|_| budgets.charge(of(1), now).is_ok()).count();
    assert_eq!(left, 2);
    budgets.change(None, None, now);
    assert_eq!(budgets.charge(of(1), now), Ok(()));
}

#[test]
fn nonsense_from_the_wire_breaks_nothing() {
    let now = Instant::now();
    for rate in [rate(0, 0, 0), rate(u32::MAX, u32::MAX, u32::MAX), rate(0, u32::MAX, u32::MAX)] {
        let budgets = Budgets::new(rate, rate, now);
        for n in 0..10u64 {
            let _ = budgets.charge(of(1), now + Duration::from_secs(n << 50));
        }
        budgets.change(self::rate(1, 1, 1), self::rate(0, 0, 0), now);
        let _ = budgets.charge(of(1), now);
    }
}

proptest! {
    /// Between any two moments no more than the burst and what came back in between, in any order
    /// of clients; and who is refused gets one when told to come again, not before.
    #[test]
    fn never_more_than_burst_and_rate(
        wakes in 1u32..7, per_seconds in 1u32..5, burst in 1u32..5,
        steps in proptest::collection::vec((0u64..400, 0u32..3), 1..120),
    ) {
        let start = Instant::now();
        let budgets = Budgets::new(rate(wakes, per_seconds, burst), rate(1, 1, 2), start);
        let (mut at, mut granted, mut own) = (0u64, Vec::new(), Vec::new());
        for (step, client) in steps {
            at += step;
            let now = start + ms(at);
            match budgets.charge(of(client), now) {
                Ok(()) => {
                    granted.push(at);
                    own.push((client, at));
                }
                Err(denied) => {
                    let after = denied.retry_after().unwrap();
                    prop_assert!(after >= ms(1));
                    prop_assert!(budgets.check(of(client), now + after - ms(1)).is_err());
                    if matches!(denied, Denied::AppBudget { .. }) {
                        prop_assert_eq!(budgets.check(of(client), now + after), Ok(()));
                    }
                }
            }
        }
        let bounded = |times: &[u64], wakes: u64, per_ms: u64, burst: u64| {
            times.iter().enumerate().all(|(i, from)| {
                times[i..].iter().zip(1u64..).all(|(to, n)| {
                    n * per_ms <= burst * per_ms + (to - from) * wakes
                })
            })
        };
        prop_assert!(bounded(&granted, wakes.into(), u64::from(per_seconds) * 1000, burst.into()));
        for client in 0..3 {
            let theirs = own.iter().filter(|(c, _)| *c == client);
            let times: Vec<_> = theirs.map(|(_, at)| *at).collect();
            prop_assert!(bounded(&times, 1, 1000, 2));
        }
    }

    /// Against a bucket in exact fractions.
    #[test]
    fn refill_is_exact(
        wakes in 1u32..1000, per_seconds in 1u32..1000, burst in 1u32..4,
        steps in proptest::collection::vec(0u64..100_000, 1..60),
    ) {
        let start = Instant::now();
        let budgets = Budgets::new(rate(wakes, per_seconds, burst), None, start);
        let per_ms = u128::from(per_seconds) * 1000;
        let full = per_ms * u128::from(burst);
        let (mut at, mut level) = (0, full);
        for step in steps {
            at += step;
            level = (level + u128::from(step) * u128::from(wakes)).min(full);
            let granted = budgets.charge(None, start + ms(at)).is_ok();
            prop_assert_eq!(granted, level >= per_ms);
            if granted {
                level -= per_ms;
            }
        }
    }
}
