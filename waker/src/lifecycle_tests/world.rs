//! The world around an app: a VM, at most one thing being done to it, an image, and those who wait.
//! It carries out effects, and stops at the first that must not be.

use super::reference::Reference;
use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Vm {
    None,
    Running,
    Still,
    /// Ended by itself.
    Dead,
}

/// What is being carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Doing {
    Wake(Start),
    Pause,
    Save,
    Resume,
    Commit,
    End,
}

/// Memory, of a VM or in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Memory {
    Good,
    /// A check of the guest has failed.
    Spoilt,
}

/// One move: of the world, or of somebody in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Move {
    Visit,
    Sleep {
        reason: SleepReason,
        tier: Tier,
        watched: bool,
    },
    SleepOfOtherLife,
    Answer {
        proxy: usize,
        agree: bool,
    },
    /// Agreement to an earlier question, or of another life.
    AgreeLate,
    AgreeOfOtherLife,
    Gone(usize),
    /// What is being done ends: well (0), or badly in one way or another.
    Done(u8),
    /// A flush ends: the newest or one that is late.
    Flushed {
        late: bool,
    },
    Settled {
        late: bool,
        ok: bool,
    },
    Die,
    Pressure,
    /// So many milliseconds pass.
    Later(u64),
    ParkByOperator {
        flush: bool,
    },
    CheckFails,
    CheckOfOtherLifeFails,
    Boot {
        rollback: bool,
    },
    Clear,
    /// The waker is killed and started again; what was being done had got so far.
    Restart(u8),
}

pub(super) const PROXIES: [&str; 2] = ["p0", "p1"];

/// How things are, whatever the lifecycle believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Facts {
    pub(super) vm: Vm,
    pub(super) memory: Memory,
    pub(super) image: Option<Memory>,
    pub(super) doing: Option<Doing>,
    /// A device state that belongs to the memory as it is.
    pub(super) saved: bool,
    /// The newest settle that was not taken back, and whether it is done.
    pub(super) settle: Option<bool>,
    /// A flush whose end is awaited.
    pub(super) flushing: bool,
    pub(super) visitors: u32,
    pub(super) sleepers: u32,
    /// One of those who sleep it wants an image.
    pub(super) deep: bool,
}

/// What a step did, as far as anybody was there to see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) began: Option<Doing>,
    pub(super) flush: bool,
    pub(super) settle: bool,
    pub(super) discarded: bool,
    pub(super) parked: bool,
    pub(super) visitors: Option<Told>,
    pub(super) sleepers: Option<Result<Tier, SleepRefusal>>,
    pub(super) refused_sleep: Option<SleepRefusal>,
    pub(super) refused_boot: bool,
}

/// A [`WakeAnswer`] without its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Woken,
    Awake,
    Unpaused,
    Failed,
    Unable,
    Backoff,
    Parked,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) jitter: f64,
    pub(super) app: Lifecycle,
    pub(super) facts: Facts,
    /// Flushes and settles that go on, by their numbers; the last may be awaited.
    pub(super) flushes: Vec<u64>,
    pub(super) settles: Vec<u64>,
    pub(super) reference: Reference,
}

impl Facts {
    /// The VM is gone.
    pub(super) fn gone(&mut self) {
        let Self { memory, image, visitors, sleepers, deep, .. } = *self;
        *self = Self { memory, image, visitors, sleepers, deep, ..Self::NOTHING };
    }

    /// A VM runs.
    pub(super) fn wake(&mut self, start: Start) {
        let image = self.image.take().filter(|_| start == Start::Restore);
        self.memory = image.unwrap_or(Memory::Good);
        self.vm = Vm::Running;
    }

