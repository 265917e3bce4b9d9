//! What the waker says of an app and asks of it, and what that does to the app's gate.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rouse_protocol::app::Generation;
use rouse_protocol::wake::SleepReason;
use rouse_protocol::watch::{AppState, Policy};
use tokio::time::Instant;

use super::{App, Open, State};
use crate::known::{Known, SETTLED};
use crate::refusal::Refusal;

impl App {
    /// The waker asks whether `generation` may sleep. If so the gate is closed when this returns,
    /// and no connection to it is left.
    ///
    /// The order is the point: first close, then look. A visitor is counted before it reads the
    /// gate, so it is either seen here or finds the gate closed, and then its wake cancels the
    /// sleep.
    pub(crate) fn may_sleep(
        &self,
        generation: Generation,
        reason: SleepReason,
        now: Instant,
    ) -> bool {
        let quiet = || match (reason, self.idle_limit()) {
            (SleepReason::Operator, _) => self.activity.in_flight() == 0,
            (SleepReason::Idle, None) => false,
            (SleepReason::Idle, Some(limit)) => self.activity.idle(now) >= limit,
        };
        let mut inner = self.lock();
        match &inner.gate {
            // A wake runs here: somebody wants the app, or did a moment ago.
            State::Waking(_) => false,
            // An old question; what is open now is a later life.
            State::Open(open) if open.generation > generation => false,
            State::Open(_) => {
                let open = self.open.swap(None);
                if quiet() {
                    inner.close(&self.open);
                    inner.shut();
                    true
                } else {
                    self.open.store(open);
                    false
                }
            }
            State::Closed => {
                let quiet = quiet();
                if quiet {
                    inner.shut();
                }
                quiet
            }
        }
    }

    /// What the waker says of the app now.
    pub(crate) fn learn(&self, policy: Policy, known: Known, now: Instant) {
        let (budget, per_address) = super::rates(&policy);
        self.budgets.change(budget, per_address, now.into_std());
        self.places.set(policy.concurrent_requests);
        self.has_wake_policy.store(policy.policies.wake.is_some(), Ordering::Relaxed);
        self.policy.store(Arc::new(policy));
        let awake = |k: &Known| k.state.ready().map(|r| (r.endpoint, r.generation));
        let before = self.known.with(awake);
        let after = awake(&known);
        if after.is_some() && after != before {
            self.activity.touch(now);
        }
        let mut inner = self.lock();
        if let State::Open(open) = &inner.gate {
            let other = after.is_some_and(|(at, life)| {
                life > open.generation || (life == open.generation && at != open.endpoint)
            });
            // Those who are inside are not cut off by a message that another has overtaken.
            let doubtful = known.may_be_late(open.generation) && open.is_fresh(now);
            if other || (known.ends(open.generation) && !doubtful) {
                self.activity.expect_nobody();
                inner.close(&self.open);
                inner.shut();
            } else {
                inner.doubted = doubtful;
            }
        }
        drop(inner);
        self.known.change(|last| *last = known);
    }

    /// Closes the gate if what the waker said is doubted no more: nothing else came for too long. Its
    /// connections are left alone, as in [`Self::down`]; whoever comes next asks the waker.
    pub(crate) fn settle(&self, now: Instant) {
        let mut inner = self.lock();
        let doubted = inner.doubted;
        if let State::Open(open) = &inner.gate
            && doubted
            && !open.is_fresh(now)
        {
            inner.close(&self.open);
        }
    }

    /// Is not configured any more.
    pub(crate) fn remove(&self) {
        let mut inner = self.lock();
        let attempts = inner.attempts;
        inner.failed = Some((attempts, Refusal::Removed));
        inner.close(&self.open);
        inner.shut();
        drop(inner);
        self.known.change(|known| known.state = AppState::Asleep);
    }

    /// Returns when the waker says that `generation` is over.
    pub(crate) async fn over(&self, generation: Generation) {
        // What was said just before may be older than our `ready`, and so may what comes just
        // after; what still stands a while later is not.
        let mut seen = self.known.changes();
        let settled = Instant::now() + SETTLED;
        loop {
            if let Ok(changes) = tokio::time::timeout(SETTLED, self.known.after(seen)).await {
                seen = changes;
            }
            let late = Instant::now() < settled;
            let over =
                |said: &Known| said.ends(generation) && !(late && said.may_be_late(generation));
            if self.known.with(over) {
                return;
            }
        }
    }
}

impl Open {
    /// Whether what the waker said before the wake may still be on its way.
    fn is_fresh(&self, now: Instant) -> bool {
        self.wake.as_ref().is_some_and(|wake| now < wake.ready + SETTLED)
    }
}
