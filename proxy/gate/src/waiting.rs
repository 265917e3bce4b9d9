//! Since when those who are held have been there, for operators. Only the way through a hold comes
//! by here, never a visitor of an open gate.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The arrivals of one app's held visitors. No more than its limit of holds.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// With a number, since two may arrive in one instant.
    arrivals: BTreeSet<(Instant, u64)>,
    next: u64,
}

/// A place in [`Waiting`].
pub(crate) type Place = (Instant, u64);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics under the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn enter(&self, arrived: Instant) -> Place {
        let mut inner = self.lock();
        let place = (arrived, inner.next);
        inner.next += 1;
        inner.arrivals.insert(place);
        place
    }

    pub(crate) fn leave(&self, place: Place) {
        self.lock().arrivals.remove(&place);
    }

    /// For how long the first of them has been there.
    pub(crate) fn oldest(&self, now: Instant) -> Option<Duration> {
        self.lock().arrivals.first().map(|(arrived, _)| now.saturating_duration_since(*arrived))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_who_came_first() {
        let waiting = Waiting::default();
        let t = Instant::now();
        let at = |s| t + Duration::from_secs(s);
        assert_eq!(waiting.oldest(t), None);
        let (late, early) = (waiting.enter(at(5)), waiting.enter(at(2)));
        let twin = waiting.enter(at(2));
        assert_eq!(waiting.oldest(at(9)), Some(Duration::from_secs(7)));
        waiting.leave(early);
        assert_eq!(waiting.oldest(at(9)), Some(Duration::from_secs(7)));
        waiting.leave(twin);
        assert_eq!(waiting.oldest(at(9)), Some(Duration::from_secs(4)));
        // A clock that was read a little earlier.
        assert_eq!(waiting.oldest(at(1)), Some(Duration::ZERO));
        waiting.leave(late);
        assert_eq!(waiting.oldest(at(9)), None);
    }
}
