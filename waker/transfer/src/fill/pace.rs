//! How many requests at once: as many as still bring more. Pure.

use std::collections::VecDeque;
use std::time::Duration;

/// The requests at once to begin with.
const START: usize = 4;
/// The most at once: beyond that no single link that we know brings more.
const MOST: usize = 32;
/// How long throughput is measured before it is judged.
const ROUND: Duration = Duration::from_millis(250);
/// By how much more must come for more requests to have been worth it: 5 %.
const GAIN: f64 = 1.05;

/// Climbs while throughput climbs, and falls by half when the store asks for it.
#[derive(Debug)]
pub(super) struct Pace {
    limit: usize,
    since: Duration,
    bytes: u64,
    /// Bytes a second before the last step up.
    before: f64,
    /// The limit before the last step up, if that is not judged yet.
    climbed_from: Option<usize>,
    /// Judged to be enough: not tried again for so many rounds.
    settled: u32,
}

impl Pace {
    pub(super) fn new(now: Duration) -> Self {
        Self { limit: START, since: now, bytes: 0, before: 0.0, climbed_from: None, settled: 0 }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// So many bytes have come.
    pub(super) fn came(&mut self, bytes: u64, now: Duration) {
        self.bytes += bytes;
        let round = now.saturating_sub(self.since);
        if round < ROUND {
            return;
        }
        let rate = self.bytes as f64 / round.as_secs_f64();
        (self.since, self.bytes) = (now, 0);
        if self.settled > 0 {
            self.settled -= 1;
            self.before = rate;
            return;
        }
        match self.climbed_from.take() {
            // The last step brought nothing; it is tried again later, as links change.
            Some(lower) if rate <= self.before * GAIN => {
                self.limit = lower;
                self.settled = 8;
            }
            _ => {
                let higher = (self.limit + (self.limit / 4).max(1)).min(MOST);
                self.climbed_from = (higher > self.limit).then_some(self.limit);
                self.limit = higher;
            }
        }
        self.before = rate;
    }

    /// The store throttles: half as many, and no more than that for some time.
    pub(super) fn throttled(&mut self, now: Duration) {
        self.limit = (self.limit / 2).max(1);
        *self = Self { limit: self.limit, settled: 8, ..Self::new(now) };
    }
}

/// The median of the last few durations.
#[derive(Debug, Default)]
pub(super) struct Median(VecDeque<Duration>);

impl Median {
    pub(super) fn add(&mut self, took: Duration) {
        if self.0.len() == 31 {
            self.0.pop_front();
        }
        self.0.push_back(took);
    }

    /// None until three are known.
    pub(super) fn get(&self) -> Option<Duration> {
        let mut sorted: Vec<_> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        (sorted.len() >= 3).then(|| sorted[sorted.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit after so many rounds of a link that brings `rate` of the limit.
    fn after(
        pace: &mut Pace,
        from: Duration,
        rounds: u32,
        rate: impl Fn(usize) -> u64,
    ) -> Duration {
        let mut now = from;
        for _ in 0..rounds {
            now += ROUND;
            pace.came(rate(pace.limit()), now);
        }
        now
    }

    #[test]
    fn it_climbs_while_more_requests_bring_more() {
        let mut pace = Pace::new(Duration::ZERO);
        assert_eq!(pace.limit(), 4);
        let now = after(&mut pace, Duration::ZERO, 40, |limit| limit as u64 * 1000);
        assert_eq!(pace.limit(), MOST);
        pace.throttled(now);
        assert_eq!(pace.limit(), MOST / 2);
        for _ in 0..10 {
            pace.throttled(now);
        }
        assert_eq!(pace.limit(), 1);
        after(&mut pace, now, 60, |limit| limit as u64 * 1000);
        assert_eq!(pace.limit(), MOST);
    }

    #[test]
    fn it_stays_near_what_the_link_gives() {
        let mut pace = Pace::new(Duration::ZERO);
        let mut now = Duration::ZERO;
        for _ in 0..100 {
            now = after(&mut pace, now, 1, |limit| limit.min(8) as u64 * 1000);
            assert!((4..=14).contains(&pace.limit()), "{}", pace.limit());
        }
    }

    #[test]
    fn the_median_is_of_the_last_few() {
        let mut median = Median::default();
        median.add(Duration::from_secs(9));
        assert_eq!(median.get(), None);
        (0..31).for_each(|n| median.add(Duration::from_millis(n)));
        assert_eq!(median.get(), Some(Duration::from_millis(15)));
    }
}
