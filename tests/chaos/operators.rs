//! Operators: what they ask of the waker, and what came of it.

use std::sync::Arc;
use std::time::Duration;

use rouse_protocol::client::{Client, ClientError, Lines};
use rouse_protocol::wake::{
    BootRequest, ParkRequest, SleepReport, SleepRequest, Tier, WakeEvent, WakeFailure,
};
use tokio::time::timeout;

use crate::trouble::Trouble;
use crate::world::World;

/// How long a call may take: a queued wake on a loaded machine, and then some.
const LIMIT: Duration = Duration::from_secs(240);

/// Why a wake or a boot gave nothing.
#[derive(Debug, thiserror::Error)]
enum WakeError {
    #[error(transparent)]
    Call(#[from] ClientError),
    #[error("{0}")]
    Failed(WakeFailure),
    #[error("the stream ended before its last line")]
    Ended,
}

impl WakeError {
    fn word(&self) -> String {
        match self {
            Self::Call(error) => word(error),
            Self::Failed(failure) => format!("failed {}", failure.code.as_str()),
            Self::Ended => "cut".into(),
        }
    }
}

/// Puts an app to sleep.
pub(crate) async fn sleep(world: Arc<World>, app: usize, tier: Tier) {
    let name = world.apps[app].name().to_owned();
    let what = format!("sleep ({}) of {name}", tier.as_str());
    let Some(slept) = within(&world, &what, put_to_sleep(&world, app, tier)).await else { return };
    let ended = match &slept {
        Ok(report) => {
            let (stopped, published) = (report.stopped_us / 1000, report.published_us / 1000);
            world.say(format_args!(
                "{what}: generation {}, stood still at {stopped} ms, published at {published} ms",
                report.generation
            ));
            report.tier.as_str().to_owned()
        }
        Err(error) => {
            world.say(format_args!("{what}: {error}"));
            word(error)
        }
    };
    world.count("sleeps", ended);
}

/// Wakes an app.
pub(crate) async fn wake(world: Arc<World>, app: usize) {
    let what = format!("wake of {}", world.apps[app].name());
    let call = async { follow(world.client.wake(&world.apps[app].id).await?).await };
    woke(&world, &what, "wakes by operators", within(&world, &what, call).await);
}

/// Puts an app to sleep and boots it cold.
pub(crate) async fn boot(world: Arc<World>, app: usize) {
    let what = format!("boot of {}", world.apps[app].name());
    let call = async {
        // It may sleep already, or have a visitor: then the boot says so.
        let _ = put_to_sleep(&world, app, Tier::Image).await;
        let request = BootRequest { rollback: false };
        follow(world.client.boot(&world.apps[app].id, &request).await?).await
    };
    woke(&world, &what, "boots", within(&world, &what, call).await);
}

/// Parks an app. That the call failed does not mean that the app is not parked.
pub(crate) async fn park(world: Arc<World>, app: usize) {
    let id = &world.apps[app].id;
    let what = format!("park of {id}");
    world.begin(Trouble::Parked(id.to_string()));
    let request = ParkRequest { reason: "chaos".into() };
    let Some(parked) = within(&world, &what, world.client.park(id, &request)).await else { return };
    told(&world, &what, "parks", parked);
}

/// Clears an app, and returns whether the waker has heard it. It may find nothing to clear.
pub(crate) async fn clear(world: &World, app: usize) -> bool {
    let id = &world.apps[app].id;
    let what = format!("clear of {id}");
    let cleared = within(world, &what, world.client.clear(id)).await;
    let Some(cleared) = cleared else { return false };
    let heard = matches!(cleared, Ok(()) | Err(ClientError::Refused(_)));
    told(world, &what, "clears", cleared);
    heard
}

async fn put_to_sleep(world: &World, app: usize, tier: Tier) -> Result<SleepReport, ClientError> {
    let request = SleepRequest { tier: Some(tier), ..SleepRequest::default() };
    world.client.sleep(&world.apps[app].id, &request).await
}

/// Every call has an end.
async fn within<T>(world: &World, what: &str, call: impl Future<Output = T>) -> Option<T> {
    let ended = timeout(LIMIT, Box::pin(call)).await.ok();
    if ended.is_none() {
        world.violated(format!("{what}: no answer of the waker in {LIMIT:?}"));
    }
    ended
}

/// How a wake ended, by its outcome.
async fn follow(mut lines: Lines<WakeEvent>) -> Result<&'static str, WakeError> {
    loop {
        match lines.next().await? {
            Some(WakeEvent::Phase(_)) => {}
            Some(WakeEvent::Ready(ready)) => return Ok(ready.outcome.as_str()),
            Some(WakeEvent::Failed(failure)) => return Err(WakeError::Failed(failure)),
            None => return Err(WakeError::Ended),
        }
    }
}

fn woke(
    world: &World,
    what: &str,
    group: &'static str,
    woken: Option<Result<&'static str, WakeError>>,
) {
    match woken {
        None => {}
        Some(Ok(outcome)) => {
            world.say(format_args!("{what}: {outcome}"));
            world.count(group, outcome);
        }
        Some(Err(error)) => {
            world.say(format_args!("{what}: {error}"));
            world.count(group, error.word());
        }
    }
}

fn told(world: &World, what: &str, group: &'static str, ended: Result<(), ClientError>) {
    match &ended {
        Ok(()) => world.say(format_args!("{what}: done")),
        Err(error) => world.say(format_args!("{what}: {error}")),
    }
    world.count(group, ended.map_or_else(|error| word(&error), |()| "done".into()));
}

fn word(error: &ClientError) -> String {
    match error {
        ClientError::Unreachable { .. } => "no waker".into(),
        ClientError::Refused(problem) => format!("refused {}", problem.code()),
        ClientError::Transport(_) | ClientError::Ended => "cut".into(),
        ClientError::Answer(_) | ClientError::TooLong(_) => "not understood".into(),
    }
}

/// The client's socket may take a connection that nobody answers.
pub(crate) async fn answers(client: &Client, within: Duration) -> bool {
    matches!(timeout(within, client.apps()).await, Ok(Ok(_)))
}
