//! A wake that begins before its visitor is let in: at the server name of a TLS handshake, a round trip
//! and some computing ahead of the request.
//!
//! It is no visitor: nothing is held, and an app that nobody then visits goes back to sleep soon.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use rouse_protocol::watch::AppState;
use tokio::time::Instant;

use crate::app::App;
use crate::gate::Gate;
use crate::wake;

/// For how long an app that was woken early and had no visitor since may stay awake.
pub(crate) const UNVISITED: Duration = Duration::from_secs(10);

impl Gate {
    /// Starts the wake of the app that serves `host`, if it sleeps and whatever is asked for may wake it;
    /// its visitor joins it. It is charged to `address` like any other. Says whether it did.
    pub fn early(self: &Arc<Self>, host: &str, address: Option<IpAddr>) -> bool {
        // Of several apps on one host the one at its root.
        let Some(app) = self.routing.lookup(host, "/", &HeaderMap::new()) else { return false };
        if self.stopping.is_cancelled() || !sleeps(&app) {
            return false;
        }
        let now = Instant::now();
        let Ok(ticket) = app.join(address, now) else { return false };
        if ticket.start {
            app.activity.expect(now);
            self.observer.woken_early();
            self.spawn(wake::run(Arc::clone(self), app, ticket.attempt));
        }
        ticket.start
    }
}

fn sleeps(app: &App) -> bool {
    let asleep = matches!(app.known().state, AppState::Asleep | AppState::Paused);
    let anything = app.wake_policy().is_none_or(|policy| policy.wakes_for_anything());
    asleep && anything && app.open().is_none() && !app.waking()
}
