//! An app's lifecycle: state × event → state and effects. Pure: it does no I/O and is told the time.
//!
//! ```text
//! Asleep ─► Waking ─► Awake ◄─► Draining ─► Flushing ─► Pausing ─► Paused
//!   ▲ ▲                 ▲▲ └──────────────────┘ visitor    │    time, │ pressure
//!   │ │                 │└─────── Resuming ◄── visitor ────┤          ▼
//!   │ │                 └──────── Resuming ◄── visitor ── Saving ─► Settling
//!   │ └─────────────────────────────────────────────── Committing ◄──┘
//!   └ clear ─ Parked ◄─ Parking        Failed: a wake failed, the next waits
//! ```
//!
//! `Flushing` is `draining` to the world, `Pausing` to `Committing` but `Paused` are `snapshotting`.
//! Until `Committing` the VM is there, and a visitor's wake sets it going again.

use std::collections::BTreeSet;
use std::time::Duration;

use rouse_protocol::app::Generation;
use rouse_protocol::wake::{SleepReason, SleepRefusal, Tier};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// How failures are remembered and how long proxies have to agree.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// After how many failed wakes in a row the app is parked.
    pub failed_before_park: u32,
    /// How long proxies have to agree to a sleep.
    pub agreement: Duration,
    /// How long an app stays paused before it becomes an image.
    pub paused: Duration,
}

/// After a sleep that failed, an idle app is left alone for so long: what failed it, a full disk
/// say, is seldom over at once, and each try stops the VM for a moment.
pub const SLEEPLESS: Duration = Duration::from_secs(30);

/// The wait after the first failed wake; it doubles with each further one.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(500);
/// The longest wait between two wakes that fail.
pub const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// A VM that ends by itself sooner than this after its wake proves nothing: it counts as a failed
/// wake. The first such death is followed by a try at once, since a cold boot may mend it.
pub const PROVEN: Duration = Duration::from_secs(60);

/// Where an app is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// No VM.
    Asleep,
    /// [`Effect::StartWake`] is being carried out.
    Waking,
    /// The VM runs.
    Awake,
    /// The VM runs, and these proxies have not said yet whether it may sleep.
    Draining {
        /// Who wants it to sleep.
        reason: SleepReason,
        /// How deep.
        tier: Tier,
        /// Who has not answered.
        waiting: BTreeSet<String>,
        /// When the sleep is given up.
        until: Instant,
    },
    /// The VM runs, nobody is in flight, and [`Effect::Flush`] is being carried out.
    Flushing {
        /// How deep it is to sleep.
        tier: Tier,
    },
    /// [`Effect::Pause`] is being carried out.
    Pausing {
        /// How deep it is to sleep.
        tier: Tier,
        /// A visitor came: resume as soon as it is over.
        cancelled: bool,
    },
    /// The VM stands still and keeps its RAM.
    Paused {
        /// When it becomes an image.
        until: Instant,
    },
    /// [`Effect::Save`] is being carried out.
    Saving {
        /// A visitor came: resume as soon as it is over.
        cancelled: bool,
    },
    /// [`Effect::Settle`] is being carried out; the VM stands still.
    Settling {
        /// The VM has ended by itself. Its image is whole all the same.
        gone: bool,
        /// A visitor came who can't be served from the VM any more.
        wake: bool,
    },
    /// [`Effect::Resume`] is being carried out.
    Resuming {
        /// A visitor waits.
        wake: bool,
        /// It slept: it was paused, and that was told.
        paused: bool,
    },
    /// [`Effect::Commit`] is being carried out: the VM goes, the generation comes.
    Committing {
        /// A visitor came: wake as soon as it is over.
        wake: bool,
    },
    /// No VM; the last wakes failed.
    Failed {
        /// What the last one said.
        detail: String,
        /// When the next may start.
        until: Instant,
    },
    /// [`Effect::End`] is being carried out, and then it is parked.
    Parking {
        /// Why.
        detail: String,
        /// It was cleared meanwhile.
        cleared: bool,
    },
    /// No VM and no wakes.
    Parked {
        /// Why.
        detail: String,
    },
}

/// How an app is brought to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// From its image; without a good one from its disk.
    Restore,
    /// From its disk, whatever image there is.
    Cold,
    /// From memory and disk of the last sleep, where both were kept.
    Rollback,
}

