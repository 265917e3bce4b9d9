//! How many may be at an app at once.

use super::*;

/// An app that serves, and takes so many visitors at once.
async fn world(limit: u32) -> World {
    let world =
        World::with(Limits::default(), |sim| sim.policy(|p| p.concurrent_requests = limit)).await;
    drop(world.visit().await.unwrap());
    world
}

#[tokio::test(start_paused = true)]
async fn one_too_many_waits_for_a_place_and_they_come_in_turn() {
    let world = world(2).await;
    let (mut first, mut second) = (world.enter(), world.enter());
    assert!(first.enter_open().is_some() && second.enter_open().is_some());
    assert!(first.enter_open().is_some(), "a second try of the same visitor takes no second place");
    assert!(world.enter().enter_open().is_none());

    let mut waiting = JoinSet::new();
    for n in 0..3 {
        let (mut visitor, gate) = (world.enter(), world.gate.clone());
        waiting.spawn(async move {
            let held = gate.hold(&mut visitor, Asker::default(), std::future::pending()).await;
            held.unwrap();
            (n, visitor)
        });
        eventually(|| world.holds() == n + 1).await;
    }
    assert!(world.enter().enter_open().is_none(), "nobody overtakes who waits");
    drop(first);
    for expected in 0..3 {
        let (n, visitor) = waiting.join_next().await.unwrap().unwrap();
        assert_eq!((n, world.holds()), (expected, 2 - expected));
        drop(visitor);
    }
    assert_eq!(world.sim.wakes(), 1, "nobody was woken for it");
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_place_has_a_deadline() {
    let world = world(1).await;
    let mut there = world.enter();
    assert!(there.enter_open().is_some());
    let mut late = world.enter();
    assert!(late.enter_open().is_none());
    let held = world.gate.hold(&mut late, Asker::default(), std::future::pending()).await;
    assert_eq!(held, Err(Refusal::Deadline));
    assert_eq!(world.holds(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_released_crowd_keeps_to_it() {
    let world =
        World::with(Limits::default(), |sim| sim.policy(|p| p.concurrent_requests = 3)).await;
    let mut visits = world.visits(10);
    let mut there = Vec::new();
    for _ in 0..3 {
        there.push(visits.join_next().await.unwrap().unwrap().1.unwrap());
    }
    tokio::time::sleep(ms(5_000)).await;
    assert!(visits.try_join_next().is_none(), "a fourth is let through");
    while let Some(visitor) = there.pop() {
        drop(visitor);
        if let Some(next) = visits.join_next().await {
            there.push(next.unwrap().1.unwrap());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_gives_its_place_back() {
    let world = world(1).await;
    let mut socket = world.enter();
    assert!(socket.enter_open().is_some());
    assert!(world.enter().enter_open().is_none());
    socket.upgraded();
    assert!(world.enter().enter_open().is_some());
}

#[test]
fn a_limit_can_change() {
    let places = crate::places::Places::new(0);
    let many: Vec<_> = (0..100).map(|_| places.at_once().unwrap()).collect();
    assert!(many.iter().all(Option::is_none));
    places.set(1);
    let one = places.at_once().unwrap();
    assert!(one.is_some() && places.at_once().is_none());
    places.set(1);
    assert!(places.at_once().is_none(), "the same limit is no new one");
    places.set(0);
    assert!(places.at_once().is_some());
}
