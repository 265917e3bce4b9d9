//! The one task that asks the store, and decides what to do about what it answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rouse_store::StoreError;
use tokio::task::{AbortHandle, JoinSet};

use super::error::FillError;
use super::fetch::fetch;
use super::plan::Ask;
use super::shared::Shared;
use super::work::Workers;

/// The shortest time after which requests are looked at again for one to hedge.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How often a frame was the one at which a request ended, and since when.
type Tries = HashMap<usize, (u32, Duration)>;

/// Fills until everything is there, or it fails, or is cancelled.
pub(super) async fn drive(shared: Arc<Shared>, workers: Workers) {
    let over = Over(Arc::clone(&shared));
    // Its threads end before it is over, however this does.
    let workers = workers;
    let mut requests = JoinSet::new();
    let mut running: HashMap<u64, AbortHandle> = HashMap::new();
    let mut tries = Tries::new();
    while let Some((asks, useless, wake)) = decide(&shared) {
        for id in useless {
            if let Some(request) = running.remove(&id) {
                request.abort();
            }
        }
        for ask in asks {
            let shared = Arc::clone(&shared);
            let id = ask.id;
            let request = requests.spawn(async move {
                let outcome = fetch(&shared, &ask).await;
                (ask, outcome)
            });
            running.insert(id, request);
        }
        let sleep = async {
            match wake {
                Some(wake) => tokio::time::sleep(wake).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.cancel.cancelled() => shared.fail(FillError::Cancelled),
            Some(joined) = requests.join_next() => match joined {
                Ok((ask, outcome)) => {
                    running.remove(&ask.id);
                    ended(&shared, &mut tries, &ask, outcome);
                }
                Err(error) if error.is_cancelled() => {}
                Err(error) => shared.fail(FillError::Broken(error.to_string())),
            },
            () = shared.kick.notified() => {}
            () = sleep => {}
        }
    }
    requests.shutdown().await;
    // Its end waits for threads.
    let ended = tokio::task::spawn_blocking(move || drop(workers)).await;
    if let Err(error) = ended {
        shared.fail(FillError::Broken(error.to_string()));
    }
    drop(over);
}

/// Tells those who wait that it is over, even if it panics.
struct Over(Arc<Shared>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.over();
    }
}

type Decided = (Vec<Ask>, Vec<u64>, Option<Duration>);

/// What to ask for, which requests to end, and how long nothing is to be done unless something happens. None: it is over.
fn decide(shared: &Shared) -> Option<Decided> {
    let now = shared.now();
    let mut inner = shared.lock();
    if inner.failed.is_some() || inner.plan.whole_is_there() {
        return None;
    }
    let useless = inner.plan.useless();
    for id in &useless {
        inner.plan.ended(*id, now);
    }
    let mut asks = Vec::new();
    while let Some(ask) = inner.plan.next(now) {
        asks.push(ask);
    }
    while let Some(ask) = inner.plan.hedge(now) {
        asks.push(ask);
    }
    inner.metrics.requests += asks.len() as u64;
    inner.metrics.most_held = inner.metrics.most_held.max(inner.plan.held());
    let wake = [inner.plan.next_hedge(), inner.plan.rests_until(now)];
    let wake = wake.into_iter().flatten().min();
    Some((asks, useless, wake.map(|at| at.saturating_sub(now).max(LOOK_AGAIN))))
}

/// A request has ended: with what it should have brought, or with a reason to wait, or to give up.
fn ended(shared: &Shared, tries: &mut Tries, ask: &Ask, outcome: Result<(), StoreError>) {
    let now = shared.now();
    let mut inner = shared.lock();
    let at = inner.plan.ended(ask.id, now);
    let Err(source) = outcome else { return };
    // What another has brought meanwhile is not missed.
    let Some(frame) = at.filter(|frame| inner.plan.is_missed(*frame)) else { return };
    inner.metrics.retries += 1;
    if matches!(source, StoreError::Throttled { .. }) {
        inner.plan.pace.throttled(now);
    }
    let (failed, since) = tries.entry(frame).or_insert((0, now));
    *failed += 1;
    let spent = now.saturating_sub(*since);
    let wait = shared.options.patience.wait(*failed, spent, rand::random());
    match wait.filter(|_| source.is_transient()) {
        Some(wait) => inner.plan.rest(now + wait, ask.fault),
        None => {
            drop(inner);
            shared.fail(FillError::Store {
                key: shared.layers.key_of(frame).clone(),
                frame,
                source,
            });
        }
    }
}