/// What outlives a waker of what an app has gone through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Wakes that failed in a row.
    pub failures: u32,
    /// Why it is parked, if it is.
    pub parked: Option<String>,
    /// Its memory is not to be trusted: the next wake is a cold boot.
    pub spoilt: bool,
}

/// What happens to an app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody wants it awake.
    Wake,
    /// [`Effect::StartWake`] is done.
    Woken(WakeEnd),
    /// Somebody wants it to sleep.
    Sleep {
        /// Who.
        reason: SleepReason,
        /// Only this life; none: whichever.
        generation: Option<Generation>,
        /// How deep.
        tier: Tier,
        /// The proxies that must agree.
        proxies: BTreeSet<String>,
    },
    /// A proxy's answer while draining.
    Agreement {
        /// Which proxy.
        proxy: String,
        /// The life it speaks of.
        generation: Generation,
        /// Which [`Lifecycle::question`] it answers.
        question: u64,
        /// Whether the app may sleep.
        agree: bool,
    },
    /// A proxy has gone without an answer.
    ProxyGone {
        /// Which.
        proxy: String,
    },
    /// [`Effect::Flush`] of this number is done, well or not: what the guest could not write is
    /// still in its memory.
    Flushed {
        /// Its number.
        sleep: u64,
    },
    /// [`Effect::Pause`] is done.
    Stopped(Result<(), String>),
    /// RAM is short: a paused app becomes an image.
    Pressure,
    /// [`Effect::Save`] is done.
    Saved(Result<(), String>),
    /// [`Effect::Settle`] of this number is done.
    Settled {
        /// Its number.
        sleep: u64,
        /// How.
        result: Result<(), String>,
    },
    /// [`Effect::Resume`] is done.
    Resumed(Result<(), String>),
    /// [`Effect::Commit`] is done.
    Committed(Result<(), String>),
    /// The VM has ended by itself.
    VmExited {
        /// How.
        detail: String,
    },
    /// A moment that [`Lifecycle::deadline`] named has come, or may have.
    Tick,
    /// An operator, or a check of the running guest that failed, wants nobody to wake it.
    Park {
        /// Why.
        detail: String,
        /// Only this life; none: whichever.
        generation: Option<Generation>,
        /// Its disk is as it should be, and may be flushed before the VM ends.
        flush: bool,
    },
    /// [`Effect::End`] is done.
    Ended,
    /// An operator wants it to boot cold, or to go back.
    Boot {
        /// Back to the last sleep.
        rollback: bool,
    },
    /// An operator has dealt with what went wrong.
    Clear,
}

/// How a wake ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeEnd {
    /// A VM of this life runs.
    Ready(Generation),
    /// This node can't now: it has no room, another has the app, or the store is away. It says nothing about the app.
    Unable,
    /// It failed.
    Failed(String),
}

/// What is to be done. The order matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Bring it to run. Ends in [`Event::Woken`].
    StartWake(Start),
    /// Have the guest write out its disk, in bounded time. Ends in [`Event::Flushed`], which may come
    /// too late.
    Flush {
        /// To tell it from an earlier one.
        sleep: u64,
    },
    /// Stop the vCPUs. Ends in [`Event::Stopped`].
    Pause,
    /// Write the device state. Ends in [`Event::Saved`].
    Save,
    /// Make the standing VM's generation complete and durable, but for its name. Ends in
    /// [`Event::Settled`], which may come too late.
    Settle {
        /// To tell it from an earlier one.
        sleep: u64,
    },
    /// Undo what was settled, and set the vCPUs going again. Ends in [`Event::Resumed`].
    Resume,
    /// End the VM and publish its generation. Ends in [`Event::Committed`].
    Commit,
    /// End what is left of the VM; its memory is lost.
    Discard,
    /// End the VM, which runs or stands; its memory is lost. Ends in [`Event::Ended`].
    End {
        /// Have it write out its disk before.
        flush: bool,
    },
    /// It was parked just now: whoever wanted to know is told.
    Parked {
        /// Why.
        detail: String,
    },
    /// Whoever asked for this boot, and nobody else, is refused.
    RefuseBoot(String),
    /// Everyone who waits for a wake has an answer.
    AnswerWakes(WakeAnswer),
    /// Whoever asked for this sleep, and nobody else, is refused.
    RefuseSleep(SleepRefusal, String),
    /// Everyone who waits for a sleep has an answer.
    AnswerSleeps(Result<Tier, (SleepRefusal, String)>),
}

