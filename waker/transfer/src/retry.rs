//! How long to try again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rouse_store::StoreError;
use tokio::time::Instant;

/// How often and how long the same request is tried, in tries and time; whichever ends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Tries in all, the first one too.
    pub tries: u32,
    /// From the first try on, no further one is begun later than this.
    pub time: Duration,
    /// The longest wait before the second try; it doubles with each further one.
    pub first: Duration,
    /// What the wait does not grow beyond.
    pub most: Duration,
}

impl Default for Patience {
    /// 8 tries within two minutes, after 100 ms at first and 10 s at most: a store that restarts is
    /// waited for, one that is gone is not.
    fn default() -> Self {
        Self {
            tries: 8,
            time: Duration::from_secs(120),
            first: Duration::from_millis(100),
            most: Duration::from_secs(10),
        }
    }
}

impl Patience {
    /// How long to wait after `failed` tries have failed, `spent` after the first began; none: give up.
    ///
    /// `dice` is from 0 to 1: between half of the wait and all of it, so that those who failed together do
    /// not come back together.
    pub(crate) fn wait(&self, failed: u32, spent: Duration, dice: f64) -> Option<Duration> {
        if failed >= self.tries {
            return None;
        }
        let doubled = 2_u32.saturating_pow(failed.saturating_sub(1));
        let longest = self.first.saturating_mul(doubled).min(self.most);
        let wait = longest.mul_f64(0.5 + dice.clamp(0.0, 1.0) / 2.0);
        (spent.saturating_add(wait) <= self.time).then_some(wait)
    }
}

/// What was asked of the store, for whoever wants to know.
#[derive(Debug, Default)]
pub struct Asked {
    pub(crate) requests: AtomicU64,
    pub(crate) retries: AtomicU64,
}

impl Asked {
    pub(crate) fn add(&self, other: &Self) {
        self.requests.fetch_add(other.requests(), Ordering::Relaxed);
        self.retries.fetch_add(other.retries(), Ordering::Relaxed);
    }

    /// Counts requests that were made elsewhere.
    pub fn count(&self, requests: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
    }

    /// Counts tries after the first that were made elsewhere.
    pub fn count_retries(&self, retries: u64) {
        self.retries.fetch_add(retries, Ordering::Relaxed);
    }

    /// Requests made, those that failed too.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Requests made because one before had failed.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }
}

/// Calls until it succeeds, fails for good, or patience is over. `call` is told how many tries have
/// failed.
pub async fn retry<T, F>(
    patience: &Patience,
    asked: &Asked,
    mut call: impl FnMut(u32) -> F,
) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let begun = Instant::now();
    let mut failed = 0;
    loop {
        asked.requests.fetch_add(1, Ordering::Relaxed);
        let error = match call(failed).await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        failed += 1;
        let wait = patience.wait(failed, begun.elapsed(), rand::random());
        let Some(wait) = wait.filter(|_| error.is_transient()) else { return Err(error) };
        asked.retries.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_limit_and_end() {
        let patience = Patience::default();
        let full = |failed| patience.wait(failed, Duration::ZERO, 1.0);
        assert_eq!(full(1), Some(Duration::from_millis(100)));
        assert_eq!(full(3), Some(Duration::from_millis(400)));
        assert_eq!(full(7), Some(Duration::from_millis(6400)));
        assert_eq!(full(8), None);
        assert_eq!(patience.wait(1, Duration::ZERO, 0.0), Some(Duration::from_millis(50)));
        assert_eq!(patience.wait(1, Duration::from_secs(120), 0.0), None);
        let endless = Patience { tries: u32::MAX, ..patience };
        assert_eq!(endless.wait(100, Duration::ZERO, 1.0), Some(patience.most));
    }
}
