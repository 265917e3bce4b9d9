//! Joining, limits, deadlines, order.

use rouse_protocol::wake::{FailureCode, WakeFailure};
use rouse_protocol::watch::AppState;

use super::outside::Wake;
use super::*;
use crate::Refusal;

#[tokio::test(start_paused = true)]
async fn many_visitors_are_one_wake() {
    let world = World::new().await;
    let mut visits = world.visits(200);
    eventually(|| world.holds() == 200).await;
    let mut words = Vec::new();
    while let Some(visit) = visits.join_next().await {
        let (_, visitor) = visit.unwrap();
        words.push(world.answered(&mut visitor.unwrap()).unwrap().word);
    }
    assert_eq!(words.iter().filter(|word| **word == "resumed").count(), 1);
    assert_eq!(words.iter().filter(|word| **word == "joined").count(), 199);
    assert_eq!((world.sim.wakes(), world.holds()), (1, 0));
    // Who comes later is not held, and has nothing to tell.
    let mut late = world.enter();
    assert!(late.enter_open().is_some());
    assert!(world.answered(&mut late).is_none());
}

#[tokio::test(start_paused = true)]
async fn the_first_visitors_leaving_ends_nothing_but_its_hold() {
    let world = World::new().await;
    let mut first = world.visits(1);
    eventually(|| world.holds() == 1).await;
    let mut others = world.visits(9);
    eventually(|| world.holds() == 10).await;
    first.abort_all();
    eventually(|| world.holds() == 9).await;
    while let Some(visit) = others.join_next().await {
        let mut visitor = visit.unwrap().1.unwrap();
        assert_eq!(world.answered(&mut visitor).unwrap().word, "joined");
    }
    assert_eq!(world.sim.wakes(), 1);
}

