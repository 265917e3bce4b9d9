//! What the lifecycle asks of a virtual machine monitor, whichever it is.
//!
//! A machine comes out of [`Vmm::boot`] or [`Vmm::restore`] standing still, holding the app's lock,
//! and runs only after [`Machine::resume`]: between the two the caller makes the image's
//! consumption durable. The trait fits a VMM that maps the consumed image shared (QEMU: a save
//! writes the device state only, and the memory file is complete at once) and one that maps it
//! privately (Firecracker: a save writes a differential layer beside the state, which is merged into
//! the memory file once nobody maps that any more).

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::signature::AgentKey;
use rouse_protocol::wake::{Phase, PhaseTime};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use self::control::Control;
use self::touched::{Mark, Touched};
use crate::config::MachineConfig;
use crate::image::SavedMemory;

pub mod control;
pub mod process;
pub mod qemu;
pub mod touched;

/// What a device state can be loaded by again: all of it must be equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmmIdentity {
    /// `qemu` or `firecracker`.
    pub kind: String,
    /// The VMM's own version text.
    pub version: String,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// The CPU model that the guest sees; the host's own where it is that one.
    pub cpu: String,
    /// The host's kernel, where the state depends on it; `any` where it does not.
    pub kernel: String,
}

/// One life of an app that is about to begin.
#[derive(Clone, Debug)]
pub struct Life {
    /// The app.
    pub app: AppId,
    /// Its life.
    pub generation: Generation,
    /// The agent's key; none for a guest without an agent.
    pub key: Option<AgentKey>,
    /// What machine it is.
    pub machine: Arc<MachineConfig>,
    /// The memory file: mapped shared, so it is the guest's RAM. Exists with the right size.
    pub memory: PathBuf,
    /// The disk; none: the guest has none.
    pub disk: Option<PathBuf>,
    /// Taken before the VMM maps the memory; none: nothing is known of what will be written.
    pub mark: Option<Mark>,
    /// A second copy of each image is kept to go back to, where the file system can share blocks.
    pub keep_pair: bool,
    /// Locks that the VMM process must hold as long as it lives: the app's and the memory file's.
    pub locks: Arc<[OwnedFd]>,
}

/// Where a running machine is found again by a waker that has restarted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The VMM's process.
    pub pid: i32,
    /// When that process started, in clock ticks after boot (field 22 of `/proc/PID/stat`), so that
    /// a reused pid is told from it.
    pub start_ticks: u64,
    /// Its life.
    pub generation: Generation,
    /// How it came to run.
    pub outcome: rouse_protocol::wake::Outcome,
    /// Where the guest's port is reached.
    pub endpoint: SocketAddr,
    /// The directory with the VMM's sockets.
    pub runtime: PathBuf,
    /// What it was started by.
    pub identity: VmmIdentity,
    /// [`MachineConfig::fingerprint`] when it began.
    pub machine: String,
    /// Its memory in MiB.
    pub memory_mib: u32,
    /// Its vCPUs.
    pub vcpus: u8,
    /// [`Life::mark`].
    #[serde(default)]
    pub mark: Option<Mark>,
    /// [`Life::keep_pair`].
    #[serde(default)]
    pub keep_pair: bool,
}

/// Receives each phase as it ends.
pub type PhaseSink<'a> = &'a mut (dyn FnMut(PhaseTime) + Send);

/// Why a guest could not be started from its kernel.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The VMM process did not come up.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It refused a command.
    #[error(transparent)]
    Command(#[from] qemu::QmpError),
}

/// Why a guest could not be restored. Its image is spent all the same.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The VMM process did not come up.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It refused a command.
    #[error(transparent)]
    Command(#[from] qemu::QmpError),
    /// The device state can't be opened.
    #[error("the VM state {path}: {source}")]
    State {
        /// The file.
        path: PathBuf,
        /// What opening it said.
        source: std::io::Error,
    },
    /// The VMM did not take the device state.
    #[error("the VMM refused the VM state: {0}")]
    Refused(String),
    /// It took longer than it may.
    #[error("the VM state was not loaded after {0:?}")]
    Timeout(Duration),
}

/// Why a VMM process did not come up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its directory, or a file that it needs, can't be made or opened.
    #[error("{path}: {source}")]
    Directory {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The program can't be run.
    #[error("can't run {program}: {source}")]
    Spawn {
        /// The program.
        program: PathBuf,
        /// What running it said.
        source: std::io::Error,
    },
    /// It ended before it answered.
    #[error("the VMM ended at once: {0}")]
    Exited(String),
    /// It did not answer in time.
    #[error("the VMM did not answer on its socket after {0:?}")]
    Timeout(Duration),
}

