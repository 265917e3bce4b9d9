//! The task itself.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rouse_protocol::app::Generation;
use rouse_protocol::signature::AgentKey;
use rouse_protocol::wake::{
    Agreement, FailureCode, Outcome, PhaseTime, Ready, SleepReason, SleepRefusal, SleepReport,
    SleepRequest, Tier, WakeEvent, WakeFailure,
};
use rouse_protocol::watch::{AppState, AppView};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::ops::{self, Done, WakeJob, Woken};
use super::{Change, Command, Node, SleepAnswer};
use crate::config::{AppConfig, OnExit};
use crate::image::{AppDir, Found, Live, Published};
use crate::lifecycle::{Effect, Event, Lifecycle, State, WakeAnswer, WakeEnd};
use crate::vmm::{Life, Machine};

pub(super) struct Actor {
    node: Node,
    config: Arc<AppConfig>,
    dir: Arc<AppDir>,
    lifecycle: Lifecycle,
    key: AgentKey,
    /// The app's lock. None only while a VM that was not adopted holds it.
    lock: Option<OwnedFd>,
    /// The VM, while nothing is being done to it.
    machine: Option<Box<dyn Machine>>,
    /// The lifecycle knows that the VM has ended by itself.
    exit_told: bool,
    live: Option<Live>,
    /// Where the VM is reached, once it has run.
    ready: Option<Ready>,
    /// What is being done to the VM: one thing at a time.
    doing: JoinSet<Done>,
    /// Syncs, of which only the newest counts.
    syncs: JoinSet<(u64, io::Result<()>)>,
    phases: mpsc::UnboundedReceiver<PhaseTime>,
    wake: Wake,
    sleep: Sleep,
    since: SystemTime,
    view: watch::Sender<(Arc<AppView>, u64)>,
    stopping: Option<OnExit>,
    /// The sleep that [`OnExit::Sleep`] asks for has been tried.
    last_sleep: bool,
}

/// The wake that runs, or the last one.
#[derive(Default)]
struct Wake {
    phases: Vec<PhaseTime>,
    waiting: Vec<mpsc::Sender<WakeEvent>>,
    failure: Option<WakeFailure>,
}

/// The sleep that runs, or the last one.
#[derive(Default)]
struct Sleep {
    waiting: Vec<oneshot::Sender<SleepAnswer>>,
    asked: Option<Instant>,
    agreed_us: u64,
    saved_us: u64,
    published: Option<Published>,
}

impl Sleep {
    fn elapsed_us(&self) -> u64 {
        let elapsed = self.asked.map(|asked| asked.elapsed()).unwrap_or_default();
        u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
    }
}

impl Actor {
    /// An app as it is found on disk.
    pub(super) async fn open(node: Node, config: AppConfig, dir: Arc<AppDir>) -> io::Result<Self> {
        let key = dir.key()?;
        let (found, lock) = dir.look()?;
        let newest = Generation(dir.next_generation().0.saturating_sub(1));
        let (_, phases) = mpsc::unbounded_channel();
        let placeholder = AppView {
            id: config.id.clone(),
            hosts: config.hosts.clone(),
            policy: config.policy.clone(),
            generation: newest,
            since_unix_ms: 0,
            state: AppState::Asleep,
        };
        let mut actor = Self {
            lifecycle: Lifecycle::asleep(node.limits, newest),
            node,
            config: Arc::new(config),
            dir,
            key,
            lock,
            machine: None,
            exit_told: false,
            live: None,
            ready: None,
            doing: JoinSet::new(),
            syncs: JoinSet::new(),
            phases,
            wake: Wake::default(),
            sleep: Sleep::default(),
            since: SystemTime::now(),
            view: watch::Sender::new((Arc::new(placeholder), 0)),
            stopping: None,
            last_sleep: false,
        };
        if let Found::Running(record) = found {
            actor.adopt(record).await?;
        }
        actor.publish_view();
        Ok(actor)
    }

