//! The gate of one app.
//!
//! The fast path is one load of `open`. Everything else is decided under one short lock that is
//! never held over an await. Held visitors queue on the *era*'s semaphore, which has no permits
//! until the gate opens: that keeps them in the order of their arrival, paces their release, and
//! is a level, not an edge. An era ends (its semaphore closes) when its wake fails or its gate
//! closes, and everybody in it looks again.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use rouse_protocol::app::{AppId, Generation, Host};
use rouse_protocol::signature::AgentKey;
use rouse_protocol::wake::{Ready, SleepReason};
use rouse_protocol::watch::{AppState, Policy};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::activity::Activity;
use crate::outside::{Dialer, Upstream};
use crate::refusal::Refusal;
use crate::times::WakeTimes;

/// How far apart the watch and the answer to a wake, on two connections, may reach us.
const SETTLED: Duration = Duration::from_secs(1);

/// An app as this proxy knows it.
pub struct App {
    id: AppId,
    open: ArcSwapOption<Open>,
    inner: Mutex<Inner>,
    /// Who is there.
    pub(crate) activity: Activity,
    /// How many visitors are held.
    pub(crate) holds: AtomicUsize,
    hosts: ArcSwap<Vec<Host>>,
    policy: ArcSwap<Policy>,
    known: watch::Sender<Known>,
}

/// Where an app that serves is reached, in this life.
pub struct Open {
    /// Its endpoint.
    pub endpoint: SocketAddr,
    /// The life.
    pub generation: Generation,
    /// The key of the agent that fronts it, if one does.
    pub key: Option<AgentKey>,
    /// The connections to it.
    pub upstream: Arc<dyn Upstream>,
    /// The wake that opened it; none for an app that never sleeps.
    pub wake: Option<Arc<WakeTimes>>,
}

/// What the waker said last.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) state: AppState,
    pub(crate) generation: Generation,
}

struct Inner {
    gate: State,
    era: Arc<Semaphore>,
    /// How many wakes visitors have started.
    attempts: u64,
    /// The newest wake that failed, and what its visitors are told.
    failed: Option<(u64, Refusal)>,
    upstream: Option<(SocketAddr, Generation, Arc<dyn Upstream>)>,
}

enum State {
    Closed,
    /// The wake of this attempt runs.
    Waking(u64),
    Open(Arc<Open>),
}

/// A place among those who wait.
pub(crate) struct Ticket {
    pub(crate) era: Arc<Semaphore>,
    /// The wake that it waits for.
    pub(crate) attempt: u64,
    /// It is the one that must start that wake.
    pub(crate) start: bool,
}

/// How an app is, for operators.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its id.
    pub id: AppId,
    /// What the waker said last.
    pub state: &'static str,
    /// This proxy's gate: `closed`, `waking` or `open`.
    pub gate: &'static str,
    /// The life that the gate is open to, or the newest that the waker told.
    pub generation: Generation,
    /// How many visitors are held.
    pub holds: usize,
    /// How many are there, held or served.
    pub in_flight: u64,
    /// For how long nobody has been.
    pub idle: Duration,
}

impl App {
    pub(crate) fn new(
        id: AppId,
        hosts: Vec<Host>,
        policy: Policy,
        known: Known,
        now: Instant,
    ) -> Self {
        Self {
            id,
            open: ArcSwapOption::empty(),
            inner: Mutex::new(Inner {
                gate: State::Closed,
                era: Arc::new(Semaphore::new(0)),
                attempts: 0,
                failed: None,
                upstream: None,
            }),
            activity: Activity::new(now),
            holds: AtomicUsize::new(0),
            hosts: ArcSwap::from_pointee(hosts),
            policy: ArcSwap::from_pointee(policy),
            known: watch::Sender::new(known),
        }
    }

    /// An app that never sleeps: its gate is always open.
    pub(crate) fn origin(
        id: AppId,
        hosts: Vec<Host>,
        address: SocketAddr,
        dialer: &dyn Dialer,
        now: Instant,
    ) -> Self {
        let generation = Generation(0);
        let ready = Ready {
            endpoint: address,
            generation,
            outcome: rouse_protocol::wake::Outcome::Awake,
            key: None,
        };
        let policy = Policy { idle_ms: 0, hold_deadline_ms: 0, gate_path: String::new() };
        let upstream = dialer.upstream(&id, address, generation);
        let app =
            Self::new(id, hosts, policy, Known { state: AppState::Awake(ready), generation }, now);
        app.open.store(Some(Arc::new(Open {
            endpoint: address,
            generation,
            key: None,
            upstream,
            wake: None,
        })));
        app
    }

