//! Who may wake an app, what it costs, and who is shown the waiting page.

use std::net::IpAddr;

use http::Method;
use http::request::Parts;
use rouse_policy::who::Who;
use rouse_policy::{Denied, Policies, Rate, Waiting, WakePolicy};
use rouse_protocol::wake::{FailureCode, SleepReason, WakeFailure};
use rouse_protocol::watch::AppState;

use super::outside::{Sim, Wake};
use super::*;

/// The head of a request.
fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn who(who: Who) -> WakePolicy {
    WakePolicy { who, ..WakePolicy::default() }
}

fn only_get() -> WakePolicy {
    who(Who { methods: vec![Method::GET], ..Who::default() })
}

fn budget(wakes: u32) -> WakePolicy {
    let rate = Rate { wakes, per_seconds: 60, burst: wakes };
    WakePolicy { budget: Some(rate), ..WakePolicy::default() }
}

fn told(sim: &Sim, wake: WakePolicy, waiting: Waiting) {
    sim.policy(|policy| policy.policies = Policies::new(wake, waiting));
}

async fn world(wake: WakePolicy) -> World {
    World::with(Limits::default(), |sim| told(sim, wake, Waiting::default())).await
}

/// Until then a visitor calls the sleep off, and no wake is charged for that.
async fn put_to_sleep(world: &World) {
    world.sim.put_to_sleep(SleepReason::Operator).await.unwrap();
    eventually(|| world.gate.status()[0].state == "asleep").await;
}

async fn hold(world: &World, head: &Parts, address: Option<IpAddr>) -> Result<Visitor, Refusal> {
    let mut visitor = world.enter();
    if visitor.enter_open().is_none() {
        let asker = visitor.asker(&head.into(), address);
        world.gate.hold(&mut visitor, asker, std::future::pending()).await?;
    }
    Ok(visitor)
}

