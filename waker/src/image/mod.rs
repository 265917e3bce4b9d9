//! An app's directory: generations, the consumed one, the disk, and the locks.
//!
//! ```text
//! apps/<app>/app.lock  key  run.json  standing.json  current -> gen-7/
//!            gen-7/    manifest.json  memory.img  memory.map  vm.state  disk.img  disk.json
//!            live/     the same directory while its life runs: consumed, no image any more
//!            refused/  what could not be used, for the operator to look at; an older one with a disk
//!                      is kept as refused-N/
//! ```
//!
//! A wake renames `gen-7` to `live` and takes its manifest away before a vCPU runs; the sleep after
//! it writes what is missing into `live`, the manifest last of all, and renames that to `gen-8`.
//! Names and manifests are the journal: each step is one rename or one removal, and [`AppDir::look`] and
//! [`AppDir::consume`] finish or undo what a crash has left between two. What `live` holds without a
//! VM and without a manifest is a disk to boot from.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::signature::AgentKey;
use rouse_snapshot_format::journal_path;
use rustix::fs::FlockOperation;

use self::files::{in_use, lock, read_small, remove_dir, remove_file, sync_dir, write_durably};
use crate::config::MachineConfig;
use crate::fault;
use crate::lifecycle::Standing;
use crate::vmm::process::start_ticks;
use crate::vmm::{RunRecord, VmmIdentity};

mod disk;
mod fetched;
mod files;
mod lazy;
mod manifest;
mod room;
mod settle;

pub use disk::{DiskError, DiskId, DiskSeal};
pub use fetched::{Draft, Leaving, Sleeping};
pub use lazy::{Filled, LazyRecord};
pub use manifest::{ImageRefusal, Layer, MAX_PART, Manifest};
pub use room::{TrimError, Trimmed, reserve};
pub use settle::{SavedMemory, Settle, SettleError, Settled};

const MANIFEST: &str = "manifest.json";
/// A manifest whose image was consumed.
const CONSUMED: &str = "consumed.json";
const MEMORY: &str = "memory.img";
const MAP: &str = "memory.map";
const LAYER: &str = "memory.layer";
const LAYER_MAP: &str = "memory.layer.map";
const STATE: &str = "vm.state";
const DISK: &str = "disk.img";
const DISK_ID: &str = "disk.json";
const PAIR: &str = "pair";
/// A pair of a sleep that may still be called off.
const PAIR_DRAFT: &str = ".pair";
/// What lies in `live` was fetched, and no vCPU has run on it.
const NEVER_RAN: &str = "never-ran";
const CURRENT: &str = "current";
const LIVE: &str = "live";
const REFUSED: &str = "refused";
const RUN: &str = "run.json";
const STANDING: &str = "standing.json";

/// What a life leaves that is worth nothing without its VM.
const OF_A_LIFE: [&str; 7] = [CONSUMED, MEMORY, MAP, STATE, LAYER, LAYER_MAP, NEVER_RAN];

/// Why an app's life can't begin.
#[derive(Debug, thiserror::Error)]
pub enum FreshError {
    /// A file can't be made, moved or removed.
    #[error(transparent)]
    File(#[from] io::Error),
    /// It has no disk and can't be given one.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A generation that was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Which.
    pub generation: Generation,
    /// What memory and state occupy on disk, in bytes.
    pub image_bytes: u64,
}

/// What an app's files occupy, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// The newest image, or while it runs the memory file.
    pub image_bytes: u64,
    /// The disk: what it occupies, and what the guest sees.
    pub disk: Option<(u64, u64)>,
}

/// An app's directory, locked: one waker at a time works on it, and one VM.
#[derive(Debug)]
pub struct AppDir {
    path: PathBuf,
    app: AppId,
    turns: room::Turns,
}

/// What was found in an app's directory.
#[derive(Debug)]
pub enum Found {
    /// Nobody runs the app. The newest generation that sleeps, if any.
    Asleep(Option<Generation>),
    /// A VM holds the lock, and this is what is known of it.
    Running(Option<Box<RunRecord>>),
}

