//! The task itself.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rouse_protocol::app::Generation;
use rouse_protocol::signature::AgentKey;
use rouse_protocol::wake::{
    Agreement, BootRequest, FailureCode, Outcome, ParkRequest, PhaseTime, Ready, SleepReason, Tier,
    WakeEvent, WakeFailure,
};
use rouse_protocol::watch::{AppState, AppView};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::history::History;
use super::keep::{Keep, Now};
use super::ops::{self, Brought, Done, Settling, WakeJob, Woken};
use super::patches::Patched;
use super::sending::Sending;
use super::sleep::{Sleep, Step};
use super::{Change, Command, Node};
use crate::admission::Seat;
use crate::config::{AppConfig, OnExit};
use crate::image::{AppDir, Live, SavedMemory, SettleError, Settled};
use crate::lifecycle::{
    Effect, Event, Lifecycle, Limits, Standing, Start, State, WakeAnswer, WakeEnd,
};
use crate::vmm::Machine;
use crate::vmm::touched::Touched;

/// How long a guest that its VMM has stopped, since the host's disk is full, stands until the next try.
const GO_ON: Duration = Duration::from_secs(1);

pub(super) struct Actor {
    pub(super) node: Node,
    pub(super) config: Arc<AppConfig>,
    pub(super) dir: Arc<AppDir>,
    pub(super) lifecycle: Lifecycle,
    /// What the next waker is told of the lifecycle.
    pub(super) noted: Standing,
    pub(super) key: AgentKey,
    /// The app's lock. None only while a VM that was not adopted holds it.
    pub(super) lock: Option<OwnedFd>,
    /// The VM, while nothing is being done to it.
    pub(super) machine: Option<Box<dyn Machine>>,
    /// The lifecycle knows that the VM has ended by itself.
    pub(super) exit_told: bool,
    pub(super) live: Option<Live>,
    /// When a guest that its VMM has stopped is set going again.
    pub(super) stalled_until: Option<Instant>,
    /// The VM's room on the node.
    pub(super) seat: Option<Seat>,
    /// How the newest save left memory.
    pub(super) memory: Option<SavedMemory>,
    /// The newest settle, until it is called off.
    pub(super) settling: Option<Settling>,
    /// Where the VM is reached, once it has run.
    pub(super) ready: Option<Ready>,
    /// What is being done to the VM: one thing at a time.
    pub(super) doing: JoinSet<Done>,
    /// Flushes, of which only the newest counts.
    pub(super) flushes: JoinSet<u64>,
    /// Settles, of which only the newest counts.
    pub(super) settles: JoinSet<(u64, Result<Settled, SettleError>)>,
    /// What is done to the guest after the first byte.
    pub(super) patching: JoinSet<()>,
    /// The operator's programs that run.
    pub(super) hooks: JoinSet<()>,
    /// Its generation goes to the store.
    pub(super) sending: Sending,
    /// What of its memory the newest wake took until its first byte.
    pub(super) woken_by: Vec<std::ops::Range<u64>>,
    /// That is being found out.
    pub(super) looks: JoinSet<Touched>,
    /// Blocks that the image does not need are given back.
    pub(super) trims: JoinSet<()>,
    /// Turns true when a first byte has gone out since the newest wake.
    pub(super) served: watch::Sender<bool>,
    /// How often the agent had taken over a life before the newest resume.
    pub(super) lives: u64,
    pub(super) patched: mpsc::UnboundedSender<Patched>,
    pub(super) patches: mpsc::UnboundedReceiver<Patched>,
    pub(super) phases: mpsc::UnboundedReceiver<PhaseTime>,
    pub(super) wake: Wake,
    pub(super) history: History,
    pub(super) sleep: Sleep,
    pub(super) keep: Keep,
    /// Why the newest sleep was asked for.
    pub(super) drained_for: SleepReason,
    pub(super) since: SystemTime,
    pub(super) view: watch::Sender<(Arc<AppView>, u64)>,
    pub(super) stopping: Option<OnExit>,
    /// The sleep that [`OnExit::Sleep`] asks for has been tried.
    pub(super) last_sleep: bool,
}