#[tokio::test(start_paused = true)]
async fn the_denied_never_wake_and_are_not_held() {
    let world = world(only_get()).await;
    let post = head("POST", "/", &[]);
    assert_eq!(hold(&world, &post, None).await.err(), Some(Refusal::Denied(Denied::Method)));
    assert_eq!((world.sim.wakes(), world.holds()), (0, 0));
    assert_eq!(world.gate.status()[0].gate, "closed");
    // Nor while another's wake runs, nor do they keep the app from going to sleep.
    let mut visits = world.visits(1);
    eventually(|| world.holds() == 1).await;
    assert_eq!(hold(&world, &post, None).await.err(), Some(Refusal::Denied(Denied::Method)));
    visits.join_next().await.unwrap().unwrap().1.unwrap();
    assert!(hold(&world, &post, None).await.is_ok(), "an app that serves is there for everybody");
    put_to_sleep(&world).await;
    assert!(hold(&world, &post, None).await.is_err());
    assert_eq!(world.sim.wakes(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_app_that_is_awake_is_for_everybody_and_for_free() {
    // What a proxy that has just started finds.
    let world = world(WakePolicy { budget: budget(1).budget, ..only_get() }).await;
    drop(world.visit().await.unwrap());
    for _ in 0..3 {
        let mut visitor = world.visit().await.unwrap();
        visitor.down();
        assert_eq!(world.gate.status()[0].gate, "closed");
        let post = head("POST", "/", &[]);
        assert!(hold(&world, &post, None).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_crowd_pays_for_one_wake() {
    let world = world(budget(2)).await;
    for wakes in 1..=2 {
        let mut visits = world.visits(100);
        while let Some(visit) = visits.join_next().await {
            drop(visit.unwrap().1.unwrap());
        }
        assert_eq!(world.sim.wakes(), wakes);
        put_to_sleep(&world).await;
    }
    let refusal = world.visit().await.err().unwrap();
    assert!(matches!(refusal, Refusal::Denied(Denied::AppBudget { .. })), "{refusal:?}");
    assert_eq!((world.sim.wakes(), world.holds()), (2, 0));
    assert_eq!(world.gate.status()[0].gate, "closed", "so that one who can pay may start");
    tokio::time::sleep(refusal.retry_after().unwrap()).await;
    assert!(world.visit().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn who_can_not_pay_leaves_the_wake_to_the_next() {
    let rate = Rate { wakes: 1, per_seconds: 3600, burst: 1 };
    let world = world(WakePolicy { per_address: Some(rate), ..WakePolicy::default() }).await;
    let address = |n: u8| Some(IpAddr::from([192, 0, 2, n]));
    let get = head("GET", "/", &[]);
    drop(hold(&world, &get, address(1)).await.unwrap());
    put_to_sleep(&world).await;
    let refusal = hold(&world, &get, address(1)).await.err().unwrap();
    assert!(matches!(refusal, Refusal::Denied(Denied::AddressBudget { .. })), "{refusal:?}");
    // It may join another's.
    let mut other = world.enter();
    let mut held = world.enter();
    let asker = |visitor: &Visitor, n| visitor.asker(&(&get).into(), address(n));
    let (payer, joiner) = (asker(&other, 2), asker(&held, 1));
    let (one, two) = tokio::join!(
        world.gate.hold(&mut other, payer, std::future::pending()),
        world.gate.hold(&mut held, joiner, std::future::pending()),
    );
    assert_eq!((one, two), (Ok(()), Ok(())));
    assert_eq!(world.sim.wakes(), 2);
}

#[tokio::test(start_paused = true)]
async fn telling_a_policy_again_gives_nothing_back_and_another_counts_at_once() {
    let world = world(budget(1)).await;
    drop(world.visit().await.unwrap());
    put_to_sleep(&world).await;
    // Each word of the waker's carries the policy.
    world.sim.tell(AppState::Asleep);
    assert!(matches!(world.visit().await.err(), Some(Refusal::Denied(_))));
    told(&world.sim, WakePolicy::default(), Waiting::default());
    world.sim.tell(AppState::Asleep);
    eventually(|| world.enter().wake_policy().is_none()).await;
    assert!(world.visit().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_failed_wake_was_a_wake() {
    let world = world(budget(1)).await;
    let failure =
        WakeFailure { code: FailureCode::Vmm, detail: "x".to_owned(), retry_after_ms: None };
    world.sim.plan(Wake::Fails(failure));
    assert!(matches!(world.visit().await.err(), Some(Refusal::WakeFailed(_))));
    assert!(matches!(world.visit().await.err(), Some(Refusal::Denied(_))));
    assert_eq!(world.sim.wakes(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wake_that_never_began_costs_nothing() {
    let world = world(budget(1)).await;
    for code in [FailureCode::Full, FailureCode::Backoff, FailureCode::Stopping] {
        let failure = WakeFailure { code, detail: "x".to_owned(), retry_after_ms: None };
        world.sim.plan(Wake::Fails(failure));
        let refusal = world.visit().await.err().unwrap();
        assert!(!matches!(refusal, Refusal::Denied(_)), "{code:?}: {refusal:?}");
    }
    world.sim.plan(Wake::Unreachable);
    assert!(matches!(world.visit().await.err(), Some(Refusal::WakerUnreachable(_))));
    world.sim.plan(Wake::Runs(ms(1)));
    drop(world.visit().await.unwrap());
    put_to_sleep(&world).await;
    assert!(matches!(world.visit().await.err(), Some(Refusal::Denied(_))), "no more than it had");
}

#[tokio::test(start_paused = true)]
async fn who_passes_by_keeps_nothing_awake() {
    let world = World::with(Limits::default(), |sim| sim.policy(|p| p.idle_ms = 10_000)).await;
    drop(world.visit().await.unwrap());
    let began = Instant::now();
    while world.sim.state() != AppState::Asleep {
        let mut probe = world.enter();
        probe.passes_by();
        if probe.enter_open().is_some() {
            world.answered(&mut probe);
        }
        drop(probe);
        tokio::time::sleep(ms(500)).await;
        assert!(began.elapsed() < ms(12_000), "health checks keep it awake");
    }
    assert!(began.elapsed() >= ms(10_000));
}

#[tokio::test(start_paused = true)]
async fn who_passes_by_is_not_frozen() {
    let world = World::new().await;
    let mut probe = world.visit().await.unwrap();
    probe.passes_by();
    assert_eq!(world.sim.put_to_sleep(SleepReason::Operator).await, Err("busy"));
    drop(probe);
    assert!(world.sim.put_to_sleep(SleepReason::Operator).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_browser_is_let_go_for_the_page_and_the_wake_goes_on() {
    for (after, took) in [(0, 0), (2, 2_000)] {
        let waiting = Waiting { page_after_seconds: Some(after), ..Waiting::default() };
        let world = World::with(Limits::default(), |sim| {
            told(sim, WakePolicy::default(), waiting);
            sim.plan(Wake::Runs(ms(5_000)));
        })
        .await;
        let began = Instant::now();
        let browser = head("GET", "/", &[("accept", "text/html")]);
        assert_eq!(hold(&world, &browser, None).await.err(), Some(Refusal::Waiting));
        assert_eq!(began.elapsed(), ms(took));
        // A program is held, and joins the wake.
        let program = head("GET", "/", &[("accept", "application/json")]);
        let mut visitor = hold(&world, &program, None).await.unwrap();
        assert_eq!(world.answered(&mut visitor).unwrap().word, "joined");
        assert!(hold(&world, &browser, None).await.is_ok());
        assert_eq!(world.sim.wakes(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_comes_before_a_later_page() {
    let waiting = Waiting { page_after_seconds: Some(3), ..Waiting::default() };
    let world = World::with(Limits::default(), |sim| {
        told(sim, WakePolicy::default(), waiting);
        sim.policy(|policy| policy.hold_deadline_ms = 1_000);
        sim.plan(Wake::Hangs);
    })
    .await;
    let browser = head("GET", "/", &[("accept", "text/html")]);
    assert_eq!(hold(&world, &browser, None).await.err(), Some(Refusal::Deadline));
}
