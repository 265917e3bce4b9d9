//! Walks the lifecycle through every order of events against a model of the world that carries out
//! its effects: a VM, at most one thing being done to it, and those who wait.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { failed_before_park: 3, agreement: Duration::from_secs(2) };

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Vm {
    None,
    Running,
    Still,
    /// Ended by itself.
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Wake,
    Save,
    Resume,
    Commit,
}

/// One move: of the world, or of somebody in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Move {
    Visit,
    Sleep,
    SleepUnwatched,
    SleepOther,
    Agree(usize),
    AgreeToOther,
    Disagree(usize),
    Gone(usize),
    Done,
    Fail,
    NoRoom,
    SyncDone,
    SyncFailed,
    Die,
    Later,
    Clear,
}

const MOVES: [Move; 19] = [
    Move::Visit,
    Move::Sleep,
    Move::SleepUnwatched,
    Move::SleepOther,
    Move::Agree(0),
    Move::Agree(1),
    Move::AgreeToOther,
    Move::Disagree(0),
    Move::Disagree(1),
    Move::Gone(0),
    Move::Gone(1),
    Move::Done,
    Move::Fail,
    Move::NoRoom,
    Move::SyncDone,
    Move::SyncFailed,
    Move::Die,
    Move::Later,
    Move::Clear,
];

const PROXIES: [&str; 2] = ["p0", "p1"];

#[derive(Clone, Debug)]
struct World {
    now: Instant,
    app: Lifecycle,
    vm: Vm,
    /// A device state that belongs to the memory as it is.
    saved: bool,
    /// A published generation.
    image: bool,
    doing: Option<Doing>,
    syncs: Vec<u64>,
    visitors: u32,
    sleepers: u32,
}

impl World {
    fn new() -> Self {
        Self {
            now: Instant::now(),
            app: Lifecycle::asleep(LIMITS, Generation(0)),
            vm: Vm::None,
            saved: false,
            image: false,
            doing: None,
            syncs: vec![],
            visitors: 0,
            sleepers: 0,
        }
    }

    /// Makes a move, or says that it can't be made now.
    fn make(&mut self, what: Move) -> bool {
        let proxy = |i: usize| PROXIES[i].to_owned();
        let generation = self.app.generation();
        let question = self.app.question();
        let event = match what {
            Move::Visit => {
                self.visitors += 1;
                Event::Wake
            }
            Move::Sleep | Move::SleepUnwatched | Move::SleepOther => {
                self.sleepers += 1;
                let watched = what != Move::SleepUnwatched;
                Event::Sleep {
                    reason: SleepReason::Operator,
                    generation: (what == Move::SleepOther).then(|| generation.next()),
                    proxies: PROXIES.iter().filter(|_| watched).map(ToString::to_string).collect(),
                }
            }
            Move::Agree(i) => {
                Event::Agreement { proxy: proxy(i), generation, question, agree: true }
            }
            Move::AgreeToOther => {
                let generation = generation.next();
                Event::Agreement { proxy: proxy(0), generation, question, agree: true }
            }
            Move::Disagree(i) => {
                Event::Agreement { proxy: proxy(i), generation, question, agree: false }
            }
            Move::Gone(i) => Event::ProxyGone { proxy: proxy(i) },
            Move::Done => match self.finish(true) {
                Some(event) => event,
                None => return false,
            },
            Move::Fail => match self.finish(false) {
                Some(event) => event,
                None => return false,
            },
            Move::NoRoom => {
                if self.doing != Some(Doing::Wake) {
                    return false;
                }
                self.doing = None;
                Event::Woken(WakeEnd::NoRoom)
            }
            Move::SyncDone | Move::SyncFailed => {
                let Some(sleep) = self.syncs.pop() else {
                    return false;
                };
                let ok = what == Move::SyncDone;
                Event::Synced { sleep, result: if ok { Ok(()) } else { Err("sync".into()) } }
            }
            Move::Die => {
                // While something is done to the VM, that notices.
                if !matches!(self.vm, Vm::Running | Vm::Still) || self.doing.is_some() {
                    return false;
                }
                self.vm = Vm::Dead;
                Event::VmExited { detail: "died".into() }
            }
            Move::Later => {
                self.now += Duration::from_secs(61);
                Event::Tick
            }
            Move::Clear => Event::Clear,
        };
        for effect in self.app.step(self.now, 0.5, event) {
            self.carry_out(effect);
        }
        self.check();
        true
    }

