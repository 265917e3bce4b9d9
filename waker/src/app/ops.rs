//! What an app's task has done for it: the parts of a wake and of a sleep that take time.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rouse_protocol::app::Generation;
use rouse_protocol::signature::AgentKey;
use rouse_protocol::wake::{FailureCode, Outcome, Phase, PhaseTime};
use tokio::sync::mpsc;

use super::Node;
use crate::config::AppConfig;
use crate::image::{AppDir, ImageRefusal, Live, Published};
use crate::vmm::{BootError, Life, Machine, RestoreError, RunRecord, Stopwatch, VmmIdentity};

/// What has been done, and everything that was taken along to do it.
pub(super) enum Done {
    Woken(Result<Woken, WakeError>),
    Saved(Box<dyn Machine>, Result<(), String>),
    Resumed(Box<dyn Machine>, Result<(), String>),
    Committed(Result<Published, String>),
}

/// A VM that runs.
pub(super) struct Woken {
    pub(super) machine: Box<dyn Machine>,
    pub(super) live: Live,
    pub(super) outcome: Outcome,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum WakeError {
    #[error("the node runs as many wakes as it may, and this one waited for {0:?}")]
    NoRoom(std::time::Duration),
    #[error("the app's directory {path}: {source}")]
    Storage { path: PathBuf, source: std::io::Error },
    #[error("a process that is not its VM holds the app's lock")]
    Locked,
    #[error("{0}")]
    Boot(#[from] BootError),
    #[error("the guest could not be set going: {0}")]
    Resume(crate::vmm::qemu::QmpError),
}

impl WakeError {
    pub(super) fn code(&self) -> FailureCode {
        match self {
            Self::NoRoom(..) => FailureCode::Full,
            Self::Storage { .. } => FailureCode::Storage,
            Self::Locked => FailureCode::Locked,
            Self::Boot(_) | Self::Resume(_) => FailureCode::Vmm,
        }
    }
}

/// Everything a wake needs.
pub(super) struct WakeJob {
    pub(super) node: Node,
    pub(super) config: Arc<AppConfig>,
    pub(super) dir: Arc<AppDir>,
    pub(super) lock: OwnedFd,
    pub(super) generation: Generation,
    pub(super) key: Option<AgentKey>,
    pub(super) phases: mpsc::UnboundedSender<PhaseTime>,
}

impl WakeJob {
    /// From a stopped app to a VM that runs: restored if its image can be used, else booted.
    pub(super) async fn run(self) -> Result<Woken, WakeError> {
        let mut watch = Stopwatch::start();
        let _admitted = self.admit().await?;
        self.phase(watch.lap(Phase::Queue));
        let identity = self.node.vmm.identity(&self.config.machine).await?;
        let mut watch = Stopwatch::start();
        match self.consume(identity).await {
            Ok(live) => {
                self.phase(watch.lap(Phase::Image));
                match self.restore(live).await? {
                    Some(woken) => Ok(woken),
                    None => self.boot().await,
                }
            }
            // Somebody works on it just now: it is as good as it was, so it waits.
            Err(ImageRefusal::Busy { path, source }) => Err(WakeError::Storage { path, source }),
            Err(refusal) => {
                self.phase(watch.lap(Phase::Image));
                self.note_refusal(&refusal);
                self.boot().await
            }
        }
    }

    fn phase(&self, time: PhaseTime) {
        // The app's task listens for as long as this job is its own.
        let _ = self.phases.send(time);
    }

    async fn admit(&self) -> Result<tokio::sync::OwnedSemaphorePermit, WakeError> {
        let admission = Arc::clone(&self.node.admission);
        match tokio::time::timeout(self.node.queue, admission.acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            // It is never closed.
            Ok(Err(_)) | Err(_) => Err(WakeError::NoRoom(self.node.queue)),
        }
    }

    async fn consume(&self, identity: VmmIdentity) -> Result<Live, ImageRefusal> {
        let (dir, config) = (Arc::clone(&self.dir), Arc::clone(&self.config));
        blocking(move || dir.consume(&config.machine, &identity)).await
    }

    fn note_refusal(&self, refusal: &ImageRefusal) {
        self.node.metrics.refused(refusal.reason());
        if !matches!(refusal, ImageRefusal::None) {
            tracing::warn!(app = %self.config.id, %refusal, "the image is not used");
        }
    }

    /// None: the image could not be loaded and is spent.
    async fn restore(&self, live: Live) -> Result<Option<Woken>, WakeError> {
        // While the VMM is handed over; it must be durable before a vCPU runs.
        let dir = Arc::clone(&self.dir);
        let durable = tokio::task::spawn_blocking(move || dir.sync());
        let life = self.life(&live)?;
        let mut sink = |time| self.phase(time);
        let machine = match self.node.vmm.restore(&life, &live.state(), &mut sink).await {
            Ok(machine) => machine,
            Err(RestoreError::Start(error)) => {
                // No VMM, no boot either; and nobody has touched the image.
                drop(life);
                durable.await.map_err(joined).map_err(|e| self.storage(e))?.ok();
                let dir = Arc::clone(&self.dir);
                blocking(move || dir.put_back(live)).await.map_err(|e| self.storage(e))?;
                return Err(WakeError::Boot(BootError::Start(error)));
            }
            Err(error) => {
                tracing::warn!(app = %self.config.id, %error, "the image could not be loaded");
                self.node.metrics.refused("load");
                durable.await.map_err(joined).map_err(|e| self.storage(e))?.ok();
                return Ok(None);
            }
        };
        drop(life);
        let durable = durable.await.map_err(joined).and_then(|synced| synced);
        self.go(machine, live, Outcome::Resumed, durable).await.map(Some)
    }

    async fn boot(&self) -> Result<Woken, WakeError> {
        let (dir, config) = (Arc::clone(&self.dir), Arc::clone(&self.config));
        let live = blocking(move || dir.fresh(&config.machine)).await;
        let live = live.map_err(|e| self.storage(e))?;
        let life = self.life(&live)?;
        let mut sink = |time| self.phase(time);
        let machine = self.node.vmm.boot(&life, &mut sink).await?;
        drop(life);
        let dir = Arc::clone(&self.dir);
        let durable = blocking(move || dir.sync()).await;
        self.go(machine, live, Outcome::Cold, durable).await
    }

    /// The last step: noted, then set going.
    async fn go(
        &self,
        mut machine: Box<dyn Machine>,
        live: Live,
        outcome: Outcome,
        durable: std::io::Result<()>,
    ) -> Result<Woken, WakeError> {
        let noted = durable.and_then(|()| self.dir.write_run_record(&machine.record()));
        if let Err(source) = noted {
            machine.kill().await;
            return Err(self.storage(source));
        }
        let mut watch = Stopwatch::start();
        if let Err(error) = machine.resume().await {
            machine.kill().await;
            return Err(WakeError::Resume(error));
        }
        self.phase(watch.lap(Phase::Resume));
        Ok(Woken { machine, live, outcome })
    }

    fn life(&self, live: &Live) -> Result<Life, WakeError> {
        let locks = || Ok([self.lock.try_clone()?, live.memory_lock()?]);
        Ok(Life {
            app: self.config.id.clone(),
            generation: self.generation,
            key: self.key.clone(),
            machine: Arc::clone(&self.config.machine),
            memory: live.memory(),
            locks: Arc::new(locks().map_err(|e| self.storage(e))?),
        })
    }

    fn storage(&self, source: std::io::Error) -> WakeError {
        WakeError::Storage { path: self.dir.path().to_owned(), source }
    }
}

/// Stops the guest and has it saved.
pub(super) async fn save(mut machine: Box<dyn Machine>, state: PathBuf) -> Done {
    let result = machine.save(&state).await.map_err(|e| e.to_string());
    Done::Saved(machine, result)
}

/// Sets a guest going whose sleep is off.
pub(super) async fn resume(mut machine: Box<dyn Machine>) -> Done {
    let result = machine.resume().await.map_err(|e| e.to_string());
    if let Err(error) = &result {
        tracing::error!(error, "a guest whose sleep is off could not be set going");
    }
    Done::Resumed(machine, result)
}

/// Ends the VM, and publishes what it was as a generation.
pub(super) async fn commit(
    machine: Box<dyn Machine>,
    dir: Arc<AppDir>,
    live: Live,
    record: RunRecord,
) -> Done {
    if let Err(error) = machine.finish().await {
        return Done::Committed(Err(error.to_string()));
    }
    let published = blocking(move || dir.publish(live, &record)).await;
    Done::Committed(published.map_err(|e| e.to_string()))
}

/// Runs file work on a thread where it may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // A panic in it is a fault of ours: let it surface where it was asked for.
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is going down, and this task with it.
        Err(_) => std::future::pending().await,
    }
}

fn joined(error: tokio::task::JoinError) -> std::io::Error {
    std::io::Error::other(error)
}
