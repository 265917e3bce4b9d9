//! One wake, from the first visitor to an open gate. It belongs to the gate: visitors come and go.

use std::sync::Arc;
use std::time::Duration;

use rouse_protocol::client::ClientError;
use rouse_protocol::wake::{PhaseTime, Ready, WakeEvent};
use tokio::time::Instant;

use crate::app::App;
use crate::gate::Gate;
use crate::observer::WakeEnd;
use crate::outside::Waker;
use crate::probing::{self, Served};
use crate::refusal::Refusal;
use crate::times::WakeTimes;

/// How often one wake calls the waker again because the VM that it got went away before it served.
const CALLS: u32 = 3;

/// How long those let through hold up the next.
const PACE: Duration = Duration::from_secs(1);

/// More lines than any waker has to say about one wake.
const MAX_PHASES: usize = 64;

/// Wakes `app` for those who wait for `attempt`, and opens its gate or fails them all.
pub(crate) async fn run(gate: Arc<Gate>, app: Arc<App>, attempt: u64) {
    // Whatever happens to this task, nobody waits for it in vain.
    let mut attempt = Attempt { app: &app, number: attempt, end: Some(Refusal::Stopping) };
    let began = Instant::now();
    let result = match tokio::time::timeout(gate.limits.gate, bring_up(&gate, &app)).await {
        Ok(result) => result,
        Err(_elapsed) => Err(Refusal::NotServing),
    };
    match result {
        Ok((ready, times)) => {
            let times = Arc::new(times);
            let at_once = gate.limits.release_at_once;
            app.serve(
                attempt.number,
                &ready,
                times.clone(),
                at_once,
                &*gate.dialer,
                Instant::now(),
            );
            attempt.end = None;
            gate.spawn(pace(gate.clone(), app.clone()));
            gate.observer.wake_ended(WakeEnd::Serving(&times), began.elapsed());
            let took = began.elapsed();
            tracing::info!(app = %app.id(), generation = %ready.generation, outcome = ready.outcome.as_str(), ?took, "serves");
        }
        Err(refusal) => {
            gate.observer.wake_ended(WakeEnd::Refused(&refusal), began.elapsed());
            tracing::warn!(app = %app.id(), "wake failed: {refusal}");
            attempt.end = Some(refusal);
        }
    }
}

/// Lets more of the held through while those before them are not answered yet: an app that serves
/// may well be slow to answer some (long polls, uploads), and the others do not wait for these.
async fn pace(gate: Arc<Gate>, app: Arc<App>) {
    loop {
        tokio::time::sleep(PACE).await;
        if !app.let_more_through(gate.limits.release_at_once) {
            return;
        }
    }
}

struct Attempt<'a> {
    app: &'a App,
    number: u64,
    end: Option<Refusal>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if let Some(refusal) = self.end.take() {
            self.app.fail(self.number, refusal);
        }
    }
}

async fn bring_up(gate: &Gate, app: &App) -> Result<(Ready, WakeTimes), Refusal> {
    let waker = gate
        .waker
        .as_deref()
        .ok_or_else(|| Refusal::WakerUnreachable("no waker is configured".to_owned()))?;
    let host = gate.routing.host_of(app.id());
    let mut calls = 0;
    loop {
        let called = Instant::now();
        let (ready, phases) = call(waker, app).await?;
        let answered = Instant::now();
        calls += 1;
        let policy = app.policy();
        let to = probing::Target {
            app: app.id(),
            endpoint: ready.endpoint,
            key: ready.key.as_ref(),
            host: host.as_deref(),
            path: &policy.gate_path,
        };
        tokio::select! {
            Served { verdict_at, own } = probing::until_serving(&gate.prober, to) => {
                let times = WakeTimes::new(ready.outcome, &phases, [called, answered, verdict_at], own);
                return Ok((ready, times));
            }
            () = app.over(ready.generation) => {
                if calls == CALLS {
                    return Err(Refusal::NotServing);
                }
                tracing::warn!(app = %app.id(), generation = %ready.generation, "went away before it served");
            }
        }
    }
}

/// One call to the waker: its phases and its `ready`.
async fn call(waker: &dyn Waker, app: &App) -> Result<(Ready, Vec<PhaseTime>), Refusal> {
    let mut events = waker.wake(app.id()).await.map_err(refused)?;
    let mut phases = Vec::new();
    loop {
        match events.next().await.map_err(refused)? {
            Some(WakeEvent::Phase(phase)) if phases.len() < MAX_PHASES => phases.push(phase),
            Some(WakeEvent::Phase(_)) => {}
            Some(WakeEvent::Ready(ready)) => return Ok((ready, phases)),
            Some(WakeEvent::Failed(failure)) => return Err(Refusal::from_failure(failure)),
            None => return Err(refused(ClientError::Ended)),
        }
    }
}

fn refused(error: ClientError) -> Refusal {
    match error {
        ClientError::Refused(problem) if problem.status == 404 => Refusal::Removed,
        ClientError::Refused(problem) => {
            Refusal::WakerRefused(format!("{}: {}", problem.code(), problem.detail))
        }
        other => Refusal::WakerUnreachable(other.to_string()),
    }
}