    /// What is being done comes to its end.
    fn finish(&mut self, ok: bool) -> Option<Event> {
        let result = if ok { Ok(()) } else { Err("failed".to_owned()) };
        Some(match self.doing.take()? {
            Doing::Wake if ok => {
                self.vm = Vm::Running;
                self.image = false;
                self.saved = false;
                Event::Woken(WakeEnd::Ready(self.app.generation().next()))
            }
            Doing::Wake => Event::Woken(WakeEnd::Failed("failed".into())),
            Doing::Save => {
                self.vm = Vm::Still;
                self.saved = ok;
                Event::Saved(result)
            }
            Doing::Resume => {
                self.saved = false;
                self.vm = if ok { Vm::Running } else { Vm::Dead };
                Event::Resumed(result)
            }
            Doing::Commit => {
                self.vm = Vm::None;
                self.image = ok;
                Event::Committed(result)
            }
        })
    }

    fn carry_out(&mut self, effect: Effect) {
        let mut begin = |doing| {
            assert_eq!(self.doing, None, "two things done at once: {self:?}");
            self.doing = Some(doing);
        };
        match effect {
            Effect::StartWake => {
                begin(Doing::Wake);
                assert_eq!(self.vm, Vm::None, "a second VM");
            }
            Effect::Save => {
                begin(Doing::Save);
                assert_eq!(self.vm, Vm::Running, "saved without a running VM");
            }
            Effect::Resume => {
                begin(Doing::Resume);
                assert_eq!(self.vm, Vm::Still, "resumed what does not stand still");
            }
            Effect::Commit => {
                begin(Doing::Commit);
                assert!(matches!(self.vm, Vm::Still | Vm::Dead), "published while it runs");
                assert!(self.saved, "published without a device state");
            }
            Effect::Sync { sleep } => {
                assert!(self.saved && self.vm == Vm::Still, "synced while it runs");
                self.syncs.push(sleep);
            }
            Effect::Discard => {
                assert_eq!(self.doing, None, "taken from under what is being done");
                assert_eq!(self.vm, Vm::Dead, "a VM that lives was thrown away");
                self.vm = Vm::None;
            }
            Effect::AnswerWakes(answer) => {
                assert!(self.visitors > 0, "an answer to nobody");
                self.visitors = 0;
                match answer {
                    WakeAnswer::Woken | WakeAnswer::Awake => {
                        assert_eq!(self.vm, Vm::Running, "sent to a VM that does not run");
                    }
                    _ => assert_eq!(self.vm, Vm::None, "refused though there is a VM"),
                }
            }
            Effect::RefuseSleep(..) => self.sleepers -= 1,
            Effect::AnswerSleeps(answer) => {
                // A sleep that nobody waits for any more fails or is cancelled all the same.
                self.sleepers = 0;
                assert!(answer.is_err() || self.image, "asleep without an image");
            }
        }
    }

    fn check(&self) {
        let state = self.app.state();
        let (doing, vm): (Option<Doing>, &[Vm]) = match state {
            State::Asleep | State::Failed { .. } | State::Parked { .. } => (None, &[Vm::None]),
            State::Waking => (Some(Doing::Wake), &[Vm::None]),
            State::Awake | State::Draining { .. } => (None, &[Vm::Running]),
            State::Saving { .. } => (Some(Doing::Save), &[Vm::Running]),
            State::Syncing { gone: false, .. } => (None, &[Vm::Still]),
            State::Syncing { gone: true, .. } => (None, &[Vm::Dead]),
            State::Resuming { .. } => (Some(Doing::Resume), &[Vm::Still]),
            State::Committing { .. } => (Some(Doing::Commit), &[Vm::Still, Vm::Dead]),
        };
        assert_eq!(self.doing, doing, "{self:?}");
        assert!(vm.contains(&self.vm), "{self:?}");
        // Nobody waits where nothing will answer.
        let rest = matches!(
            state,
            State::Asleep | State::Awake | State::Failed { .. } | State::Parked { .. }
        );
        assert!(!rest || (self.visitors == 0 && self.sleepers == 0), "forgotten: {self:?}");
        if matches!(state, State::Draining { .. }) {
            assert!(self.visitors == 0 && self.app.deadline().is_some(), "{self:?}");
        }
    }

