//! One visitor of one app, from its arrival until it is through.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rouse_policy::{Request, Waiting, WakePolicy};
use rouse_protocol::wake::Served;
use rouse_protocol::watch::AppState;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::app::{App, Open};
use crate::asker::Asker;
use crate::times::{Shares, WakeTimes};

/// One visitor. It is in flight as long as this lives.
pub struct Visitor {
    app: Arc<App>,
    arrived: Instant,
    open: Option<Arc<Open>>,
    /// What it has used up of its deadline, over all its holds.
    pub(crate) held: Duration,
    started: bool,
    /// Its visit is activity.
    counts: bool,
    pass: Option<Pass>,
    /// Its place at an app that takes only so many at once.
    place: Option<OwnedSemaphorePermit>,
}

/// What a held visitor got when it was let through.
struct Pass {
    wake: Option<Arc<WakeTimes>>,
    let_go: Instant,
    /// Its place among those let through at once; given back at the response header.
    permit: Option<OwnedSemaphorePermit>,
}

/// What the first response after a wake says of it.
#[derive(Clone, Debug)]
pub struct Woken {
    /// `resumed`, `cold`, `unpaused` or `awake` for the visitor who started the wake, `joined` for
    /// all others.
    pub word: &'static str,
    /// Whose time it was.
    pub shares: Shares,
    /// This is the first visitor of its wake to be served.
    pub first: bool,
}

impl Visitor {
    pub(crate) fn new(app: Arc<App>, arrived: Instant) -> Self {
        app.activity.arrive();
        let held = Duration::ZERO;
        Self {
            app,
            arrived,
            open: None,
            held,
            started: false,
            counts: true,
            pass: None,
            place: None,
        }
    }

    /// The app it visits.
    pub fn app(&self) -> &Arc<App> {
        &self.app
    }

    /// When it arrived.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Its app's policy of waking, if it has one. Costs an app without one next to nothing.
    pub fn wake_policy(&self) -> Option<Arc<WakePolicy>> {
        self.app.wake_policy()
    }

    /// What the app's policy makes of `request`, which came from `address`.
    pub fn asker(&self, request: &Request<'_>, address: Option<IpAddr>) -> Asker {
        Asker::new(&self.app.policy().policies, request, address)
    }

    /// How its app's visitors wait.
    pub fn waiting(&self) -> Arc<Waiting> {
        self.app.policy().policies.waiting.clone().unwrap_or_default()
    }

    /// Whether the app is there to answer for itself: the gate is open, or only this proxy's is not.
    pub fn serving(&self) -> bool {
        self.app.open().is_some() || matches!(self.app.known().state, AppState::Awake(_))
    }

    /// This visit is no activity: it is not frozen while it lasts, but keeps nothing awake after.
    pub fn passes_by(&mut self) {
        self.counts = false;
    }

    /// For how long it has been held, over all its holds; zero for one that never was.
    pub fn held(&self) -> Duration {
        self.held
    }

    /// Goes through the gate if it is open and the app has a place. Otherwise the visitor has to be
    /// [held](crate::Gate::hold).
    pub fn enter_open(&mut self) -> Option<&Arc<Open>> {
        self.open = self.app.open();
        if self.open.is_some() && self.place.is_none() {
            match self.app.places.at_once() {
                Some(place) => self.place = place,
                None => self.open = None,
            }
        }
        self.open.as_ref()
    }

    /// What it was let through to.
    pub fn open(&self) -> Option<&Arc<Open>> {
        self.open.as_ref()
    }

    /// Waits for one of the app's places, in turn.
    pub(crate) async fn place(&mut self) {
        if self.place.is_none() {
            self.place = self.app.places.in_turn().await;
        }
    }

    /// It is a connection of its own now: others may have its place.
    pub fn upgraded(&mut self) {
        self.place = None;
    }

    pub(crate) fn start(&mut self) {
        self.started = true;
    }

    pub(crate) fn pass(&mut self, open: Arc<Open>, permit: OwnedSemaphorePermit) {
        let (wake, let_go) = (open.wake.clone(), Instant::now());
        self.pass = Some(Pass { wake, let_go, permit: Some(permit) });
        self.open = Some(open);
    }

    /// What it was let through to turned out not to be there: closes the gate for everybody, and
    /// this visitor may be held again.
    pub fn down(&mut self) {
        if let Some(open) = self.open.take() {
            self.app.down(&open);
        }
        self.pass = None;
    }

    /// Its response header is here: its place goes to the next in the queue. What to tell it of
    /// the wake, if it was held, once; and what to tell the waker, if it is the first of its life.
    pub(crate) fn answered(&mut self) -> (Option<Woken>, Option<Served>) {
        let pass = self.pass.take();
        let first = self.open.as_ref().filter(|open| open.wake.is_some() && open.first.take());
        if pass.is_none() && first.is_none() {
            return (None, None);
        }
        let now = Instant::now();
        let let_go = pass.as_ref().map(|pass| pass.let_go);
        let first = first.and_then(|open| {
            let wake = open.wake.as_ref()?;
            // One who was not held came after those who left before they were answered.
            let let_go = let_go.unwrap_or(self.arrived.max(wake.serving));
            let phases = wake.shares(self.arrived, let_go, now).of_proxy();
            Some(Served { generation: open.generation, phases })
        });
        let woken = pass.and_then(|pass| {
            drop(pass.permit);
            let wake = pass.wake?;
            let word = if self.started { wake.outcome.as_str() } else { "joined" };
            let shares = wake.shares(self.arrived, pass.let_go, now);
            Some(Woken { word, shares, first: wake.tell() })
        });
        (woken, first)
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        if self.counts {
            self.app.activity.leave(Instant::now());
        } else {
            self.app.activity.leave_uncounted();
        }
    }
}
