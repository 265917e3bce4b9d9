//! What must be so after every event, whichever it was.

use super::*;

impl Reference {
    /// The VM is to be ended.
    pub(in super::super) fn ends(&self, vm: Vm, flush: bool) {
        let park = self.park.expect("ended though nobody wanted it");
        // What a check has found spoilt is not flushed; nor what only may be so.
        let may = park.flush.filter(|_| !self.suspect).map(|may| may && vm == Vm::Running);
        assert!(may.is_none_or(|may| may == flush), "flushed: {flush}, wanted: {may:?}");
    }

    /// What must be so after every event.
    pub(in super::super) fn holds(&self, app: &Lifecycle, facts: &Facts) {
        let standing = app.standing();
        assert_eq!(standing.failures, self.failures, "failures are remembered");
        let parked = self.parked || self.park.is_some_and(|park| !park.cleared);
        assert_eq!(standing.parked.is_some(), parked, "a park is remembered");
        assert_eq!(matches!(app.state(), State::Parked { .. }), self.parked);
        let ends = facts.doing == Some(Doing::End);
        let spoilt = match facts.vm {
            Vm::None => facts.image == Some(Memory::Spoilt),
            _ => facts.memory == Memory::Spoilt && !ends,
        };
        assert!(!spoilt || standing.spoilt, "spoilt memory is remembered");

        let dues = [self.asked.map(|asked| asked.until), self.paused_until];
        for due in dues.into_iter().flatten() {
            assert_eq!(app.deadline(), Some(due), "nobody looks when it is due");
        }
        let goes_on = facts.doing.is_some()
            || facts.flushing
            || self.asked.is_some()
            || facts.settle == Some(false);
        let waits = facts.visitors > 0 || facts.sleepers > 0 || self.park.is_some();
        assert!(goes_on || !waits, "forgotten");
    }

    /// What of it makes two worlds behave alike.
    pub(in super::super) fn key(&self, now: Instant) -> impl Eq + std::hash::Hash + use<> {
        (
            (
                self.failures,
                self.parked,
                self.suspect,
                self.unpaused,
                self.asked.map(|asked| asked.waiting),
            ),
            self.park.map(|park| (park.cleared, park.flush)),
            self.backoff.map(|(_, latest)| now < latest),
            self.woken_at.is_some_and(|at| now < at + PROVEN),
            self.sleepless.is_some_and(|until| now < until),
        )
    }
}
