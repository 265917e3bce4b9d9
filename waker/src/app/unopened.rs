//! An app whose directory can't be worked with: a full or failing file system at the waker's start.
//!
//! It is there all the same, as failed and with the reason, so that its visitors are told that it will be
//! back and not that there is no such site. What is there is tried again until it can be opened.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rouse_protocol::app::Generation;
use rouse_protocol::status::AppStatus;
use rouse_protocol::wake::{FailureCode, ParkRequest, SleepRefusal, WakeEvent, WakeFailure};
use rouse_protocol::watch::{AppState, AppView};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::actor::Actor;
use super::{Change, Command, Node};
use crate::config::AppConfig;
use crate::image::AppDir;

/// How long after a failed try the next is made: the first, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// An app's newest view and its number.
pub(super) type Shown = watch::Sender<(Arc<AppView>, u64)>;

/// One that waits to be opened.
pub(super) struct Unopened {
    pub(super) node: Node,
    pub(super) config: AppConfig,
    pub(super) shown: Shown,
    since: SystemTime,
    pause: Duration,
    next: Instant,
    error: String,
    /// An operator wants it parked.
    park: Option<ParkRequest>,
}

/// Nothing is known of it yet.
pub(super) fn unknown(config: &AppConfig) -> AppView {
    AppView {
        id: config.id.clone(),
        rules: config.rules.clone(),
        policy: config.policy.clone(),
        generation: Generation(0),
        since_unix_ms: 0,
        state: AppState::Asleep,
    }
}

/// The app's directory opened, and whatever is there taken over.
pub(super) async fn open(node: &Node, config: &AppConfig, shown: &Shown) -> io::Result<Actor> {
    let dir = AppDir::open(&node.apps_root, &config.id)?;
    Actor::open(node.clone(), config.clone(), Arc::new(dir), shown.clone()).await
}

impl Unopened {
    /// After a first try that failed with `error`.
    pub(super) fn new(node: Node, config: AppConfig, shown: Shown, error: &io::Error) -> Self {
        let mut this = Self {
            node,
            config,
            shown,
            since: SystemTime::now(),
            pause: AGAIN.0,
            next: Instant::now() + AGAIN.0,
            error: error.to_string(),
            park: None,
        };
        this.show();
        this
    }

    /// Tries until the app can be opened; none when it is stopped before.
    pub(super) async fn wait(mut self, inbox: &mut mpsc::Receiver<Command>) -> Option<Actor> {
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(self.next) => match self.again().await {
                    Some(mut actor) => {
                        if let Some(request) = self.park.take() {
                            actor.command(Command::Park(request)).await;
                        }
                        return Some(actor);
                    }
                    None => self.show(),
                },
                command = inbox.recv() => match command? {
                    Command::Stop(_) => return None,
                    command => self.answer(command),
                },
            }
        }
    }

    async fn again(&mut self) -> Option<Actor> {
        match open(&self.node, &self.config, &self.shown).await {
            Ok(actor) => {
                tracing::info!(app = %self.config.id, "can be worked with again");
                Some(actor)
            }
            Err(error) => {
                tracing::warn!(app = %self.config.id, %error, "still can't be opened");
                self.error = error.to_string();
                self.pause = (self.pause * 2).min(AGAIN.1);
                self.next = Instant::now() + self.pause;
                None
            }
        }
    }

    fn answer(&mut self, command: Command) {
        match command {
            Command::Wake(events) | Command::Boot(_, events) => {
                let failure = WakeFailure {
                    code: FailureCode::Storage,
                    detail: self.error.clone(),
                    retry_after_ms: Some(self.retry_after_ms()),
                };
                // Whoever has hung up needs no answer, here and below.
                let _ = events.try_send(WakeEvent::Failed(failure));
            }
            Command::Sleep(_, reply) => {
                let _ = reply.send(Err((SleepRefusal::Failed, self.error.clone())));
            }
            Command::Configure(config) => {
                self.config = *config;
                self.next = Instant::now();
            }
            Command::Clear => {
                self.park = None;
                self.next = Instant::now();
            }
            // As soon as there is something to park.
            Command::Park(request) => self.park = Some(request),
            Command::Status(reply) => drop(reply.send(self.status())),
            Command::Trace(reply) => drop(reply.send(Vec::new())),
            Command::Agreement(_)
            | Command::ProxyGone(_)
            | Command::Served(_)
            | Command::Pressure
            | Command::Stop(_) => {}
        }
    }

    fn retry_after_ms(&self) -> u64 {
        let wait = self.next.saturating_duration_since(Instant::now()).max(AGAIN.0);
        u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
    }

    fn show(&mut self) {
        let (_, number) = self.shown.borrow().clone();
        let since = self.since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let view = Arc::new(AppView {
            id: self.config.id.clone(),
            rules: self.config.rules.clone(),
            policy: self.config.policy.clone(),
            generation: Generation(0),
            since_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            state: AppState::Failed {
                detail: self.error.clone(),
                retry_after_ms: self.retry_after_ms(),
            },
        });
        self.shown.send_replace((Arc::clone(&view), number + 1));
        // Nobody may be watching.
        let _ = self.node.changes.send(Change::App(view, number + 1));
    }

    fn status(&self) -> AppStatus {
        AppStatus {
            view: AppView::clone(&self.shown.borrow().0),
            memory_mib: self.config.machine.memory_mib,
            vcpus: self.config.machine.vcpus,
            pid: None,
            busy_until_unix_ms: None,
            image_bytes: 0,
            disk_bytes: None,
            disk_size: None,
            failures: 0,
            last_wake: None,
        }
    }
}
