//! A wake that begins before its visitor is let in: at the server name of a TLS handshake, a round trip
//! and some computing ahead of the request.
//!
//! It is no visitor: nothing is held, and an app that nobody then visits goes back to sleep soon.

use std::sync::Arc;
use std::time::Duration;

use rouse_protocol::watch::AppState;
use tokio::time::Instant;

use crate::app::App;
use crate::gate::Gate;
use crate::wake;

/// For how long an app that was woken early and had no visitor since may stay awake.
pub(crate) const UNVISITED: Duration = Duration::from_secs(10);

impl Gate {
    /// Starts the wake of the app that serves `host`, if it sleeps and may wake; its visitor joins it.
    /// Says whether it did.
    pub fn early(self: &Arc<Self>, host: &str) -> bool {
        let Some(app) = self.app_of(host) else { return false };
        if self.stopping.is_cancelled() || !sleeps(&app) {
            return false;
        }
        let ticket = app.join();
        if ticket.start {
            app.activity.expect(Instant::now());
            self.observer.woken_early();
            self.spawn(wake::run(Arc::clone(self), app, ticket.attempt));
        }
        ticket.start
    }
}

fn sleeps(app: &App) -> bool {
    let asleep = matches!(app.known().state, AppState::Asleep | AppState::Paused);
    asleep && app.open().is_none() && !app.waking()
}