    pub(super) const NOTHING: Self = Self {
        vm: Vm::None,
        memory: Memory::Good,
        image: None,
        doing: None,
        saved: false,
        settle: None,
        flushing: false,
        visitors: 0,
        sleepers: 0,
        deep: false,
    };
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            now: Instant::now(),
            jitter: 0.5,
            app: Lifecycle::asleep(LIMITS, Generation(0), Standing::default()),
            facts: Facts::NOTHING,
            flushes: vec![],
            settles: vec![],
            reference: Reference::default(),
        }
    }

    /// Makes a move, or says that it can't be made now.
    pub(super) fn make(&mut self, what: Move) -> bool {
        let sleeping = self.facts.sleepers > 0;
        let Some(event) = self.event(what) else {
            return false;
        };
        let before = self.facts;
        let answer = self.reference.expect(self.now, &before, sleeping, what, &event);
        let mut seen = Seen::default();
        for effect in self.app.step(self.now, self.jitter, event) {
            self.carry_out(what, &mut seen, effect);
        }
        assert!(answer.contains(&seen), "{seen:?} instead of {answer:?}");
        let asked = matches!(what, Move::Sleep { tier: Tier::Image, .. });
        self.facts.deep |= asked && seen.refused_sleep.is_none();
        self.facts.deep &= self.facts.sleepers > 0;
        self.reference.holds(&self.app, &self.facts);
        self.check();
        true
    }

    /// What the move comes to for the app.
    fn event(&mut self, what: Move) -> Option<Event> {
        let proxy = |i: usize| PROXIES[i].to_owned();
        let generation = self.app.generation();
        let question = self.app.question();
        let other = Some(generation.next());
        let facts = &mut self.facts;
        Some(match what {
            Move::Visit => {
                facts.visitors += 1;
                facts.flushing = false;
                Event::Wake
            }
            Move::Sleep { reason, tier, watched } => {
                facts.sleepers += 1;
                let proxies = PROXIES.iter().filter(|_| watched).map(ToString::to_string).collect();
                Event::Sleep { reason, generation: None, tier, proxies }
            }
            Move::SleepOfOtherLife => {
                facts.sleepers += 1;
                let (reason, tier) = (SleepReason::Operator, Tier::Image);
                Event::Sleep { reason, generation: other, tier, proxies: BTreeSet::new() }
            }
            Move::Answer { proxy: i, agree } => {
                Event::Agreement { proxy: proxy(i), generation, question, agree }
            }
            Move::AgreeLate => {
                let question = question.checked_sub(1)?;
                Event::Agreement { proxy: proxy(0), generation, question, agree: true }
            }
            Move::AgreeOfOtherLife => {
                let generation = generation.next();
                Event::Agreement { proxy: proxy(0), generation, question, agree: true }
            }
            Move::Gone(i) => Event::ProxyGone { proxy: proxy(i) },
            Move::Done(way) => self.finish(way)?,
            Move::Flushed { late } => {
                let sleep = late_or_newest(&mut self.flushes, late, facts.flushing)?;
                facts.flushing &= late;
                Event::Flushed { sleep }
            }
            Move::Settled { late, ok } => {
                let awaited = facts.settle == Some(false);
                let sleep = late_or_newest(&mut self.settles, late, awaited)?;
                if !late {
                    facts.settle = Some(ok);
                }
                let result = if ok { Ok(()) } else { Err("settle".into()) };
                Event::Settled { sleep, result }
            }
            Move::Die => {
                // While something is done to the VM, that notices.
                if !matches!(facts.vm, Vm::Running | Vm::Still) || facts.doing.is_some() {
                    return None;
                }
                facts.vm = Vm::Dead;
                Event::VmExited { detail: "died".into() }
            }
            Move::Pressure => Event::Pressure,
            Move::Later(ms) => {
                self.now += Duration::from_millis(ms);
                Event::Tick
            }
            Move::ParkByOperator { flush } => {
                Event::Park { detail: "operator".into(), generation: None, flush }
            }
            Move::CheckFails => {
                // The memory is that of the life before while that is being restored.
                facts.memory = Memory::Spoilt;
                facts.image = facts.image.map(|_| Memory::Spoilt);
                let generation = Some(generation);
                Event::Park { detail: "check".into(), generation, flush: false }
            }
            Move::CheckOfOtherLifeFails => {
                Event::Park { detail: "check".into(), generation: other, flush: false }
            }
            Move::Boot { rollback } => {
                facts.visitors += 1;
                Event::Boot { rollback }
            }
            Move::Clear => Event::Clear,
            Move::Restart(way) => self.restart(way)?,
        })
    }
}

fn late_or_newest(numbers: &mut Vec<u64>, late: bool, awaited: bool) -> Option<u64> {
    match (late, awaited) {
        (false, true) => numbers.pop(),
        (false, false) => None,
        (true, awaited) => (numbers.len() > usize::from(awaited)).then(|| numbers.remove(0)),
    }
}
