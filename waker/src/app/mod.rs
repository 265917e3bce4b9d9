//! One app's task: commands in, state out. It alone changes the app's directory and its VM.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rouse_protocol::app::AppId;
use rouse_protocol::status::{AppStatus, WakeTrace};
use rouse_protocol::wake::{
    Agreement, BootRequest, ParkRequest, Served, SleepRefusal, SleepReport, SleepRequest, WakeEvent,
};
use rouse_protocol::watch::AppView;
use tokio::sync::{Semaphore, broadcast, mpsc, oneshot, watch};
use tokio_util::task::TaskTracker;

pub(crate) use self::ops::blocking;
use self::unopened::Unopened;
use crate::admission::Admission;
use crate::config::{AppConfig, OnExit};
use crate::lifecycle::Limits;
use crate::metrics::Metrics;
use crate::registry::Proxies;
use crate::store::NodeStore;
use crate::vmm::Vmm;

mod actor;
mod adopt;
mod care;
mod history;
mod keep;
mod ops;
mod patches;
mod sending;
mod sleep;
mod unopened;

/// What all apps of a node share.
#[derive(Clone)]
pub struct Node {
    /// The VMM.
    pub vmm: Arc<dyn Vmm>,
    /// Where the apps' directories are.
    pub apps_root: std::path::PathBuf,
    /// How failures are remembered.
    pub limits: Limits,
    /// Memory for VMs, and wakes at once; the queue is fair.
    pub admission: Admission,
    /// How long a wake may wait for admission.
    pub queue: Duration,
    /// How long a guest has to write out its disk.
    pub flush: Duration,
    /// Images are trimmed one at a time.
    pub trims: Arc<Semaphore>,
    /// Where apps' generations go, and come from; none: they stay here.
    pub store: Option<Arc<NodeStore>>,
    /// The proxies that watch.
    pub proxies: Arc<Proxies>,
    /// Every change of every app.
    pub changes: broadcast::Sender<Change>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// A change of one app.
#[derive(Clone, Debug)]
pub enum Change {
    /// An app's new view. Of two of the same app the one with the higher number is newer.
    App(Arc<AppView>, u64),
    /// An app is no longer configured.
    Removed(AppId),
}

/// What an app's task is told.
#[derive(Debug)]
pub(crate) enum Command {
    Wake(mpsc::Sender<WakeEvent>),
    Sleep(SleepRequest, oneshot::Sender<SleepAnswer>),
    Agreement(Agreement),
    ProxyGone(String),
    Configure(Box<AppConfig>),
    Clear,
    Boot(BootRequest, mpsc::Sender<WakeEvent>),
    Park(ParkRequest),
    Served(Served),
    /// RAM is short.
    Pressure,
    Status(oneshot::Sender<AppStatus>),
    Trace(oneshot::Sender<Vec<WakeTrace>>),
    /// No more wakes; ends the task once nothing is being done any more.
    Stop(OnExit),
}

pub(crate) type SleepAnswer = Result<SleepReport, (SleepRefusal, String)>;

/// What a wake's stream holds at the most: each phase once and the end.
pub(crate) const WAKE_EVENTS: usize = 16;

/// An app's task as the rest of the waker sees it.
#[derive(Clone, Debug)]
pub struct App {
    commands: mpsc::Sender<Command>,
    view: watch::Receiver<(Arc<AppView>, u64)>,
}

/// The app's task has ended: it was removed, or the waker is going down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the app's task has ended")]
pub struct Ended;

impl App {
    /// Looks at what there is on disk, adopts a VM that runs, and starts the app's task on `tracker`.
    /// Where that can't be done now the task goes on trying, and the error says why.
    pub async fn start(
        node: Node,
        config: AppConfig,
        tracker: &TaskTracker,
    ) -> (Self, io::Result<()>) {
        let (commands, inbox) = mpsc::channel(256);
        let shown = watch::Sender::new((Arc::new(unopened::unknown(&config)), 0));
        let view = shown.subscribe();
        let (opened, tried) = match unopened::open(&node, &config, &shown).await {
            Ok(actor) => (Ok(actor), Ok(())),
            Err(error) => (Err(Unopened::new(node, config, shown, &error)), Err(error)),
        };
        // The inbox outlives the task's locks: whoever sees it closed may start the app anew.
        tracker.spawn(async move {
            let mut inbox = inbox;
            let actor = match opened {
                Ok(actor) => Some(actor),
                Err(unopened) => unopened.wait(&mut inbox).await,
            };
            if let Some(actor) = actor {
                actor.run(&mut inbox).await;
            }
        });
        (Self { commands, view }, tried)
    }

    /// The app as it is now, and the number of that view.
    pub fn view(&self) -> (Arc<AppView>, u64) {
        self.view.borrow().clone()
    }

    /// Wakes it; the phases and the end come over the receiver.
    pub async fn wake(&self) -> Result<mpsc::Receiver<WakeEvent>, Ended> {
        let (events, receiver) = mpsc::channel(WAKE_EVENTS);
        self.tell(Command::Wake(events)).await?;
        Ok(receiver)
    }

    /// Puts it to sleep; ends when it sleeps or when that is refused.
    pub(crate) async fn sleep(&self, request: SleepRequest) -> Result<SleepAnswer, Ended> {
        let (reply, answer) = oneshot::channel();
        self.tell(Command::Sleep(request, reply)).await?;
        answer.await.map_err(|_| Ended)
    }

    /// Boots it cold, or rolls it back; as [`Self::wake`].
    pub(crate) async fn boot(
        &self,
        request: BootRequest,
    ) -> Result<mpsc::Receiver<WakeEvent>, Ended> {
        let (events, receiver) = mpsc::channel(WAKE_EVENTS);
        self.tell(Command::Boot(request, events)).await?;
        Ok(receiver)
    }

    /// What an operator wants to see of it.
    pub(crate) async fn status(&self) -> Result<AppStatus, Ended> {
        let (reply, answer) = oneshot::channel();
        self.tell(Command::Status(reply)).await?;
        answer.await.map_err(|_| Ended)
    }

    /// Its last wakes, the newest last.
    pub(crate) async fn trace(&self) -> Result<Vec<WakeTrace>, Ended> {
        let (reply, answer) = oneshot::channel();
        self.tell(Command::Trace(reply)).await?;
        answer.await.map_err(|_| Ended)
    }

    pub(crate) async fn tell(&self, command: Command) -> Result<(), Ended> {
        self.commands.send(command).await.map_err(|_| Ended)
    }

    /// [`Self::tell`] without waiting for room.
    pub(crate) fn try_tell(&self, command: Command) {
        if let Err(error) = self.commands.try_send(command) {
            tracing::debug!(%error, "an app's task was not told");
        }
    }

    /// Returns when the task has ended and holds nothing of the app any more.
    pub(crate) async fn ended(&self) {
        self.commands.closed().await;
    }

    /// Whether the task still runs.
    pub(crate) fn runs(&self) -> bool {
        !self.commands.is_closed()
    }
}