#[tokio::test(start_paused = true)]
async fn everybody_leaving_does_not_end_the_wake() {
    let world = World::new().await;
    let mut visits = world.visits(3);
    eventually(|| world.holds() == 3).await;
    visits.abort_all();
    eventually(|| world.gate.status()[0].gate == "open").await;
    assert!(world.enter().enter_open().is_some());
    assert_eq!(world.sim.wakes(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_visitor_who_is_gone_is_let_go() {
    let world = World::with(Limits::default(), |sim| sim.plan(Wake::Hangs)).await;
    let mut visitor = world.enter();
    let gone = tokio::time::sleep(ms(50));
    assert_eq!(world.gate.hold(&mut visitor, Asker::default(), gone).await, Err(Refusal::Gone));
    assert_eq!(world.holds(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_spans_all_holds_of_a_visitor() {
    let world =
        World::with(Limits::default(), |sim| sim.policy(|p| p.hold_deadline_ms = 1_000)).await;
    let mut visitor = world.visit().await.unwrap();
    assert!(visitor.held >= ms(100));
    // The app turns out not to be there, much later; that time was not a hold.
    tokio::time::sleep(ms(60_000)).await;
    world.sim.plan(Wake::Hangs);
    world.sim.tell_late(1, AppState::Asleep);
    world.sim.tell(AppState::Asleep);
    visitor.down();
    let began = Instant::now();
    let held = world.gate.hold(&mut visitor, Asker::default(), std::future::pending()).await;
    assert_eq!(held, Err(Refusal::Deadline));
    assert!(began.elapsed() <= ms(900), "{:?}", began.elapsed());
    assert_eq!(world.holds(), 0);
}

#[tokio::test(start_paused = true)]
async fn limits_per_app_and_in_all() {
    for (per_app, total) in [(3, 100), (100, 3)] {
        let limits = Limits { holds_per_app: per_app, holds_total: total, ..Limits::default() };
        let world = World::with(limits, |sim| sim.plan(Wake::Hangs)).await;
        let mut visits = world.visits(3);
        eventually(|| world.holds() == 3).await;
        assert_eq!(world.visit().await.err(), Some(Refusal::Full));
        assert_eq!(world.holds(), 3);
        visits.abort_all();
        eventually(|| world.holds() == 0).await;
        let _next = world.visits(1);
        eventually(|| world.holds() == 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_wake_fails_all_who_waited_and_the_next_starts_another() {
    let failure = |code| WakeFailure { code, detail: "why".to_owned(), retry_after_ms: Some(500) };
    for (code, refusal) in [
        (FailureCode::Backoff, Refusal::WakeFailed(failure(FailureCode::Backoff))),
        (FailureCode::Full, Refusal::WakeFailed(failure(FailureCode::Full))),
        (FailureCode::Vmm, Refusal::WakeFailed(failure(FailureCode::Vmm))),
        (FailureCode::Storage, Refusal::WakeFailed(failure(FailureCode::Storage))),
        (FailureCode::Locked, Refusal::WakeFailed(failure(FailureCode::Locked))),
        (FailureCode::Store, Refusal::WakeFailed(failure(FailureCode::Store))),
        (FailureCode::Elsewhere, Refusal::WakeFailed(failure(FailureCode::Elsewhere))),
        (FailureCode::Parked, Refusal::Parked("why".to_owned())),
        (FailureCode::Stopping, Refusal::WakerUnreachable("why".to_owned())),
        (FailureCode::Removed, Refusal::Removed),
    ] {
        let world =
            World::with(Limits::default(), |sim| sim.plan(Wake::Fails(failure(code)))).await;
        let mut visits = world.visits(5);
        while let Some(visit) = visits.join_next().await {
            assert_eq!(visit.unwrap().1.err(), Some(refusal.clone()), "{code:?}");
        }
        assert_eq!(world.sim.wakes(), 1, "{code:?}");
        world.sim.plan(Wake::Runs(ms(1)));
        assert!(world.visit().await.is_ok(), "{code:?}");
        assert_eq!(world.sim.wakes(), 2, "{code:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_waker_holds_end_at_once() {
    for plan in [Wake::Unreachable, Wake::BreaksOff] {
        let world = World::with(Limits::default(), |sim| sim.plan(plan)).await;
        let began = Instant::now();
        let refusal = world.visit().await.err().unwrap();
        assert!(matches!(refusal, Refusal::WakerUnreachable(_)), "{refusal:?}");
        assert_eq!(began.elapsed(), ms(0));
    }
    for (status, removed) in [(404, true), (503, false)] {
        let world = World::with(Limits::default(), |sim| sim.plan(Wake::Refused(status))).await;
        let refusal = world.visit().await.err().unwrap();
        assert_eq!(refusal == Refusal::Removed, removed);
        assert_eq!(matches!(refusal, Refusal::WakerRefused(_)), !removed);
    }
}

#[tokio::test(start_paused = true)]
async fn parked_is_told_at_once_and_without_a_wake() {
    let parked = || AppState::Parked { detail: "why".to_owned() };
    let world = World::with(Limits::default(), |sim| sim.tell(parked())).await;
    assert_eq!(world.visit().await.err(), Some(Refusal::Parked("why".to_owned())));
    assert_eq!(world.sim.wakes(), 0);
    world.sim.tell(AppState::Asleep);
    eventually(|| world.gate.status()[0].state == "asleep").await;
    assert!(world.visit().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn release_is_paced_and_in_order_of_arrival() {
    let limits = Limits { release_at_once: 3, ..Limits::default() };
    let world = World::with(limits, |_| {}).await;
    let mut visits = world.visits(10);
    eventually(|| world.holds() == 10).await;
    let mut through = Vec::new();
    let mut let_go = std::collections::VecDeque::new();
    while through.len() < 10 {
        let (i, visitor) = visits.join_next().await.unwrap().unwrap();
        through.push(i);
        let_go.push_back(visitor.unwrap());
        if let_go.len() == 3 || through.len() == 10 {
            tokio::time::sleep(ms(100)).await;
            assert_eq!(world.holds(), 10 - through.len(), "no more than three at once");
            // The first gets its response header, and the next one goes.
            world.answered(&mut let_go.pop_front().unwrap()).unwrap();
        }
    }
    // Those let go at the same instant may overtake each other here, by no more than their number.
    for (place, i) in through.iter().enumerate() {
        assert!(place.abs_diff(*i) < 3, "{through:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn those_who_are_answered_slowly_do_not_hold_up_the_rest() {
    let limits = Limits { release_at_once: 2, ..Limits::default() };
    let world = World::with(limits, |_| {}).await;
    let mut visits = world.visits(6);
    let mut unanswered = Vec::new();
    for _ in 0..6 {
        unanswered.push(visits.join_next().await.unwrap().unwrap().1.unwrap());
    }
    assert_eq!(world.holds(), 0, "nobody is held behind a long poll");
    assert_eq!(unanswered.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_visitor_who_drops_its_pass_makes_room() {
    let limits = Limits { release_at_once: 1, ..Limits::default() };
    let world = World::with(limits, |_| {}).await;
    let mut visits = world.visits(5);
    for _ in 0..5 {
        // Dropped at once: the client hung up, or the app broke off.
        drop(visits.join_next().await.unwrap().unwrap().1.unwrap());
    }
    assert_eq!(world.holds(), 0);
}

#[tokio::test(start_paused = true)]
async fn stopping_lets_all_holds_go_and_serves_on() {
    let world = World::with(Limits::default(), |sim| sim.plan(Wake::Hangs)).await;
    let mut visits = world.visits(3);
    eventually(|| world.holds() == 3).await;
    world.gate.stop();
    while let Some(visit) = visits.join_next().await {
        assert_eq!(visit.unwrap().1.err(), Some(Refusal::Stopping));
    }
    assert_eq!(world.visit().await.err(), Some(Refusal::Stopping));

    let world = World::new().await;
    drop(world.visit().await.unwrap());
    world.gate.stop();
    assert!(world.enter().enter_open().is_some());
    world.gate.end().await;
}

#[tokio::test(start_paused = true)]
async fn hosts_are_matched_without_case_port_and_dot() {
    let world = World::new().await;
    for host in ["hello.test", "HELLO.test", "hello.test:80", "hello.test."] {
        assert!(world.find(host).is_some(), "{host}");
    }
    for host in ["", "other.test", "hello.test/", "hello", "a b"] {
        assert!(world.find(host).is_none(), "{host}");
    }
}