    /// From wherever it is: if all that is being done succeeds, everyone gets an answer.
    fn settle(&mut self) {
        for _ in 0..16 {
            let moved = self.make(Move::Done) || self.make(Move::SyncDone);
            if !moved && (self.visitors, self.sleepers) == (0, 0) {
                return;
            }
            if !moved {
                self.make(Move::Later);
            }
        }
        panic!("never comes to rest: {self:?}");
    }

    /// What makes two worlds behave alike.
    fn key(&self) -> impl Eq + std::hash::Hash + use<> {
        let due = match self.app.state() {
            State::Draining { until, .. } | State::Failed { until, .. } => self.now >= *until,
            _ => false,
        };
        let young = self.app.woken_at.is_some_and(|at| self.now - at < PROVEN);
        (
            (strip(self.app.state()), due, young),
            (self.vm, self.doing, self.saved, self.image),
            (self.visitors.min(1), self.sleepers.min(1), self.syncs.len().min(2)),
            self.app.failures,
        )
    }
}

/// The state without its instants.
fn strip(state: &State) -> String {
    match state {
        State::Draining { reason, waiting, .. } => format!("draining {reason:?} {waiting:?}"),
        State::Failed { detail, .. } => format!("failed {detail}"),
        other => format!("{other:?}"),
    }
}

