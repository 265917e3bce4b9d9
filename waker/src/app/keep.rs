//! When an app is kept awake, and when it is woken with nobody asking. Decided here from two clocks
//! that are arguments: how long something lasts by the one that is never set, when a schedule begins
//! by the one on the wall.

use std::time::Duration;

use jiff::Timestamp;
use rouse_policy::Policies;
use rouse_policy::schedule::Schedule;
use rouse_protocol::wake::{SleepReason, SleepRefusal};
use tokio::time::Instant;

use super::actor::Actor;
use crate::lifecycle::{Event, State};

/// The clock on the wall is looked at this often, since it may be set.
const LOOK: Duration = Duration::from_secs(60);
/// A scheduled wake that did not succeed is tried again after so long,
const AGAIN: Duration = Duration::from_secs(5);
/// and given up after so long: then a visitor's is as good.
const GIVE_UP: Duration = Duration::from_secs(300);

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// Never set.
    pub(super) steady: Instant,
    /// On the wall.
    pub(super) wall: Timestamp,
}

impl Now {
    pub(super) fn read() -> Self {
        Self { steady: Instant::now(), wall: Timestamp::now() }
    }
}

/// An app's schedule, and how far it has been carried out.
#[derive(Debug)]
pub(super) struct Keep {
    schedule: Schedule,
    /// When its newest wake was over.
    woken: Instant,
    /// When it is next to be woken.
    next: Option<Timestamp>,
    /// It is to be woken: the next try, and the last.
    wanted: Option<(Instant, Instant)>,
    /// An operator has a part in the sleep that runs, and is not kept from it.
    pub(super) overridden: bool,
}

impl Keep {
    /// One that has just been adopted counts as woken now. One that finds itself in a window is to be
    /// woken: nobody was there at its begin.
    pub(super) fn new(policies: &Policies, now: Now) -> Self {
        let mut keep = Self {
            schedule: Schedule::default(),
            woken: now.steady,
            next: None,
            wanted: None,
            overridden: false,
        };
        keep.configure(policies, now);
        keep
    }

    /// Takes another schedule; the same one again changes nothing.
    pub(super) fn configure(&mut self, policies: &Policies, now: Now) {
        let schedule = policies.wake.as_ref().map(|wake| wake.schedule.clone()).unwrap_or_default();
        if schedule == self.schedule {
            return;
        }
        self.schedule = schedule;
        self.next = self.next_wake(now.wall);
        let inside = self.schedule.keeps_awake(now.wall);
        self.wanted = inside.then(|| (now.steady, now.steady + GIVE_UP));
    }

    /// A moment, or the begin of a window.
    fn next_wake(&self, wall: Timestamp) -> Option<Timestamp> {
        let change = self.schedule.next_change(wall);
        let begin = match self.schedule.keeps_awake(wall) {
            true => change.and_then(|end| self.schedule.next_change(end)),
            false => change,
        };
        [begin, self.schedule.next_prewarm(wall)].into_iter().flatten().min()
    }

    /// A wake has succeeded.
    pub(super) fn woken(&mut self, steady: Instant) {
        self.woken = steady;
    }

    /// Why an idle app does not go to sleep now, if so; `busy` is until when it says that it works.
    pub(super) fn refuses(&self, now: Now, busy: Option<Instant>) -> Option<String> {
        let seconds = |left: Duration| left.as_secs() + u64::from(left.subsec_nanos() > 0);
        if let Some(left) = busy.and_then(|until| until.checked_duration_since(now.steady))
            && left > Duration::ZERO
        {
            return Some(format!("it says that it is busy, for {} s more", seconds(left)));
        }
        let awake_for = now.steady.saturating_duration_since(self.woken);
        if self.schedule.may_sleep(now.wall, awake_for) {
            return None;
        }
        let least = Duration::from_secs(self.schedule.min_awake_seconds.into());
        let left = least.saturating_sub(awake_for);
        Some(if left > Duration::ZERO {
            format!("it stays awake after a wake, for {} s more", seconds(left))
        } else {
            "its schedule keeps it awake".to_owned()
        })
    }

    /// When [`Self::due`] is to be asked, if at all.
    pub(super) fn deadline(&self, now: impl FnOnce() -> Now) -> Option<Instant> {
        if let Some((next, _)) = self.wanted {
            return Some(next);
        }
        let next = self.next?;
        let now = now();
        let left = Duration::try_from(next.duration_since(now.wall)).unwrap_or_default();
        Some(now.steady + left.min(LOOK))
    }

    /// Whether to wake it now. `can` is whether a wake could change anything.
    pub(super) fn due(&mut self, now: Now, can: bool) -> bool {
        if self.next.is_some_and(|next| next <= now.wall) {
            self.wanted = Some((now.steady, now.steady + GIVE_UP));
            self.next = self.next_wake(now.wall);
        }
        self.wanted = self.wanted.filter(|(_, last)| can && now.steady < *last);
        match &mut self.wanted {
            Some((next, _)) if *next <= now.steady => {
                *next = now.steady + AGAIN;
                true
            }
            _ => false,
        }
    }
}

impl Actor {
    /// Until when its guest says that it works, if it does.
    pub(super) fn busy_until(&self) -> Option<Instant> {
        let agent = self.machine.as_ref().and_then(|machine| machine.agent())?;
        let until = agent.heard().borrow().busy_until;
        until.filter(|until| *until > Instant::now())
    }

    /// Why a sleep that nobody but an idle proxy asks for does not come about now.
    pub(super) fn kept_awake(&self) -> Option<String> {
        self.keep.refuses(Now::read(), self.busy_until())
    }

    /// A look at the schedule. Its wake is like any other, and nobody waits for it.
    pub(super) async fn scheduled(&mut self) {
        let can = !matches!(
            self.lifecycle.state(),
            State::Awake | State::Parking { .. } | State::Parked { .. }
        );
        if self.keep.due(Now::read(), can && self.stopping.is_none()) {
            tracing::info!(app = %self.config.id, "is woken by its schedule");
            self.event(Event::Wake).await;
        }
    }

    /// The guest has written out its disk. If it has said meanwhile that it works, it stays awake.
    pub(super) async fn flushed(&mut self, sleep: u64) {
        let idle = self.drained_for == SleepReason::Idle && !self.keep.overridden;
        let flushing = matches!(self.lifecycle.state(), State::Flushing { .. });
        if idle
            && flushing
            && let Some(why) = self.kept_awake()
        {
            let detail = format!("{}: {why}", SleepRefusal::KeptAwake.as_str());
            tracing::info!(app = %self.config.id, detail, "its sleep is called off");
            return self.event(Event::Wake).await;
        }
        self.event(Event::Flushed { sleep }).await;
    }
}

#[cfg(test)]
#[path = "keep_tests.rs"]
mod tests;
