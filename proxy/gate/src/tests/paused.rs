//! Apps whose VM stands still with its memory, and word of it that comes late.

use rouse_protocol::app::Generation;
use rouse_protocol::signature::AgentState;
use rouse_protocol::wake::{Outcome, Phase};
use rouse_protocol::watch::AppState;

use super::outside::App;
use super::*;

async fn paused() -> World {
    let world = World::new().await;
    drop(world.visit().await.unwrap());
    assert_eq!(world.sim.pause().await, Ok(Generation(1)));
    eventually(|| world.gate.status()[0].state == "paused").await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_paused_app_is_woken_in_the_same_life() {
    let world = paused().await;
    assert_eq!(world.dialer.counts(), (1, 1), "no connection is kept over a pause");
    let mut visits = world.visits(3);
    let mut words = Vec::new();
    while let Some(visit) = visits.join_next().await {
        let mut visitor = visit.unwrap().1.unwrap();
        let open = visitor.open().unwrap();
        assert_eq!((open.generation, open.endpoint.port()), (Generation(1), 4001));
        let woken = world.answered(&mut visitor).unwrap();
        words.push(woken.word);
        assert!(woken.shares.server_timing().contains("resume;dur="));
    }
    words.sort_unstable();
    assert_eq!(words, ["joined", "joined", "unpaused"]);
    assert_eq!((world.sim.wakes(), world.dialer.counts()), (2, (2, 1)));
    assert_eq!(world.gate.status()[0].gate, "open");
}

#[tokio::test(start_paused = true)]
async fn a_pause_and_a_wake_again_and_again() {
    let world = paused().await;
    for round in 0..5 {
        let mut visitor = world.visit().await.unwrap();
        assert_eq!(world.answered(&mut visitor).unwrap().word, "unpaused", "{round}");
        assert_eq!(world.sim.pause().await, Err("busy"));
        drop(visitor);
        assert_eq!(world.sim.pause().await, Ok(Generation(1)));
        eventually(|| world.gate.status()[0].gate == "closed").await;
    }
    // And from the pause to an image, which asks nobody.
    world.sim.tell(AppState::Snapshotting);
    world.sim.tell(AppState::Asleep);
    let mut visitor = world.visit().await.unwrap();
    assert_eq!(world.answered(&mut visitor).unwrap().word, "resumed");
    assert_eq!(visitor.open().unwrap().generation, Generation(2));
}

#[tokio::test(start_paused = true)]
async fn late_word_of_the_pause_disturbs_nobody() {
    for late in [AppState::Paused, AppState::Snapshotting] {
        let world = paused().await;
        let mut visitor = world.visit().await.unwrap();
        let before = world.dialer.counts();
        world.sim.tell_late(1, late.clone());
        eventually(|| world.gate.status()[0].state == late.as_str()).await;
        assert!(world.enter().enter_open().is_some(), "{late:?}");
        // What the waker said next.
        world.sim.tell(AppState::Awake(world.sim.ready(Outcome::Unpaused)));
        tokio::time::sleep(ms(60_000)).await;
        assert!(world.enter().enter_open().is_some(), "{late:?}");
        assert_eq!((world.sim.wakes(), world.dialer.counts()), (2, before), "nobody was cut off");
        assert_eq!(world.answered(&mut visitor).unwrap().word, "unpaused");
    }
}

#[tokio::test(start_paused = true)]
async fn word_of_a_pause_that_stands_is_believed() {
    let world = paused().await;
    let visitor = world.visit().await.unwrap();
    let before = world.dialer.counts();
    world.sim.tell_late(1, AppState::Paused);
    let said = Instant::now();
    eventually(|| world.gate.status()[0].gate == "closed").await;
    assert!(said.elapsed() >= ms(900) && said.elapsed() <= ms(1_500), "{:?}", said.elapsed());
    assert_eq!(world.dialer.counts(), before, "those inside are left alone");
    // Whoever comes next asks the waker, who knows better.
    let mut next = world.visit().await.unwrap();
    assert_eq!(world.answered(&mut next).unwrap().word, "awake");
    assert_eq!((world.sim.wakes(), world.dialer.counts()), (3, before));
    drop(visitor);
}

#[tokio::test(start_paused = true)]
async fn a_pause_after_a_while_is_one_at_once() {
    // As when this proxy was away for so long that it was not asked.
    let world = paused().await;
    drop(world.visit().await.unwrap());
    tokio::time::sleep(ms(5_000)).await;
    let before = world.dialer.counts();
    world.sim.tell(AppState::Paused);
    eventually(|| world.gate.status()[0].state == "paused").await;
    assert!(world.enter().enter_open().is_none());
    assert_eq!(world.dialer.counts(), (before.0, before.1 + 1));
    let mut visitor = world.visit().await.unwrap();
    assert_eq!(world.answered(&mut visitor).unwrap().word, "unpaused");
}

#[tokio::test(start_paused = true)]
async fn late_word_during_the_probes_costs_no_second_wake() {
    let world = paused().await;
    *world.prober.then.lock().unwrap() = App::Says(AgentState::Starting);
    let mut visits = world.visits(1);
    eventually(|| world.sim.state().ready().is_some()).await;
    tokio::time::sleep(ms(20)).await;
    world.sim.tell_late(1, AppState::Paused);
    eventually(|| world.gate.status()[0].state == "paused").await;
    tokio::time::sleep(ms(20)).await;
    world.sim.tell(AppState::Awake(world.sim.ready(Outcome::Unpaused)));
    tokio::time::sleep(ms(2_000)).await;
    *world.prober.then.lock().unwrap() = App::Says(AgentState::Serving);
    let mut visitor = visits.join_next().await.unwrap().unwrap().1.unwrap();
    let woken = world.answered(&mut visitor).unwrap();
    assert_eq!((woken.word, world.sim.wakes()), ("unpaused", 2));
    assert_eq!(woken.shares.get(Phase::Resume), ms(3));
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_stands_during_the_probes_is_followed_by_another_wake() {
    let world = paused().await;
    *world.prober.then.lock().unwrap() = App::Says(AgentState::Starting);
    let mut visits = world.visits(1);
    eventually(|| world.sim.state().ready().is_some()).await;
    world.sim.tell(AppState::Paused);
    eventually(|| world.sim.wakes() == 3).await;
    *world.prober.then.lock().unwrap() = App::Says(AgentState::Serving);
    let mut visitor = visits.join_next().await.unwrap().unwrap().1.unwrap();
    assert_eq!(world.answered(&mut visitor).unwrap().word, "unpaused");
}
