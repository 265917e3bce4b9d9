//! The world of a gate under test.

mod guest;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::client::ClientError;
use rouse_protocol::problem::Problem;
use rouse_protocol::signature::AgentKey;
use rouse_protocol::wake::{
    Agreement, Outcome, Phase, PhaseTime, Ready, Served, SleepReason, SleepReport, SleepRequest,
    Tier, WakeEvent, WakeFailure,
};
use rouse_protocol::watch::{AppState, AppView, HEARTBEAT, Policy, WatchEvent};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{HOST, rule};
use crate::{Events, Observer, TellEnd, Waker};
pub(super) use guest::{App, SimDialer, SimProber};

/// How the next wakes go.
#[derive(Clone, Debug)]
pub(super) enum Wake {
    Runs(Duration),
    Hangs,
    Fails(WakeFailure),
    BreaksOff,
    Unreachable,
    Refused(u16),
}

/// What it does with word of a first byte.
#[derive(Clone, Copy, Debug)]
pub(super) enum Takes {
    All,
    Nothing,
    /// The call stands, and no answer comes.
    Forever,
}

/// A waker of one app, as strict as the real one: a wake cancels a sleep that is not over, a sleep
/// needs the agreement of the proxy that watches.
pub(super) struct Sim {
    pub(super) key: AgentKey,
    inner: Mutex<Inner>,
    agreed: watch::Sender<Option<bool>>,
    changed: watch::Sender<u64>,
}

struct Inner {
    wake: Wake,
    view: AppView,
    configured: bool,
    up: bool,
    silent: bool,
    wakes: usize,
    proposals: Vec<SleepRequest>,
    agreements: Vec<Agreement>,
    /// What was told of first bytes, whether it was taken or not.
    served: Vec<Served>,
    /// What becomes of it.
    takes_served: Takes,
    told: Vec<TellEnd>,
    watchers: Vec<mpsc::UnboundedSender<WatchEvent>>,
    /// Other apps, which do nothing but be there.
    others: Vec<AppView>,
}

pub(super) fn id() -> AppId {
    "hello".parse().unwrap()
}

impl Sim {
    pub(super) fn new() -> Arc<Self> {
        let view = AppView {
            id: id(),
            rules: vec![rule(HOST)],
            policy: Policy {
                idle_ms: 0,
                hold_deadline_ms: 25_000,
                gate_path: "/gate".to_owned(),
                ..Policy::default()
            },
            generation: Generation(0),
            since_unix_ms: 0,
            state: AppState::Asleep,
        };
        Arc::new(Self {
            key: AgentKey::generate(),
            inner: Mutex::new(Inner {
                wake: Wake::Runs(Duration::from_millis(100)),
                view,
                configured: true,
                up: true,
                silent: false,
                wakes: 0,
                proposals: Vec::new(),
                agreements: Vec::new(),
                served: Vec::new(),
                takes_served: Takes::All,
                told: Vec::new(),
                watchers: Vec::new(),
                others: Vec::new(),
            }),
            agreed: watch::Sender::new(None),
            changed: watch::Sender::new(0),
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap())
    }

    pub(super) fn plan(&self, wake: Wake) {
        self.with(|sim| sim.wake = wake);
    }

    pub(super) fn policy(&self, change: impl FnOnce(&mut Policy)) {
        self.with(|sim| change(&mut sim.view.policy));
    }

    pub(super) fn wakes(&self) -> usize {
        self.with(|sim| sim.wakes)
    }

    pub(super) fn proposals(&self) -> Vec<SleepRequest> {
        self.with(|sim| sim.proposals.clone())
    }

    pub(super) fn agreements(&self) -> Vec<bool> {
        self.with(|sim| sim.agreements.iter().map(|a| a.agree).collect())
    }

    pub(super) fn served(&self) -> Vec<Served> {
        self.with(|sim| sim.served.clone())
    }

    pub(super) fn takes_served(&self, takes: Takes) {
        self.with(|sim| sim.takes_served = takes);
    }

    /// What the gate counted of telling first bytes.
    pub(super) fn told(&self) -> Vec<TellEnd> {
        self.with(|sim| sim.told.clone())
    }

    pub(super) fn state(&self) -> AppState {
        self.with(|sim| sim.view.state.clone())
    }

    /// Another state, told to all who watch.
    pub(super) fn tell(&self, state: AppState) {
        self.with(|sim| {
            sim.view.state = state;
            let event = WatchEvent::App(sim.view.clone());
            sim.watchers.retain(|w| w.send(event.clone()).is_ok());
        });
        self.changed.send_modify(|n| *n += 1);
    }

    /// Only tells it, as a message that comes late.
    pub(super) fn tell_late(&self, generation: u64, state: AppState) {
        self.with(|sim| {
            let view = AppView { generation: Generation(generation), state, ..sim.view.clone() };
            sim.watchers.retain(|w| w.send(WatchEvent::App(view.clone())).is_ok());
        });
    }

    pub(super) fn remove(&self) {
        self.with(|sim| {
            sim.configured = false;
            sim.watchers.retain(|w| w.send(WatchEvent::Removed { id: id() }).is_ok());
        });
    }

    /// Another app, new or with other rules (as JSON).
    pub(super) fn other(&self, id: &str, rules: &[&str]) {
        let rules = rules.iter().map(|json| serde_json::from_str(json).unwrap()).collect();
        self.with(|sim| {
            let view = AppView { id: id.parse().unwrap(), rules, ..sim.view.clone() };
            sim.others.retain(|other| other.id != view.id);
            sim.others.push(view.clone());
            sim.watchers.retain(|w| w.send(WatchEvent::App(view.clone())).is_ok());
        });
    }

    /// That one goes.
    pub(super) fn remove_other(&self, id: &str) {
        let id: AppId = id.parse().unwrap();
        self.with(|sim| {
            sim.others.retain(|other| other.id != id);
            sim.watchers.retain(|w| w.send(WatchEvent::Removed { id: id.clone() }).is_ok());
        });
    }

    /// Every connection breaks and nobody listens.
    pub(super) fn die(&self) {
        self.with(|sim| {
            sim.up = false;
            sim.watchers.clear();
        });
    }

    pub(super) fn come_back(&self) {
        self.with(|sim| sim.up = true);
    }

    /// Its watches stand, and nothing comes over them.
    pub(super) fn silence(&self, silent: bool) {
        self.with(|sim| sim.silent = silent);
    }

    pub(super) fn unconfigure(&self) {
        self.with(|sim| sim.configured = false);
    }

    pub(super) fn ready(&self, outcome: Outcome) -> Ready {
        let generation = self.with(|sim| sim.view.generation);
        let port = 4000 + u16::try_from(generation.0).unwrap();
        Ready {
            endpoint: ([127, 0, 0, 1], port).into(),
            generation,
            outcome,
            key: Some(self.key.clone()),
        }
    }

    /// A sleep from beginning to end, as whoever wants it sees it.
    pub(super) async fn put_to_sleep(
        &self,
        reason: SleepReason,
    ) -> Result<Generation, &'static str> {
        self.put_into(AppState::Asleep, reason).await
    }

