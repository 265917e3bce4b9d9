//! All apps of one proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderMap;
use rouse_protocol::app::AppId;
use rouse_route::Rule;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::{App, Status};
use crate::observer::Observer;
use crate::outside::{Dialer, Prober, Waker};
use crate::routing::{Routing, Unserved};
use crate::visitor::Visitor;
use crate::{idle, sync};

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Held visitors of one app.
    pub holds_per_app: usize,
    /// Held visitors in all.
    pub holds_total: usize,
    /// How many held visitors are let through at once when an app serves. The next follow as
    /// these get their response headers.
    pub release_at_once: usize,
    /// How long a wake may go on without the app serving. Longer than any visitor's deadline.
    pub gate: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            holds_per_app: 1_000,
            holds_total: 20_000,
            release_at_once: 100,
            gate: Duration::from_secs(120),
        }
    }
}

/// What a [`Gate`] is made of.
pub struct Settings {
    /// The name under which this proxy watches: letters, digits, `-`, `_`, `.`.
    pub name: String,
    /// How much may wait.
    pub limits: Limits,
    /// The waker; none when there are only origins.
    pub waker: Option<Arc<dyn Waker>>,
    /// Asks apps.
    pub prober: Arc<dyn Prober>,
    /// Makes connections.
    pub dialer: Arc<dyn Dialer>,
    /// Counts.
    pub observer: Arc<dyn Observer>,
    /// Where the gate's own tasks run. It must outlive every visitor.
    pub runtime: Handle,
}

/// All apps of one proxy, and the tasks that keep them.
pub struct Gate {
    pub(crate) name: String,
    pub(crate) limits: Limits,
    pub(crate) waker: Option<Arc<dyn Waker>>,
    pub(crate) prober: Arc<dyn Prober>,
    pub(crate) dialer: Arc<dyn Dialer>,
    pub(crate) observer: Arc<dyn Observer>,
    runtime: Handle,
    tasks: TaskTracker,
    /// No visitor is held any more.
    pub(crate) stopping: CancellationToken,
    /// Our own tasks end.
    pub(crate) over: CancellationToken,
    pub(crate) held: AtomicUsize,
    connected: AtomicBool,
    synced: AtomicBool,
    /// Only one task changes it: the one that follows the waker.
    pub(crate) routing: Routing,
}

impl Gate {
    /// A gate that knows its origins: `(id, rules, address)` of each. It begins to follow the
    /// waker at once.
    pub fn start(
        settings: Settings,
        origins: impl IntoIterator<Item = (AppId, Vec<Rule>, SocketAddr)>,
    ) -> Arc<Self> {
        let Settings { name, limits, waker, prober, dialer, observer, runtime } = settings;
        let now = Instant::now();
        let origins = origins
            .into_iter()
            .map(|(id, rules, at)| (Arc::new(App::origin(id, at, &*dialer, now)), rules))
            .collect();
        let gate = Arc::new(Self {
            name,
            limits,
            waker,
            prober,
            dialer,
            observer,
            runtime,
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            over: CancellationToken::new(),
            held: AtomicUsize::new(0),
            connected: AtomicBool::new(false),
            synced: AtomicBool::new(false),
            routing: Routing::new(origins),
        });
        if let Some(waker) = gate.waker.clone() {
            gate.spawn(sync::follow(gate.clone(), waker.clone()));
            gate.spawn(idle::sweep(gate.clone(), waker));
        }
        gate
    }

    /// Runs a task on the gate's own threads until it ends or [`Self::end`] is called.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let over = self.over.clone();
        let task = async move {
            tokio::select! {
                () = over.cancelled() => {}
                () = task => {}
            }
        };
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// A visitor that arrived then, or none if its request is nobody's. `host` is as in a `Host` header,
    /// `path` and `headers` as it sent them.
    pub fn enter(
        &self,
        host: &str,
        path: &str,
        headers: &HeaderMap,
        arrived: Instant,
    ) -> Option<Visitor> {
        Some(Visitor::new(self.routing.lookup(host, path, headers)?, arrived))
    }

    /// The rules of an app, as text.
    pub fn rules(&self, app: &AppId) -> Vec<String> {
        self.routing.rules(app)
    }

    /// What apps claim and do not get, since somebody has it already.
    pub fn unserved(&self) -> Vec<Unserved> {
        self.routing.unserved()
    }

    /// Whether the waker has told all its apps at least once, or there is no waker. Until then an
    /// unknown host means nothing.
    pub fn synced(&self) -> bool {
        self.waker.is_none() || self.synced.load(Ordering::Relaxed)
    }

    /// Whether the watch on the waker stands.
    pub fn connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    pub(crate) fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    pub(crate) fn set_synced(&self) {
        self.synced.store(true, Ordering::Relaxed);
    }

    /// How many visitors are held in all.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// How every app is, origins first.
    pub fn status(&self) -> Vec<Status> {
        let now = Instant::now();
        let apps = self.routing.apps();
        self.routing.origins().iter().chain(&apps).map(|app| app.status(now)).collect()
    }

    /// Lets every held visitor go with [`Refusal::Stopping`](crate::Refusal), and holds no more.
    /// Awake apps go on being served.
    pub fn stop(&self) {
        self.stopping.cancel();
    }

    /// Whether [`Self::stop`] was called.
    pub fn stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// Ends the gate's own tasks, and returns when they have.
    pub async fn end(&self) {
        self.stopping.cancel();
        self.over.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