impl AppDir {
    /// The directory of `app` under `apps`, made if it is not there.
    pub fn open(apps: &Path, app: &AppId) -> io::Result<Self> {
        let path = apps.join(app.as_str());
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        Ok(Self { path, app: app.clone(), turns: room::Turns::default() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn live_path(&self) -> PathBuf {
        self.path.join(LIVE)
    }

    /// The app's lock, if nobody holds it. The VMM gets a duplicate, so that it is held for as long
    /// as either of the two lives.
    pub fn lock(&self) -> io::Result<Option<OwnedFd>> {
        lock_exclusively(&self.path.join("app.lock"))
    }

    /// What there is. Undoes what a life that has ended without a sleep has left; what was to become
    /// a generation is left to [`Self::consume`], which has the time to check it.
    pub fn look(&self) -> io::Result<(Found, Option<OwnedFd>)> {
        let Some(lock) = self.lock()? else {
            return Ok((Found::Running(self.run_record().map(Box::new)), None));
        };
        self.end_lazy()?;
        let newest = self.current()?;
        let live = self.live_path();
        if newest.is_some() && live.exists() {
            // A way back was taken and this is what it left, or somebody put an image there.
            self.set_aside(&live)?;
        } else if live.join(NEVER_RAN).exists() {
            // It is in the store, as it was.
            remove_dir(&live)?;
        } else if live.exists() && !live.join(MANIFEST).exists() {
            self.strip(&live)?;
        }
        self.forget_fetches()?;
        for (generation, path) in self.generations()? {
            if Some(generation) == newest {
                continue;
            }
            if path.join(DISK).exists() {
                tracing::warn!(path = %path.display(), "an old generation with a disk is left alone");
            } else {
                remove_dir(&path)?;
            }
        }
        // A crash may have come between a generation's rename and this one.
        self.point_to(newest)?;
        Ok((Found::Asleep(newest), Some(lock)))
    }

    /// Takes all but the disk, and what there is to go back to, out of a life's directory.
    fn strip(&self, live: &Path) -> io::Result<()> {
        // First what makes an image of it.
        remove_file(&live.join(MANIFEST))?;
        sync_dir(live)?;
        for name in OF_A_LIFE {
            remove_file(&live.join(name))?;
        }
        self.forget_work(live)?;
        match fs::remove_dir(live) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes what a merge or a sleep that were cut off have left of their own.
    fn forget_work(&self, live: &Path) -> io::Result<()> {
        remove_file(&journal_path(live.join(MAP)))?;
        remove_dir(&live.join(PAIR_DRAFT))
    }

    /// Keeps a directory for the operator to look at, in the place of the one kept before.
    fn set_aside(&self, directory: &Path) -> io::Result<()> {
        fs::rename(directory, self.clear_aside()?)?;
        self.sync()
    }

    /// A free place for what is set aside. What is there with a disk is kept: it may be the only copy of
    /// what was written to it.
    fn clear_aside(&self) -> io::Result<PathBuf> {
        let aside = self.path.join(REFUSED);
        if !aside.join(DISK).try_exists()? {
            remove_dir(&aside)?;
            return Ok(aside);
        }
        for n in 1..=u32::MAX {
            let kept = self.path.join(format!("{REFUSED}-{n}"));
            if !kept.try_exists()? {
                fs::rename(&aside, kept)?;
                break;
            }
        }
        Ok(aside)
    }

    /// The newest generation that sleeps: a directory has such a name only when it is whole.
    fn current(&self) -> io::Result<Option<Generation>> {
        Ok(self.generations()?.into_iter().map(|(generation, _)| generation).max())
    }

    /// That they can't be read is no word on whether there are any.
    fn generations(&self) -> io::Result<Vec<(Generation, PathBuf)>> {
        let mut generations = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if let Some(generation) = entry.file_name().to_str().and_then(generation_of) {
                generations.push((generation, entry.path()));
            }
        }
        Ok(generations)
    }

    /// Points `current`, which is there for people, to a generation.
    fn point_to(&self, generation: Option<Generation>) -> io::Result<()> {
        let current = self.path.join(CURRENT);
        let Some(generation) = generation else {
            return remove_file(&current);
        };
        let link = self.path.join(".current");
        remove_file(&link)?;
        std::os::unix::fs::symlink(generation_name(generation), &link)?;
        fs::rename(&link, current)
    }

    /// The number for the next life: above all that were.
    pub fn next_generation(&self) -> Generation {
        let run = self.run_record().map(|r| r.generation);
        let unfinished = Manifest::read(&self.live_path()).ok().map(|m| m.generation);
        run.max(self.current().ok().flatten()).max(unfinished).unwrap_or_default().next()
    }

    /// The agent's key: made at the first call, the same ever after, since a restored guest has it
    /// in its memory.
    pub fn key(&self) -> io::Result<AgentKey> {
        let path = self.path.join("key");
        match read_small(&path) {
            Ok(text) => {
                let text = String::from_utf8_lossy(&text);
                text.trim().parse().map_err(|e| {
                    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {e}", path.display()))
                })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = AgentKey::generate();
                write_durably(&path, String::from(key.clone()).as_bytes())?;
                Ok(key)
            }
            Err(error) => Err(error),
        }
    }

    /// What is known of the newest life.
    pub fn run_record(&self) -> Option<RunRecord> {
        serde_json::from_slice(&read_small(&self.path.join(RUN)).ok()?).ok()
    }

    /// Notes how a later waker finds the VM. It need not survive a power loss: the VM does not.
    pub fn write_run_record(&self, record: &RunRecord) -> io::Result<()> {
        fault::hit("run-record")?;
        let temporary = self.path.join(".run.json");
        fs::write(&temporary, serde_json::to_vec(record)?)?;
        fs::rename(&temporary, self.path.join(RUN))
    }

    /// What an earlier waker knew of the app's failures. One that can't be read is none.
    pub fn standing(&self) -> Standing {
        let text = read_small(&self.path.join(STANDING)).ok();
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Notes the app's failures for the next waker.
    pub fn write_standing(&self, standing: &Standing) -> io::Result<()> {
        let path = self.path.join(STANDING);
        if *standing == Standing::default() {
            remove_file(&path)?;
            return self.sync();
        }
        write_durably(&path, &serde_json::to_vec(standing)?)
    }

    /// Opens and checks the newest generation, and consumes it: from now on it is no image any more,
    /// whatever happens. That must be durable, by [`Self::sync_consumed`], before a vCPU runs.
    pub fn consume(
        &self,
        machine: &MachineConfig,
        vmm: &VmmIdentity,
    ) -> Result<Live, ImageRefusal> {
        let _turn = self.turns.take();
        let current = || {
            let unknown = |source| ImageRefusal::Busy { path: self.path.clone(), source };
            self.current().map_err(unknown)
        };
        if current()?.is_none() {
            self.finish()?;
        }
        let generation = current()?.ok_or(ImageRefusal::None)?;
        let from = self.path.join(generation_name(generation));
        let manifest = Manifest::read(&from)?;
        manifest::same("generation", &manifest.generation, &generation)?;
        manifest.fits(&self.app, machine, vmm)?;
        let manifest = self.merge(&from, manifest)?;
        manifest.names(&from)?;
        let memory = from.join(MEMORY);
        let memory_lock = lock(&memory, FlockOperation::NonBlockingLockShared)
            .map_err(|source| ImageRefusal::reading(memory.clone(), source))?
            .ok_or_else(|| ImageRefusal::Busy { path: memory, source: in_use() })?;
        let live = self.live_path();
        fault::hit("consume")
            .and_then(|()| fs::rename(&from, &live))
            .and_then(|()| fs::rename(live.join(MANIFEST), live.join(CONSUMED)))
            .and_then(|()| self.point_to(None))
            .map_err(ImageRefusal::Consume)?;
        Ok(Live { path: live, memory_lock, from: Some(generation) })
    }

    /// Makes what [`Self::consume`] did durable.
    pub fn sync_consumed(&self) -> io::Result<()> {
        sync_dir(&self.live_path())?;
        self.sync()?;
        fault::hit("consumed")
    }

    /// A `live` for a cold boot, with the app's disk. What is left of an image that is not used is set
    /// aside for the operator to look at, but for the disk, which is the one and only.
    pub fn fresh(&self, machine: &MachineConfig) -> Result<Live, FreshError> {
        let _turn = self.turns.take();
        fault::hit("fresh")?;
        self.end_lazy()?;
        let live = self.live_path();
        if let Some(generation) = self.current()? {
            if live.try_exists()? {
                self.set_aside(&live)?;
            }
            fs::rename(self.path.join(generation_name(generation)), &live)?;
            self.point_to(None)?;
            self.sync()?;
        }
        if live.join(MANIFEST).try_exists()? {
            let aside = self.clear_aside()?;
            fs::create_dir(&aside)?;
            fs::rename(live.join(MANIFEST), aside.join(MANIFEST))?;
            sync_dir(&live)?;
            for name in OF_A_LIFE {
                if live.join(name).exists() {
                    fs::rename(live.join(name), aside.join(name))?;
                }
            }
            self.forget_work(&live)?;
        } else if live.try_exists()? {
            self.strip(&live)?;
        }
        if !live.try_exists()? {
            fs::DirBuilder::new().mode(0o700).create(&live)?;
            self.sync()?;
        }
        if let Some(disk) = &machine.disk {
            disk::provide(&live, disk)?;
        }
        let memory =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(live.join(MEMORY))?;
        memory.set_len(machine.memory_bytes())?;
        drop(memory);
        let memory_lock =
            lock(&live.join(MEMORY), FlockOperation::NonBlockingLockShared)?.ok_or_else(in_use)?;
        Ok(Live { path: live, memory_lock, from: None })
    }

    /// Makes memory *and* disk of the last sleep the app's image again, where both were kept; false:
    /// there is nothing to go back to. The disk as it was is set aside.
    pub fn roll_back(&self) -> io::Result<bool> {
        let _turn = self.turns.take();
        let live = self.live_path();
        let from = match self.current()? {
            Some(generation) => self.path.join(generation_name(generation)),
            None => live.clone(),
        };
        let pair = from.join(PAIR);
        let Ok(manifest) = Manifest::read(&pair) else { return Ok(false) };
        if from != live {
            if live.exists() {
                self.set_aside(&live)?;
            }
            fs::rename(&from, &live)?;
        }
        fs::rename(live.join(PAIR), self.path.join(generation_name(manifest.generation)))?;
        self.sync()?;
        self.set_aside(&live)?;
        self.point_to(Some(manifest.generation))?;
        Ok(true)
    }

    /// Makes a consumed image that no VMM has mapped an image again, as it was.
    pub fn put_back(&self, live: Live) -> io::Result<()> {
        let Some(generation) = live.from else { return Ok(()) };
        fs::rename(live.path.join(CONSUMED), live.path.join(MANIFEST))?;
        sync_dir(&live.path)?;
        fs::rename(&live.path, self.path.join(generation_name(generation)))?;
        self.point_to(Some(generation))?;
        self.sync()
    }

    /// Makes a consumed image that a VMM has loaded, and no vCPU has run on, one that the next wake
    /// checks byte by byte before it is used.
    pub fn put_back_unchecked(&self, live: &Live) -> io::Result<()> {
        fs::rename(live.path.join(CONSUMED), live.path.join(MANIFEST))?;
        sync_dir(&live.path)
    }

    /// The `live` of a VM that runs. What an earlier waker had settled is to be taken back, by
    /// [`Self::undo`], before that VM is adopted.
    pub fn live(&self) -> io::Result<Live> {
        let path = self.live_path();
        fs::metadata(path.join(MEMORY))?;
        let memory_lock =
            lock(&path.join(MEMORY), FlockOperation::NonBlockingLockShared)?.ok_or_else(in_use)?;
        Ok(Live { path, memory_lock, from: None })
    }

    /// Makes renames in this directory durable.
    pub fn sync(&self) -> io::Result<()> {
        sync_dir(&self.path)
    }

    /// Removes what is left of a life that has ended without a sleep; its disk stays, and so does
    /// what was to become a generation.
    pub fn discard_live(&self) -> io::Result<()> {
        self.end_lazy()?;
        let live = self.live_path();
        if live.exists() && !live.join(MANIFEST).exists() { self.strip(&live) } else { Ok(()) }
    }

    /// What its files occupy.
    pub fn sizes(&self) -> Sizes {
        let directory = match self.current().ok().flatten() {
            Some(generation) => self.path.join(generation_name(generation)),
            None => self.live_path(),
        };
        let disk = fs::metadata(directory.join(DISK)).ok();
        Sizes {
            image_bytes: self.image_bytes(&directory),
            disk: disk.map(|m| (m.blocks() * 512, m.len())),
        }
    }
}

/// An exclusive lock on the file at `path`, which is made if it is not there; none when it is held.
pub fn lock_exclusively(path: &Path) -> io::Result<Option<OwnedFd>> {
    lock(path, FlockOperation::NonBlockingLockExclusive)
}

/// The apps under `apps` whose lock is held and whose record tells of a living process: their VMs run.
pub fn running(apps: &Path) -> io::Result<Vec<(AppId, RunRecord)>> {
    let mut running = Vec::new();
    for entry in fs::read_dir(apps)? {
        let path = entry?.path();
        let Some(app) = path.file_name().and_then(|n| n.to_str()?.parse().ok()) else {
            continue;
        };
        let dir = AppDir { path, app, turns: room::Turns::default() };
        if dir.lock()?.is_none()
            && let Some(record) = dir.run_record()
            && start_ticks(record.pid).is_ok_and(|ticks| ticks == record.start_ticks)
        {
            running.push((dir.app, record));
        }
    }
    Ok(running)
}

/// A life's directory: the memory that a VM has mapped, or is about to.
#[derive(Debug)]
pub struct Live {
    path: PathBuf,
    /// Shared: whoever wants to change the file beside the VM asks for an exclusive one.
    memory_lock: OwnedFd,
    /// The generation that was consumed; none at a cold boot.
    from: Option<Generation>,
}

impl Live {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The memory file.
    pub fn memory(&self) -> PathBuf {
        self.path.join(MEMORY)
    }

    /// The device state.
    pub fn state(&self) -> PathBuf {
        self.path.join(STATE)
    }

    /// Where a VMM that maps memory privately writes what changed.
    pub fn layer(&self) -> PathBuf {
        self.path.join(LAYER)
    }

    /// The disk; none: it has none.
    pub fn disk(&self) -> Option<PathBuf> {
        Some(self.path.join(DISK)).filter(|disk| disk.exists())
    }

    /// A duplicate of the lock on the memory file, for the VMM.
    pub fn memory_lock(&self) -> io::Result<OwnedFd> {
        self.memory_lock.try_clone()
    }

    /// Makes way for a new device state.
    pub fn clear_state(&self) -> io::Result<()> {
        fault::hit("save")?;
        for name in [STATE, LAYER, LAYER_MAP] {
            remove_file(&self.path.join(name))?;
        }
        Ok(())
    }
}

fn generation_name(generation: Generation) -> String {
    format!("gen-{generation}")
}

fn generation_of(name: &str) -> Option<Generation> {
    name.strip_prefix("gen-")?.parse().ok().map(Generation)
}

#[cfg(test)]
mod tests;
