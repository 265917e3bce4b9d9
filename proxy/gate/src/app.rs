//! The gate of one app.
//!
//! The fast path is one load of `open`. Everything else is decided under one short lock that is
//! never held over an await. Held visitors queue on the *era*'s semaphore, which has no permits
//! until the gate opens: that keeps them in the order of their arrival, paces their release, and
//! is a level, not an edge. An era ends (its semaphore closes) when its wake fails or its gate
//! closes, and everybody in it looks again.

mod said;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use rouse_policy::{Budgets, Denied, Rate, WakePolicy};
use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::signature::AgentKey;
use rouse_protocol::wake::{Outcome, Ready};
use rouse_protocol::watch::{AppState, Policy};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::activity::Activity;
use crate::early::UNVISITED;
use crate::known::{Known, Told};
use crate::outside::{Dialer, Upstream};
use crate::places::Places;
use crate::refusal::Refusal;
use crate::served::{FirstByte, Telling};
use crate::times::WakeTimes;
use crate::waiting::Waiting;

/// An app as this proxy knows it.
pub struct App {
    id: AppId,
    open: ArcSwapOption<Open>,
    inner: Mutex<Inner>,
    /// Who is there.
    pub(crate) activity: Activity,
    /// How many visitors are held.
    pub(crate) holds: AtomicUsize,
    /// And since when.
    pub(crate) waiting: Waiting,
    /// What the waker is still to be told.
    pub(crate) telling: Telling,
    policy: ArcSwap<Policy>,
    /// It has a policy of waking: for those who need not look at it otherwise.
    has_wake_policy: AtomicBool,
    /// How many visitors it takes at once.
    pub(crate) places: Places,
    /// What is left of its wakes.
    budgets: Budgets,
    known: Told,
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
    /// Shared by all openings to what one wake of the waker's brought up.
    pub(crate) first: Arc<FirstByte>,
}

struct Inner {
    gate: State,
    era: Arc<Semaphore>,
    /// How many wakes visitors have started.
    attempts: u64,
    /// Whose budget the newest wake was charged to; the outer none: it was for free.
    charged: Option<Option<IpAddr>>,
    /// The newest wake that failed, and what its visitors are told.
    failed: Option<(u64, Refusal)>,
    upstream: Option<(SocketAddr, Generation, Arc<dyn Upstream>)>,
    /// The first byte of the life that was opened last.
    first: (Generation, Arc<FirstByte>),
    /// The gate is open though the waker said, maybe before the wake, that the VM stands still.
    doubted: bool,
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
    /// For how long the first of those who are held has been there.
    pub oldest: Option<Duration>,
}

impl App {
    pub(crate) fn new(id: AppId, policy: Policy, known: Known, now: Instant) -> Self {
        Self {
            id,
            open: ArcSwapOption::empty(),
            inner: Mutex::new(Inner {
                gate: State::Closed,
                era: Arc::new(Semaphore::new(0)),
                attempts: 0,
                charged: None,
                failed: None,
                upstream: None,
                first: (Generation(0), Arc::default()),
                doubted: false,
            }),
            activity: Activity::new(now),
            holds: AtomicUsize::new(0),
            waiting: Waiting::default(),
            telling: Telling::default(),
            has_wake_policy: AtomicBool::new(policy.policies.wake.is_some()),
            budgets: full_budgets(&policy, now),
            places: Places::new(policy.concurrent_requests),
            policy: ArcSwap::from_pointee(policy),
            known: Told::new(known),
        }
    }

    /// An app that never sleeps: its gate is always open.
    pub(crate) fn origin(
        id: AppId,
        address: SocketAddr,
        dialer: &dyn Dialer,
        now: Instant,
    ) -> Self {
        let generation = Generation(0);
        let ready = Ready { endpoint: address, generation, outcome: Outcome::Awake, key: None };
        let policy = Policy::default();
        let upstream = dialer.upstream(&id, address, generation);
        let app = Self::new(id, policy, Known { state: AppState::Awake(ready), generation }, now);
        app.open.store(Some(Arc::new(Open {
            endpoint: address,
            generation,
            key: None,
            upstream,
            wake: None,
            first: Arc::default(),
        })));
        app
    }

    /// Its id.
    pub fn id(&self) -> &AppId {
        &self.id
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// After how long without a visitor it may sleep; none: never by that.
    pub(crate) fn idle_limit(&self) -> Option<Duration> {
        let idle_ms = self.policy.load().idle_ms;
        let limit = Duration::from_millis(idle_ms);
        let early = self.activity.expects();
        (idle_ms > 0).then(|| if early { limit.min(UNVISITED) } else { limit })
    }

    pub(crate) fn known(&self) -> Known {
        self.known.get()
    }

    /// What serves now, if the gate is open.
    pub fn open(&self) -> Option<Arc<Open>> {
        self.open.load_full()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics under the lock; if something does, the state is still whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake_policy(&self) -> Option<Arc<WakePolicy>> {
        if !self.has_wake_policy.load(Ordering::Relaxed) {
            return None;
        }
        self.policy.load().policies.wake.clone()
    }

    /// Joins those who wait. Exactly one ticket of each attempt says `start`, and only for that one
    /// is a wake charged to `address`: who can't pay leaves the gate as it is.
    pub(crate) fn join(&self, address: Option<IpAddr>, now: Instant) -> Result<Ticket, Denied> {
        let mut inner = self.lock();
        let start = matches!(inner.gate, State::Closed);
        if start {
            inner.charged = self.charge(address, now)?.then_some(address);
            inner.attempts += 1;
            inner.gate = State::Waking(inner.attempts);
        }
        Ok(Ticket { era: inner.era.clone(), attempt: inner.attempts, start })
    }

    /// Whether it is charged: a VM that runs is not woken, only this proxy does not know it yet.
    fn charge(&self, address: Option<IpAddr>, now: Instant) -> Result<bool, Denied> {
        if self.wake_policy().is_none() || self.known.with(|known| known.state.ready().is_some()) {
            return Ok(false);
        }
        self.budgets.charge(address, now.into_std())?;
        Ok(true)
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
        // An app that was awake all along is the same as before, told or not.
        if ready.outcome != Outcome::Awake || inner.first.0 != ready.generation {
            inner.first = (ready.generation, Arc::default());
        }
        let open = Arc::new(Open {
            endpoint: ready.endpoint,
            generation: ready.generation,
            key: ready.key.clone(),
            upstream,
            wake: Some(wake),
            first: inner.first.1.clone(),
        });
        inner.gate = State::Open(open.clone());
        inner.doubted = false;
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
        self.activity.expect_nobody();
        if matches!(inner.gate, State::Waking(now) if now == attempt) {
            if let Some(address) = inner.charged.take()
                && refusal.never_began()
            {
                self.budgets.refund(address, Instant::now().into_std());
            }
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
            oldest: self.waiting.oldest(now),
        }
    }

    /// Whether a wake of ours runs.
    pub(crate) fn waking(&self) -> bool {
        matches!(self.lock().gate, State::Waking(_))
    }
}

fn rates(policy: &Policy) -> (Option<Rate>, Option<Rate>) {
    let wake = policy.policies.wake.as_ref();
    wake.map_or((None, None), |wake| (wake.budget, wake.per_address))
}

fn full_budgets(policy: &Policy, now: Instant) -> Budgets {
    let (app, per_address) = rates(policy);
    Budgets::new(app, per_address, now.into_std())
}

impl Inner {
    fn close(&mut self, open: &ArcSwapOption<Open>) {
        open.store(None);
        self.gate = State::Closed;
        self.doubted = false;
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
