//! What the waker said of an app last, and what that means for a life that this proxy has open.

use std::time::Duration;

use rouse_protocol::app::Generation;
use rouse_protocol::watch::AppState;

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
}