/// What those who wait for a wake are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeAnswer {
    /// This wake has brought it to run.
    Woken,
    /// It was paused, and runs again.
    Unpaused,
    /// It runs already, or again.
    Awake,
    /// This wake has failed.
    Failed,
    /// This node can't now.
    Unable,
    /// A wake failed a moment ago.
    Backoff {
        /// How long until the next may start.
        retry_after: Duration,
        /// What the last one said.
        detail: String,
    },
    /// It is parked.
    Parked {
        /// Why.
        detail: String,
    },
}

/// One app's lifecycle.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    limits: Limits,
    state: State,
    generation: Generation,
    failures: u32,
    /// When the VM began to run, until it has proven itself by a sleep.
    woken_at: Option<Instant>,
    /// Its memory is not to be trusted.
    spoilt: bool,
    /// It is to be parked as soon as nothing is being carried out.
    park: Option<Park>,
    /// Until when an idle app is left alone.
    sleepless: Option<Instant>,
    sleeps: u64,
    questions: u64,
}

#[derive(Clone, Debug)]
struct Park {
    detail: String,
    flush: bool,
    /// It was cleared meanwhile: the VM goes all the same.
    cleared: bool,
}

impl Lifecycle {
    /// An app without a VM; `generation` is its newest life so far.
    pub fn asleep(limits: Limits, generation: Generation, standing: Standing) -> Self {
        let Standing { failures, parked, spoilt } = standing;
        Self {
            limits,
            state: parked.map_or(State::Asleep, |detail| State::Parked { detail }),
            generation,
            failures,
            woken_at: None,
            spoilt,
            park: None,
            sleepless: None,
            sleeps: 0,
            questions: 0,
        }
    }

    /// An app whose running VM of `generation` was adopted. One that was to be parked is so by its
    /// first event, whichever: an [`Event::Tick`] at once, say.
    pub fn awake(limits: Limits, generation: Generation, mut standing: Standing) -> Self {
        let park = standing.parked.take();
        let park = park.map(|detail| Park { detail, flush: true, cleared: false });
        Self { state: State::Awake, park, ..Self::asleep(limits, generation, standing) }
    }

    /// An app whose VM of `generation` was adopted standing still; otherwise as [`Self::awake`].
    pub fn paused(
        limits: Limits,
        generation: Generation,
        standing: Standing,
        now: Instant,
    ) -> Self {
        let state = State::Paused { until: now + limits.paused };
        Self { state, ..Self::awake(limits, generation, standing) }
    }

    /// Where it is.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The newest life there has been.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// What is to outlive the waker.
    pub fn standing(&self) -> Standing {
        let parked = match &self.state {
            State::Parked { detail } | State::Parking { detail, cleared: false } => {
                Some(detail.clone())
            }
            // Wanted, but not begun.
            _ => self.park.as_ref().filter(|park| !park.cleared).map(|park| park.detail.clone()),
        };
        Standing { failures: self.failures, parked, spoilt: self.spoilt }
    }

    /// The number of the newest question to the proxies whether it may sleep.
    pub fn question(&self) -> u64 {
        self.questions
    }

