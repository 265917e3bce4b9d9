//! Asking an app until it serves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rouse_protocol::app::AppId;
use rouse_protocol::signature::{self, AgentKey};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::outside::{Probe, Prober};
use crate::schedule::{self, HEDGE, MAX_FLYING};
use crate::verdict::{Heard, Verdict, Why, classify};

/// Whom to ask.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) app: &'a AppId,
    pub(crate) endpoint: SocketAddr,
    pub(crate) key: Option<&'a AgentKey>,
    pub(crate) host: Option<&'a str>,
    pub(crate) path: &'a str,
}

/// The verdict was `serving`.
pub(crate) struct Served {
    pub(crate) verdict_at: Instant,
    /// Our own part: the wait before the probe that found it, and from its answer's first byte.
    pub(crate) own: Duration,
}

struct Flown {
    nonce: String,
    heard: Heard,
    first_byte: Option<Instant>,
    /// How long we had waited before it went out.
    waited: Duration,
}

/// Probes until the app serves. Ends only then: whoever calls bounds it.
///
/// A *down* is followed by the next try on the schedule. A silent probe stays out, since the VM may
/// simply be slow, and others go out beside it, since its connection may lead to nowhere: a
/// network in user mode accepts before the guest does.
pub(crate) async fn until_serving(prober: &Arc<dyn Prober>, to: Target<'_>) -> Served {
    let mut flying = JoinSet::new();
    let (mut tries, mut timed_out) = (0u32, 0u32);
    let mut next = Instant::now();
    let mut wait = Duration::ZERO;
    loop {
        let flown = tokio::select! {
            biased;
            Some(flown) = flying.join_next() => flown,
            () = tokio::time::sleep_until(next), if flying.len() < MAX_FLYING => {
                let patience = schedule::patience(timed_out);
                flying.spawn(fly(prober.clone(), to, patience, wait));
                (next, wait) = (Instant::now() + HEDGE, Duration::ZERO);
                continue;
            }
        };
        // A probe that panicked is as good as one that heard nothing.
        let Ok(flown) = flown else { continue };
        match classify(&flown.heard, to.app, to.key, &flown.nonce) {
            Verdict::Serving => {
                let verdict_at = Instant::now();
                let answer = flown.first_byte.map(|at| verdict_at.saturating_duration_since(at));
                return Served { verdict_at, own: flown.waited + answer.unwrap_or_default() };
            }
            Verdict::Down(why) => {
                tracing::trace!(app = %to.app, ?why, tries, "down");
                timed_out += u32::from(why == Why::TimedOut);
                tries = tries.saturating_add(1);
                let delay = schedule::delay(tries);
                if Instant::now() + delay < next {
                    (next, wait) = (Instant::now() + delay, delay);
                }
            }
        }
    }
}

fn fly(
    prober: Arc<dyn Prober>,
    to: Target<'_>,
    patience: Duration,
    waited: Duration,
) -> impl Future<Output = Flown> + Send + 'static {
    let nonce = signature::nonce();
    let probe = Probe {
        endpoint: to.endpoint,
        host: to.host.map_or_else(|| to.endpoint.to_string(), str::to_owned),
        path: to.path.to_owned(),
        nonce: nonce.clone(),
        patience,
    };
    async move {
        let (heard, first_byte) = prober.probe(&probe).await;
        Flown { nonce, heard, first_byte, waited }
    }
}