/// Why a standing guest could not be saved. It can be resumed.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// A file of the image can't be written.
    #[error("{path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What writing it said.
        source: std::io::Error,
    },
    /// The VMM refused a command.
    #[error(transparent)]
    Command(#[from] qemu::QmpError),
    /// The VMM could not write the device state.
    #[error("the VMM could not save its state: {0}")]
    Refused(String),
    /// It took longer than it may.
    #[error("the VM state was not saved after {0:?}")]
    Timeout(Duration),
}

/// Why a recorded VM was not taken over.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The process is gone, or another one has its pid.
    #[error("its process {0} is gone")]
    Gone(i32),
    /// Its socket does not answer.
    #[error(transparent)]
    Command(#[from] qemu::QmpError),
}

/// A kind of VMM.
#[async_trait]
pub trait Vmm: Send + Sync + 'static {
    /// What states of this VMM depend on. Finds out which accelerator works, once.
    async fn identity(&self, machine: &MachineConfig) -> Result<VmmIdentity, BootError>;

    /// Whether the memory file is the guest's RAM, mapped shared, and so needs a block for each page that
    /// the guest comes to write.
    fn ram_is_file(&self) -> bool;

    /// Starts a guest from its kernel; it stands still.
    async fn boot(&self, life: &Life, sink: PhaseSink<'_>) -> Result<Box<dyn Machine>, BootError>;

    /// Loads a guest from its memory file and the device state in `state`; it stands still.
    async fn restore(
        &self,
        life: &Life,
        state: &Path,
        sink: PhaseSink<'_>,
    ) -> Result<Box<dyn Machine>, RestoreError>;

    /// Takes over a VM that an earlier waker started. `life` is what it is thought to be.
    async fn adopt(&self, life: &Life, record: &RunRecord) -> Result<Box<dyn Machine>, AdoptError>;

    /// Makes what can be made before a wake needs it, for these machines.
    fn prepare(&self, machines: Vec<Arc<MachineConfig>>);

    /// Ends every process that serves no app and takes no more work.
    async fn close(&self);
}

/// A VMM with one guest.
#[async_trait]
pub trait Machine: Send + Sync + 'static {
    /// How a later waker finds it.
    fn record(&self) -> RunRecord;

    /// Turns to the reason once the process has ended.
    fn exited(&self) -> watch::Receiver<Option<String>>;

    /// The agent's control channel; none: the guest has no agent.
    fn agent(&self) -> Option<Arc<Control>>;

    /// Whether the vCPUs stand still.
    fn stands(&self) -> bool;

    /// The VMM has stopped the guest by itself, since a file of its could not be written: the disk is
    /// full, most likely. It goes on when it is resumed.
    fn stalled(&self) -> watch::Receiver<bool>;

    /// Sets the vCPUs going, and tells the agent of its life and the time.
    async fn resume(&mut self) -> Result<(), qemu::QmpError>;

    /// Stops the vCPUs. Memory and disk then stay as they are until [`Self::resume`].
    async fn pause(&mut self) -> Result<(), qemu::QmpError>;

    /// Writes the device state of a standing VM to a fresh file, and, where the VMM maps memory
    /// privately, what changed to another. The VM stands still afterwards, also when this fails, and
    /// can be resumed.
    async fn save(&mut self, to: &SaveTo) -> Result<SavedMemory, SaveError>;

    /// Finds out, blocking, what a standing VM may have written to its memory in this life.
    fn touched(&self) -> Box<dyn FnOnce() -> Touched + Send>;

    /// Finds out, blocking, which of its memory a VM has mapped now: just after a wake, what that took.
    fn mapped(&self) -> Box<dyn FnOnce() -> Touched + Send> {
        self.touched()
    }

    /// Ends the process of a saved guest and waits until it is gone. Then the life's memory file is
    /// whole, and with the state it is the image.
    async fn finish(self: Box<Self>) -> Result<(), SaveError>;

    /// Ends the process and waits until it is gone. The guest's memory is lost.
    async fn kill(self: Box<Self>);
}

/// Where a VMM saves to. Neither file exists.
#[derive(Clone, Debug)]
pub struct SaveTo {
    /// The device state.
    pub state: PathBuf,
    /// What changed in memory since the life began, from a VMM that maps it privately: as long as
    /// memory, a hole where nothing changed. A VMM that forgets at a save what had changed before
    /// (Firecracker's `Diff`) has its driver keep that, should the sleep be called off.
    pub layer: PathBuf,
}

/// Times phases that follow each other without a gap.
pub(crate) struct Stopwatch {
    since: tokio::time::Instant,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { since: tokio::time::Instant::now() }
    }

    /// What has passed since the start or the last lap, as `phase`.
    pub(crate) fn lap(&mut self, phase: Phase) -> PhaseTime {
        let now = tokio::time::Instant::now();
        let took = now - self.since;
        self.since = now;
        PhaseTime::new(phase, took)
    }
}