    /// Other limits from now on.
    pub fn limit(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// When [`Event::Tick`] is due, if at all.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Draining { until, .. } | State::Paused { until } => Some(*until),
            _ => None,
        }
    }

    /// Takes one event. `jitter` is a random number from 0 to 1.
    pub fn step(&mut self, now: Instant, jitter: f64, event: Event) -> Vec<Effect> {
        let mut effects = match event {
            Event::Wake => self.wake(now),
            Event::Woken(end) => self.woken(now, jitter, end),
            Event::Sleep { reason, generation, tier, proxies } => {
                self.sleep(now, reason, generation, tier, proxies)
            }
            Event::Agreement { proxy, generation, question, agree }
                if generation == self.generation && question == self.questions =>
            {
                if agree {
                    self.agreed(&proxy)
                } else {
                    self.disagreed(&proxy, SleepRefusal::Busy)
                }
            }
            // Of a life that has ended, or to a question that was withdrawn.
            Event::Agreement { .. } => vec![],
            Event::ProxyGone { proxy } => self.disagreed(&proxy, SleepRefusal::NoAgreement),
            Event::Flushed { sleep } if sleep == self.sleeps => self.flushed(),
            Event::Flushed { .. } => vec![],
            Event::Stopped(result) => self.stopped(now, result),
            Event::Pressure => match self.state {
                State::Paused { .. } => self.save(),
                _ => vec![],
            },
            Event::Saved(result) => self.saved(now, result),
            Event::Settled { sleep, result } if sleep == self.sleeps => self.settled(now, result),
            Event::Settled { .. } => vec![],
            Event::Resumed(result) => self.resumed(result),
            Event::Committed(result) => self.committed(result),
            Event::VmExited { detail } => self.vm_exited(now, jitter, detail),
            Event::Tick => self.tick(now),
            Event::Park { detail, generation, flush } => {
                if generation.is_none_or(|g| g == self.generation) {
                    let park = self.park.get_or_insert(Park { detail, flush, cleared: false });
                    park.flush &= flush;
                    park.cleared = false;
                    // Only a check speaks of one life: an image of it is no good either.
                    self.spoilt |= generation.is_some();
                }
                vec![]
            }
            Event::Ended => self.ended(),
            Event::Boot { rollback } => self.boot(rollback),
            Event::Clear => self.clear(),
        };
        effects.extend(self.park_if_due());
        effects
    }

    fn wake(&mut self, now: Instant) -> Vec<Effect> {
        match &mut self.state {
            State::Asleep => self.start_wake(Start::Restore),
            State::Waking => vec![],
            State::Awake => vec![Effect::AnswerWakes(WakeAnswer::Awake)],
            State::Draining { .. } | State::Flushing { .. } => {
                self.state = State::Awake;
                vec![cancelled(), Effect::AnswerWakes(WakeAnswer::Awake)]
            }
            State::Pausing { cancelled, .. } | State::Saving { cancelled } => {
                *cancelled = true;
                vec![]
            }
            State::Paused { .. } => self.resume(true, true),
            State::Settling { gone: true, wake }
            | State::Resuming { wake, .. }
            | State::Committing { wake } => {
                *wake = true;
                vec![]
            }
            State::Settling { gone: false, .. } => {
                let mut effects = vec![cancelled()];
                effects.extend(self.resume(true, false));
                effects
            }
            State::Failed { until, detail } if now < *until => {
                let retry_after = *until - now;
                let detail = detail.clone();
                vec![Effect::AnswerWakes(WakeAnswer::Backoff { retry_after, detail })]
            }
            State::Failed { .. } => self.start_wake(Start::Restore),
            State::Parking { detail, .. } | State::Parked { detail } => {
                vec![Effect::AnswerWakes(WakeAnswer::Parked { detail: detail.clone() })]
            }
        }
    }

    fn start_wake(&mut self, start: Start) -> Vec<Effect> {
        self.state = State::Waking;
        let start = if self.spoilt && start == Start::Restore { Start::Cold } else { start };
        vec![Effect::StartWake(start)]
    }

    fn resume(&mut self, wake: bool, paused: bool) -> Vec<Effect> {
        self.state = State::Resuming { wake, paused };
        vec![Effect::Resume]
    }

    fn woken(&mut self, now: Instant, jitter: f64, end: WakeEnd) -> Vec<Effect> {
        if self.state != State::Waking {
            return vec![];
        }
        match end {
            WakeEnd::Ready(generation) => {
                self.generation = generation;
                self.woken_at = Some(now);
                self.state = State::Awake;
                // Parked meanwhile: that is what they are told, a few lines on. What was restored may
                // be what a check has found spoilt.
                if self.park.is_some() {
                    return vec![];
                }
                self.spoilt = false;
                vec![Effect::AnswerWakes(WakeAnswer::Woken)]
            }
            WakeEnd::Unable => {
                self.state = State::Asleep;
                vec![Effect::AnswerWakes(WakeAnswer::Unable)]
            }
            WakeEnd::Failed(detail) => {
                self.failures += 1;
                let mut effects = vec![Effect::AnswerWakes(WakeAnswer::Failed)];
                effects.extend(self.failed(now, jitter, detail));
                effects
            }
        }
    }

    /// What follows the newest failure.
    fn failed(&mut self, now: Instant, jitter: f64, detail: String) -> Vec<Effect> {
        if self.failures < self.limits.failed_before_park {
            self.state = State::Failed { detail, until: now + backoff(self.failures, jitter) };
            return vec![];
        }
        let detail = format!("{} wakes failed in a row; the last: {detail}", self.failures);
        self.state = State::Parked { detail: detail.clone() };
        vec![Effect::Parked { detail }]
    }

    fn sleep(
        &mut self,
        now: Instant,
        reason: SleepReason,
        generation: Option<Generation>,
        tier: Tier,
        proxies: BTreeSet<String>,
    ) -> Vec<Effect> {
        let ours = generation.is_none_or(|g| g == self.generation);
        if !ours {
            return vec![not_awake()];
        }
        match &mut self.state {
            State::Awake
                if reason == SleepReason::Idle && self.sleepless.is_some_and(|at| now < at) =>
            {
                let why = "the last sleep failed, and the next is tried later".to_owned();
                vec![Effect::RefuseSleep(SleepRefusal::Failed, why)]
            }
            // Nobody to ask, or nobody left.
            State::Awake if proxies.is_empty() => self.flush(tier),
            State::Draining { tier: before, .. } if proxies.is_empty() => {
                let tier = deeper(*before, tier);
                self.flush(tier)
            }
            State::Awake => {
                let until = now + self.limits.agreement;
                self.questions += 1;
                self.state = State::Draining { reason, tier, waiting: proxies, until };
                vec![]
            }
            // Whoever asks again is answered with those who asked first.
            State::Draining { tier: before, .. }
            | State::Flushing { tier: before }
            | State::Pausing { tier: before, .. } => {
                *before = deeper(*before, tier);
                vec![]
            }
            State::Paused { .. } if tier == Tier::Paused => {
                vec![Effect::AnswerSleeps(Ok(Tier::Paused))]
            }
            State::Paused { .. } => self.save(),
            State::Saving { .. } | State::Settling { .. } | State::Committing { .. } => vec![],
            _ => vec![not_awake()],
        }
    }

    fn flush(&mut self, tier: Tier) -> Vec<Effect> {
        self.sleeps += 1;
        self.state = State::Flushing { tier };
        vec![Effect::Flush { sleep: self.sleeps }]
    }

    fn flushed(&mut self) -> Vec<Effect> {
        let State::Flushing { tier } = self.state else {
            return vec![];
        };
        self.state = State::Pausing { tier, cancelled: false };
        vec![Effect::Pause]
    }

    fn stopped(&mut self, now: Instant, result: Result<(), String>) -> Vec<Effect> {
        let State::Pausing { tier, cancelled: off } = self.state else {
            return vec![];
        };
        match (result, tier) {
            (Err(detail), _) => self.sleep_failed(now, off, detail),
            (Ok(()), _) if off => self.call_off(),
            (Ok(()), Tier::Image) => self.save(),
            (Ok(()), Tier::Paused) => {
                self.state = State::Paused { until: now + self.limits.paused };
                vec![Effect::AnswerSleeps(Ok(Tier::Paused))]
            }
        }
    }

    /// A visitor came, or it is to be parked.
    fn call_off(&mut self) -> Vec<Effect> {
        let mut effects = vec![match &self.park {
            Some(park) => refuse(SleepRefusal::NotAwake, &park.detail),
            None => cancelled(),
        }];
        effects.extend(self.resume(true, false));
        effects
    }

    fn save(&mut self) -> Vec<Effect> {
        self.state = State::Saving { cancelled: false };
        vec![Effect::Save]
    }

    /// The VM runs on, the old generation is as it was, and everyone hears of it.
    fn sleep_failed(&mut self, now: Instant, wake: bool, detail: String) -> Vec<Effect> {
        self.sleepless = Some(now + SLEEPLESS);
        let mut effects = vec![refuse(SleepRefusal::Failed, &detail)];
        effects.extend(self.resume(wake, false));
        effects
    }

    fn agreed(&mut self, proxy: &str) -> Vec<Effect> {
        match &mut self.state {
            State::Draining { waiting, tier, .. } => {
                if waiting.remove(proxy) && waiting.is_empty() {
                    let tier = *tier;
                    self.flush(tier)
                } else {
                    vec![]
                }
            }
            _ => vec![],
        }
    }

    fn disagreed(&mut self, proxy: &str, why: SleepRefusal) -> Vec<Effect> {
        match &self.state {
            State::Draining { waiting, .. } if waiting.contains(proxy) => {
                self.state = State::Awake;
                vec![refuse(why, &format!("proxy {proxy}"))]
            }
            _ => vec![],
        }
    }

    fn tick(&mut self, now: Instant) -> Vec<Effect> {
        match &self.state {
            State::Draining { waiting, until, .. } if now >= *until => {
                let silent = waiting.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                let refused =
                    refuse(SleepRefusal::NoAgreement, &format!("no answer from {silent}"));
                self.state = State::Awake;
                vec![refused]
            }
            State::Paused { until } if now >= *until => self.save(),
            _ => vec![],
        }
    }

    fn saved(&mut self, now: Instant, result: Result<(), String>) -> Vec<Effect> {
        let State::Saving { cancelled: off } = self.state else {
            return vec![];
        };
        match result {
            Ok(()) if !off => {
                self.sleeps += 1;
                self.state = State::Settling { gone: false, wake: false };
                vec![Effect::Settle { sleep: self.sleeps }]
            }
            Ok(()) => self.call_off(),
            Err(detail) => self.sleep_failed(now, off, detail),
        }
    }

    fn settled(&mut self, now: Instant, result: Result<(), String>) -> Vec<Effect> {
        let State::Settling { gone, wake } = self.state else {
            return vec![];
        };
        match result {
            Ok(()) => {
                self.state = State::Committing { wake };
                vec![Effect::Commit]
            }
            Err(detail) if !gone => self.sleep_failed(now, wake, detail),
            Err(detail) => {
                let mut effects = vec![refuse(SleepRefusal::Failed, &detail)];
                effects.extend(self.lost(wake));
                effects
            }
        }
    }

    fn resumed(&mut self, result: Result<(), String>) -> Vec<Effect> {
        let State::Resuming { wake, paused } = self.state else {
            return vec![];
        };
        match result {
            Ok(()) => {
                self.state = State::Awake;
                let answer = if paused { WakeAnswer::Unpaused } else { WakeAnswer::Awake };
                let answers = wake && self.park.is_none();
                if answers { vec![Effect::AnswerWakes(answer)] } else { vec![] }
            }
            Err(_) => self.lost(wake),
        }
    }

    fn committed(&mut self, result: Result<(), String>) -> Vec<Effect> {
        let State::Committing { wake } = self.state else {
            return vec![];
        };
        let mut effects = vec![match result {
            Ok(()) => {
                self.failures = 0;
                self.sleepless = None;
                Effect::AnswerSleeps(Ok(Tier::Image))
            }
            Err(detail) => refuse(SleepRefusal::Failed, &detail),
        }];
        self.woken_at = None;
        self.state = State::Asleep;
        if self.park.is_some() {
            return effects;
        }
        if wake {
            effects.extend(self.start_wake(Start::Restore));
        }
        effects
    }

    fn vm_exited(&mut self, now: Instant, jitter: f64, detail: String) -> Vec<Effect> {
        match &mut self.state {
            State::Awake | State::Paused { .. } => self.died(now, jitter, detail),
            State::Draining { .. } | State::Flushing { .. } => {
                let mut effects = vec![refuse(SleepRefusal::NotAwake, &detail)];
                effects.extend(self.died(now, jitter, detail));
                effects
            }
            State::Settling { gone, .. } => {
                *gone = true;
                vec![]
            }
            // What is being carried out notices and says so.
            _ => vec![],
        }
    }

    fn died(&mut self, now: Instant, jitter: f64, detail: String) -> Vec<Effect> {
        let early = self.woken_at.take().is_some_and(|at| now - at < PROVEN);
        self.failures = if early { self.failures + 1 } else { 0 };
        let mut effects = vec![Effect::Discard];
        if self.failures <= 1 {
            self.state = State::Asleep;
        } else {
            let detail = format!("its VM ended soon after its wake: {detail}");
            effects.extend(self.failed(now, jitter, detail));
        }
        effects
    }

    /// The VM is gone and so is its memory.
    fn lost(&mut self, wake: bool) -> Vec<Effect> {
        self.woken_at = None;
        self.state = State::Asleep;
        let mut effects = vec![Effect::Discard];
        if wake && self.park.is_none() {
            effects.extend(self.start_wake(Start::Restore));
        }
        effects
    }

    /// Parks it if that is wanted and nothing is being carried out; stops what can be stopped.
    fn park_if_due(&mut self) -> Vec<Effect> {
        let Some(Park { detail, flush, cleared }) = self.park.clone() else {
            return vec![];
        };
        match &mut self.state {
            State::Pausing { cancelled, .. } | State::Saving { cancelled } => {
                *cancelled = true;
                vec![]
            }
            State::Settling { gone: false, .. } => {
                let mut effects = vec![refuse(SleepRefusal::NotAwake, &detail)];
                effects.extend(self.resume(false, false));
                effects
            }
            State::Waking
            | State::Settling { .. }
            | State::Resuming { .. }
            | State::Committing { .. } => vec![],
            State::Parking { detail: before, cleared: before_cleared } => {
                // The newest word counts.
                if std::mem::replace(before_cleared, cleared) {
                    *before = detail;
                }
                self.park = None;
                vec![]
            }
            State::Parked { .. } => {
                self.park = None;
                vec![]
            }
            State::Asleep | State::Failed { .. } => {
                self.park = None;
                let mut effects =
                    vec![Effect::AnswerWakes(WakeAnswer::Parked { detail: detail.clone() })];
                if !cleared {
                    self.state = State::Parked { detail: detail.clone() };
                    effects.push(Effect::Parked { detail });
                }
                effects
            }
            State::Awake
            | State::Draining { .. }
            | State::Flushing { .. }
            | State::Paused { .. } => {
                self.park = None;
                // A guest that stands still can't write out anything, and a spoilt one must not.
                let flush = flush && !self.spoilt && !matches!(self.state, State::Paused { .. });
                self.woken_at = None;
                self.state = State::Parking { detail: detail.clone(), cleared };
                vec![
                    refuse(SleepRefusal::NotAwake, &detail),
                    Effect::AnswerWakes(WakeAnswer::Parked { detail }),
                    Effect::End { flush },
                ]
            }
        }
    }

    fn ended(&mut self) -> Vec<Effect> {
        let State::Parking { detail, cleared } = &self.state else {
            return vec![];
        };
        if *cleared {
            self.state = State::Asleep;
            return vec![];
        }
        let detail = detail.clone();
        self.state = State::Parked { detail: detail.clone() };
        vec![Effect::Parked { detail }]
    }

    fn boot(&mut self, rollback: bool) -> Vec<Effect> {
        let start = if rollback { Start::Rollback } else { Start::Cold };
        match &self.state {
            State::Asleep | State::Failed { .. } => self.start_wake(start),
            State::Parking { detail, .. } | State::Parked { detail } => {
                vec![Effect::RefuseBoot(format!("it is parked, clear it first: {detail}"))]
            }
            _ => vec![Effect::RefuseBoot("it has a VM; put it to sleep first".to_owned())],
        }
    }

    fn clear(&mut self) -> Vec<Effect> {
        self.failures = 0;
        match &mut self.state {
            State::Parked { .. } | State::Failed { .. } => self.state = State::Asleep,
            State::Parking { cleared, .. } => *cleared = true,
            _ => {}
        }
        if let Some(park) = &mut self.park {
            park.cleared = true;
        }
        vec![]
    }
}

fn deeper(one: Tier, other: Tier) -> Tier {
    if one == Tier::Image { one } else { other }
}

fn cancelled() -> Effect {
    refuse(SleepRefusal::Cancelled, "a visitor came")
}

fn not_awake() -> Effect {
    let why = "it has no VM of that generation".to_owned();
    Effect::RefuseSleep(SleepRefusal::NotAwake, why)
}

fn refuse(why: SleepRefusal, detail: &str) -> Effect {
    Effect::AnswerSleeps(Err((why, detail.to_owned())))
}

/// Exponential, and half of it random ("equal jitter"), so that apps that failed together do not try
/// again together.
fn backoff(failures: u32, jitter: f64) -> Duration {
    let doubled = BACKOFF_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(BACKOFF_MAX).mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
