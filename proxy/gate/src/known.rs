//! What the waker said of an app last, and what that means for a life that this proxy has open.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rouse_protocol::app::Generation;
use rouse_protocol::watch::AppState;
use tokio::sync::Notify;

/// How far apart the watch and the answer to a wake, on two connections, may reach us.
pub(crate) const SETTLED: Duration = Duration::from_secs(1);

/// What the waker said last.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) state: AppState,
    pub(crate) generation: Generation,
}

impl Known {
    /// Whether this says that the life `generation` is over, or stands still. `waking` says
    /// nothing: the waker may send it after our own wake has ended, on another connection.
    ///
    /// A pause is as good as an end here. Its VM would still know our connections, but its clock
    /// stood still: whether an idle one is good when it runs again depends on the guest's time-outs, and a
    /// new one costs less than a millisecond.
    pub(crate) fn ends(&self, generation: Generation) -> bool {
        let over = matches!(
            self.state,
            AppState::Asleep
                | AppState::Paused
                | AppState::Snapshotting
                | AppState::Failed { .. }
                | AppState::Parked { .. }
        );
        over && self.generation >= generation
    }

    /// Whether this may be of before a wake that has brought back `generation` itself: a VM that
    /// stood still goes on in the same life. Whatever else ends a life is never taken back.
    pub(crate) fn may_be_late(&self, generation: Generation) -> bool {
        matches!(self.state, AppState::Paused | AppState::Snapshotting)
            && self.generation == generation
    }
}

/// The [`Known`] of an app, and word of its changes. Each of thousands of apps has one, and few wait for it:
/// a `watch` channel takes ten times the memory.
#[derive(Debug)]
pub(crate) struct Told {
    /// With how often it has changed.
    last: Mutex<(Known, u64)>,
    changed: Notify,
}

impl Told {
    pub(crate) fn new(known: Known) -> Self {
        Self { last: Mutex::new((known, 0)), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, (Known, u64)> {
        // Nothing panics under the lock.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> Known {
        self.lock().0.clone()
    }

    /// What `look` makes of it. Other locks are not to be taken meanwhile.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&Known) -> T) -> T {
        look(&self.lock().0)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut last = self.lock();
        change(&mut last.0);
        last.1 += 1;
        drop(last);
        self.changed.notify_waiters();
    }

    /// How often it has changed so far.
    pub(crate) fn changes(&self) -> u64 {
        self.lock().1
    }

    /// Returns when it has changed more often than `seen`, and how often.
    pub(crate) async fn after(&self, seen: u64) -> u64 {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Before the look, so that no change falls between the two.
            changed.as_mut().enable();
            let now = self.changes();
            if now > seen {
                return now;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_life_and_what_may_be_late() {
        let parked = AppState::Parked { detail: "x".to_owned() };
        let failed = AppState::Failed { detail: "x".to_owned(), retry_after_ms: 1 };
        // State and the life it is of; what it means for life 2.
        let table = [
            (AppState::Asleep, 1, false, false),
            (AppState::Asleep, 2, true, false),
            (AppState::Waking, 2, false, false),
            (AppState::Paused, 1, false, false),
            (AppState::Paused, 2, true, true),
            (AppState::Paused, 3, true, false),
            (AppState::Snapshotting, 2, true, true),
            (AppState::Snapshotting, 3, true, false),
            (failed, 2, true, false),
            (parked, 2, true, false),
        ];
        for (state, generation, ends, late) in table {
            let known = Known { state, generation: Generation(generation) };
            let got = (known.ends(Generation(2)), known.may_be_late(Generation(2)));
            assert_eq!(got, (ends, late), "{known:?}");
        }
    }

    #[tokio::test]
    async fn no_change_is_missed() {
        let told = Told::new(Known { state: AppState::Asleep, generation: Generation(1) });
        let seen = told.changes();
        let (last, ()) = tokio::join!(told.after(seen), async {
            tokio::task::yield_now().await;
            told.change(|known| known.generation = Generation(2));
        });
        assert_eq!((told.get().generation, last), (Generation(2), seen + 1));
        // One that came before anybody waited.
        told.change(|known| known.generation = Generation(3));
        assert_eq!(told.after(last).await, last + 1);
        assert!(told.with(|known| known.ends(Generation(3))));
    }
}
