//! Agreeing to sleep, proposing it, and losing sight of the waker.

use rouse_protocol::app::Generation;
use rouse_protocol::signature::AgentState;
use rouse_protocol::wake::SleepReason;
use rouse_protocol::watch::AppState;

use super::outside::Wake;
use super::*;

async fn awake() -> World {
    let world = World::new().await;
    drop(world.visit().await.unwrap());
    world
}

#[tokio::test(start_paused = true)]
async fn an_operator_may_when_nobody_is_there() {
    let world = awake().await;
    let visitor = world.visit().await.unwrap();
    assert_eq!(world.sim.put_to_sleep(SleepReason::Operator).await, Err("busy"));
    assert!(world.enter().enter_open().is_some(), "the gate is open again");
    assert_eq!(world.dialer.counts(), (1, 0));
    drop(visitor);
    assert_eq!(world.sim.put_to_sleep(SleepReason::Operator).await, Ok(Generation(1)));
    assert_eq!(world.sim.agreements(), [false, true]);
    assert_eq!(
        world.dialer.counts(),
        (1, 1),
        "its connections were shut before the word was given"
    );
    assert!(world.enter().enter_open().is_none());
    assert_eq!(world.sim.wakes(), 1);
}

#[tokio::test(start_paused = true)]
async fn idleness_is_measured_here_too() {
    let world = World::with(Limits::default(), |sim| sim.policy(|p| p.idle_ms = 10_000)).await;
    drop(world.visit().await.unwrap());
    tokio::time::sleep(ms(9_000)).await;
    assert_eq!(world.sim.put_to_sleep(SleepReason::Idle).await, Err("busy"));
    assert!(world.sim.proposals().is_empty());
    eventually(|| world.sim.state() == AppState::Asleep).await;
    let proposed = world.sim.proposals();
    assert_eq!(proposed.len(), 1);
    assert_eq!(
        (proposed[0].generation, proposed[0].reason),
        (Some(Generation(1)), SleepReason::Idle)
    );
    // And when it was woken again, it counts anew.
    drop(world.visit().await.unwrap());
    tokio::time::sleep(ms(9_000)).await;
    assert!(world.sim.state().ready().is_some());
    eventually(|| world.sim.state() == AppState::Asleep).await;
}

#[tokio::test(start_paused = true)]
async fn never_means_never() {
    let world = awake().await;
    tokio::time::sleep(ms(3_600_000)).await;
    assert!(world.sim.proposals().is_empty());
    assert_eq!(world.sim.put_to_sleep(SleepReason::Idle).await, Err("busy"));
}

#[tokio::test(start_paused = true)]
async fn what_is_in_flight_keeps_it_awake_however_long_it_takes() {
    let world = World::with(Limits::default(), |sim| sim.policy(|p| p.idle_ms = 1_000)).await;
    let stream = world.visit().await.unwrap();
    tokio::time::sleep(ms(600_000)).await;
    assert!(world.sim.proposals().is_empty());
    drop(stream);
    let quiet = Instant::now();
    eventually(|| world.sim.state() == AppState::Asleep).await;
    assert!(quiet.elapsed() >= ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn an_app_woken_elsewhere_is_put_to_sleep_as_well() {
    let world = World::with(Limits::default(), |sim| {
        sim.policy(|p| p.idle_ms = 1_000);
        let ready = sim.ready(rouse_protocol::wake::Outcome::Cold);
        sim.tell(AppState::Awake(ready));
    })
    .await;
    eventually(|| world.sim.state() == AppState::Asleep).await;
    assert_eq!(world.sim.wakes(), 0);
}

#[tokio::test(start_paused = true)]
async fn whoever_comes_after_the_word_was_given_wakes_it_again() {
    let world = awake().await;
    let sim = world.sim.clone();
    let mut sleep = JoinSet::new();
    sleep.spawn(async move { sim.put_to_sleep(SleepReason::Operator).await });
    eventually(|| !world.sim.agreements().is_empty()).await;
    let mut visitor = world.visit().await.unwrap();
    assert!(["awake", "resumed"].contains(&world.answered(&mut visitor).unwrap().word));
    assert_eq!(world.sim.wakes(), 2);
}

#[tokio::test(start_paused = true)]
async fn held_visitors_and_running_wakes_refuse_sleep() {
    let world = awake().await;
    let mut visitor = world.visit().await.unwrap();
    visitor.down();
    *world.prober.then.lock().unwrap() = outside::App::Says(AgentState::Starting);
    let mut holds = world.visits(1);
    eventually(|| world.holds() == 1 && world.sim.wakes() == 2).await;
    drop(visitor);
    assert_eq!(world.sim.put_to_sleep(SleepReason::Operator).await, Err("busy"));
    holds.abort_all();
    eventually(|| world.holds() == 0).await;
    assert_eq!(world.sim.put_to_sleep(SleepReason::Operator).await, Err("busy"));
}

#[tokio::test(start_paused = true)]
async fn late_messages_close_nothing_that_is_newer() {
    let world = awake().await;
    assert!(world.sim.put_to_sleep(SleepReason::Operator).await.is_ok());
    drop(world.visit().await.unwrap());
    for state in [AppState::Asleep, AppState::Paused, AppState::Snapshotting, AppState::Waking] {
        world.sim.tell_late(1, state);
    }
    tokio::time::sleep(ms(10)).await;
    assert!(world.enter().enter_open().is_some());
    assert_eq!(world.dialer.counts(), (2, 1));
    // But word of this very life does.
    world.sim.tell(AppState::Failed { detail: "x".to_owned(), retry_after_ms: 1 });
    eventually(|| world.gate.status()[0].gate == "closed").await;
    assert_eq!(world.dialer.counts(), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn the_waker_may_go_and_come() {
    let world = awake().await;
    world.sim.die();
    eventually(|| !world.gate.connected()).await;
    assert!(world.enter().enter_open().is_some(), "what is awake is served on");
    world.sim.come_back();
    eventually(|| world.gate.connected()).await;
    assert!(world.enter().enter_open().is_some());
    assert_eq!((world.sim.wakes(), world.dialer.counts()), (1, (1, 0)));

    // It comes back without the app.
    world.sim.die();
    eventually(|| !world.gate.connected()).await;
    world.sim.unconfigure();
    world.sim.come_back();
    eventually(|| world.gate.connected()).await;
    assert!(world.find(HOST).is_none());
    assert_eq!(world.dialer.counts(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_falls_silent_is_gone_and_a_quiet_one_is_not() {
    let world = awake().await;
    tokio::time::sleep(ms(1_800_000)).await;
    assert!(world.gate.connected());
    world.sim.silence(true);
    let since = Instant::now();
    eventually(|| !world.gate.connected()).await;
    assert!(since.elapsed() <= ms(8_000), "{:?}", since.elapsed());
    world.sim.silence(false);
    eventually(|| world.gate.connected()).await;
    assert!(world.enter().enter_open().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_removed_app_is_nobodys_and_its_visitors_are_told() {
    let world = World::with(Limits::default(), |sim| sim.plan(Wake::Hangs)).await;
    let mut visits = world.visits(2);
    eventually(|| world.holds() == 2).await;
    world.sim.remove();
    while let Some(visit) = visits.join_next().await {
        assert_eq!(visit.unwrap().1.err(), Some(Refusal::Removed));
    }
    assert!(world.find(HOST).is_none());
}
