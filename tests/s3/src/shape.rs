//! A shared bandwidth, by a virtual clock: each piece has its time, one after the other.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How far behind the clock may run, and be caught up with: longer than timers are late.
const SLACK: Duration = Duration::from_millis(10);
/// How far ahead it may run before anybody waits: a timer for each piece would cost more than it.
const AHEAD: Duration = Duration::from_millis(2);

/// What may pass together, in bytes per second.
#[derive(Debug, Default)]
pub(crate) struct Bucket(Mutex<Option<Clock>>);

#[derive(Debug)]
struct Clock {
    rate: u64,
    /// When all that was let through has passed.
    free: Instant,
}

impl Bucket {
    pub(crate) fn rate(&self, bytes_per_second: Option<u64>) {
        let clock = bytes_per_second.map(|n| Clock { rate: n.max(1), free: Instant::now() });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = clock;
    }

    /// When `bytes` that come at `now` have passed.
    fn after(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let mut clock = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let clock = clock.as_mut()?;
        let begin = now.checked_sub(SLACK).map_or(clock.free, |least| clock.free.max(least));
        clock.free = begin + Duration::from_secs_f64(bytes as f64 / clock.rate as f64);
        Some(clock.free)
    }

    /// Waits until `bytes` have passed.
    pub(crate) async fn pass(&self, bytes: usize) {
        let now = Instant::now();
        if let Some(at) = self.after(bytes, now)
            && at > now + AHEAD
        {
            tokio::time::sleep_until(at.into()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_all_connections_pass_one_after_the_other() {
        let bucket = Bucket::default();
        let begin = Instant::now();
        assert_eq!(bucket.after(1000, begin), None);
        bucket.rate(Some(1_000_000));
        let begin = Instant::now() + SLACK;
        // A late piece catches up, by as much as a timer is late, and not by more.
        let first = bucket.after(1_000_000, begin).unwrap();
        assert!(first <= begin + Duration::from_secs(1));
        assert_eq!(bucket.after(500_000, begin).unwrap(), first + Duration::from_millis(500));
        let late = first + Duration::from_secs(60);
        let next = bucket.after(1_000_000, late).unwrap();
        assert_eq!(next, late - SLACK + Duration::from_secs(1));
    }
}
