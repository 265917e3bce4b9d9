//! The lifecycle against a model of the world that carries out its effects ([`world`]) and a second,
//! simpler account of what must come of each event ([`reference`]): through every order of events and
//! along random lives of millions of events ([`walks`]). Here: single rules.

use proptest::prelude::*;

use super::*;

#[path = "lifecycle_tests/effects.rs"]
mod effects;
#[path = "lifecycle_tests/parks.rs"]
mod parks;
#[path = "lifecycle_tests/reference.rs"]
mod reference;
#[path = "lifecycle_tests/walks.rs"]
mod walks;
#[path = "lifecycle_tests/world.rs"]
mod world;

const LIMITS: Limits = Limits {
    failed_before_park: 3,
    agreement: Duration::from_secs(2),
    paused: Duration::from_secs(20),
};

fn asleep() -> Lifecycle {
    Lifecycle::asleep(LIMITS, Generation(0), Standing::default())
}

fn woken(app: &mut Lifecycle, now: Instant) {
    app.step(now, 0.0, Event::Wake);
    app.step(now, 0.0, Event::Woken(WakeEnd::Ready(app.generation().next())));
    assert_eq!(app.state(), &State::Awake);
}

fn awake(now: Instant) -> Lifecycle {
    let mut app = asleep();
    woken(&mut app, now);
    app
}

fn sleep(reason: SleepReason, tier: Tier, proxies: &[&str]) -> Event {
    let proxies = proxies.iter().map(ToString::to_string).collect();
    Event::Sleep { reason, generation: None, tier, proxies }
}

fn park(generation: Option<Generation>, flush: bool) -> Event {
    Event::Park { detail: "why".into(), generation, flush }
}

/// The events that lead from awake to asleep as an image. The numbers are those of an app that has not
/// slept before.
fn falling_asleep(tier: Tier) -> Vec<Event> {
    vec![
        sleep(SleepReason::Operator, tier, &[]),
        Event::Flushed { sleep: 1 },
        Event::Stopped(Ok(())),
        Event::Saved(Ok(())),
        Event::Settled { sleep: 2, result: Ok(()) },
        Event::Committed(Ok(())),
    ]
}

/// Takes all of the events; the effects are those of the last.
fn take(app: &mut Lifecycle, now: Instant, events: &[Event]) -> Vec<Effect> {
    events.iter().fold(vec![], |_, event| app.step(now, 0.0, event.clone()))
}

proptest! {
    #[test]
    fn backoff_grows_within_its_bounds(failures in 1_u32..100, jitter in 0.0_f64..=1.0) {
        let wait = backoff(failures, jitter);
        prop_assert!(wait >= BACKOFF_FIRST / 2 && wait <= BACKOFF_MAX);
        prop_assert!(backoff(failures + 1, jitter) >= wait);
    }
}