    /// Its id.
    pub fn id(&self) -> &AppId {
        &self.id
    }

    pub(crate) fn hosts(&self) -> Arc<Vec<Host>> {
        self.hosts.load_full()
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    pub(crate) fn known(&self) -> Known {
        self.known.borrow().clone()
    }

    /// What serves now, if the gate is open.
    pub fn open(&self) -> Option<Arc<Open>> {
        self.open.load_full()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics under the lock; if something does, the state is still whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins those who wait. Exactly one ticket of each attempt says `start`.
    pub(crate) fn join(&self) -> Ticket {
        let mut inner = self.lock();
        let start = matches!(inner.gate, State::Closed);
        if start {
            inner.attempts += 1;
            inner.gate = State::Waking(inner.attempts);
        }
        Ticket { era: inner.era.clone(), attempt: inner.attempts, start }
    }

    /// What is open, if it is what `era` waited for.
    pub(crate) fn open_of(&self, era: &Arc<Semaphore>) -> Option<Arc<Open>> {
        let inner = self.lock();
        match &inner.gate {
            State::Open(open) if Arc::ptr_eq(&inner.era, era) => Some(open.clone()),
            _ => None,
        }
    }

    /// What those who waited for wake `attempt` are told, if it failed.
    pub(crate) fn failure(&self, attempt: u64) -> Option<Refusal> {
        let inner = self.lock();
        inner.failed.as_ref().filter(|(failed, _)| *failed >= attempt).map(|(_, r)| r.clone())
    }

    /// The wake `attempt` has brought the app to serve: opens the gate, and lets `at_once` visitors
    /// through. Does nothing if the app was removed meanwhile.
    pub(crate) fn serve(
        &self,
        attempt: u64,
        ready: &Ready,
        wake: Arc<WakeTimes>,
        at_once: usize,
        dialer: &dyn Dialer,
        now: Instant,
    ) {
        self.activity.touch(now);
        let mut inner = self.lock();
        if !matches!(inner.gate, State::Waking(now) if now == attempt) {
            return;
        }
        let upstream = match inner.upstream.take() {
            Some((at, life, upstream)) if (at, life) == (ready.endpoint, ready.generation) => {
                upstream
            }
            other => {
                if let Some((.., old)) = other {
                    old.shut();
                }
                dialer.upstream(&self.id, ready.endpoint, ready.generation)
            }
        };
        inner.upstream = Some((ready.endpoint, ready.generation, upstream.clone()));
        let open = Arc::new(Open {
            endpoint: ready.endpoint,
            generation: ready.generation,
            key: ready.key.clone(),
            upstream,
            wake: Some(wake),
        });
        inner.gate = State::Open(open.clone());
        self.open.store(Some(open));
        inner.era.add_permits(at_once.min(Semaphore::MAX_PERMITS));
    }

    /// Lets `at_once` more of the held through; false when the gate is not open or nobody is held.
    pub(crate) fn let_more_through(&self, at_once: usize) -> bool {
        let inner = self.lock();
        let open = matches!(inner.gate, State::Open(_));
        let waited_for = open && self.holds.load(Ordering::Relaxed) > 0;
        if waited_for && inner.era.available_permits() == 0 {
            inner.era.add_permits(at_once.min(Semaphore::MAX_PERMITS));
        }
        waited_for
    }

    /// The wake `attempt` failed: so do all who waited for it. The next visitor starts another.
    pub(crate) fn fail(&self, attempt: u64, refusal: Refusal) {
        let mut inner = self.lock();
        if matches!(inner.gate, State::Waking(now) if now == attempt) {
            inner.failed = Some((attempt, refusal));
            inner.close(&self.open);
        }
    }

    /// A live answer proved that what `open` leads to is not there. Closes the gate unless it
    /// leads elsewhere by now; the VM may well run, so its connections are left alone.
    pub fn down(&self, open: &Arc<Open>) {
        let mut inner = self.lock();
        if matches!(&inner.gate, State::Open(now) if Arc::ptr_eq(now, open)) {
            inner.close(&self.open);
        }
    }

    /// The waker asks whether `generation` may sleep. If so the gate is closed when this returns,
    /// and no connection to it is left.
    ///
    /// The order is the point: first close, then look. A visitor is counted before it reads the
    /// gate, so it is either seen here or finds the gate closed, and then its wake cancels the
    /// sleep.
    pub(crate) fn may_sleep(
        &self,
        generation: Generation,
        reason: SleepReason,
        now: Instant,
    ) -> bool {
        let quiet = || match (reason, self.policy.load().idle_ms) {
            (SleepReason::Operator, _) => self.activity.in_flight() == 0,
            (SleepReason::Idle, 0) => false,
            (SleepReason::Idle, ms) => self.activity.idle(now) >= Duration::from_millis(ms),
        };
        let mut inner = self.lock();
        match &inner.gate {
            // A wake runs here: somebody wants the app, or did a moment ago.
            State::Waking(_) => false,
            // An old question; what is open now is a later life.
            State::Open(open) if open.generation > generation => false,
            State::Open(_) => {
                let open = self.open.swap(None);
                if quiet() {
                    inner.close(&self.open);
                    inner.shut();
                    true
                } else {
                    self.open.store(open);
                    false
                }
            }
            State::Closed => {
                let quiet = quiet();
                if quiet {
                    inner.shut();
                }
                quiet
            }
        }
    }

    /// What the waker says of the app now.
    pub(crate) fn learn(&self, hosts: Vec<Host>, policy: Policy, known: Known, now: Instant) {
        self.hosts.store(Arc::new(hosts));
        self.policy.store(Arc::new(policy));
        let awake = |k: &Known| k.state.ready().map(|r| (r.endpoint, r.generation));
        let before = awake(&self.known.borrow());
        let after = awake(&known);
        if after.is_some() && after != before {
            self.activity.touch(now);
        }
        let mut inner = self.lock();
        if let State::Open(open) = &inner.gate {
            let other = after.is_some_and(|(at, life)| {
                life > open.generation || (life == open.generation && at != open.endpoint)
            });
            if other || known.ends(open.generation) {
                inner.close(&self.open);
                inner.shut();
            }
        }
        drop(inner);
        self.known.send_replace(known);
    }

    /// Is not configured any more.
    pub(crate) fn remove(&self) {
        let mut inner = self.lock();
        let attempts = inner.attempts;
        inner.failed = Some((attempts, Refusal::Removed));
        inner.close(&self.open);
        inner.shut();
        drop(inner);
        self.known.send_modify(|known| known.state = AppState::Asleep);
    }

    /// Returns when the waker says that `generation` is over.
    pub(crate) async fn over(&self, generation: Generation) {
        let mut known = self.known.subscribe();
        // What was said just before may be older than our `ready`; what still stands a while later
        // is not.
        known.mark_unchanged();
        loop {
            if let Ok(Err(_)) = tokio::time::timeout(SETTLED, known.changed()).await {
                return;
            }
            if known.borrow_and_update().ends(generation) {
                return;
            }
        }
    }

    /// How it is.
    pub fn status(&self, now: Instant) -> Status {
        let known = self.known();
        let inner = self.lock();
        let (gate, generation) = match (self.open.load().as_ref(), &inner.gate) {
            (Some(open), _) => ("open", open.generation),
            (None, State::Waking(_)) => ("waking", known.generation),
            (None, _) => ("closed", known.generation),
        };
        Status {
            id: self.id.clone(),
            state: known.state.as_str(),
            gate,
            generation,
            holds: self.holds.load(Ordering::Relaxed),
            in_flight: self.activity.in_flight(),
            idle: self.activity.idle(now),
        }
    }

    /// Whether a wake of ours runs.
    pub(crate) fn waking(&self) -> bool {
        matches!(self.lock().gate, State::Waking(_))
    }
}

impl Known {
    /// Whether this says that the life `generation` is over. `waking` says nothing: the waker may
    /// send it after our own wake has ended, on another connection.
    fn ends(&self, generation: Generation) -> bool {
        let over = matches!(
            self.state,
            AppState::Asleep
                | AppState::Paused
                | AppState::Snapshotting
                | AppState::Failed { .. }
                | AppState::Parked { .. }
        );
        over && self.generation >= generation
    }
}

impl Inner {
    fn close(&mut self, open: &ArcSwapOption<Open>) {
        open.store(None);
        self.gate = State::Closed;
        std::mem::replace(&mut self.era, Arc::new(Semaphore::new(0))).close();
    }

    fn shut(&mut self) {
        if let Some((.., upstream)) = self.upstream.take() {
            upstream.shut();
        }
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.lock().shut();
    }
}
