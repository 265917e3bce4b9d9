//! The last wakes of an app, for `trace`.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use rouse_protocol::app::Generation;
use rouse_protocol::status::{PatchTrace, StoreTrace, WakeTrace};
use rouse_protocol::wake::{Outcome, PhaseTime};

use crate::store::Cost;

/// How many wakes are remembered.
const KEPT: usize = 16;

/// How many patches and phases a wake may have: a proxy's word is bounded, too.
const PARTS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct History {
    wakes: VecDeque<WakeTrace>,
}

impl History {
    /// A wake has begun.
    pub(super) fn begin(&mut self, generation: Generation) {
        if self.wakes.len() == KEPT {
            self.wakes.pop_front();
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.wakes.push_back(WakeTrace {
            at_unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            generation,
            outcome: None,
            refused: None,
            error: None,
            store: None,
            phases: vec![],
            patches: vec![],
        });
    }

    /// The newest wake has come to its end.
    pub(super) fn end(&mut self, end: Result<(Outcome, Option<String>), String>) {
        let Some(wake) = self.wakes.back_mut() else { return };
        match end {
            Ok((outcome, refused)) => {
                wake.outcome = Some(outcome);
                wake.refused = refused;
            }
            Err(error) => wake.error = Some(error),
        }
    }

    pub(super) fn phases(&mut self, phases: impl IntoIterator<Item = PhaseTime>) {
        let Some(wake) = self.wakes.back_mut() else { return };
        for time in phases {
            let known = wake.phases.iter().any(|known| known.phase == time.phase);
            if !known && wake.phases.len() < PARTS {
                wake.phases.push(time);
            }
        }
        wake.phases.sort_by_key(|time| time.phase);
    }

    /// The newest wake was one from the store, which tells what number its life has.
    pub(super) fn fetched(&mut self, generation: Generation, cost: Cost) {
        let Some(wake) = self.wakes.back_mut() else { return };
        wake.generation = generation;
        let Cost { requests, retries, hedges, bytes } = cost;
        wake.store = Some(StoreTrace { requests, retries, hedges, bytes });
    }

    pub(super) fn patch(&mut self, generation: Generation, patch: PatchTrace) {
        let wake = self.wakes.iter_mut().rev().find(|wake| wake.generation == generation);
        if let Some(wake) = wake.filter(|wake| wake.patches.len() < PARTS) {
            wake.patches.push(patch);
        }
    }

    pub(super) fn newest(&self) -> Option<&WakeTrace> {
        self.wakes.back()
    }

    pub(super) fn all(&self) -> Vec<WakeTrace> {
        self.wakes.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use rouse_protocol::wake::Phase;
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_the_last_wakes_are_kept_and_each_phase_once() {
        let mut history = History::default();
        for n in 0..20 {
            history.begin(Generation(n));
        }
        let time = |phase, ms| PhaseTime::new(phase, Duration::from_millis(ms));
        history.phases([time(Phase::Queue, 1), time(Phase::Gate, 2)]);
        history.phases([time(Phase::Hold, 3), time(Phase::Gate, 9)]);
        history.end(Ok((Outcome::Resumed, None)));
        let patch = PatchTrace { patch: "disk".into(), us: 1, error: None };
        history.patch(Generation(18), patch.clone());
        history.patch(Generation(3), patch);

        let all = history.all();
        assert_eq!(all.len(), KEPT);
        assert_eq!(all[14].patches.len(), 1);
        let newest = history.newest().unwrap();
        let phases: Vec<_> = newest.phases.iter().map(|t| (t.phase, t.us)).collect();
        assert_eq!(phases, [(Phase::Hold, 3000), (Phase::Queue, 1000), (Phase::Gate, 2000)]);
        assert_eq!(newest.outcome, Some(Outcome::Resumed));
    }
}
