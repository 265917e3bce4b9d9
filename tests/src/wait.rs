//! Waiting for a fact.

use std::time::{Duration, Instant};

/// Between two looks at a fact. Short against what is waited for, long against what a look costs.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// How long a fact may take to come true: `ROUSE_PATIENCE` in seconds, or 60. It is generous: a
/// test that waits in vain has failed, however long it took.
pub fn patience() -> Duration {
    let seconds = std::env::var("ROUSE_PATIENCE").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
    Duration::from_secs(seconds)
}

/// Looks until `look` gives something, and returns it. Panics with `what` after [`patience`].
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(start.elapsed() < patience(), "{what}: not within {:?}", patience());
        tokio::time::sleep(TICK).await;
    }
}

/// Evaluates a condition, which may await, until it holds. Panics with the message after
/// [`patience`].
#[macro_export]
macro_rules! assert_eventually {
    ($condition:expr, $($what:tt)+) => {
        $crate::eventually(&format!($($what)+), async || if $condition { Some(()) } else { None })
            .await
    };
}
