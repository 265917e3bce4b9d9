//! A wake that begins before its visitor is let in.

use rouse_protocol::watch::AppState;

use super::outside::Wake;
use super::*;

async fn world() -> World {
    World::with(Limits::default(), |sim| sim.policy(|p| p.idle_ms = 300_000)).await
}

#[tokio::test(start_paused = true)]
async fn its_visitor_joins_it_and_it_counts_like_any_other() {
    let world = world().await;
    assert!(world.gate.early(HOST, None));
    assert!(!world.gate.early(HOST, None), "it has begun already");
    assert_eq!(world.holds(), 0);
    let mut visitor = world.visit().await.unwrap();
    assert_eq!(world.answered(&mut visitor).unwrap().word, "joined");
    drop(visitor);
    assert_eq!(world.sim.wakes(), 1);
    assert!(!world.gate.early(HOST, None), "it is awake");
    tokio::time::sleep(ms(60_000)).await;
    assert!(world.sim.state().ready().is_some(), "it was visited: it stays for its idle time");
}

#[tokio::test(start_paused = true)]
async fn an_app_that_nobody_then_visits_sleeps_soon() {
    let world = world().await;
    assert!(world.gate.early(HOST, None));
    eventually(|| world.sim.state().ready().is_some()).await;
    let began = Instant::now();
    eventually(|| world.sim.state() == AppState::Asleep).await;
    assert!(began.elapsed() < ms(20_000), "after {:?}", began.elapsed());
    assert_eq!(world.sim.agreements(), [true], "asked once, and agreed to");
    // What was woken for a visitor later has its whole idle time.
    drop(world.visit().await.unwrap());
    tokio::time::sleep(ms(60_000)).await;
    assert!(world.sim.state().ready().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_host_and_a_server_that_goes_down_wake_nobody() {
    let world = World::with(Limits::default(), |sim| sim.plan(Wake::Hangs)).await;
    assert!(!world.gate.early("other.test", None));
    world.gate.stop();
    assert!(!world.gate.early(HOST, None));
    assert_eq!(world.sim.wakes(), 0);
}
