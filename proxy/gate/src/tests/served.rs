//! Telling the waker of the first byte.

use rouse_protocol::app::Generation;
use rouse_protocol::signature::AgentState;
use rouse_protocol::wake::{Phase, PhaseTime, SleepReason};

use super::outside::{App, Takes, Wake, id};
use super::*;
use crate::{TellEnd, Waker};

async fn told(world: &World, n: usize) {
    eventually(|| world.sim.told().len() == n).await;
}

fn lives(world: &World) -> Vec<u64> {
    world.sim.served().iter().map(|served| served.generation.0).collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_of_a_life_is_told_with_its_phases_and_no_other() {
    let world = World::new().await;
    let mut visits = world.visits(3);
    let mut visitors = Vec::new();
    while let Some(visit) = visits.join_next().await {
        visitors.push(visit.unwrap().1.unwrap());
    }
    tokio::time::sleep(ms(40)).await;
    assert!(world.sim.served().is_empty(), "nobody is answered yet");
    let shares = world.answered(&mut visitors[1]).unwrap().shares;
    assert!(world.sim.served().is_empty(), "and that did not wait for it");
    for visitor in [0, 2] {
        world.answered(&mut visitors[visitor]).unwrap();
    }
    world.answered(&mut world.visit().await.unwrap());
    told(&world, 1).await;
    tokio::time::sleep(ms(60_000)).await;
    assert_eq!(world.sim.told(), [TellEnd::Told]);
    let served = world.sim.served();
    assert_eq!((served.len(), served[0].generation), (1, Generation(1)));
    let of = |phase| PhaseTime::new(phase, shares.get(phase));
    let phases = [Phase::Hold, Phase::Gate, Phase::Release, Phase::App].map(of);
    assert_eq!(served[0].phases, phases);
    assert_eq!((shares.get(Phase::Hold), shares.get(Phase::App)), (ms(100), ms(40)));
}

#[tokio::test(start_paused = true)]
async fn each_wake_is_told_of_whatever_its_outcome() {
    let world = World::new().await;
    for round in 1..=3 {
        world.answered(&mut world.visit().await.unwrap()).unwrap();
        told(&world, 2 * round - 1).await;
        world.sim.pause().await.unwrap();
        world.answered(&mut world.visit().await.unwrap()).unwrap();
        told(&world, 2 * round).await;
        world.sim.put_to_sleep(SleepReason::Operator).await.unwrap();
    }
    assert_eq!(lives(&world), [1, 1, 2, 2, 3, 3], "an unpaused life is told of again");
}

#[tokio::test(start_paused = true)]
async fn a_life_that_ran_all_along_is_told_of_once() {
    let world = World::new().await;
    let mut visitor = world.visit().await.unwrap();
    world.answered(&mut visitor).unwrap();
    told(&world, 1).await;
    visitor.down();
    assert!(world.gate.hold(&mut visitor, Asker::default(), std::future::pending()).await.is_ok());
    assert_eq!(world.answered(&mut visitor).unwrap().word, "awake");
    tokio::time::sleep(ms(60_000)).await;
    assert_eq!(lives(&world), [1]);

    // Unless this proxy has not seen a first byte of it: whoever woke it may never have either.
    drop(visitor);
    world.sim.put_to_sleep(SleepReason::Operator).await.unwrap();
    let elsewhere = SimWaker(world.sim.clone());
    elsewhere.wake(&id()).await.unwrap().next().await.unwrap();
    let mut visitor = world.visit().await.unwrap();
    assert_eq!(world.answered(&mut visitor).unwrap().word, "awake");
    told(&world, 2).await;
    assert_eq!(lives(&world), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn when_the_first_leaves_before_it_is_answered_the_next_tells() {
    // One that was held with it.
    let world = World::new().await;
    let mut visits = world.visits(2);
    drop(visits.join_next().await.unwrap().unwrap().1.unwrap());
    let mut second = visits.join_next().await.unwrap().unwrap().1.unwrap();
    tokio::time::sleep(ms(60_000)).await;
    assert!(world.sim.served().is_empty());
    world.answered(&mut second).unwrap();
    told(&world, 1).await;

    // One that came when all who were held had left.
    let world = World::new().await;
    drop(world.visit().await.unwrap());
    let mut late = world.enter();
    assert!(late.enter_open().is_some());
    tokio::time::sleep(ms(30)).await;
    assert!(world.answered(&mut late).is_none(), "it has nothing to tell its client");
    told(&world, 1).await;
    let phases = &world.sim.served()[0].phases;
    let us: Vec<_> = phases.iter().map(|phase| phase.us).collect();
    assert_eq!(us, [0, 0, 0, 30_000], "all that it waited for was the app: {phases:?}");
}

#[tokio::test(start_paused = true)]
async fn who_is_sent_back_to_the_hold_was_not_answered() {
    let world = World::new().await;
    let mut visitor = world.visit().await.unwrap();
    visitor.down();
    *world.prober.then.lock().unwrap() = App::Says(AgentState::Starting);
    let mut other = world.visits(1);
    tokio::time::sleep(ms(1_000)).await;
    assert!(world.sim.served().is_empty());
    *world.prober.then.lock().unwrap() = App::Says(AgentState::Serving);
    let mut other = other.join_next().await.unwrap().unwrap().1.unwrap();
    assert_eq!(world.answered(&mut other).unwrap().word, "awake");
    told(&world, 1).await;
    assert_eq!(lives(&world), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_comes_back_is_told() {
    let world = World::new().await;
    let mut visitor = world.visit().await.unwrap();
    world.sim.die();
    world.answered(&mut visitor).unwrap();
    eventually(|| world.sim.served().len() == 3).await;
    world.sim.come_back();
    told(&world, 1).await;
    assert_eq!(world.sim.told(), [TellEnd::Told]);

    // One that stays away is not asked for ever.
    let world = World::new().await;
    let mut visitor = world.visit().await.unwrap();
    world.sim.die();
    world.answered(&mut visitor).unwrap();
    told(&world, 1).await;
    assert_eq!(world.sim.told(), [TellEnd::Unreachable]);
    let tries = world.sim.served().len();
    tokio::time::sleep(ms(600_000)).await;
    assert_eq!(world.sim.served().len(), tries);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_not_told_again() {
    let world = World::with(Limits::default(), |sim| sim.takes_served(Takes::Nothing)).await;
    world.answered(&mut world.visit().await.unwrap()).unwrap();
    told(&world, 1).await;
    tokio::time::sleep(ms(60_000)).await;
    assert_eq!((world.sim.told(), world.sim.served().len()), (vec![TellEnd::Refused], 1));
}

#[tokio::test(start_paused = true)]
async fn one_call_at_a_time_and_the_newest_next() {
    let world = World::with(Limits::default(), |sim| {
        sim.takes_served(Takes::Forever);
        sim.plan(Wake::Runs(ms(1)));
    })
    .await;
    for life in 1..=4 {
        world.answered(&mut world.visit().await.unwrap()).unwrap();
        if life == 1 {
            eventually(|| world.sim.served().len() == 1).await;
        }
        world.sim.put_to_sleep(SleepReason::Operator).await.unwrap();
    }
    assert_eq!(lives(&world), [1], "the others wait for the call that stands");
    world.sim.takes_served(Takes::All);
    told(&world, 2).await;
    assert_eq!(world.sim.told(), [TellEnd::Unreachable, TellEnd::Told]);
    assert_eq!(lives(&world), [1, 4], "lives 2 and 3 are nobody's business any more");
}

#[tokio::test(start_paused = true)]
async fn origins_tell_nothing() {
    let sim = Sim::new();
    let settings = Settings {
        name: "proxy-1".to_owned(),
        limits: Limits::default(),
        waker: Some(Arc::new(SimWaker(sim.clone()))),
        prober: SimProber::new(&sim),
        dialer: Arc::new(SimDialer::default()),
        observer: sim.clone(),
        runtime: Handle::current(),
    };
    let at = ([127, 0, 0, 1], 80).into();
    let gate = Gate::start(settings, [("origin".parse().unwrap(), vec![rule("origin.test")], at)]);
    eventually(|| gate.synced()).await;
    let mut visitor = gate.enter("origin.test", "/", &HeaderMap::new(), Instant::now()).unwrap();
    assert!(visitor.enter_open().is_some());
    assert!(gate.answered(&mut visitor).is_none());
    tokio::time::sleep(ms(60_000)).await;
    assert!(sim.served().is_empty());
}
