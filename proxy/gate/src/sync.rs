//! Following the waker: which apps there are, how they are, and whether they may sleep.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rouse_protocol::client::ClientError;
use rouse_protocol::wake::Agreement;
use rouse_protocol::watch::{AppState, AppView, HEARTBEAT, WatchEvent};
use rouse_route::Rule;
use tokio::time::Instant;

use crate::app::App;
use crate::gate::Gate;
use crate::known::Known;
use crate::outside::Waker;

/// First pause before another try to reach the waker; doubled each time up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause: how late a proxy may notice that the waker is back.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Follows the waker as long as the gate stands. While the waker is away, apps that serve go on
/// being served as they are.
pub(crate) async fn follow(gate: Arc<Gate>, waker: Arc<dyn Waker>) {
    let mut pause = MIN_PAUSE;
    loop {
        let ended = watch(&gate, &waker, &mut pause).await;
        if gate.connected() {
            tracing::warn!("the watch on the waker ended: {}", describe(&ended));
        } else {
            tracing::debug!("the waker can't be watched: {}", describe(&ended));
        }
        gate.set_connected(false);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

fn describe(ended: &Result<(), ClientError>) -> String {
    match ended {
        Ok(()) => "it fell silent or closed the stream".to_owned(),
        Err(error) => error.to_string(),
    }
}

async fn watch(
    gate: &Arc<Gate>,
    waker: &Arc<dyn Waker>,
    pause: &mut Duration,
) -> Result<(), ClientError> {
    let mut events = waker.watch(&gate.name).await?;
    // Until `synced` the rules are kept aside: the first picture is published whole. In a fixed
    // order, so that of two who claim the same one always has it.
    let mut picture = Some(BTreeMap::new());
    loop {
        let Ok(event) = tokio::time::timeout(HEARTBEAT * 3, events.next()).await else {
            return Ok(());
        };
        let Some(event) = event? else { return Ok(()) };
        match event {
            WatchEvent::App(view) => {
                let (app, rules) = learn(gate, waker, view);
                match &mut picture {
                    Some(told) => drop(told.insert(app.id().clone(), (app, rules))),
                    None => gate.routing.update(&[], [(app, rules)]),
                }
            }
            WatchEvent::Removed { id } => {
                if let Some(told) = &mut picture {
                    told.remove(&id);
                }
                let gone = gate.routing.take(|other| *other == id);
                gate.routing.update(&gone, []);
                gone.iter().for_each(|app| app.remove());
            }
            WatchEvent::Synced => {
                // Only the first ends a picture; who was not in it is gone.
                if let Some(told) = picture.take() {
                    let gone = gate.routing.take(|id| !told.contains_key(id));
                    gate.routing.update(&gone, told.into_values());
                    gone.iter().for_each(|app| app.remove());
                }
                gate.set_connected(true);
                gate.set_synced();
                *pause = MIN_PAUSE;
                tracing::info!(apps = gate.routing.len(), "synced with the waker");
            }
            WatchEvent::Alive => {}
        }
    }
}

/// Takes over one app's view, answers if it asks, and returns it with its rules.
fn learn(gate: &Arc<Gate>, waker: &Arc<dyn Waker>, view: AppView) -> (Arc<App>, Vec<Rule>) {
    let now = Instant::now();
    let AppView { id, rules, policy, generation, since_unix_ms: _, state } = view;
    let asked = match &state {
        AppState::Draining { ready, reason, question } => {
            Some((ready.generation, *reason, *question))
        }
        _ => None,
    };
    let known = Known { state, generation };
    let app = match gate.routing.app(&id) {
        Some(app) => {
            app.learn(policy, known, now);
            app
        }
        None => {
            let app = Arc::new(App::new(id.clone(), policy, known, now));
            gate.routing.insert(&app);
            app
        }
    };
    if let Some((generation, reason, question)) = asked {
        let agree = app.may_sleep(generation, reason, now);
        tracing::debug!(app = %id, %generation, agree, "asked whether it may sleep");
        let agreement = Agreement { proxy: gate.name.clone(), generation, question, agree };
        let waker = waker.clone();
        gate.spawn(async move {
            if let Err(error) = waker.agree(&id, &agreement).await {
                // It keeps the app awake when it hears nothing, so nothing is lost.
                tracing::debug!(app = %id, "the agreement was not taken: {error}");
            }
        });
    }
    (app, rules)
}
