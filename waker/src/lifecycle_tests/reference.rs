//! A second, simpler account of an app: from the facts and what was promised follows what may come of
//! an event. It knows nothing of the lifecycle's states.

use super::world::{Doing, Facts, Memory, Move, Seen, Told, Vm};
use super::*;

#[path = "holds.rs"]
mod holds;

/// What was promised, and what is remembered.
#[derive(Clone, Debug, Default)]
pub(super) struct Reference {
    failures: u32,
    /// Before the one moment a wake is refused after a failure, from the other on it starts.
    backoff: Option<(Instant, Instant)>,
    parked: bool,
    park: Option<Park>,
    /// A check has failed, and no wake has succeeded since that this waker saw.
    suspect: bool,
    woken_at: Option<Instant>,
    sleepless: Option<Instant>,
    paused_until: Option<Instant>,
    /// What is being resumed was paused, and that was told.
    unpaused: bool,
    asked: Option<Asked>,
}

/// It is to be parked.
#[derive(Clone, Copy, Debug)]
struct Park {
    cleared: bool,
    /// Whether the guest may flush; a waker that was started again need not know.
    flush: Option<bool>,
}

/// Proxies have been asked.
#[derive(Clone, Copy, Debug)]
struct Asked {
    waiting: [bool; 2],
    until: Instant,
}

fn nothing() -> Vec<Seen> {
    vec![Seen::default()]
}

fn begins(doing: Doing) -> Seen {
    Seen { began: Some(doing), ..Seen::default() }
}

impl Reference {
    /// All that may come of `event`. `before` is how things are when the app hears of it, `sleeping`
    /// whether somebody has waited for a sleep.
    pub(super) fn expect(
        &mut self,
        now: Instant,
        before: &Facts,
        sleeping: bool,
        what: Move,
        event: &Event,
    ) -> Vec<Seen> {
        let sleepers = |told| (before.sleepers > 0).then_some(told);
        let waits = before.visitors > 0;
        let visitors = |told| waits.then_some(told);
        let flush = Seen { flush: true, ..Seen::default() };
        match event {
            Event::Wake => self.visit(now, before),
            Event::Boot { .. }
                if before.doing.is_some() || before.vm != Vm::None || self.parked =>
            {
                vec![Seen { refused_boot: true, ..Seen::default() }]
            }
            Event::Boot { rollback } => {
                self.backoff = None;
                vec![begins(Doing::Wake(if *rollback { Start::Rollback } else { Start::Cold }))]
            }
            Event::Woken(WakeEnd::Ready(_)) => {
                self.woken_at = Some(now);
                self.suspect &= self.park.is_some();
                self.serves(visitors(Told::Woken), visitors(Told::Parked))
            }
            Event::Woken(WakeEnd::Unable) => {
                let seen = Seen { visitors: visitors(Told::Unable), ..Seen::default() };
                vec![self.parks(seen)]
            }
            Event::Woken(WakeEnd::Failed(_)) => {
                self.failures += 1;
                let seen = Seen { visitors: visitors(Told::Failed), ..Seen::default() };
                let seen = self.failed(now, seen);
                vec![self.parks(seen)]
            }
            Event::Sleep { .. } => self.sleep(now, before, sleeping, what),
            Event::Agreement { agree, .. } => match (what, &mut self.asked) {
                (Move::Answer { proxy, .. }, Some(asked)) if asked.waiting[proxy] => {
                    asked.waiting[proxy] = false;
                    let all = asked.waiting == [false; 2];
                    if all || !agree {
                        self.asked = None;
                    }
                    match (agree, all) {
                        (true, true) => vec![flush],
                        (true, false) => nothing(),
                        (false, _) => refused(before, SleepRefusal::Busy),
                    }
                }
                _ => nothing(),
            },
            Event::ProxyGone { .. } => match (what, self.asked) {
                (Move::Gone(proxy), Some(asked)) if asked.waiting[proxy] => {
                    self.asked = None;
                    refused(before, SleepRefusal::NoAgreement)
                }
                _ => nothing(),
            },
            Event::Flushed { .. } if what == (Move::Flushed { late: false }) => {
                vec![begins(Doing::Pause)]
            }
            Event::Flushed { .. } => nothing(),
            Event::Stopped(Err(_)) | Event::Saved(Err(_)) => self.sleep_failed(now, before),
            Event::Stopped(Ok(())) | Event::Saved(Ok(())) if self.park.is_some() => {
                let sleepers = sleepers(Err(SleepRefusal::NotAwake));
                vec![Seen { sleepers, ..begins(Doing::Resume) }]
            }
            Event::Stopped(Ok(())) | Event::Saved(Ok(())) if waits => {
                let sleepers = sleepers(Err(SleepRefusal::Cancelled));
                vec![Seen { sleepers, ..begins(Doing::Resume) }]
            }
            Event::Stopped(Ok(())) if before.deep => vec![begins(Doing::Save)],
            Event::Stopped(Ok(())) => {
                self.paused_until = Some(now + LIMITS.paused);
                vec![Seen { sleepers: sleepers(Ok(Tier::Paused)), ..Seen::default() }]
            }
            Event::Saved(Ok(())) => vec![Seen { settle: true, ..Seen::default() }],
            Event::Settled { .. } if matches!(what, Move::Settled { late: true, .. }) => nothing(),
            Event::Settled { result: Ok(()), .. } => vec![begins(Doing::Commit)],
            Event::Settled { .. } if before.vm == Vm::Still => self.sleep_failed(now, before),
            Event::Settled { .. } => {
                let sleepers = sleepers(Err(SleepRefusal::Failed));
                self.goes_on(before, Seen { discarded: true, sleepers, ..Seen::default() })
            }
            Event::Resumed(Ok(())) => {
                let told = if self.unpaused { Told::Unpaused } else { Told::Awake };
                self.unpaused = false;
                self.serves(visitors(told), visitors(Told::Parked))
            }
            Event::Resumed(Err(_)) => {
                self.unpaused = false;
                self.goes_on(before, Seen { discarded: true, ..Seen::default() })
            }
            Event::Committed(result) => {
                if result.is_ok() {
                    self.failures = 0;
                    self.sleepless = None;
                }
                let told = result.as_ref().map(|()| Tier::Image);
                let sleepers = sleepers(told.map_err(|_| SleepRefusal::Failed));
                self.goes_on(before, Seen { sleepers, ..Seen::default() })
            }
            // What was saved is whole, and can still be published.
            Event::VmExited { .. } if before.settle.is_some() => nothing(),
            Event::VmExited { .. } => vec![self.died(now, before)],
            Event::Tick => self.time(now, before, what),
            Event::Pressure if self.paused_until.take().is_some() => vec![begins(Doing::Save)],
            Event::Pressure => nothing(),
            Event::Park { flush, .. } => self.park(before, what, *flush),
            Event::Ended => vec![self.parks(Seen::default())],
            Event::Clear => {
                (self.failures, self.backoff, self.parked) = (0, None, false);
                if let Some(park) = &mut self.park {
                    park.cleared = true;
                }
                nothing()
            }
        }
    }