#[test]
fn failures_are_remembered_and_park_the_app() {
    let mut now = Instant::now();
    let mut app = asleep();
    for n in 1..=LIMITS.failed_before_park {
        assert_eq!(app.step(now, 0.0, Event::Wake), [Effect::StartWake(Start::Restore)], "{n}");
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
    let [Effect::AnswerWakes(WakeAnswer::Parked { detail })] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(detail, "3 wakes failed in a row; the last: x");
    app.step(now, 0.0, Event::Clear);
    assert_eq!(app.step(now, 0.0, Event::Wake), [Effect::StartWake(Start::Restore)]);
}

#[test]
fn other_limits_count_from_the_next_failure() {
    let now = Instant::now();
    let mut app = asleep();
    app.limit(Limits { failed_before_park: 1, ..LIMITS });
    app.step(now, 0.0, Event::Wake);
    app.step(now, 0.0, Event::Woken(WakeEnd::Failed("x".into())));
    assert!(matches!(app.state(), State::Parked { .. }), "{:?}", app.state());
}

#[test]
fn an_answer_to_a_withdrawn_question_counts_for_nothing() {
    let now = Instant::now();
    let mut app = awake(now);
    let ask = |app: &mut Lifecycle| {
        app.step(now, 0.0, sleep(SleepReason::Operator, Tier::Image, &["p"]));
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
    assert_eq!(app.step(now, 0.0, yes(second)), [Effect::Flush { sleep: 1 }]);
}

#[test]
fn what_ends_too_late_belongs_to_no_later_sleep() {
    let now = Instant::now();
    let mut app = awake(now);
    let again = sleep(SleepReason::Operator, Tier::Image, &[]);
    take(&mut app, now, &[again.clone(), Event::Wake, again]);
    assert_eq!(app.step(now, 0.0, Event::Flushed { sleep: 1 }), []);
    assert_eq!(app.step(now, 0.0, Event::Flushed { sleep: 2 }), [Effect::Pause]);
    take(&mut app, now, &[Event::Stopped(Ok(())), Event::Saved(Ok(()))]);
    for late in [1, 2] {
        let late = Event::Settled { sleep: late, result: Ok(()) };
        assert_eq!(app.step(now, 0.0, late), []);
    }
    let settled = Event::Settled { sleep: 3, result: Ok(()) };
    assert_eq!(app.step(now, 0.0, settled), [Effect::Commit]);
}

#[test]
fn a_vm_that_always_dies_early_is_parked_and_one_that_ran_long_is_not() {
    let mut now = Instant::now();
    let mut app = awake(now);
    let die = |app: &mut Lifecycle, now| {
        app.step(now, 0.0, Event::VmExited { detail: "panic".into() });
    };
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
    let events = falling_asleep(Tier::Image);
    // How many steps of the sleep are over, and how long the visitor waits before the VM is set going.
    for (steps, waits_for) in [(1, 0), (2, 1), (3, 1), (4, 0)] {
        let mut app = awake(now);
        take(&mut app, now, &events[..steps]);
        app.step(now, 0.0, Event::Wake);
        take(&mut app, now, &events[steps..steps + waits_for]);
        if steps == 1 {
            assert_eq!(app.state(), &State::Awake, "it never stood still");
            continue;
        }
        assert_eq!(app.state(), &State::Resuming { wake: true, paused: false }, "{steps}");
        // A settle that comes too late changes nothing.
        assert_eq!(app.step(now, 0.0, events[4].clone()), []);
        let effects = app.step(now, 0.0, Event::Resumed(Ok(())));
        assert_eq!(effects, [Effect::AnswerWakes(WakeAnswer::Awake)]);
        assert_eq!((app.state(), app.generation()), (&State::Awake, Generation(1)));
    }
}

#[test]
fn a_vm_that_dies_while_its_image_settles_is_woken_from_it() {
    let now = Instant::now();
    let mut app = awake(now);
    let events = falling_asleep(Tier::Image);
    take(&mut app, now, &events[..4]);
    assert_eq!(app.step(now, 0.0, Event::VmExited { detail: "killed".into() }), []);
    assert_eq!(app.step(now, 0.0, Event::Wake), []);
    assert_eq!(app.step(now, 0.0, events[4].clone()), [Effect::Commit]);
    let slept = Effect::AnswerSleeps(Ok(Tier::Image));
    let effects = app.step(now, 0.0, Event::Committed(Ok(())));
    assert_eq!(effects, [slept, Effect::StartWake(Start::Restore)]);
}

#[test]
fn a_paused_app_wakes_at_once_and_becomes_an_image_when_it_should() {
    let now = Instant::now();
    let paused = || {
        let mut app = awake(now);
        let effects = take(&mut app, now, &falling_asleep(Tier::Paused)[..3]);
        assert_eq!(effects, [Effect::AnswerSleeps(Ok(Tier::Paused))]);
        app
    };
    let mut app = paused();
    assert_eq!(app.step(now, 0.0, Event::Wake), [Effect::Resume]);
    let effects = app.step(now, 0.0, Event::Resumed(Ok(())));
    assert_eq!(effects, [Effect::AnswerWakes(WakeAnswer::Unpaused)]);

    let mut app = paused();
    assert_eq!(app.deadline(), Some(now + LIMITS.paused));
    let nearly = now + LIMITS.paused - Duration::from_millis(1);
    assert_eq!(app.step(nearly, 0.0, Event::Tick), []);
    assert_eq!(app.step(now + LIMITS.paused, 0.0, Event::Tick), [Effect::Save]);
    assert_eq!(paused().step(now, 0.0, Event::Pressure), [Effect::Save]);
    let deeper = sleep(SleepReason::Idle, Tier::Image, &["p"]);
    assert_eq!(paused().step(now, 0.0, deeper), [Effect::Save]);
}

#[test]
fn who_asks_for_the_deepest_sleep_gets_it() {
    let now = Instant::now();
    for joins_after in 1..=2 {
        let mut app = awake(now);
        let events = falling_asleep(Tier::Paused);
        take(&mut app, now, &events[..joins_after]);
        app.step(now, 0.0, sleep(SleepReason::Operator, Tier::Image, &["p"]));
        app.step(now, 0.0, sleep(SleepReason::Operator, Tier::Paused, &["p"]));
        assert_eq!(take(&mut app, now, &events[joins_after..3]), [Effect::Save]);
    }
}

#[test]
fn after_a_failed_sleep_an_idle_app_is_left_alone() {
    let now = Instant::now();
    let full = || Err("disk full".to_owned());
    for (steps, failure) in [
        (2, Event::Stopped(full())),
        (3, Event::Saved(full())),
        (4, Event::Settled { sleep: 2, result: full() }),
    ] {
        let mut app = awake(now);
        take(&mut app, now, &falling_asleep(Tier::Image)[..steps]);
        let failed = (SleepRefusal::Failed, "disk full".to_owned());
        let effects = app.step(now, 0.0, failure);
        assert_eq!(effects, [Effect::AnswerSleeps(Err(failed)), Effect::Resume]);
        app.step(now, 0.0, Event::Resumed(Ok(())));

        let idle = || sleep(SleepReason::Idle, Tier::Paused, &[]);
        let nearly = now + SLEEPLESS - Duration::from_millis(1);
        let effects = app.step(nearly, 0.0, idle());
        assert!(matches!(effects[..], [Effect::RefuseSleep(SleepRefusal::Failed, _)]));
        let flushes = |effects: &[Effect]| matches!(effects, [Effect::Flush { .. }]);
        assert!(flushes(&app.clone().step(now + SLEEPLESS, 0.0, idle())));
        let operator = sleep(SleepReason::Operator, Tier::Paused, &[]);
        assert!(flushes(&app.step(nearly, 0.0, operator)));
    }
}
