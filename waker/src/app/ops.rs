//! What an app's task has done for it: the parts of a wake and of a sleep that take time.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rouse_protocol::app::Generation;
use rouse_protocol::signature::AgentKey;
use rouse_protocol::wake::{FailureCode, Outcome, Phase, PhaseTime};
use rouse_snapshot_format::Progress;
use rouse_transfer::Asked;
use tokio::sync::{mpsc, oneshot};

use super::Node;
use super::sending::CalledOff;
use crate::admission::{Seat, TooLarge, Turn};
use crate::config::{AfterCrash, AppConfig};
use crate::fault;
use crate::image::{
    AppDir, FreshError, ImageRefusal, Live, Published, SavedMemory, Settle, SettleError, Settled,
    reserve,
};
use crate::lifecycle::Start;
use crate::store::{Cost, Demanded, FetchError, Fetched, NodeStore, Stored, TakeError, Taken};
use crate::vmm::process::Process;
use crate::vmm::touched::{Mark, Touched};
use crate::vmm::{
    BootError, Life, Machine, RestoreError, RunRecord, SaveTo, Stopwatch, VmmIdentity,
};

/// What has been done, and everything that was taken along to do it.
pub(super) enum Done {
    Woken(Result<Box<Woken>, WakeError>),
    Stopped(Box<dyn Machine>, Result<(), String>),
    Saved(Box<dyn Machine>, Result<SavedMemory, String>),
    Resumed(Box<dyn Machine>, Result<(), String>),
    Committed(Result<Published, String>),
    Ended,
}

/// A VM that runs.
pub(super) struct Woken {
    pub(super) machine: Box<dyn Machine>,
    pub(super) live: Live,
    pub(super) seat: Seat,
    pub(super) outcome: Outcome,
    /// How often the agent had taken over a life before.
    pub(super) lives: u64,
    /// Why there was no restore.
    pub(super) refused: Option<String>,
    /// It came from the store.
    pub(super) fetched: Option<Brought>,
}

/// What a wake had from the store.
pub(super) struct Brought {
    generation: Generation,
    pub(super) key: AgentKey,
    /// What it cost so far; none: it was in the cache, or it is not known yet.
    pub(super) cost: Option<Cost>,
    /// Its life, where that begins before all of it is here.
    live: Option<Live>,
    demanded: Option<Demanded>,
}

impl Brought {
    fn whole(fetched: Fetched) -> Self {
        let Fetched { generation, key, cost, .. } = fetched;
        Self { generation, key, cost, live: None, demanded: None }
    }