    /// [`Self::put_to_sleep`] with its VM kept.
    pub(super) async fn pause(&self) -> Result<Generation, &'static str> {
        self.put_into(AppState::Paused, SleepReason::Operator).await
    }

    async fn put_into(
        &self,
        tier: AppState,
        reason: SleepReason,
    ) -> Result<Generation, &'static str> {
        let Some(ready) = self.state().ready().cloned() else { return Err("not-awake") };
        self.agreed.send_replace(None);
        let (mut agreed, mut changed) = (self.agreed.subscribe(), self.changed.subscribe());
        self.tell(AppState::Draining { ready: ready.clone(), reason, question: 1 });
        changed.mark_unchanged();
        let agree = tokio::select! {
            agree = async { agreed.wait_for(Option::is_some).await.is_ok_and(|a| *a == Some(true)) } => agree,
            _ = changed.changed() => return Err("cancelled"),
            () = tokio::time::sleep(Duration::from_secs(2)) => {
                self.tell(AppState::Awake(ready));
                return Err("no-agreement");
            }
        };
        if !agree {
            self.tell(AppState::Awake(ready));
            return Err("busy");
        }
        self.tell(tier);
        Ok(ready.generation)
    }

    fn unreachable() -> ClientError {
        let source = std::io::ErrorKind::ConnectionRefused.into();
        ClientError::Unreachable { path: PathBuf::from("s"), source }
    }
}

struct Script<T> {
    steps: VecDeque<T>,
    end: End,
}

enum End {
    Clean,
    Never,
}

#[async_trait]
impl<T: Send> Events<T> for Script<T> {
    async fn next(&mut self) -> Result<Option<T>, ClientError> {
        match (self.steps.pop_front(), &self.end) {
            (Some(step), _) => Ok(Some(step)),
            (None, End::Clean) => Ok(None),
            (None, End::Never) => std::future::pending().await,
        }
    }
}

/// A wake that takes its time, and then happens.
struct Running {
    sim: Arc<Sim>,
    at: Instant,
    done: bool,
}

#[async_trait]
impl Events<WakeEvent> for Running {
    async fn next(&mut self) -> Result<Option<WakeEvent>, ClientError> {
        if self.done {
            return Ok(None);
        }
        tokio::time::sleep_until(self.at).await;
        self.done = true;
        self.sim.with(|sim| sim.view.generation = sim.view.generation.next());
        let ready = self.sim.ready(Outcome::Resumed);
        self.sim.tell(AppState::Awake(ready.clone()));
        Ok(Some(WakeEvent::Ready(ready)))
    }
}

struct Watch {
    sim: Arc<Sim>,
    receiver: mpsc::UnboundedReceiver<WatchEvent>,
}

