//! Every order of events, and random lives of many.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::mem::discriminant;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::world::{Move, World};
use super::*;

const IDLE: Move = sleep(SleepReason::Idle, Tier::Paused, true);

const fn sleep(reason: SleepReason, tier: Tier, watched: bool) -> Move {
    Move::Sleep { reason, tier, watched }
}

/// All moves. Time passes by a step after which nothing is pending any more.
const MOVES: [Move; 37] = [
    Move::Visit,
    IDLE,
    sleep(SleepReason::Operator, Tier::Paused, false),
    sleep(SleepReason::Operator, Tier::Image, true),
    sleep(SleepReason::Operator, Tier::Image, false),
    Move::SleepOfOtherLife,
    Move::Answer { proxy: 0, agree: true },
    Move::Answer { proxy: 1, agree: true },
    Move::Answer { proxy: 1, agree: false },
    Move::AgreeLate,
    Move::AgreeOfOtherLife,
    Move::Gone(0),
    Move::Gone(1),
    Move::Done(0),
    Move::Done(1),
    Move::Done(2),
    Move::Done(3),
    Move::Flushed { late: false },
    Move::Flushed { late: true },
    Move::Settled { late: false, ok: true },
    Move::Settled { late: false, ok: false },
    Move::Settled { late: true, ok: true },
    Move::Settled { late: true, ok: false },
    Move::Die,
    Move::Pressure,
    Move::Later(0),
    Move::Later(61_000),
    Move::ParkByOperator { flush: true },
    Move::ParkByOperator { flush: false },
    Move::CheckFails,
    Move::CheckOfOtherLifeFails,
    Move::Boot { rollback: false },
    Move::Boot { rollback: true },
    Move::Clear,
    Move::Restart(0),
    Move::Restart(1),
    Move::Restart(2),
];

/// What carries a life on. Most moves of a random one are of these.
const LIVELY: [Move; 14] = [
    Move::Visit,
    IDLE,
    sleep(SleepReason::Operator, Tier::Paused, false),
    sleep(SleepReason::Operator, Tier::Image, false),
    Move::Answer { proxy: 0, agree: true },
    Move::Answer { proxy: 1, agree: true },
    Move::Done(0),
    Move::Done(0),
    Move::Done(0),
    Move::Flushed { late: false },
    Move::Settled { late: false, ok: true },
    Move::Pressure,
    Move::Later(0),
    Move::Clear,
];

/// The moves so far, told when one of them breaks something.
struct Story {
    seed: Option<u64>,
    moves: Vec<Move>,
}

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {:?}, after {:?}", self.seed, self.moves);
        }
    }
}

impl World {
    /// From wherever it is: if all that is being done comes to an end, everyone has an answer soon.
    fn rest(mut self, story: &mut Story, way: u8) {
        let told = story.moves.len();
        // The longest way: flush, pause, save, settle, commit, wake, end; time passes between two.
        for _ in 0..16 {
            let rests = matches!(
                self.app.state(),
                State::Asleep
                    | State::Awake
                    | State::Paused { .. }
                    | State::Failed { .. }
                    | State::Parked { .. }
            );
            if rests {
                assert_eq!((self.facts.visitors, self.facts.sleepers), (0, 0), "forgotten");
                story.moves.truncate(told);
                return;
            }
            for what in [
                Move::Done(way),
                Move::Done(0),
                Move::Done(1),
                Move::Flushed { late: false },
                Move::Settled { late: false, ok: way == 0 },
                Move::Later(61_000),
            ] {
                story.moves.push(what);
                if self.make(what) {
                    break;
                }
                story.moves.pop();
            }
        }
        panic!("never comes to rest: {self:?}");
    }

