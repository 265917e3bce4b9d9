//! An app's lifecycle: state × event → state and effects. Pure: it does no I/O and is told the time.
//!
//! ```text
//! Asleep ─► Waking ─► Awake ◄─► Draining ─► Saving ─► Syncing ─► Committing ─► Asleep
//!   ▲ └──── Failed ◄──┘  ▲                     └─ a visitor ─┴─► Resuming ─► Awake
//!   └ clear ─ Parked     └─────────────────────────────────────────┘
//! ```
//!
//! `Saving` to `Committing` are `snapshotting` to the world. Until `Committing` the VM stands still but
//! is there, and a visitor's wake sets it going again.

use std::collections::BTreeSet;
use std::time::Duration;

use rouse_protocol::app::Generation;
use rouse_protocol::wake::{SleepReason, SleepRefusal};
use tokio::time::Instant;

/// How failures are remembered and how long proxies have to agree.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// After how many failed wakes in a row the app is parked.
    pub failed_before_park: u32,
    /// How long proxies have to agree to a sleep.
    pub agreement: Duration,
}

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
        /// Who has not answered.
        waiting: BTreeSet<String>,
        /// When the sleep is given up.
        until: Instant,
    },
    /// [`Effect::Save`] is being carried out.
    Saving {
        /// A visitor came: resume as soon as it is over.
        cancelled: bool,
    },
    /// [`Effect::Sync`] is being carried out; the VM stands still.
    Syncing {
        /// The VM has ended by itself. Its image is whole all the same.
        gone: bool,
        /// A visitor came who can't be served from the VM any more.
        wake: bool,
    },
    /// [`Effect::Resume`] is being carried out.
    Resuming {
        /// A visitor waits.
        wake: bool,
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
    /// No VM and no wakes.
    Parked {
        /// Why.
        detail: String,
    },
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
    /// [`Effect::Save`] is done.
    Saved(Result<(), String>),
    /// [`Effect::Sync`] of this number is done.
    Synced {
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
    /// An operator has dealt with what went wrong.
    Clear,
}

/// How a wake ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeEnd {
    /// A VM of this life runs.
    Ready(Generation),
    /// The node had no room. It says nothing about the app.
    NoRoom,
    /// It failed.
    Failed(String),
}

/// What is to be done. The order matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Bring it to run: end what is left of a VM, then restore or boot. Ends in [`Event::Woken`].
    StartWake,
    /// Stop the vCPUs and write the device state. Ends in [`Event::Saved`].
    Save,
    /// Make memory and device state durable. Ends in [`Event::Synced`], which may come too late.
    Sync {
        /// To tell it from an earlier one.
        sleep: u64,
    },
    /// Set the vCPUs going again. Ends in [`Event::Resumed`].
    Resume,
    /// End the VM and publish its generation. Ends in [`Event::Committed`].
    Commit,
    /// End what is left of the VM; its memory is lost.
    Discard,
    /// Everyone who waits for a wake has an answer.
    AnswerWakes(WakeAnswer),
    /// Whoever asked for this sleep, and nobody else, is refused.
    RefuseSleep(SleepRefusal, String),
    /// Everyone who waits for a sleep has an answer.
    AnswerSleeps(Result<(), (SleepRefusal, String)>),
}

/// What those who wait for a wake are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeAnswer {
    /// This wake has brought it to run.
    Woken,
    /// It runs already, or again.
    Awake,
    /// This wake has failed.
    Failed,
    /// The node has no room.
    NoRoom,
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
    sleeps: u64,
    questions: u64,
}

impl Lifecycle {
    /// An app without a VM; `generation` is its newest life so far.
    pub fn asleep(limits: Limits, generation: Generation) -> Self {
        Self {
            limits,
            state: State::Asleep,
            generation,
            failures: 0,
            woken_at: None,
            sleeps: 0,
            questions: 0,
        }
    }

    /// An app whose VM of `generation` was adopted.
    pub fn awake(limits: Limits, generation: Generation) -> Self {
        Self { state: State::Awake, ..Self::asleep(limits, generation) }
    }