/// The wake that runs, or the last one.
#[derive(Default)]
pub(super) struct Wake {
    phases: Vec<PhaseTime>,
    waiting: Vec<mpsc::Sender<WakeEvent>>,
    failure: Option<WakeFailure>,
}

impl Actor {
    /// Serves until the app is stopped and at rest.
    pub(super) async fn run(mut self, inbox: &mut mpsc::Receiver<Command>) {
        self.serve(inbox).await;
        self.sending.stop().await;
        // Before the app's lock goes, and another may wake it.
        let dir = Arc::clone(&self.dir);
        ops::blocking(move || dir.stop_trims()).await;
    }

    async fn serve(&mut self, inbox: &mut mpsc::Receiver<Command>) {
        // What an earlier waker had begun to park is parked now.
        self.event(Event::Tick).await;
        loop {
            if self.stopping.is_some() && self.stop_step().await {
                return;
            }
            let machine = self.machine.as_ref().filter(|_| !self.exit_told);
            let exit = machine.map(|m| m.exited());
            let stalls = machine.is_some_and(|m| !m.stands() && *m.stalled().borrow());
            let stall = machine.filter(|m| !m.stands()).map(|m| m.stalled());
            self.stalled_until = match self.stalled_until {
                until if stalls => until.or(Some(Instant::now() + GO_ON)),
                _ => None,
            };
            let deadline = self.lifecycle.deadline();
            self.send_if_due();
            let sends = self.sends_at();
            let scheduled = self.keep.deadline(Now::read);
            tokio::select! {
                biased;
                Some(time) = self.phases.recv() => self.phase(time),
                Some(done) = self.doing.join_next() => match done {
                    Ok(done) => self.done(done).await,
                    Err(error) => return self.give_up(&error),
                },
                Some(flushed) = self.flushes.join_next() => match flushed {
                    Ok(sleep) => self.flushed(sleep).await,
                    Err(error) => return self.give_up(&error),
                },
                Some(settled) = self.settles.join_next() => match settled {
                    Ok((sleep, result)) => self.settled(sleep, result).await,
                    Err(error) => return self.give_up(&error),
                },
                Some(patched) = self.patches.recv() => self.patched(patched).await,
                Some(_) = self.patching.join_next() => {}
                Some(_) = self.hooks.join_next() => {}
                Some(_) = self.trims.join_next() => {}
                Some(touched) = self.looks.join_next() => self.looked(touched),
                Some(sent) = self.sending.tasks.join_next() => match sent {
                    Ok(sent) => self.sent(sent).await,
                    Err(error) => return self.give_up(&error),
                },
                () = at(sends) => {}
                () = stalled(stall, self.stalled_until) => self.go_on().await,
                how = ended(exit) => self.exited(how).await,
                () = at(deadline) => self.event(Event::Tick).await,
                () = at(scheduled), if self.stopping.is_none() => self.scheduled().await,
                command = inbox.recv() => match command {
                    Some(command) => self.command(command).await,
                    None => self.stopping = Some(OnExit::Leave),
                },
            }
        }
    }

    /// A panic is a fault of ours; a VM that was in its hands is lost to us.
    fn give_up(&self, error: &tokio::task::JoinError) {
        tracing::error!(app = %self.config.id, %error, "the app's task gives up");
    }