#[async_trait]
impl Events<WatchEvent> for Watch {
    async fn next(&mut self) -> Result<Option<WatchEvent>, ClientError> {
        match tokio::time::timeout(HEARTBEAT, self.receiver.recv()).await {
            Ok(event) => Ok(event),
            Err(_) if self.sim.with(|sim| sim.silent) => std::future::pending().await,
            Err(_) => Ok(Some(WatchEvent::Alive)),
        }
    }
}

/// The waker as the gate reaches it.
pub(super) struct SimWaker(pub(super) Arc<Sim>);

impl std::ops::Deref for SimWaker {
    type Target = Arc<Sim>;

    fn deref(&self) -> &Arc<Sim> {
        &self.0
    }
}

#[async_trait]
impl Waker for SimWaker {
    async fn wake(&self, _: &AppId) -> Result<Box<dyn Events<WakeEvent>>, ClientError> {
        let plan = self.with(|sim| {
            sim.wakes += 1;
            if sim.up { sim.wake.clone() } else { Wake::Unreachable }
        });
        if !matches!(plan, Wake::Unreachable)
            && let Some(ready) = self.state().ready().cloned()
        {
            self.tell(AppState::Awake(ready));
            let ready = WakeEvent::Ready(self.ready(Outcome::Awake));
            return Ok(Box::new(Script { steps: [ready].into(), end: End::Clean }));
        }
        if matches!(plan, Wake::Runs(_)) && self.state() == AppState::Paused {
            tokio::time::sleep(Duration::from_millis(3)).await;
            let ready = self.ready(Outcome::Unpaused);
            self.tell(AppState::Awake(ready.clone()));
            let steps = [
                WakeEvent::Phase(PhaseTime { phase: Phase::Resume, us: 3_000 }),
                WakeEvent::Ready(ready),
            ];
            return Ok(Box::new(Script { steps: steps.into(), end: End::Clean }));
        }
        let queued = || WakeEvent::Phase(PhaseTime { phase: Phase::Queue, us: 1 });
        Ok(match plan {
            Wake::Runs(took) => {
                self.tell(AppState::Waking);
                Box::new(Running { sim: self.0.clone(), at: Instant::now() + took, done: false })
            }
            Wake::Hangs => Box::new(Script { steps: [queued()].into(), end: End::Never }),
            Wake::Fails(failure) => {
                let steps = [queued(), WakeEvent::Failed(failure)].into();
                Box::new(Script { steps, end: End::Clean })
            }
            Wake::BreaksOff => Box::new(Script { steps: [queued()].into(), end: End::Clean }),
            Wake::Unreachable => return Err(Sim::unreachable()),
            Wake::Refused(status) => {
                return Err(ClientError::Refused(Problem::new(status, "x", "x", "x")));
            }
        })
    }

    async fn sleep(&self, _: &AppId, request: &SleepRequest) -> Result<SleepReport, ClientError> {
        self.with(|sim| sim.proposals.push(*request));
        match self.put_to_sleep(request.reason).await {
            Ok(generation) => Ok(SleepReport {
                generation,
                tier: Tier::Image,
                agreed_us: 0,
                flushed_us: 0,
                stopped_us: 0,
                saved_us: 0,
                durable_us: 0,
                published_us: 0,
                written_bytes: 0,
                image_bytes: 0,
            }),
            Err(code) => Err(ClientError::Refused(Problem::new(409, code, code, ""))),
        }
    }

    async fn agree(&self, _: &AppId, agreement: &Agreement) -> Result<(), ClientError> {
        self.with(|sim| sim.agreements.push(agreement.clone()));
        self.agreed.send_replace(Some(agreement.agree));
        Ok(())
    }

    async fn served(&self, _: &AppId, served: &Served) -> Result<(), ClientError> {
        let (up, takes) = self.with(|sim| {
            sim.served.push(served.clone());
            (sim.up, sim.takes_served)
        });
        match takes {
            _ if !up => Err(Sim::unreachable()),
            Takes::All => Ok(()),
            Takes::Nothing => Err(ClientError::Refused(Problem::new(409, "not-awake", "x", "x"))),
            Takes::Forever => std::future::pending().await,
        }
    }

    async fn watch(&self, name: &str) -> Result<Box<dyn Events<WatchEvent>>, ClientError> {
        assert_eq!(name, "proxy-1");
        self.with(|sim| {
            if !sim.up {
                return Err(Sim::unreachable());
            }
            let (sender, receiver) = mpsc::unbounded_channel();
            if sim.configured {
                sender.send(WatchEvent::App(sim.view.clone())).unwrap();
            }
            for view in &sim.others {
                sender.send(WatchEvent::App(view.clone())).unwrap();
            }
            sender.send(WatchEvent::Synced).unwrap();
            sim.watchers.push(sender);
            Ok(Box::new(Watch { sim: self.0.clone(), receiver }) as Box<dyn Events<WatchEvent>>)
        })
    }
}

impl Observer for Sim {
    fn served_told(&self, end: TellEnd) {
        self.with(|sim| sim.told.push(end));
    }
}