    fn visit(&mut self, now: Instant, before: &Facts) -> Vec<Seen> {
        let told = |told| vec![Seen { visitors: Some(told), ..Seen::default() }];
        let cancelled = (before.sleepers > 0).then_some(Err(SleepRefusal::Cancelled));
        match (before.doing, before.vm) {
            _ if self.parked => told(Told::Parked),
            (Some(Doing::End), _) => told(Told::Parked),
            (Some(_), _) | (None, Vm::Dead) => nothing(),
            (None, Vm::Running) => {
                self.asked = None;
                vec![Seen { visitors: Some(Told::Awake), sleepers: cancelled, ..Seen::default() }]
            }
            (None, Vm::Still) => {
                self.unpaused = before.settle.is_none();
                self.paused_until = None;
                vec![Seen { sleepers: cancelled, ..begins(Doing::Resume) }]
            }
            (None, Vm::None) => match self.backoff {
                Some((earliest, _)) if now < earliest => told(Told::Backoff),
                Some((_, latest)) if now < latest => {
                    let mut either = self.starts(before, Seen::default());
                    either.extend(told(Told::Backoff));
                    either
                }
                _ => self.starts(before, Seen::default()),
            },
        }
    }

    /// A wake for a visitor: good memory is kept, spoilt memory never comes back.
    fn starts(&self, before: &Facts, seen: Seen) -> Vec<Seen> {
        let starts: &[Start] = match before.image {
            Some(Memory::Good) if !self.suspect => &[Start::Restore],
            Some(Memory::Spoilt) => &[Start::Cold],
            // Without an image both come to the same.
            _ => &[Start::Restore, Start::Cold],
        };
        starts.iter().map(|start| Seen { began: Some(Doing::Wake(*start)), ..seen }).collect()
    }

    /// The VM runs.
    fn serves(&mut self, told: Option<Told>, parked: Option<Told>) -> Vec<Seen> {
        self.backoff = None;
        match self.park {
            Some(_) => vec![Seen { visitors: parked, ..begins(Doing::End) }],
            None => vec![Seen { visitors: told, ..Seen::default() }],
        }
    }

    /// There is no VM any more, and nothing is being done.
    fn goes_on(&mut self, before: &Facts, seen: Seen) -> Vec<Seen> {
        (self.woken_at, self.backoff) = (None, None);
        let waits = before.visitors > 0;
        match self.park {
            Some(_) => {
                let visitors = waits.then_some(Told::Parked);
                vec![self.parks(Seen { visitors, ..seen })]
            }
            None if waits => self.starts(before, seen),
            None => vec![seen],
        }
    }

    /// Now that there is no VM, the park is done.
    fn parks(&mut self, seen: Seen) -> Seen {
        match self.park.take() {
            Some(Park { cleared: false, .. }) => {
                self.parked = true;
                Seen { parked: true, ..seen }
            }
            _ => seen,
        }
    }

    fn failed(&mut self, now: Instant, seen: Seen) -> Seen {
        if self.failures >= LIMITS.failed_before_park {
            self.parked = true;
            return Seen { parked: true, ..seen };
        }
        let longest = BACKOFF_MAX.min(BACKOFF_FIRST * 2_u32.pow(self.failures - 1));
        self.backoff = Some((now + longest / 2, now + longest));
        seen
    }