/// Every order of events, until no new situation is found.
#[test]
fn every_order_of_events_keeps_the_invariants() {
    let mut seen = HashSet::new();
    let mut open = vec![World::new()];
    seen.insert(open[0].key());
    while let Some(world) = open.pop() {
        for what in MOVES {
            let mut next = world.clone();
            if !next.make(what) {
                continue;
            }
            // A late sync may be followed by another; more than two tell nothing new.
            let late = next.syncs.len().saturating_sub(2);
            next.syncs.drain(..late);
            if seen.insert(next.key()) {
                next.clone().settle();
                open.push(next);
            }
        }
    }
    // So that a mistake in the model that finds nothing is noticed.
    assert!(seen.len() > 100, "only {} situations", seen.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn any_long_life_keeps_the_invariants(
        moves in proptest::collection::vec(0..MOVES.len(), 0..200),
    ) {
        let mut world = World::new();
        for i in moves {
            world.make(MOVES[i]);
        }
        world.settle();
    }

    #[test]
    fn backoff_grows_within_its_bounds(failures in 1_u32..100, jitter in 0.0_f64..=1.0) {
        let wait = backoff(failures, jitter);
        prop_assert!(wait >= BACKOFF_FIRST / 2 && wait <= BACKOFF_MAX);
        prop_assert!(backoff(failures + 1, jitter) >= wait);
    }
}

fn woken(app: &mut Lifecycle, now: Instant) {
    app.step(now, 0.0, Event::Wake);
    app.step(now, 0.0, Event::Woken(WakeEnd::Ready(app.generation().next())));
}

#[test]
fn failures_are_remembered_and_park_the_app() {
    let mut now = Instant::now();
    let mut app = Lifecycle::asleep(LIMITS, Generation(0));
    for n in 1..=LIMITS.failed_before_park {
        assert_eq!(app.step(now, 0.0, Event::Wake), [Effect::StartWake], "trial {n}");
        app.step(now, 0.0, Event::Woken(WakeEnd::Failed("x".into())));
        if n < LIMITS.failed_before_park {
            let effects = app.step(now, 0.0, Event::Wake);
            let [Effect::AnswerWakes(WakeAnswer::Backoff { retry_after, .. })] = &effects[..]
            else {
                panic!("{effects:?}");
            };
            assert!(*retry_after >= BACKOFF_FIRST / 2);
            now += *retry_after;
        }
    }
    now += Duration::from_secs(3600);
    let effects = app.step(now, 0.0, Event::Wake);
    assert!(
        matches!(&effects[..], [Effect::AnswerWakes(WakeAnswer::Parked { .. })]),
        "{effects:?}"
    );
    app.step(now, 0.0, Event::Clear);
    assert_eq!(app.step(now, 0.0, Event::Wake), [Effect::StartWake]);
}

#[test]
fn an_answer_to_a_withdrawn_question_counts_for_nothing() {
    let now = Instant::now();
    let mut app = Lifecycle::asleep(LIMITS, Generation(0));
    woken(&mut app, now);
    let ask = |app: &mut Lifecycle| {
        let proxies = ["p".to_owned()].into();
        let reason = SleepReason::Operator;
        app.step(now, 0.0, Event::Sleep { reason, generation: None, proxies });
        app.question()
    };
    let yes = |question| Event::Agreement {
        proxy: "p".into(),
        generation: Generation(1),
        question,
        agree: true,
    };
    let first = ask(&mut app);
    app.step(now, 0.0, Event::Wake);
    let second = ask(&mut app);
    assert_eq!(app.step(now, 0.0, yes(first)), []);
    assert!(matches!(app.state(), State::Draining { .. }));
    assert_eq!(app.step(now, 0.0, yes(second)), [Effect::Save]);
}

#[test]
fn a_vm_that_always_dies_early_is_parked_and_one_that_ran_long_is_not() {
    let mut now = Instant::now();
    let mut app = Lifecycle::asleep(LIMITS, Generation(0));
    let die = |app: &mut Lifecycle, now| {
        app.step(now, 0.0, Event::VmExited { detail: "panic".into() });
    };
    woken(&mut app, now);
    die(&mut app, now);
    assert_eq!(app.state(), &State::Asleep, "one try at once");
    woken(&mut app, now);
    die(&mut app, now);
    assert!(matches!(app.state(), State::Failed { .. }), "{:?}", app.state());
    now += BACKOFF_MAX;
    woken(&mut app, now);
    die(&mut app, now);
    assert!(matches!(app.state(), State::Parked { .. }), "{:?}", app.state());

    app.step(now, 0.0, Event::Clear);
    for _ in 0..2 * LIMITS.failed_before_park {
        woken(&mut app, now);
        now += PROVEN;
        die(&mut app, now);
        assert_eq!(app.state(), &State::Asleep, "it had proven itself");
    }
}

#[test]
fn a_visitor_cancels_a_sleep_at_every_step_before_the_vm_is_gone() {
    let now = Instant::now();
    let begin = || {
        let mut app = Lifecycle::asleep(LIMITS, Generation(0));
        woken(&mut app, now);
        app
    };
    let sleep = |proxies: &[&str]| Event::Sleep {
        reason: SleepReason::Idle,
        generation: None,
        proxies: proxies.iter().map(ToString::to_string).collect(),
    };

    let mut draining = begin();
    draining.step(now, 0.0, sleep(&["p"]));
    draining.step(now, 0.0, Event::Wake);
    assert_eq!(draining.state(), &State::Awake);

    let mut saving = begin();
    saving.step(now, 0.0, sleep(&[]));
    saving.step(now, 0.0, Event::Wake);
    let effects = saving.step(now, 0.0, Event::Saved(Ok(())));
    assert_eq!(effects[1], Effect::Resume);

    let mut syncing = begin();
    syncing.step(now, 0.0, sleep(&[]));
    syncing.step(now, 0.0, Event::Saved(Ok(())));
    let effects = syncing.step(now, 0.0, Event::Wake);
    assert_eq!(effects[1], Effect::Resume);
    // The sync that comes too late changes nothing.
    assert_eq!(syncing.step(now, 0.0, Event::Synced { sleep: 1, result: Ok(()) }), []);
    let effects = syncing.step(now, 0.0, Event::Resumed(Ok(())));
    assert_eq!(effects, [Effect::AnswerWakes(WakeAnswer::Awake)]);
    assert_eq!(syncing.generation(), Generation(1));
}