    fn demanded(mut demanded: Demanded) -> Self {
        let (generation, key) = (demanded.generation, demanded.key.clone());
        let live = demanded.live.take();
        Self { generation, key, cost: None, live, demanded: Some(demanded) }
    }
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum WakeError {
    #[error("the node has no room for another VM, and this wake waited for {0:?}")]
    NoRoom(std::time::Duration),
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error(
        "{path} has {free} bytes free, and the guest's memory may come to need {needed}: make room on that file system"
    )]
    NoSpace { path: PathBuf, free: u64, needed: u64 },
    #[error("the app's directory {path}: {source}")]
    Storage { path: PathBuf, source: std::io::Error },
    #[error("the app's disk: {0}")]
    Disk(crate::image::DiskError),
    #[error(
        "there is no sleep to go back to: the file system keeps no second copy, or none was made"
    )]
    NoWayBack,
    #[error("a process that is not its VM holds the app's lock")]
    Locked,
    #[error(transparent)]
    Take(#[from] TakeError),
    #[error("the store: {0}")]
    Fetch(#[from] FetchError),
    #[error("{0}")]
    Boot(#[from] BootError),
    #[error("the guest could not be set going: {0}")]
    Resume(crate::vmm::qemu::QmpError),
}

impl WakeError {
    /// Whether it says nothing about the app: it is not counted among its failures, and nobody is told to wait
    /// longer each time.
    pub(super) fn is_no_fault_of_the_app(&self) -> bool {
        match self {
            // What is spoilt in the store stays so.
            Self::Fetch(error) => !error.is_spoilt(),
            Self::Take(TakeError::Reference(error)) => !error.is_spoilt(),
            Self::Take(TakeError::Lost(_)) => false,
            error => matches!(error.code(), FailureCode::Full | FailureCode::Elsewhere),
        }
    }

    pub(super) fn code(&self) -> FailureCode {
        match self {
            Self::NoRoom(..) | Self::TooLarge(_) | Self::NoSpace { .. } => FailureCode::Full,
            Self::Storage { .. } | Self::Disk(_) | Self::NoWayBack => FailureCode::Storage,
            Self::Take(TakeError::Elsewhere { .. }) => FailureCode::Elsewhere,
            Self::Take(TakeError::Record(_)) => FailureCode::Storage,
            Self::Fetch(error) if error.is_full() => FailureCode::Full,
            Self::Take(_) | Self::Fetch(_) => FailureCode::Store,
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
    pub(super) start: Start,
    /// What was being sent when the wake began.
    pub(super) sending: Option<CalledOff>,
    pub(super) phases: mpsc::UnboundedSender<PhaseTime>,
}

/// A VM that was set going, before it is told how it came about.
struct Going {
    machine: Box<dyn Machine>,
    live: Live,
    outcome: Outcome,
    lives: u64,
}

impl WakeJob {
    /// From a stopped app to a VM that runs: restored if its image can be used, else booted.
    pub(super) async fn run(mut self) -> Result<Woken, WakeError> {
        let mut watch = Stopwatch::start();
        let (seat, _turn) = self.admit().await?;
        self.end_lost().await;
        self.phase(watch.lap(Phase::Queue));
        let identity = self.node.vmm.identity(&self.config.machine).await?;
        let mut fetched = self.take(&identity).await?;
        let mut watch = Stopwatch::start();
        let consumed = match fetched.as_mut().and_then(|fetched| fetched.live.take()) {
            Some(live) => Ok(live),
            None => self.consume(identity).await?,
        };
        self.phase(watch.lap(Phase::Image));
        let (going, refused) = match consumed {
            Ok(live) => match self.restore(live, fetched.as_mut()).await? {
                Ok(going) => (going, None),
                Err(error) => (self.boot().await?, Some(error.to_string())),
            },
            // Somebody works on it just now: it is as good as it was, so it waits.
            Err(ImageRefusal::Busy { path, source }) => {
                return Err(WakeError::Storage { path, source });
            }
            Err(refusal) => {
                self.note_refusal(&refusal);
                let told = !matches!(refusal, ImageRefusal::None);
                (self.boot().await?, told.then(|| refusal.to_string()))
            }
        };
        let Going { machine, live, outcome, lives } = going;
        if let Err(source) = fault::hit("woken") {
            machine.kill().await;
            return Err(self.storage(source));
        }
        Ok(Woken { machine, live, seat, outcome, lives, refused, fetched })
    }

    fn phase(&self, time: PhaseTime) {
        // The app's task listens for as long as this job is its own.
        let _ = self.phases.send(time);
    }

    async fn admit(&self) -> Result<(Seat, Turn), WakeError> {
        let memory_mib = u64::from(self.config.machine.memory_mib);
        let entering = self.node.admission.enter(memory_mib);
        match tokio::time::timeout(self.node.queue, entering).await {
            Ok(entered) => Ok(entered?),
            Err(_) => Err(WakeError::NoRoom(self.node.queue)),
        }
    }

    /// Ends a VM of this app that was lost hold of, and which the app's lock, ours as well as its own, does
    /// not tell of: a second one must never run beside it.
    async fn end_lost(&self) {
        if let Some(record) = self.dir.run_record()
            && let Ok(process) = Process::adopt(record.pid, record.start_ticks)
        {
            tracing::error!(app = %self.config.id, pid = record.pid, "a VM that was lost hold of is ended");
            process.kill().await;
        }
    }

    /// Makes sure that the app is this node's, and that what is to be woken is here, or on its way.
    async fn take(&mut self, vmm: &VmmIdentity) -> Result<Option<Brought>, WakeError> {
        // What is at its last step comes to an end first: else two might believe the app to be theirs.
        if let Some(sending) = self.sending.take() {
            sending.ended().await;
        }
        let Some(store) = self.node.store.clone() else { return Ok(None) };
        let mut watch = Stopwatch::start();
        let asked = Asked::default();
        let taken = store.take(&self.config.id, &self.dir, &asked).await?;
        let Some(newest) = taken.fetch.first().map(|stored| stored.generation) else {
            return Ok(None);
        };
        let brought = Box::pin(self.fetch(&store, taken, vmm, &asked)).await?;
        self.phase(watch.lap(Phase::Fetch));
        self.generation = self.generation.max(newest.next());
        if brought.as_ref().is_none_or(|brought| brought.demanded.is_none()) {
            store.held(&self.dir).map_err(|source| self.storage(source))?;
        }
        if let Some(Brought { generation, cost, key, .. }) = &brought {
            tracing::info!(app = %self.config.id, %generation, ?cost, "fetched from the store");
            self.key = self.config.machine.agent.then(|| key.clone());
        }
        Ok(brought)
    }

    /// The newest generation that is whole in the store. None: none is, and there was no disk that a cold boot
    /// would lose.
    async fn fetch(
        &self,
        store: &NodeStore,
        taken: Taken,
        vmm: &VmmIdentity,
        asked: &Asked,
    ) -> Result<Option<Brought>, FetchError> {
        let (app, mut spoilt) = (&self.config.id, None);
        for stored in &taken.fetch {
            match self.bring(store, stored, taken.superseded, vmm, asked).await {
                Ok(brought) => return Ok(Some(brought)),
                Err(error) if error.is_spoilt() => {
                    let generation = stored.generation;
                    tracing::error!(%app, %generation, %error, "a generation in the store is spoilt: the one before it is tried");
                    spoilt = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        match spoilt {
            Some(error) if self.config.machine.disk.is_some() => Err(error),
            _ => Ok(None),
        }
    }

    /// One generation: as much of it as its VM needs to run where that can be, else all of it.
    async fn bring(
        &self,
        store: &NodeStore,
        stored: &Stored,
        superseded: bool,
        vmm: &VmmIdentity,
        asked: &Asked,
    ) -> Result<Brought, FetchError> {
        let (app, dir, machine) = (&self.config.id, &self.dir, &self.config.machine);
        if self.start == Start::Restore && self.node.vmm.ram_is_file() {
            let demanded = store.demand(app, dir, stored, (machine, vmm), superseded, asked).await;
            match demanded {
                Ok(Some(demanded)) => return Ok(Brought::demanded(demanded)),
                Ok(None) => {}
                Err(error @ FetchError::Pager { spoilt: false, .. }) => {
                    tracing::warn!(%app, %error, "its memory is fetched whole before it runs");
                }
                Err(error) => {
                    self.node.metrics.fetched(Err(&error));
                    return Err(error);
                }
            }
        }
        let fetched = store.fetch(app, dir, stored, superseded, asked).await;
        self.node.metrics.fetched(fetched.as_ref());
        Ok(Brought::whole(fetched?))
    }

    async fn consume(
        &self,
        identity: VmmIdentity,
    ) -> Result<Result<Live, ImageRefusal>, WakeError> {
        let (dir, config) = (Arc::clone(&self.dir), Arc::clone(&self.config));
        let start = self.start;
        let consumed = blocking(move || {
            let rolled_back = match start {
                Start::Cold => return Ok(Err(ImageRefusal::Unwanted)),
                Start::Restore => false,
                Start::Rollback => dir.roll_back()?,
            };
            if start == Start::Rollback && !rolled_back {
                return Ok(Err(ImageRefusal::None));
            }
            let consumed = dir.consume(&config.machine, &identity);
            let crashed = matches!(consumed, Err(ImageRefusal::None));
            if crashed && config.after_crash == AfterCrash::Rollback && dir.roll_back()? {
                return Ok(dir.consume(&config.machine, &identity));
            }
            Ok(consumed)
        });
        match consumed.await.map_err(|e| self.storage(e))? {
            Err(ImageRefusal::None) if start == Start::Rollback => Err(WakeError::NoWayBack),
            consumed => Ok(consumed),
        }
    }

    fn note_refusal(&self, refusal: &ImageRefusal) {
        self.node.metrics.refused(refusal.reason());
        if !matches!(refusal, ImageRefusal::None | ImageRefusal::Unwanted) {
            tracing::warn!(app = %self.config.id, %refusal, "the image is not used");
        }
    }

    /// The inner error: the image could not be loaded and is spent.
    async fn restore(
        &self,
        live: Live,
        mut brought: Option<&mut Brought>,
    ) -> Result<Result<Going, RestoreError>, WakeError> {
        // While the VMM is handed over; it must be durable before a vCPU runs.
        let dir = Arc::clone(&self.dir);
        let durable = tokio::task::spawn_blocking(move || dir.sync_consumed());
        let life = match self.life(&live) {
            Ok(life) => life,
            Err(error) => {
                self.put_back(live, durable).await?;
                return Err(error);
            }
        };
        let mut sink = |time| self.phase(time);
        if let Err(error) = self.enough_space(&live) {
            drop(life);
            self.put_back(live, durable).await?;
            return Err(error);
        }
        let reserving = self.reserve(&live);
        let restored = self.node.vmm.restore(&life, &live.state(), &mut sink).await;
        // Also where there is nothing to restore: nobody may work on what is moved.
        let reserved = reserving.await.map_err(joined).and_then(|reserved| reserved);
        let machine = match restored {
            Ok(machine) => machine,
            Err(RestoreError::Start(error)) => {
                // No VMM, no boot either; and nobody has touched the image.
                drop(life);
                self.put_back(live, durable).await?;
                return Err(WakeError::Boot(BootError::Start(error)));
            }
            Err(error) => {
                tracing::warn!(app = %self.config.id, %error, "the image could not be loaded");
                durable.await.map_err(joined).map_err(|e| self.storage(e))?.ok();
                if let Err(source) = reserved {
                    // Nor would there be room for a boot.
                    let path = live.memory();
                    self.put_back_loaded(live).await?;
                    return Err(self.no_block(path, source));
                }
                self.node.metrics.refused("load");
                self.trim_unused().await;
                return Ok(Err(error));
            }
        };
        drop(life);
        let durable = durable.await.map_err(joined).and_then(|synced| synced);
        if let Err(source) = reserved {
            machine.kill().await;
            let path = live.memory();
            self.put_back_loaded(live).await?;
            return Err(self.no_block(path, source));
        }
        let mut watch = Stopwatch::start();
        if let Some(brought) = brought.as_mut()
            && let Some(demanded) = &mut brought.demanded
        {
            let landed = demanded.working_set().await;
            self.node.metrics.demanded(landed.as_ref());
            match landed {
                Ok(cost) => brought.cost = Some(cost),
                Err(error) => {
                    machine.kill().await;
                    return Err(error.into());
                }
            }
            self.phase(watch.lap(Phase::Fetch));
            self.runs_now(&live).await?;
            fault::hit("store-runs").map_err(|source| self.storage(source))?;
        }
        self.go(machine, live, Outcome::Resumed, durable).await.map(Ok)
    }

    /// What was fetched is used now: from here on it is this node's.
    async fn runs_now(&self, live: &Live) -> Result<(), WakeError> {
        let Some(store) = self.node.store.clone() else { return Ok(()) };
        let (dir, path) = (Arc::clone(&self.dir), live.path().to_owned());
        let noted = blocking(move || {
            store.held(&dir)?;
            dir.runs_now(&path)
        });
        noted.await.map_err(|source| self.storage(source))
    }

    async fn put_back(
        &self,
        live: Live,
        durable: tokio::task::JoinHandle<std::io::Result<()>>,
    ) -> Result<(), WakeError> {
        durable.await.map_err(joined).map_err(|e| self.storage(e))?.ok();
        let dir = Arc::clone(&self.dir);
        blocking(move || dir.put_back(live)).await.map_err(|e| self.storage(e))
    }

    /// The image of a VM that has ended and in which no vCPU ran.
    async fn put_back_loaded(&self, live: Live) -> Result<(), WakeError> {
        if self.dir.mapped(&live) != live.memory() {
            // Not all of it is here: it is fetched again.
            return Ok(());
        }
        self.trim_unused().await;
        let dir = Arc::clone(&self.dir);
        blocking(move || dir.put_back_unchecked(&live)).await.map_err(|e| self.storage(e))
    }

    async fn boot(&self) -> Result<Going, WakeError> {
        // What was fetched could not be loaded: its disk is booted from, and is this node's.
        if let Some(store) = &self.node.store {
            store.held(&self.dir).map_err(|source| self.storage(source))?;
        }
        let (dir, config) = (Arc::clone(&self.dir), Arc::clone(&self.config));
        let live = blocking(move || dir.fresh(&config.machine)).await;
        let live = live.map_err(|error| match error {
            FreshError::File(source) => self.storage(source),
            FreshError::Disk(error) => WakeError::Disk(error),
        })?;
        self.enough_space(&live)?;
        let life = self.life(&live)?;
        let mut sink = |time| self.phase(time);
        let reserving = self.reserve(&live);
        let booted = self.node.vmm.boot(&life, &mut sink).await;
        let reserved = reserving.await.map_err(joined).and_then(|reserved| reserved);
        let machine = booted?;
        drop(life);
        if let Err(source) = reserved {
            machine.kill().await;
            return Err(self.no_block(live.memory(), source));
        }
        let dir = Arc::clone(&self.dir);
        let durable = blocking(move || dir.sync_consumed()).await;
        self.go(machine, live, Outcome::Cold, durable).await
    }

    /// Has a block for each page of the memory, while the VMM starts. It must be done before a vCPU runs.
    fn reserve(&self, live: &Live) -> tokio::task::JoinHandle<std::io::Result<()>> {
        let (memory, needed) = (live.memory(), self.node.vmm.ram_is_file());
        tokio::task::spawn_blocking(move || if needed { reserve(&memory) } else { Ok(()) })
    }

    /// Gives back what was reserved for a guest that never ran.
    async fn trim_unused(&self) {
        let dir = Arc::clone(&self.dir);
        if let Err(error) = blocking(move || dir.trim_unused()).await {
            tracing::warn!(app = %self.config.id, %error, "its memory occupies more than it has to");
        }
    }

    fn no_block(&self, path: PathBuf, source: std::io::Error) -> WakeError {
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                let (free, needed) = space(&path).unwrap_or_default();
                WakeError::NoSpace { path, free, needed }
            }
            _ => WakeError::Storage { path, source },
        }
    }

    /// Found out before a VMM is started, so that nothing has to be taken back.
    fn enough_space(&self, live: &Live) -> Result<(), WakeError> {
        let path = live.memory();
        let (free, needed) = space(&path).map_err(|e| self.storage(e))?;
        if free < needed.saturating_add(SPARE) {
            Err(WakeError::NoSpace { path, free, needed })
        } else {
            Ok(())
        }
    }

    /// The last step: noted, then set going.
    async fn go(
        &self,
        mut machine: Box<dyn Machine>,
        live: Live,
        outcome: Outcome,
        durable: std::io::Result<()>,
    ) -> Result<Going, WakeError> {
        let noted = durable.and_then(|()| self.dir.write_run_record(&machine.record()));
        if let Err(source) = noted.and_then(|()| fault::hit("resume")) {
            machine.kill().await;
            if outcome == Outcome::Resumed {
                self.put_back_loaded(live).await?;
            }
            return Err(self.storage(source));
        }
        let lives = machine.agent().map_or(0, |agent| agent.heard().borrow().lives);
        let mut watch = Stopwatch::start();
        if let Err(error) = machine.resume().await {
            machine.kill().await;
            return Err(WakeError::Resume(error));
        }
        self.phase(watch.lap(Phase::Resume));
        Ok(Going { machine, live, outcome, lives })
    }

    fn life(&self, live: &Live) -> Result<Life, WakeError> {
        let locks = || Ok([self.lock.try_clone()?, live.memory_lock()?]);
        Ok(Life {
            app: self.config.id.clone(),
            generation: self.generation,
            key: self.key.clone(),
            machine: Arc::clone(&self.config.machine),
            memory: self.dir.mapped(live),
            disk: live.disk().filter(|_| self.config.machine.disk.is_some()),
            // What a pager fills is mapped, and unmapped, by more than the guest.
            mark: Mark::now().ok().filter(|_| self.dir.mapped(live) == live.memory()),
            keep_pair: self.config.after_crash == AfterCrash::Rollback,
            locks: Arc::new(locks().map_err(|e| self.storage(e))?),
        })
    }

    fn storage(&self, source: std::io::Error) -> WakeError {
        WakeError::Storage { path: self.dir.path().to_owned(), source }
    }
}

/// What has to be free besides, in bytes: for the record of the VM, and for state and map of its sleep.
const SPARE: u64 = 16 << 20;

/// What the file system of the memory file has free, and what that has no blocks for, in bytes.
fn space(memory: &std::path::Path) -> std::io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let (file, fs) = (std::fs::metadata(memory)?, rustix::fs::statvfs(memory)?);
    let needed = file.len().saturating_sub(file.blocks() * 512);
    Ok((fs.f_bavail.saturating_mul(fs.f_frsize), needed))
}

/// Stops the vCPUs.
pub(super) async fn pause(mut machine: Box<dyn Machine>) -> Done {
    let result = machine.pause().await.map_err(|e| e.to_string());
    Done::Stopped(machine, result)
}

/// Has a standing guest saved.
pub(super) async fn save(mut machine: Box<dyn Machine>, to: SaveTo) -> Done {
    let result = machine.save(&to).await.map_err(|e| e.to_string());
    let result = result.and_then(|memory| {
        fault::hit("saved").map_err(|e| e.to_string())?;
        Ok(memory)
    });
    Done::Saved(machine, result)
}

/// A settle that is going on; it can be called off.
pub(super) struct Settling {
    progress: Arc<Progress>,
    /// Fails when nothing is done to the files any more.
    ended: oneshot::Receiver<()>,
}

/// What a settle needs.
pub(super) struct SettleJob {
    pub(super) dir: Arc<AppDir>,
    pub(super) live: PathBuf,
    pub(super) record: RunRecord,
    pub(super) memory: SavedMemory,
    pub(super) touched: Box<dyn FnOnce() -> Touched + Send>,
    pub(super) woken_by: Vec<std::ops::Range<u64>>,
}

impl SettleJob {
    /// The work, to be run where it may block, and the handle to call it off.
    pub(super) fn start(
        self,
    ) -> (impl FnOnce() -> Result<Settled, SettleError> + Send + 'static, Settling) {
        let progress = Arc::new(Progress::new());
        let (ending, ended) = oneshot::channel();
        let theirs = Arc::clone(&progress);
        let work = move || {
            let _ending: oneshot::Sender<()> = ending;
            let Self { dir, live, record, memory, touched, woken_by } = self;
            let touched = touched();
            let progress = &*theirs;
            dir.settle(Settle { live, record: &record, memory, touched, woken_by, progress })
        };
        (work, Settling { progress, ended })
    }
}

/// Calls off what is being settled, takes back what was, and sets the guest going.
pub(super) async fn resume(
    mut machine: Box<dyn Machine>,
    dir: Arc<AppDir>,
    settling: Option<Settling>,
) -> Done {
    if let Some(settling) = settling {
        settling.progress.cancel();
        let _ = settling.ended.await;
    }
    if let Err(error) = undo(&dir).await {
        // It must not run on beside an image that speaks of older memory: the image is kept, and the VM
        // is not.
        tracing::error!(%error, "a sleep that is off can't be taken back");
        return Done::Resumed(machine, Err(error.to_string()));
    }
    let result = machine.resume().await.map_err(|e| e.to_string());
    if let Err(error) = &result {
        tracing::error!(error, "a guest whose sleep is off could not be set going");
    }
    Done::Resumed(machine, result)
}

/// Takes back what was settled; once more when that fails, since much hangs on it.
async fn undo(dir: &Arc<AppDir>) -> std::io::Result<()> {
    for last in [false, true] {
        let dir = Arc::clone(dir);
        match blocking(move || dir.undo()).await {
            Err(error) if !last => tracing::warn!(%error, "a manifest can't be removed"),
            done => return done,
        }
    }
    Ok(())
}

/// Ends the VM, and publishes what was settled as a generation.
pub(super) async fn commit(machine: Box<dyn Machine>, dir: Arc<AppDir>, live: Live) -> Done {
    if let Err(error) = machine.finish().await {
        return Done::Committed(Err(error.to_string()));
    }
    let published = blocking(move || dir.publish(live)).await;
    Done::Committed(published.map_err(|e| e.to_string()))
}

/// Ends the VM; its memory is lost.
pub(super) async fn end(machine: Box<dyn Machine>, flush: Option<std::time::Duration>) -> Done {
    if let (Some(within), Some(agent)) = (flush, machine.agent())
        && let Err(error) = agent.flush(within).await
    {
        tracing::warn!(%error, "a guest that is parked did not write out its disk");
    }
    machine.kill().await;
    Done::Ended
}

/// Runs file work on a thread where it may block.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
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
