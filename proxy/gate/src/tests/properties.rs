//! Any order of events, and real threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use proptest::prelude::*;
use rouse_protocol::app::Generation;
use rouse_protocol::wake::{Outcome, Ready, SleepReason};
use rouse_protocol::watch::{AppState, Policy};

use super::outside::{SimDialer, id};
use super::*;
use crate::app::App;
use crate::known::Known;
use crate::times::WakeTimes;

fn ready(generation: u64) -> Ready {
    Ready {
        endpoint: ([127, 0, 0, 1], 4000).into(),
        generation: Generation(generation),
        outcome: Outcome::Resumed,
        key: None,
    }
}

fn policy() -> Policy {
    Policy { idle_ms: 0, hold_deadline_ms: 1_000, gate_path: "/".to_owned(), ..Policy::default() }
}

fn app() -> Arc<App> {
    let known = Known { state: AppState::Asleep, generation: Generation(0) };
    Arc::new(App::new(id(), policy(), known, Instant::now()))
}

fn serve(app: &App, attempt: u64, generation: u64) {
    let now = Instant::now();
    let times = Arc::new(WakeTimes::new(Outcome::Resumed, &[], [now; 3], Duration::ZERO));
    app.serve(attempt, &ready(generation), times, 1, &SimDialer::default(), now);
}

fn paused(generation: u64) -> Known {
    Known { state: AppState::Paused, generation: Generation(generation) }
}

#[derive(Clone, Debug)]
enum Op {
    Arrive,
    Leave,
    Join,
    Serve,
    Fail,
    Down,
    MaySleep,
    Asleep,
    /// Word of a pause of this life, right after its wake.
    PausedMaybeLate,
    /// A second later.
    Settle,
    Paused,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    use Op::{
        Arrive, Asleep, Down, Fail, Join, Leave, MaySleep, Paused, PausedMaybeLate, Serve, Settle,
    };
    let op = prop::sample::select(vec![
        Arrive,
        Leave,
        Join,
        Serve,
        Fail,
        Down,
        MaySleep,
        Asleep,
        PausedMaybeLate,
        Settle,
        Paused,
    ]);
    prop::collection::vec(op, 0..80)
}

proptest! {
    #[test]
    fn any_order_of_events(ops in ops()) {
        let app = app();
        let mut visitors = Vec::new();
        let (mut waking, mut generation, mut attempts) = (None, 0u64, 0u64);
        let mut doubted = false;
        // Before every wake here is a second old, and after that.
        let (soon, later) = (Instant::now(), || Instant::now() + Duration::from_secs(2));
        for op in ops {
            match op {
                Op::Arrive => visitors.push(Visitor::new(app.clone(), Instant::now())),
                Op::Leave => drop(visitors.pop()),
                Op::Join => {
                    let ticket = app.join(None, Instant::now()).unwrap();
                    let idle = waking.is_none() && app.open().is_none();
                    prop_assert_eq!(ticket.start, idle, "one start for each wake");
                    if ticket.start {
                        attempts += 1;
                        waking = Some(ticket.attempt);
                    }
                    prop_assert_eq!(ticket.attempt, attempts);
                    prop_assert!(!ticket.era.is_closed());
                }
                Op::Serve => {
                    if let Some(attempt) = waking.take() {
                        generation += 1;
                        serve(&app, attempt, generation);
                        doubted = false;
                        prop_assert_eq!(app.open().unwrap().generation, Generation(generation));
                    }
                }
                Op::Fail => {
                    if let Some(attempt) = waking.take() {
                        let waiting = app.join(None, Instant::now()).unwrap();
                        app.fail(attempt, Refusal::NotServing);
                        prop_assert!(waiting.era.is_closed(), "nobody waits in vain");
                        prop_assert_eq!(app.failure(waiting.attempt), Some(Refusal::NotServing));
                        prop_assert_eq!(app.failure(waiting.attempt + 1), None);
                    }
                }
                Op::Down => {
                    if let Some(open) = app.open() {
                        app.down(&open);
                        prop_assert!(app.open().is_none());
                        app.down(&open);
                    }
                }
                Op::MaySleep => {
                    let before = app.open();
                    let may =
                        app.may_sleep(Generation(generation), SleepReason::Operator, Instant::now());
                    prop_assert_eq!(may, visitors.is_empty() && waking.is_none());
                    let after = app.open();
                    if may {
                        prop_assert!(after.is_none());
                    } else {
                        prop_assert_eq!(before.is_some(), after.is_some());
                    }
                }
                Op::Asleep => {
                    let known =
                        Known { state: AppState::Asleep, generation: Generation(generation) };
                    app.learn(policy(), known, Instant::now());
                    prop_assert!(app.open().is_none());
                }
                Op::PausedMaybeLate => {
                    let before = app.open().is_some();
                    app.learn(policy(), paused(generation), soon);
                    prop_assert_eq!(app.open().is_some(), before, "it may be of before");
                    doubted = before;
                }
                Op::Settle => {
                    let before = app.open().is_some();
                    app.settle(soon);
                    prop_assert_eq!(app.open().is_some(), before, "too soon");
                    app.settle(later());
                    prop_assert_eq!(app.open().is_some(), before && !doubted);
                    doubted = false;
                }
                Op::Paused => {
                    app.learn(policy(), paused(generation), later());
                    prop_assert!(app.open().is_none());
                }
            }
            prop_assert_eq!(app.activity.in_flight(), visitors.len() as u64);
        }
    }
}

/// Visitors on several threads against one who keeps asking whether the app may sleep: nobody who
/// went through the gate is there when it may.
#[test]
fn nobody_is_inside_when_the_word_is_given() {
    const ENOUGH: usize = 20_000;
    let spin = |n| (0..n).for_each(|_| std::hint::spin_loop());
    let app = app();
    let asleep = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    let inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    let mut visitor = Visitor::new(app.clone(), Instant::now());
                    if visitor.enter_open().is_some() {
                        inside.fetch_add(1, Ordering::SeqCst);
                        assert!(!asleep.load(Ordering::SeqCst), "let into a sleeping app");
                        spin(100);
                        assert!(!asleep.load(Ordering::SeqCst), "it went to sleep meanwhile");
                    }
                    drop(visitor);
                    // Or somebody would be there all the time, and nothing to be seen.
                    spin(100);
                }
            });
        }
        let mut slept = 0;
        let mut generation = 0;
        while slept < ENOUGH || inside.load(Ordering::SeqCst) < ENOUGH {
            generation += 1;
            let ticket = app.join(None, Instant::now()).unwrap();
            serve(&app, ticket.attempt, generation);
            spin(30);
            while !app.may_sleep(Generation(generation), SleepReason::Operator, Instant::now()) {
                std::hint::spin_loop();
            }
            asleep.store(true, Ordering::SeqCst);
            slept += 1;
            spin(300);
            asleep.store(false, Ordering::SeqCst);
        }
        over.store(true, Ordering::SeqCst);
    });
}