    pub(super) async fn command(&mut self, command: Command) {
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
                self.keep.configure(&self.config.policy.policies, Now::read());
                self.lifecycle.limit(Limits { paused: self.config.paused, ..self.node.limits });
                // What failed may be mended by it.
                if redeployed {
                    self.event(Event::Clear).await;
                }
                self.publish_view();
            }
            Command::Clear => self.event(Event::Clear).await,
            Command::Boot(request, events) => self.boot(request, events).await,
            Command::Park(ParkRequest { reason }) => {
                self.event(Event::Park { detail: reason, generation: None, flush: true }).await;
            }
            Command::Served(served) => self.first_byte(served),
            Command::Pressure => self.event(Event::Pressure).await,
            // Whoever has hung up needs no answer.
            Command::Status(reply) => drop(reply.send(self.status())),
            Command::Trace(reply) => drop(reply.send(self.history.all())),
            Command::Stop(how) => self.stopping = Some(how),
        }
    }

    /// Whether there are wakes still; if not, whoever asked is told.
    fn wakes(&self, events: &mpsc::Sender<WakeEvent>) -> bool {
        if self.stopping.is_none() {
            return true;
        }
        let failure = WakeFailure {
            code: FailureCode::Stopping,
            detail: "the waker is going down".to_owned(),
            retry_after_ms: Some(1000),
        };
        // Whoever has hung up needs no answer, here and below.
        let _ = events.try_send(WakeEvent::Failed(failure));
        false
    }

    async fn boot(&mut self, request: BootRequest, events: mpsc::Sender<WakeEvent>) {
        if self.wakes(&events) {
            self.wake.waiting.push(events);
            self.event(Event::Boot { rollback: request.rollback }).await;
        }
    }

    async fn wake(&mut self, events: mpsc::Sender<WakeEvent>) {
        if !self.wakes(&events) {
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

    fn phase(&mut self, time: PhaseTime) {
        // A wake that goes on before all of its memory is here waits for the store twice.
        match self.wake.phases.iter_mut().find(|known| known.phase == time.phase) {
            Some(known) => known.us = known.us.saturating_add(time.us),
            None => self.wake.phases.push(time),
        }
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
                self.woken(*woken)
            }
            Done::Woken(Err(error)) => {
                tracing::warn!(app = %self.config.id, %error, "the wake failed");
                let code = error.code();
                let unable = error.is_no_fault_of_the_app();
                self.node.metrics.not_woken(match code {
                    FailureCode::Full => "no-room",
                    FailureCode::Elsewhere => "elsewhere",
                    FailureCode::Store => "store",
                    _ => "failed",
                });
                let detail = error.to_string();
                self.history.end(Err(detail.clone()));
                self.wake.failure = Some(WakeFailure {
                    code,
                    detail: detail.clone(),
                    retry_after_ms: unable.then_some(1000),
                });
                // It may be there still, and not be sent yet.
                self.sending.due = true;
                // An image that was put back may have blocks for all of the memory.
                self.trim();
                Event::Woken(if unable { WakeEnd::Unable } else { WakeEnd::Failed(detail) })
            }
            Done::Stopped(machine, result) => {
                self.machine = Some(machine);
                self.sleep.step(Step::Stopped);
                Event::Stopped(result)
            }
            Done::Saved(machine, result) => {
                self.machine = Some(machine);
                self.sleep.step(Step::Saved);
                self.memory = result.as_ref().ok().copied();
                Event::Saved(result.map(drop))
            }
            Done::Resumed(machine, result) => {
                self.machine = Some(machine);
                Event::Resumed(result)
            }
            Done::Ended => {
                self.live = None;
                self.ready = None;
                self.seat = None;
                self.discard_live().await;
                self.retake_lock();
                Event::Ended
            }
            Done::Committed(result) => {
                // What was settled stays, published or not: the next wake finishes it.
                self.seat = None;
                self.ready = None;
                self.retake_lock();
                self.trim();
                self.sending.due = result.is_ok();
                Event::Committed(result.map(|published| self.sleep.published = Some(published)))
            }
        };
        self.event(event).await;
    }

    fn woken(&mut self, woken: Woken) -> Event {
        let Woken { machine, live, seat, outcome, lives, refused, fetched } = woken;
        let record = machine.record();
        self.node.metrics.woken(outcome, &self.wake.phases);
        // A restored guest signs with the key of where it slept.
        if let Some(fetched) = &fetched {
            self.key = fetched.key.clone();
        }
        self.ready = Some(self.ready_of(&record, outcome));
        self.history.phases(self.wake.phases.iter().copied());
        self.history.end(Ok((outcome, refused)));
        if let Some(Brought { cost, .. }) = fetched {
            self.history.fetched(record.generation, cost.unwrap_or_default());
        }
        self.machine = Some(machine);
        self.exit_told = false;
        self.live = Some(live);
        self.seat = Some(seat);
        self.patch(record.generation, lives, outcome == Outcome::Cold);
        Event::Woken(WakeEnd::Ready(record.generation))
    }

    pub(super) async fn event(&mut self, event: Event) {
        let effects = self.lifecycle.step(Instant::now(), rand::random(), event);
        for effect in effects {
            self.carry_out(effect).await;
        }
        self.note_standing();
        self.publish_view();
    }

    /// So that the next waker knows of failures and parks.
    fn note_standing(&mut self) {
        let standing = self.lifecycle.standing();
        if standing == self.noted {
            return;
        }
        if let Err(error) = self.dir.write_standing(&standing) {
            tracing::error!(app = %self.config.id, %error, "the next waker will not know of its failures");
        }
        self.noted = standing;
    }

    async fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::StartWake(start) => self.start_wake(start),
            Effect::Flush { sleep } => {
                self.sleep.step(Step::Agreed);
                self.flush(sleep);
            }
            Effect::Pause => {
                self.sleep.step(Step::Flushed);
                // What has not been checked yet is checked after the next wake.
                self.patching.abort_all();
                let machine = self.take_machine();
                self.doing.spawn(ops::pause(machine));
            }
            Effect::Save => self.save(),
            Effect::Settle { sleep } => {
                self.finish_look().await;
                self.settle(sleep);
            }
            Effect::Resume => {
                let machine = self.take_machine();
                let settling = self.settling.take();
                self.lives = machine.agent().map_or(0, |agent| agent.heard().borrow().lives);
                self.doing.spawn(ops::resume(machine, Arc::clone(&self.dir), settling));
            }
            Effect::Commit => {
                let machine = self.take_machine();
                self.settling = None;
                let Some(live) = self.live.take() else {
                    unreachable!("what was settled is there");
                };
                self.doing.spawn(ops::commit(machine, Arc::clone(&self.dir), live));
            }
            Effect::End { flush } => {
                self.patching.abort_all();
                let machine = self.take_machine();
                self.doing.spawn(ops::end(machine, flush.then_some(self.node.flush)));
            }
            Effect::Parked { detail } => self.parked(detail),
            Effect::RefuseBoot(detail) => {
                let code = FailureCode::NotAsleep;
                let failure = WakeFailure { code, detail, retry_after_ms: None };
                if let Some(asker) = self.wake.waiting.pop() {
                    let _ = asker.try_send(WakeEvent::Failed(failure));
                }
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

    pub(super) fn take_machine(&mut self) -> Box<dyn Machine> {
        let Some(machine) = self.machine.take() else {
            unreachable!("the lifecycle does nothing to a VM that is not there");
        };
        machine
    }

    fn start_wake(&mut self, start: Start) {
        // One that runs ends when the image is consumed.
        self.trims.abort_all();
        self.looks = JoinSet::new();
        self.woken_by.clear();
        let generation = self.next_generation();
        self.history.begin(generation);
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
            generation,
            start,
            key: self.agent_key(),
            sending: self.sending.call_off(),
            phases,
        };
        self.doing.spawn(async { Done::Woken(job.run().await.map(Box::new)) });
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
        self.patching.abort_all();
        self.live = None;
        self.ready = None;
        self.seat = None;
        self.discard_live().await;
        self.retake_lock();
    }

    pub(super) async fn discard_live(&self) {
        let dir = Arc::clone(&self.dir);
        if let Err(error) = ops::blocking(move || dir.discard_live()).await {
            // The next cold boot removes it, or says why it can't.
            tracing::warn!(app = %self.config.id, %error, "what is left of its life stays");
        }
    }

    /// An adopted VM alone held the app's lock, and has gone. What fails here is tried again, and told,
    /// by the next wake.
    pub(super) fn retake_lock(&mut self) {
        self.lock = self.lock.take().or_else(|| self.dir.lock().ok().flatten());
    }

    fn answer_wakes(&mut self, answer: WakeAnswer) {
        let failed = |code, detail, retry_after_ms| {
            WakeEvent::Failed(WakeFailure { code, detail, retry_after_ms })
        };
        let event = match answer {
            WakeAnswer::Woken => {
                self.keep.woken(Instant::now());
                self.ready.clone().map(WakeEvent::Ready)
            }
            WakeAnswer::Unpaused => {
                let outcome = Outcome::Unpaused;
                self.unpaused();
                self.keep.woken(Instant::now());
                self.ready.clone().map(|r| WakeEvent::Ready(Ready { outcome, ..r }))
            }
            WakeAnswer::Awake => {
                self.ready.clone().map(|r| WakeEvent::Ready(Ready { outcome: Outcome::Awake, ..r }))
            }
            WakeAnswer::Failed => self.wake.failure.clone().map(|mut failure| {
                failure.retry_after_ms = self.retry_after_ms();
                WakeEvent::Failed(failure)
            }),
            WakeAnswer::Unable => self.wake.failure.clone().map(WakeEvent::Failed),
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

    /// The number that the life to come has, above all that were.
    fn next_generation(&self) -> Generation {
        self.lifecycle.generation().next().max(self.dir.next_generation())
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

    /// One step towards the end of the task; true when it is reached.
    async fn stop_step(&mut self) -> bool {
        let settling = matches!(self.lifecycle.state(), State::Settling { .. });
        if !self.doing.is_empty() || settling {
            return false;
        }
        match (self.stopping, self.lifecycle.state()) {
            (Some(OnExit::Leave), State::Draining { .. } | State::Flushing { .. }) => {
                // So that the proxies do not hold visitors for a sleep that never comes.
                self.event(Event::Wake).await;
                true
            }
            (Some(OnExit::Sleep), State::Flushing { .. }) => false,
            (Some(OnExit::Sleep), State::Awake | State::Draining { .. } | State::Paused { .. })
                if !self.last_sleep =>
            {
                self.last_sleep = true;
                self.sleep.begin();
                // The operator has decided: the proxies are told by the state, and not asked.
                let (reason, tier, proxies) = (SleepReason::Operator, Tier::Image, BTreeSet::new());
                self.event(Event::Sleep { reason, generation: None, tier, proxies }).await;
                false
            }
            (Some(OnExit::Sleep), State::Awake | State::Draining { .. } | State::Paused { .. }) => {
                // The next waker adopts it.
                tracing::error!(app = %self.config.id, "its VM could not be saved and runs on");
                true
            }
            _ => true,
        }
    }

    pub(super) fn agent_key(&self) -> Option<AgentKey> {
        self.config.machine.agent.then(|| self.key.clone())
    }

    pub(super) fn ready_of(&self, record: &crate::vmm::RunRecord, outcome: Outcome) -> Ready {
        Ready {
            endpoint: record.endpoint,
            generation: record.generation,
            outcome,
            key: self.agent_key(),
        }
    }

    pub(super) fn publish_view(&mut self) {
        let state = self.app_state();
        let (old, number) = self.view.borrow().clone();
        let mut view = AppView {
            id: self.config.id.clone(),
            rules: self.config.rules.clone(),
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
            (State::Draining { .. } | State::Flushing { .. }, Some(ready)) => {
                let (reason, question) = (self.drained_for, self.lifecycle.question());
                AppState::Draining { ready: ready.clone(), reason, question }
            }
            (State::Awake | State::Draining { .. } | State::Flushing { .. } | State::Waking, _) => {
                AppState::Waking
            }
            (State::Paused { .. }, _) => AppState::Paused,
            (
                State::Pausing { .. }
                | State::Saving { .. }
                | State::Settling { .. }
                | State::Resuming { .. }
                | State::Committing { .. },
                _,
            ) => AppState::Snapshotting,
            (State::Asleep, _) => AppState::Asleep,
            (State::Failed { detail, .. }, _) => AppState::Failed {
                detail: detail.clone(),
                retry_after_ms: self.retry_after_ms().unwrap_or_default(),
            },
            (State::Parking { detail, .. } | State::Parked { detail }, _) => {
                AppState::Parked { detail: detail.clone() }
            }
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

/// When a guest that its VMM has stopped is to be set going again; never where it has not.
async fn stalled(stall: Option<watch::Receiver<bool>>, until: Option<Instant>) {
    match (until, stall) {
        (Some(until), _) => return tokio::time::sleep_until(until).await,
        (None, Some(mut stall)) => {
            if stall.wait_for(|stalled| *stalled).await.is_ok() {
                return tokio::time::sleep(GO_ON).await;
            }
        }
        (None, None) => {}
    }
    std::future::pending().await
}