    fn died(&mut self, now: Instant, before: &Facts) -> Seen {
        (self.asked, self.paused_until, self.backoff) = (None, None, None);
        let early = self.woken_at.take().is_some_and(|at| now < at + PROVEN);
        self.failures = if early { self.failures + 1 } else { 0 };
        let sleepers = (before.sleepers > 0).then_some(Err(SleepRefusal::NotAwake));
        let seen = Seen { discarded: true, sleepers, ..Seen::default() };
        if self.failures > 1 { self.failed(now, seen) } else { seen }
    }

    /// It runs on, nobody takes it for asleep, and an idle app is left alone.
    fn sleep_failed(&mut self, now: Instant, before: &Facts) -> Vec<Seen> {
        self.sleepless = Some(now + SLEEPLESS);
        let sleepers = (before.sleepers > 0).then_some(Err(SleepRefusal::Failed));
        vec![Seen { sleepers, ..begins(Doing::Resume) }]
    }

    fn sleep(&mut self, now: Instant, before: &Facts, sleeping: bool, what: Move) -> Vec<Seen> {
        let refuse = |why| vec![Seen { refused_sleep: Some(why), ..Seen::default() }];
        let Move::Sleep { reason, tier, watched } = what else {
            return refuse(SleepRefusal::NotAwake);
        };
        match (before.doing, before.vm) {
            (None, Vm::Running) => {
                let asks = !sleeping || self.asked.is_some();
                let left_alone = self.sleepless.is_some_and(|until| now < until);
                if !sleeping && left_alone && reason == SleepReason::Idle {
                    refuse(SleepRefusal::Failed)
                } else if asks && !watched {
                    self.asked = None;
                    vec![Seen { flush: true, ..Seen::default() }]
                } else {
                    let until = now + LIMITS.agreement;
                    if !sleeping {
                        self.asked = Some(Asked { waiting: [true; 2], until });
                    }
                    nothing()
                }
            }
            (None, Vm::Still) if before.settle.is_none() && tier == Tier::Paused => {
                vec![Seen { sleepers: Some(Ok(Tier::Paused)), ..Seen::default() }]
            }
            (None, Vm::Still) if before.settle.is_none() => {
                self.paused_until = None;
                vec![begins(Doing::Save)]
            }
            (None, Vm::Still | Vm::Dead)
            | (Some(Doing::Pause | Doing::Save | Doing::Commit), _) => nothing(),
            _ => refuse(SleepRefusal::NotAwake),
        }
    }

    fn time(&mut self, now: Instant, before: &Facts, what: Move) -> Vec<Seen> {
        if matches!(what, Move::Restart(_)) {
            return self.restarted(now, before);
        }
        if self.asked.take_if(|asked| now >= asked.until).is_some() {
            return refused(before, SleepRefusal::NoAgreement);
        }
        if self.paused_until.take_if(|until| now >= *until).is_some() {
            return vec![begins(Doing::Save)];
        }
        nothing()
    }

    /// Another waker found what there is; what it can't know does not count any more.
    fn restarted(&mut self, now: Instant, before: &Facts) -> Vec<Seen> {
        let Self { failures, parked, park, suspect, .. } = *self;
        *self = Self { failures, parked, suspect, ..Self::default() };
        match (park.filter(|park| !park.cleared), before.vm) {
            (Some(_), Vm::None) => self.parked = true,
            (Some(park), _) => {
                self.park = Some(Park { flush: None, ..park });
                return vec![begins(Doing::End)];
            }
            (None, Vm::Still) => self.paused_until = Some(now + LIMITS.paused),
            (None, _) => {}
        }
        nothing()
    }

    fn park(&mut self, before: &Facts, what: Move, flush: bool) -> Vec<Seen> {
        if what == Move::CheckOfOtherLifeFails {
            return nothing();
        }
        self.suspect |= what == Move::CheckFails;
        if self.parked {
            return nothing();
        }
        // Every word counts: the newest for whether, all for how.
        let flush = self.park.map_or(Some(flush), |park| park.flush.map(|before| before && flush));
        self.park = Some(Park { cleared: false, flush });
        let sleepers = (before.sleepers > 0).then_some(Err(SleepRefusal::NotAwake));
        match (before.doing, before.vm) {
            (None, Vm::None) => {
                self.backoff = None;
                vec![self.parks(Seen::default())]
            }
            (None, Vm::Still) if before.settle.is_some() => {
                vec![Seen { sleepers, ..begins(Doing::Resume) }]
            }
            (None, Vm::Running | Vm::Still) => {
                (self.asked, self.paused_until) = (None, None);
                vec![Seen { sleepers, ..begins(Doing::End) }]
            }
            (None, Vm::Dead) | (Some(_), _) => nothing(),
        }
    }
}

fn refused(before: &Facts, why: SleepRefusal) -> Vec<Seen> {
    let sleepers = (before.sleepers > 0).then_some(Err(why));
    vec![Seen { sleepers, ..Seen::default() }]
}
