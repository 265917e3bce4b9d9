//! Looking at all apps now and then: proposing sleep for those that nobody visits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::client::ClientError;
use rouse_protocol::wake::{SleepReason, SleepRequest};
use rouse_protocol::watch::AppState;
use tokio::time::Instant;

use crate::app::App;
use crate::gate::Gate;
use crate::outside::Waker;

/// How often apps are looked at. Idle times are in whole seconds, so this adds little.
const TICK: Duration = Duration::from_millis(200);
/// Shortest and longest pause after a sleep that was refused.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The life that should sleep now, if any.
fn due(app: &App, now: Instant) -> Option<Generation> {
    let AppState::Awake(ready) = app.known().state else { return None };
    let idle = app.idle_limit().is_some_and(|limit| app.activity.idle(now) >= limit);
    (idle && !app.waking()).then_some(ready.generation)
}

/// Looks at all apps now and then, as long as the gate stands.
pub(crate) async fn sweep(gate: Arc<Gate>, waker: Arc<dyn Waker>) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // When an app may be proposed again.
    let mut after: HashMap<AppId, Instant> = HashMap::new();
    loop {
        tick.tick().await;
        let now = Instant::now();
        after.retain(|_, at| *at > now);
        if !gate.connected() {
            continue;
        }
        for app in gate.routing.apps() {
            app.settle(now);
            let Some(generation) = due(&app, now) else { continue };
            if after.contains_key(app.id()) {
                continue;
            }
            let pause = Duration::from_millis(app.policy().idle_ms / 4).clamp(PAUSE.0, PAUSE.1);
            after.insert(app.id().clone(), now + pause);
            gate.spawn(propose(waker.clone(), app, generation));
        }
    }
}

async fn propose(waker: Arc<dyn Waker>, app: Arc<App>, generation: Generation) {
    let request =
        SleepRequest { generation: Some(generation), reason: SleepReason::Idle, tier: None };
    match waker.sleep(app.id(), &request).await {
        Ok(report) => {
            let took = Duration::from_micros(report.stopped_us);
            tracing::info!(app = %app.id(), %generation, ?took, tier = report.tier.as_str(), "sleeps");
        }
        // Somebody came, here or at another proxy: as it should be.
        Err(ClientError::Refused(problem)) => {
            tracing::debug!(app = %app.id(), %generation, code = problem.code(), "does not sleep: {}", problem.detail);
        }
        Err(error) => tracing::warn!(app = %app.id(), "could not be put to sleep: {error}"),
    }
}