    /// What makes two worlds behave alike.
    fn key(&self) -> impl Eq + Hash + use<> {
        let mut facts = self.facts;
        facts.visitors = facts.visitors.min(1);
        facts.sleepers = facts.sleepers.min(1);
        let late = (
            self.flushes.len() > usize::from(facts.flushing),
            self.settles.len() > usize::from(facts.settle == Some(false)),
        );
        // What it remembers besides, so that what it wrongly keeps is found.
        let app = &self.app;
        let park = app.park.as_ref().map(|park| (park.flush, park.cleared));
        let young = app.woken_at.is_some_and(|at| self.now < at + PROVEN);
        let left_alone = app.sleepless.is_some_and(|until| self.now < until);
        let remembered = (park, young, left_alone, app.spoilt, app.failures);
        (strip(app.state()), facts, late, remembered, self.reference.key(self.now))
    }
}

/// The state without instants and words.
fn strip(state: &State) -> String {
    match state {
        State::Draining { reason, tier, waiting, .. } => format!("{reason:?} {tier:?} {waiting:?}"),
        State::Paused { .. } => "paused".to_owned(),
        State::Failed { .. } => "failed".to_owned(),
        State::Parked { .. } => "parked".to_owned(),
        State::Parking { cleared, .. } => format!("parking {cleared}"),
        other => format!("{other:?}"),
    }
}

/// Every order of events, shortest first, until no new situation is found.
#[test]
fn every_order_of_events_keeps_the_invariants() {
    let mut from: Vec<Option<(usize, Move)>> = vec![None];
    let mut seen = HashSet::from([World::new().key()]);
    let mut open = VecDeque::from([(0, World::new())]);
    while let Some((at, world)) = open.pop_front() {
        let mut story = Story { seed: None, moves: vec![] };
        let mut step = at;
        while let Some((before, what)) = from[step] {
            story.moves.insert(0, what);
            step = before;
        }
        for what in MOVES {
            let mut next = world.clone();
            story.moves.push(what);
            if next.make(what) {
                // More than one that is late tells nothing new.
                let late =
                    |numbers: &mut Vec<u64>| drop(numbers.drain(..numbers.len().saturating_sub(2)));
                late(&mut next.flushes);
                late(&mut next.settles);
                if seen.insert(next.key()) {
                    next.clone().rest(&mut story, 0);
                    next.clone().rest(&mut story, 1);
                    from.push(Some((at, what)));
                    open.push_back((from.len() - 1, next));
                }
            }
            story.moves.pop();
        }
    }
    // So that a mistake in the model that finds nothing is noticed.
    println!("{} situations", seen.len());
    assert!(seen.len() > 1000, "only {} situations", seen.len());
}

/// Three million events, or `ROUSE_MODEL_STEPS`; always the same ones, or those of `ROUSE_MODEL_SEED`.
#[test]
fn millions_of_random_events_keep_the_invariants() {
    let number = |name, or| std::env::var(name).map_or(or, |n| n.parse().unwrap());
    let steps: u64 = number("ROUSE_MODEL_STEPS", 3_000_000);
    let seed = number("ROUSE_MODEL_SEED", 20_240_229);
    println!("ROUSE_MODEL_SEED={seed} ROUSE_MODEL_STEPS={steps}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut made = 0;
    let mut met = HashMap::new();
    while made < steps {
        let mut world = World::new();
        let mut story = Story { seed: Some(seed), moves: vec![] };
        for _ in 0..1000 {
            let moves = if random.random_ratio(7, 8) { &LIVELY[..] } else { &MOVES };
            let what = match moves[random.random_range(0..moves.len())] {
                Move::Later(_) => Move::Later(random.random_range(0..40_000)),
                what => what,
            };
            world.jitter = random.random();
            story.moves.push(what);
            if world.make(what) {
                made += 1;
                *met.entry(discriminant(world.app.state())).or_insert(0) += 1;
            } else {
                story.moves.pop();
            }
        }
        let way = random.random_range(0..2);
        world.rest(&mut story, way);
    }
    // A walk that seldom gets anywhere shows nothing.
    assert_eq!(met.len(), 14, "every state is met");
    let least = met.values().min().copied().unwrap_or(0);
    println!("the rarest state was met {least} times");
    assert!(steps < 100_000 || least > steps / 1000, "{met:?}");
}
