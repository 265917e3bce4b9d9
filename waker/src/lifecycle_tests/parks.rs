//! Parks, spoilt memory, boots, and what outlives a waker.

use super::*;

/// An app that sleeps as an image.
fn slept(now: Instant) -> Lifecycle {
    let mut app = awake(now);
    take(&mut app, now, &falling_asleep(Tier::Image));
    assert_eq!(app.state(), &State::Asleep);
    app
}

fn parked(app: &Lifecycle) -> bool {
    matches!(app.state(), State::Parked { .. })
}

#[test]
fn a_park_at_any_step_of_a_sleep_ends_the_vm_or_keeps_its_image() {
    let now = Instant::now();
    let events = falling_asleep(Tier::Image);
    for steps in 0..=events.len() {
        let mut app = awake(now);
        take(&mut app, now, &events[..steps]);
        app.step(now, 0.0, park(None, true));
        // Whatever is being done comes to its end.
        let mut ended = false;
        for _ in 0..4 {
            let event = match app.state() {
                State::Pausing { .. } => Event::Stopped(Ok(())),
                State::Saving { .. } => Event::Saved(Ok(())),
                State::Resuming { .. } => Event::Resumed(Ok(())),
                State::Committing { .. } => Event::Committed(Ok(())),
                State::Parking { .. } => Event::Ended,
                _ => break,
            };
            ended |= event == Event::Ended;
            app.step(now, 0.0, event);
        }
        assert!(parked(&app), "{steps}: {:?}", app.state());
        assert_eq!(ended, steps < 5, "{steps}");
    }
}

#[test]
fn the_newest_word_says_whether_it_stays_parked() {
    let now = Instant::now();
    // While the VM is being ended, and while that has to wait for a wake.
    for waking in [false, true] {
        for (words, stays) in [
            (vec![park(None, true)], true),
            (vec![park(None, true), Event::Clear], false),
            (vec![park(None, true), Event::Clear, park(None, true)], true),
        ] {
            let mut app = if waking { asleep() } else { awake(now) };
            app.step(now, 0.0, Event::Wake);
            take(&mut app, now, &words);
            assert_eq!(app.standing().parked.is_some(), stays, "{words:?}");
            app.step(now, 0.0, Event::Woken(WakeEnd::Ready(Generation(1))));
            let effects = app.step(now, 0.0, Event::Ended);
            assert_eq!(parked(&app), stays, "{words:?}");
            assert_eq!(!effects.is_empty(), stays, "{words:?}: {effects:?}");
        }
    }
}

#[test]
fn a_guest_flushes_before_its_end_unless_a_word_speaks_against_it() {
    let now = Instant::now();
    for (words, flush) in [
        (vec![park(None, true)], true),
        (vec![park(None, false)], false),
        // The check comes while the operator's word waits for the wake.
        (vec![park(None, true), park(Some(Generation(0)), false)], false),
        (vec![park(Some(Generation(0)), false), park(None, true)], false),
    ] {
        let mut app = asleep();
        app.step(now, 0.0, Event::Wake);
        take(&mut app, now, &words);
        let effects = app.step(now, 0.0, Event::Woken(WakeEnd::Ready(Generation(1))));
        assert_eq!(effects.last(), Some(&Effect::End { flush }), "{words:?}");
    }
    let mut paused = awake(now);
    take(&mut paused, now, &falling_asleep(Tier::Paused)[..3]);
    let effects = paused.step(now, 0.0, park(None, true));
    assert_eq!(effects.last(), Some(&Effect::End { flush: false }), "it stands still");
}