    /// Where it is.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The newest life there has been.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The number of the newest question to the proxies whether it may sleep.
    pub fn question(&self) -> u64 {
        self.questions
    }

    /// When [`Event::Tick`] is due, if at all.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Draining { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// Takes one event. `jitter` is a random number from 0 to 1.
    pub fn step(&mut self, now: Instant, jitter: f64, event: Event) -> Vec<Effect> {
        match event {
            Event::Wake => self.wake(now),
            Event::Woken(end) => self.woken(now, jitter, end),
            Event::Sleep { reason, generation, proxies } => {
                self.sleep(now, reason, generation, proxies)
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
            Event::Saved(result) => self.saved(result),
            Event::Synced { sleep, result } if sleep == self.sleeps => self.synced(result),
            Event::Synced { .. } => vec![],
            Event::Resumed(result) => self.resumed(result),
            Event::Committed(result) => self.committed(result),
            Event::VmExited { detail } => self.vm_exited(now, jitter, detail),
            Event::Tick => self.tick(now),
            Event::Clear => self.clear(),
        }
    }

    fn wake(&mut self, now: Instant) -> Vec<Effect> {
        match &mut self.state {
            State::Asleep => self.start_wake(),
            State::Waking => vec![],
            State::Awake => vec![Effect::AnswerWakes(WakeAnswer::Awake)],
            State::Draining { .. } => {
                self.state = State::Awake;
                vec![
                    refuse(SleepRefusal::Cancelled, "a visitor came"),
                    Effect::AnswerWakes(WakeAnswer::Awake),
                ]
            }
            State::Saving { cancelled } => {
                *cancelled = true;
                vec![]
            }
            State::Syncing { gone: true, wake }
            | State::Resuming { wake }
            | State::Committing { wake } => {
                *wake = true;
                vec![]
            }
            State::Syncing { gone: false, .. } => {
                self.state = State::Resuming { wake: true };
                vec![refuse(SleepRefusal::Cancelled, "a visitor came"), Effect::Resume]
            }
            State::Failed { until, detail } if now < *until => {
                let retry_after = *until - now;
                let detail = detail.clone();
                vec![Effect::AnswerWakes(WakeAnswer::Backoff { retry_after, detail })]
            }
            State::Failed { .. } => self.start_wake(),
            State::Parked { detail } => {
                vec![Effect::AnswerWakes(WakeAnswer::Parked { detail: detail.clone() })]
            }
        }
    }

    fn start_wake(&mut self) -> Vec<Effect> {
        self.state = State::Waking;
        vec![Effect::StartWake]
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
                vec![Effect::AnswerWakes(WakeAnswer::Woken)]
            }
            WakeEnd::NoRoom => {
                self.state = State::Asleep;
                vec![Effect::AnswerWakes(WakeAnswer::NoRoom)]
            }
            WakeEnd::Failed(detail) => {
                self.failures += 1;
                self.state = self.failed(now, jitter, detail);
                vec![Effect::AnswerWakes(WakeAnswer::Failed)]
            }
        }
    }

    /// What follows the newest failure.
    fn failed(&self, now: Instant, jitter: f64, detail: String) -> State {
        if self.failures >= self.limits.failed_before_park {
            let detail = format!("{} wakes failed in a row; the last: {detail}", self.failures);
            State::Parked { detail }
        } else {
            State::Failed { detail, until: now + backoff(self.failures, jitter) }
        }
    }

    fn sleep(
        &mut self,
        now: Instant,
        reason: SleepReason,
        generation: Option<Generation>,
        proxies: BTreeSet<String>,
    ) -> Vec<Effect> {
        let ours = generation.is_none_or(|g| g == self.generation);
        match self.state {
            // Nobody to ask, or nobody left.
            State::Awake | State::Draining { .. } if ours && proxies.is_empty() => self.save(),
            State::Awake if ours => {
                let until = now + self.limits.agreement;
                self.questions += 1;
                self.state = State::Draining { reason, waiting: proxies, until };
                vec![]
            }
            // Whoever asks again is answered with those who asked first.
            State::Draining { .. }
            | State::Saving { .. }
            | State::Syncing { .. }
            | State::Committing { .. }
                if ours =>
            {
                vec![]
            }
            _ => {
                let why = "it has no VM of that generation".to_owned();
                vec![Effect::RefuseSleep(SleepRefusal::NotAwake, why)]
            }
        }
    }

    fn save(&mut self) -> Vec<Effect> {
        self.state = State::Saving { cancelled: false };
        vec![Effect::Save]
    }

    fn agreed(&mut self, proxy: &str) -> Vec<Effect> {
        match &mut self.state {
            State::Draining { waiting, .. } => {
                if waiting.remove(proxy) && waiting.is_empty() {
                    self.save()
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
            _ => vec![],
        }
    }

    fn saved(&mut self, result: Result<(), String>) -> Vec<Effect> {
        let State::Saving { cancelled } = self.state else {
            return vec![];
        };
        match result {
            Ok(()) if !cancelled => {
                self.sleeps += 1;
                self.state = State::Syncing { gone: false, wake: false };
                vec![Effect::Sync { sleep: self.sleeps }]
            }
            Ok(()) => {
                self.state = State::Resuming { wake: true };
                vec![refuse(SleepRefusal::Cancelled, "a visitor came"), Effect::Resume]
            }
            Err(detail) => {
                self.state = State::Resuming { wake: cancelled };
                vec![refuse(SleepRefusal::Failed, &detail), Effect::Resume]
            }
        }
    }

    fn synced(&mut self, result: Result<(), String>) -> Vec<Effect> {
        let State::Syncing { gone, wake } = self.state else {
            return vec![];
        };
        match result {
            Ok(()) => {
                self.state = State::Committing { wake };
                vec![Effect::Commit]
            }
            Err(detail) if !gone => {
                self.state = State::Resuming { wake };
                vec![refuse(SleepRefusal::Failed, &detail), Effect::Resume]
            }
            Err(detail) => {
                let mut effects = vec![refuse(SleepRefusal::Failed, &detail)];
                effects.extend(self.lost(wake));
                effects
            }
        }
    }

    fn resumed(&mut self, result: Result<(), String>) -> Vec<Effect> {
        let State::Resuming { wake } = self.state else {
            return vec![];
        };
        match result {
            Ok(()) => {
                self.state = State::Awake;
                if wake { vec![Effect::AnswerWakes(WakeAnswer::Awake)] } else { vec![] }
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
                Effect::AnswerSleeps(Ok(()))
            }
            Err(detail) => refuse(SleepRefusal::Failed, &detail),
        }];
        self.state = State::Asleep;
        if wake {
            effects.extend(self.start_wake());
        }
        effects
    }

    fn vm_exited(&mut self, now: Instant, jitter: f64, detail: String) -> Vec<Effect> {
        match &mut self.state {
            State::Awake => self.died(now, jitter, detail),
            State::Draining { .. } => {
                let mut effects = vec![refuse(SleepRefusal::NotAwake, &detail)];
                effects.extend(self.died(now, jitter, detail));
                effects
            }
            State::Syncing { gone, .. } => {
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
        self.state = match self.failures {
            0 | 1 => State::Asleep,
            _ => self.failed(now, jitter, format!("its VM ended soon after its wake: {detail}")),
        };
        vec![Effect::Discard]
    }

    /// The VM is gone and so is its memory.
    fn lost(&mut self, wake: bool) -> Vec<Effect> {
        self.state = State::Asleep;
        let mut effects = vec![Effect::Discard];
        if wake {
            effects.extend(self.start_wake());
        }
        effects
    }

    fn clear(&mut self) -> Vec<Effect> {
        if matches!(self.state, State::Parked { .. } | State::Failed { .. }) {
            self.failures = 0;
            self.state = State::Asleep;
        }
        vec![]
    }
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
