//! From `ready` to `serving`.

use rouse_protocol::signature::AgentState;
use rouse_protocol::wake::Phase;
use rouse_protocol::watch::AppState;

use super::outside::{App, Wake};
use super::*;
use crate::verdict::Heard;

#[tokio::test(start_paused = true)]
async fn probes_follow_the_schedule_without_a_tick() {
    let world = World::with(Limits::default(), |sim| sim.plan(Wake::Runs(ms(10)))).await;
    let down = [
        App::Heard(Heard::Refused, ms(0)),
        App::Heard(Heard::Closed, ms(0)),
        App::Heard(Heard::Reset, ms(0)),
        App::Says(AgentState::Starting),
        App::Says(AgentState::Down),
        App::Heard(Heard::Unreachable, ms(0)),
        App::Heard(Heard::Refused, ms(0)),
        App::Heard(Heard::Refused, ms(0)),
    ];
    world.prober.script(down);
    let mut visitor = world.visit().await.unwrap();
    let sent = world.prober.sent.lock().unwrap().clone();
    let gaps: Vec<_> = sent.windows(2).map(|w| (w[1] - w[0]).as_millis()).collect();
    assert_eq!(gaps, [1, 2, 4, 8, 16, 25, 25, 25]);
    let shares = world.answered(&mut visitor).unwrap().shares;
    assert_eq!(shares.get(Phase::Gate), ms(1 + 2 + 4 + 8 + 16 + 25 + 25 + 25));
    // Of which ours is no more than the last wait: the app may have been there all through it.
    assert_eq!(shares.own, ms(10 + 25), "the way to the waker and the last wait");
}

#[tokio::test(start_paused = true)]
async fn a_slow_guest_is_not_cut_off_and_a_lost_probe_costs_little() {
    // The first probe takes 800 ms for its byte, all others hear nothing: it must not be given up.
    let world = World::new().await;
    let serving = Heard::Answer { agent: Vec::new() };
    world.prober.script([App::Heard(serving, ms(800))]);
    *world.prober.then.lock().unwrap() = App::Heard(Heard::Closed, ms(60_000));
    let began = Instant::now();
    world.visit().await.unwrap();
    assert_eq!(began.elapsed(), ms(100 + 800));

    // The first probe leads nowhere: the second, 250 ms later, finds the app.
    let world = World::new().await;
    world.prober.script([App::Heard(Heard::Closed, ms(60_000))]);
    let began = Instant::now();
    world.visit().await.unwrap();
    assert_eq!(began.elapsed(), ms(100 + 250));
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_takes_long_to_boot_is_found_when_it_is_there() {
    let world = World::new().await;
    *world.prober.then.lock().unwrap() = App::Heard(Heard::Closed, ms(60_000));
    let mut visits = world.visits(1);
    tokio::time::sleep(ms(9_000)).await;
    *world.prober.then.lock().unwrap() = App::Says(AgentState::Serving);
    let there = Instant::now();
    visits.join_next().await.unwrap().unwrap().1.unwrap();
    assert!(there.elapsed() <= ms(250), "{:?}", there.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_app_that_never_serves_ends_the_wake_and_not_only_its_visitors() {
    let limits = Limits { gate: ms(40_000), ..Limits::default() };
    let world = World::with(limits, |_| {}).await;
    *world.prober.then.lock().unwrap() = App::Says(AgentState::Starting);
    let began = Instant::now();
    assert_eq!(world.visit().await.err(), Some(Refusal::Deadline));
    assert_eq!(began.elapsed(), ms(25_000));
    assert_eq!(world.visit().await.err(), Some(Refusal::NotServing));
    assert_eq!(began.elapsed(), ms(40_000));
    assert_eq!((world.sim.wakes(), world.gate.status()[0].gate), (1, "closed"));
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_dies_before_it_serves_is_asked_for_again() {
    let world = World::new().await;
    *world.prober.then.lock().unwrap() = App::Heard(Heard::Refused, ms(0));
    let mut visits = world.visits(2);
    eventually(|| world.sim.state().ready().is_some()).await;
    tokio::time::sleep(ms(50)).await;
    world.sim.tell(AppState::Asleep);
    eventually(|| world.sim.wakes() == 2).await;
    *world.prober.then.lock().unwrap() = App::Says(AgentState::Serving);
    while let Some(visit) = visits.join_next().await {
        assert!(visit.unwrap().1.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_live_down_closes_the_gate_for_all_and_only_once() {
    let world = World::new().await;
    let mut a = world.visit().await.unwrap();
    let mut b = world.visit().await.unwrap();
    a.down();
    assert!(world.enter().enter_open().is_none());
    assert!(world.gate.hold(&mut a, Asker::default(), std::future::pending()).await.is_ok());
    assert_eq!(world.answered(&mut a).unwrap().word, "awake");
    // What b heard is of the gate before: it closes nothing now.
    b.down();
    assert!(world.enter().enter_open().is_some());
    assert_eq!((world.sim.wakes(), world.dialer.counts()), (2, (1, 0)), "the same life all along");
}