#[test]
fn spoilt_memory_is_never_restored() {
    let now = Instant::now();
    let check = park(Some(Generation(1)), false);
    for words in [
        vec![check.clone()],
        // Parked already, when the check comes.
        vec![park(None, true), check.clone()],
    ] {
        let mut app = slept(now);
        take(&mut app, now, &words);
        assert!(parked(&app) && app.standing().spoilt, "{words:?}");
        // Not after it was cleared, nor by another waker, nor while wakes do not succeed.
        app.step(now, 0.0, Event::Clear);
        let mut app = Lifecycle::asleep(LIMITS, Generation(1), app.standing());
        for end in [WakeEnd::Unable, WakeEnd::Failed("x".into())] {
            let effects = app.step(now, 0.0, Event::Wake);
            assert_eq!(effects, [Effect::StartWake(Start::Cold)], "{words:?}");
            app.step(now, 0.0, Event::Woken(end));
        }
        woken(&mut app, now + BACKOFF_MAX);
        take(&mut app, now, &falling_asleep(Tier::Image));
        assert_eq!(app.step(now, 0.0, Event::Wake), [Effect::StartWake(Start::Restore)]);
    }
    // While it becomes an image that can't be stopped any more.
    let mut app = awake(now);
    take(&mut app, now, &falling_asleep(Tier::Image)[..5]);
    app.step(now, 0.0, check);
    assert!(app.standing().spoilt && app.standing().parked.is_some());
    app.step(now, 0.0, Event::Committed(Ok(())));
    app.step(now, 0.0, Event::Clear);
    assert_eq!(app.step(now, 0.0, Event::Wake), [Effect::StartWake(Start::Cold)]);
}

#[test]
fn a_check_of_another_life_says_nothing() {
    let now = Instant::now();
    let mut app = awake(now);
    assert_eq!(app.step(now, 0.0, park(Some(Generation(0)), false)), []);
    assert_eq!((app.state(), app.standing()), (&State::Awake, Standing::default()));
}

#[test]
fn an_adopted_vm_that_was_to_be_parked_is_ended() {
    let now = Instant::now();
    let mut app = awake(now);
    app.step(now, 0.0, park(None, true));
    let standing = app.standing();
    let (generation, tick) = (app.generation(), Event::Tick);
    let mut running = Lifecycle::awake(LIMITS, generation, standing.clone());
    let mut still = Lifecycle::paused(LIMITS, generation, standing.clone(), now);
    for (app, flush) in [(&mut running, true), (&mut still, false)] {
        assert_eq!(app.standing(), standing, "not forgotten before its first event");
        let effects = app.step(now, 0.0, tick.clone());
        assert_eq!(effects.last(), Some(&Effect::End { flush }));
        app.step(now, 0.0, Event::Ended);
        assert!(parked(app));
    }
    let gone = Lifecycle::asleep(LIMITS, generation, standing);
    assert!(parked(&gone));
}

#[test]
fn clearing_forgets_failures_wherever_they_are_remembered() {
    let now = Instant::now();
    let standing = Standing { failures: 2, ..Standing::default() };
    let mut restarted = Lifecycle::asleep(LIMITS, Generation(0), standing);
    restarted.step(now, 0.0, Event::Clear);
    assert_eq!(restarted.standing(), Standing::default());
}

#[test]
fn a_boot_takes_an_app_without_a_vm_and_nobody_elses_wake() {
    let now = Instant::now();
    for (rollback, start) in [(false, Start::Cold), (true, Start::Rollback)] {
        let boot = Event::Boot { rollback };
        let started = [Effect::StartWake(start)];
        assert_eq!(slept(now).step(now, 0.0, boot.clone()), started);
        let mut failed = asleep();
        take(&mut failed, now, &[Event::Wake, Event::Woken(WakeEnd::Failed("x".into()))]);
        assert_eq!(failed.step(now, 0.0, boot.clone()), started, "without waiting");

        let mut waking = asleep();
        waking.step(now, 0.0, Event::Wake);
        let mut parked = asleep();
        parked.step(now, 0.0, park(None, true));
        for mut app in [waking, awake(now), parked] {
            let effects = app.step(now, 0.0, boot.clone());
            assert!(matches!(effects[..], [Effect::RefuseBoot(_)]), "{effects:?}");
        }
    }
}