    /// Takes over the VM that holds the lock. One that can't be taken over is ended: nobody could
    /// put it to sleep, and a second one must never run beside it.
    async fn adopt(&mut self, record: Option<crate::vmm::RunRecord>) -> io::Result<()> {
        let Some(record) = record else {
            let message = "a process holds the app's lock and left no record of itself";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, message));
        };
        let app = &self.config.id;
        let live = self.dir.live()?;
        let life = Life {
            app: app.clone(),
            generation: record.generation,
            key: self.agent_key(),
            machine: Arc::clone(&self.config.machine),
            memory: live.memory(),
            locks: Arc::new([]),
        };
        match self.node.vmm.adopt(&life, &record).await {
            Ok(machine) => {
                tracing::info!(%app, pid = record.pid, generation = %record.generation, "adopted its VM");
                self.lifecycle = Lifecycle::awake(self.node.limits, record.generation);
                self.ready = Some(self.ready_of(&record, Outcome::Awake));
                self.machine = Some(machine);
                self.live = Some(live);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%app, %error, "its VM can't be adopted and is ended");
                drop(live);
                if let Ok(process) =
                    crate::vmm::process::Process::adopt(record.pid, record.start_ticks)
                {
                    process.kill().await;
                }
                let (found, lock) = self.dir.look()?;
                self.lock = lock;
                match found {
                    Found::Asleep(_) => Ok(()),
                    Found::Running(_) => Err(io::Error::new(
                        io::ErrorKind::ResourceBusy,
                        "a process that is not its VM holds the app's lock",
                    )),
                }
            }
        }
    }

    pub(super) fn view(&self) -> watch::Receiver<(Arc<AppView>, u64)> {
        self.view.subscribe()
    }

    /// Serves until the app is stopped and at rest.
    pub(super) async fn run(mut self, inbox: &mut mpsc::Receiver<Command>) {
        loop {
            if self.stopping.is_some() && self.stop_step().await {
                return;
            }
            let machine = self.machine.as_ref().filter(|_| !self.exit_told);
            let exit = machine.map(|m| m.exited());
            let deadline = self.lifecycle.deadline();
            tokio::select! {
                biased;
                Some(time) = self.phases.recv() => self.phase(time),
                Some(done) = self.doing.join_next() => match done {
                    Ok(done) => self.done(done).await,
                    Err(error) => {
                        // A panic in it is a fault of ours; the VM it had is lost to us.
                        tracing::error!(app = %self.config.id, %error, "the app's task gives up");
                        return;
                    }
                },
                Some(Ok((sleep, result))) = self.syncs.join_next() => {
                    let result = result.map_err(|e| e.to_string());
                    self.event(Event::Synced { sleep, result }).await;
                }
                how = ended(exit) => self.exited(how).await,
                () = at(deadline) => self.event(Event::Tick).await,
                command = inbox.recv() => match command {
                    Some(command) => self.command(command).await,
                    None => self.stopping = Some(OnExit::Leave),
                },
            }
        }
    }

    async fn command(&mut self, command: Command) {
        match command {
            Command::Wake(events) => self.wake(events).await,
            Command::Sleep(request, reply) => self.sleep(request, reply).await,
            Command::Agreement(a) => {
                let Agreement { proxy, generation, question, agree } = a;
                self.event(Event::Agreement { proxy, generation, question, agree }).await;
            }
            Command::ProxyGone(proxy) => self.event(Event::ProxyGone { proxy }).await,
            Command::Configure(config) => {
                let redeployed = self.config.machine != config.machine;
                self.config = Arc::new(*config);
                // What failed may be mended by it.
                if redeployed {
                    self.event(Event::Clear).await;
                }
                self.publish_view();
            }
            Command::Clear => self.event(Event::Clear).await,
            Command::Stop(how) => self.stopping = Some(how),
        }
    }

    async fn wake(&mut self, events: mpsc::Sender<WakeEvent>) {
        if self.stopping.is_some() {
            let failure = WakeFailure {
                code: FailureCode::Stopping,
                detail: "the waker is going down".to_owned(),
                retry_after_ms: Some(1000),
            };
            // Whoever has hung up needs no answer, here and below.
            let _ = events.try_send(WakeEvent::Failed(failure));
            return;
        }
        if *self.lifecycle.state() == State::Waking {
            for time in &self.wake.phases {
                let _ = events.try_send(WakeEvent::Phase(*time));
            }
        }
        // A caller that hung up is forgotten when the next one comes.
        self.wake.waiting.retain(|waiting| !waiting.is_closed());
        self.wake.waiting.push(events);
        self.event(Event::Wake).await;
    }

    async fn sleep(&mut self, request: SleepRequest, reply: oneshot::Sender<SleepAnswer>) {
        if *self.lifecycle.state() == State::Awake {
            self.sleep.asked = Some(Instant::now());
        }
        self.sleep.waiting.push(reply);
        let SleepRequest { generation, reason, tier: _ } = request;
        let proxies = self.node.proxies.names();
        self.event(Event::Sleep { reason, generation, proxies }).await;
    }

    fn phase(&mut self, time: PhaseTime) {
        self.wake.phases.push(time);
        for waiting in &self.wake.waiting {
            let _ = waiting.try_send(WakeEvent::Phase(time));
        }
    }

    async fn exited(&mut self, how: String) {
        tracing::warn!(app = %self.config.id, how, "its VM has ended");
        self.node.metrics.exited();
        self.exit_told = true;
        self.event(Event::VmExited { detail: how }).await;
    }

    async fn done(&mut self, done: Done) {
        let event = match done {
            Done::Woken(Ok(woken)) => {
                // What was said before the end comes before it.
                while let Ok(time) = self.phases.try_recv() {
                    self.phase(time);
                }
                self.woken(woken)
            }
            Done::Woken(Err(error)) => {
                tracing::warn!(app = %self.config.id, %error, "the wake failed");
                let no_room = error.code() == FailureCode::Full;
                self.node.metrics.not_woken(if no_room { "no-room" } else { "failed" });
                let detail = error.to_string();
                self.wake.failure = Some(WakeFailure {
                    code: error.code(),
                    detail: detail.clone(),
                    retry_after_ms: None,
                });
                Event::Woken(if no_room { WakeEnd::NoRoom } else { WakeEnd::Failed(detail) })
            }
            Done::Saved(machine, result) => {
                self.machine = Some(machine);
                self.sleep.saved_us = self.sleep.elapsed_us();
                Event::Saved(result)
            }
            Done::Resumed(machine, result) => {
                self.machine = Some(machine);
                Event::Resumed(result)
            }
            Done::Committed(result) => {
                if result.is_err() {
                    self.discard_live();
                }
                self.retake_lock();
                Event::Committed(result.map(|published| self.sleep.published = Some(published)))
            }
        };
        self.event(event).await;
    }

    fn woken(&mut self, woken: Woken) -> Event {
        let Woken { machine, live, outcome } = woken;
        let record = machine.record();
        self.node.metrics.woken(outcome, &self.wake.phases);
        self.ready = Some(self.ready_of(&record, outcome));
        self.machine = Some(machine);
        self.exit_told = false;
        self.live = Some(live);
        Event::Woken(WakeEnd::Ready(record.generation))
    }

    async fn event(&mut self, event: Event) {
        let effects = self.lifecycle.step(Instant::now(), rand::random(), event);
        for effect in effects {
            self.carry_out(effect).await;
        }
        self.publish_view();
    }

    async fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::StartWake => self.start_wake(),
            Effect::Save => {
                self.sleep.agreed_us = self.sleep.elapsed_us();
                let (Some(machine), Some(live)) = (self.machine.take(), &self.live) else {
                    unreachable!("a running app has a VM and its directory");
                };
                let state = live.state();
                match live.clear_state() {
                    Ok(()) => drop(self.doing.spawn(ops::save(machine, state))),
                    Err(error) => {
                        let detail = format!("{}: {error}", state.display());
                        self.doing.spawn(async { Done::Saved(machine, Err(detail)) });
                    }
                }
            }
            Effect::Sync { sleep } => {
                let Some(live) = &self.live else {
                    unreachable!("a running app has its directory");
                };
                let sync = live.sync_later();
                self.syncs.spawn_blocking(move || (sleep, sync()));
            }
            Effect::Resume => {
                let Some(machine) = self.machine.take() else {
                    unreachable!("what stands still is there");
                };
                self.doing.spawn(ops::resume(machine));
            }
            Effect::Commit => {
                let (Some(machine), Some(live)) = (self.machine.take(), self.live.take()) else {
                    unreachable!("what was saved is there");
                };
                let record = machine.record();
                self.doing.spawn(ops::commit(machine, Arc::clone(&self.dir), live, record));
            }
            Effect::Discard => self.discard().await,
            Effect::AnswerWakes(answer) => self.answer_wakes(answer),
            Effect::RefuseSleep(why, detail) => {
                if let Some(asker) = self.sleep.waiting.pop() {
                    let _ = asker.send(Err((why, detail)));
                }
            }
            Effect::AnswerSleeps(answer) => self.answer_sleeps(answer),
        }
    }

    fn start_wake(&mut self) {
        self.wake.phases.clear();
        self.wake.failure = None;
        self.ready = None;
        let (phases, receiver) = mpsc::unbounded_channel();
        self.phases = receiver;
        let lock = match self.lock_again() {
            Ok(lock) => lock,
            Err(error) => {
                self.doing.spawn(async { Done::Woken(Err(error)) });
                return;
            }
        };
        let job = WakeJob {
            node: self.node.clone(),
            config: Arc::clone(&self.config),
            dir: Arc::clone(&self.dir),
            lock,
            generation: self.lifecycle.generation().next(),
            key: self.agent_key(),
            phases,
        };
        self.doing.spawn(async { Done::Woken(job.run().await) });
    }

    /// A duplicate of the app's lock, which is taken anew if it could not be when the last VM went.
    fn lock_again(&mut self) -> Result<OwnedFd, ops::WakeError> {
        let path = self.dir.path().to_owned();
        let storage = |source| ops::WakeError::Storage { path, source };
        if self.lock.is_none() {
            match self.dir.lock() {
                Ok(lock) => self.lock = lock,
                Err(error) => return Err(storage(error)),
            }
        }
        match &self.lock {
            Some(lock) => lock.try_clone().map_err(storage),
            None => Err(ops::WakeError::Locked),
        }
    }

    async fn discard(&mut self) {
        if let Some(machine) = self.machine.take() {
            machine.kill().await;
        }
        self.live = None;
        self.ready = None;
        self.discard_live();
        self.retake_lock();
    }

    fn discard_live(&self) {
        if let Err(error) = self.dir.discard_live() {
            // The next cold boot removes it, or says why it can't.
            tracing::warn!(app = %self.config.id, %error, "what is left of its life stays");
        }
    }

    /// An adopted VM alone held the app's lock, and has gone. What fails here is tried again, and told,
    /// by the next wake.
    fn retake_lock(&mut self) {
        self.lock = self.lock.take().or_else(|| self.dir.lock().ok().flatten());
    }

    fn answer_wakes(&mut self, answer: WakeAnswer) {
        let failed = |code, detail, retry_after_ms| {
            WakeEvent::Failed(WakeFailure { code, detail, retry_after_ms })
        };
        let event = match answer {
            WakeAnswer::Woken => self.ready.clone().map(WakeEvent::Ready),
            WakeAnswer::Awake => {
                self.ready.clone().map(|r| WakeEvent::Ready(Ready { outcome: Outcome::Awake, ..r }))
            }
            WakeAnswer::Failed => self.wake.failure.clone().map(|mut failure| {
                failure.retry_after_ms = self.retry_after_ms();
                WakeEvent::Failed(failure)
            }),
            WakeAnswer::NoRoom => {
                let detail = self.wake.failure.as_ref().map(|f| f.detail.clone());
                Some(failed(FailureCode::Full, detail.unwrap_or_default(), Some(1000)))
            }
            WakeAnswer::Backoff { retry_after, detail } => {
                let ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
                Some(failed(FailureCode::Backoff, detail, Some(ms)))
            }
            WakeAnswer::Parked { detail } => Some(failed(FailureCode::Parked, detail, None)),
        };
        let event = event.unwrap_or_else(|| {
            failed(FailureCode::Vmm, "the wake came to no end".to_owned(), None)
        });
        for waiting in self.wake.waiting.drain(..) {
            let _ = waiting.try_send(event.clone());
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        match self.lifecycle.state() {
            State::Failed { until, .. } => {
                let wait = until.saturating_duration_since(Instant::now());
                Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
            }
            _ => None,
        }
    }

    fn answer_sleeps(&mut self, answer: Result<(), (SleepRefusal, String)>) {
        let end = answer.as_ref().map_or_else(|(why, _)| why.as_str(), |()| "asleep");
        self.node.metrics.slept(end);
        let answer = match (answer, self.sleep.published.take()) {
            (Ok(()), Some(published)) => Ok(SleepReport {
                generation: published.generation,
                tier: Tier::Image,
                agreed_us: self.sleep.agreed_us,
                flushed_us: self.sleep.agreed_us,
                stopped_us: self.sleep.agreed_us,
                saved_us: self.sleep.saved_us,
                durable_us: self.sleep.elapsed_us(),
                published_us: self.sleep.elapsed_us(),
                written_bytes: published.image_bytes,
                image_bytes: published.image_bytes,
            }),
            (Ok(()), None) => Err((SleepRefusal::Failed, "nothing was published".to_owned())),
            (Err((why, detail)), _) => Err((why, detail)),
        };
        match &answer {
            Ok(report) => tracing::info!(app = %self.config.id, ?report, "asleep"),
            Err((SleepRefusal::Failed, detail)) => {
                tracing::error!(app = %self.config.id, detail, "could not be put to sleep");
            }
            Err((why, detail)) => {
                tracing::info!(app = %self.config.id, ?why, detail, "stays awake")
            }
        }
        for waiting in self.sleep.waiting.drain(..) {
            let _ = waiting.send(answer.clone());
        }
    }

    /// One step towards the end of the task; true when it is reached.
    async fn stop_step(&mut self) -> bool {
        let between_steps = matches!(self.lifecycle.state(), State::Syncing { .. });
        if !self.doing.is_empty() || between_steps {
            return false;
        }
        match (self.stopping, self.lifecycle.state()) {
            (Some(OnExit::Leave), State::Draining { .. }) => {
                // So that the proxies do not hold visitors for a sleep that never comes.
                self.event(Event::Wake).await;
                true
            }
            (Some(OnExit::Sleep), State::Awake | State::Draining { .. }) if !self.last_sleep => {
                self.last_sleep = true;
                self.sleep.asked = Some(Instant::now());
                // The operator has decided: the proxies are told by the state, and not asked.
                let (reason, proxies) = (SleepReason::Operator, BTreeSet::new());
                self.event(Event::Sleep { reason, generation: None, proxies }).await;
                false
            }
            (Some(OnExit::Sleep), State::Awake | State::Draining { .. }) => {
                tracing::error!(app = %self.config.id, "its VM could not be saved and is ended");
                self.discard().await;
                true
            }
            _ => true,
        }
    }

    fn agent_key(&self) -> Option<AgentKey> {
        self.config.machine.agent.then(|| self.key.clone())
    }

    fn ready_of(&self, record: &crate::vmm::RunRecord, outcome: Outcome) -> Ready {
        Ready {
            endpoint: record.endpoint,
            generation: record.generation,
            outcome,
            key: self.agent_key(),
        }
    }

    fn publish_view(&mut self) {
        let state = self.app_state();
        let (old, number) = self.view.borrow().clone();
        let mut view = AppView {
            id: self.config.id.clone(),
            hosts: self.config.hosts.clone(),
            policy: self.config.policy.clone(),
            generation: self.lifecycle.generation(),
            since_unix_ms: old.since_unix_ms,
            state,
        };
        if number > 0 && view == *old {
            return;
        }
        if number == 0 || view.state.as_str() != old.state.as_str() {
            self.since = SystemTime::now();
            let since = self.since.duration_since(UNIX_EPOCH).unwrap_or_default();
            view.since_unix_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        }
        let view = Arc::new(view);
        self.view.send_replace((Arc::clone(&view), number + 1));
        // Nobody may be watching.
        let _ = self.node.changes.send(Change::App(view, number + 1));
    }

    fn app_state(&self) -> AppState {
        match (self.lifecycle.state(), &self.ready) {
            (State::Awake, Some(ready)) => AppState::Awake(ready.clone()),
            (State::Draining { reason, .. }, Some(ready)) => {
                let question = self.lifecycle.question();
                AppState::Draining { ready: ready.clone(), reason: *reason, question }
            }
            (State::Awake | State::Draining { .. } | State::Waking, _) => AppState::Waking,
            (
                State::Saving { .. }
                | State::Syncing { .. }
                | State::Resuming { .. }
                | State::Committing { .. },
                _,
            ) => AppState::Snapshotting,
            (State::Asleep, _) => AppState::Asleep,
            (State::Failed { detail, .. }, _) => AppState::Failed {
                detail: detail.clone(),
                retry_after_ms: self.retry_after_ms().unwrap_or_default(),
            },
            (State::Parked { detail }, _) => AppState::Parked { detail: detail.clone() },
        }
    }
}

/// When the VM ends; never where there is none or its end has been told.
async fn ended(exit: Option<watch::Receiver<Option<String>>>) -> String {
    if let Some(mut exit) = exit
        && let Ok(how) = exit.wait_for(Option::is_some).await
    {
        return how.clone().unwrap_or_default();
    }
    std::future::pending().await
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
