//! An app's directory: generations, the consumed one, and the locks.
//!
//! ```text
//! apps/<app>/app.lock  key  run.json  current -> gen-7/
//!            gen-7/    manifest.json  memory.img  memory.map  vm.state
//!            live/     the same directory while its life runs: consumed, no image any more
//! ```
//!
//! A wake renames `gen-7` to `live` before a vCPU runs; the sleep after it writes what is missing into
//! `live` and renames that to `gen-8`. The manifest is written last of all, so a directory without a
//! valid one is garbage, and so is a `live` whose VM is gone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::signature::AgentKey;
use rouse_snapshot_format::{ImageId, Map, SparsifyOptions, sparsify};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::config::MachineConfig;
use crate::vmm::process::start_ticks;
use crate::vmm::{RunRecord, VmmIdentity};

/// The version of [`Manifest`] that is written, and the only one that is read.
const FORMAT: u32 = 1;
/// The longest manifest, key or run record that is read, in bytes.
const MAX_SMALL_FILE: u64 = 64 * 1024;
/// The largest device state that is read, in bytes. QEMU's is some 60 KB.
const MAX_VM_STATE: u64 = 256 << 20;

const MANIFEST: &str = "manifest.json";
const MEMORY: &str = "memory.img";
const MAP: &str = "memory.map";
const STATE: &str = "vm.state";
const CURRENT: &str = "current";
const LIVE: &str = "live";
const RUN: &str = "run.json";

/// What binds the parts of one generation, and what they depend on. The commit point of a sleep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this form.
    pub format: u32,
    /// The app.
    pub app: AppId,
    /// The generation.
    pub generation: Generation,
    /// The id that memory, its map and the device state share; hexadecimal.
    pub image_id: String,
    /// When it fell asleep, in milliseconds of Unix time.
    pub slept_unix_ms: u64,
    /// What can load it.
    pub vmm: VmmIdentity,
    /// [`MachineConfig::fingerprint`] when its life began.
    pub machine: String,
    /// The guest's RAM in bytes.
    pub memory_bytes: u64,
    /// Its vCPUs.
    pub vcpus: u8,
    /// BLAKE3 of the map, hexadecimal.
    pub map_blake3: String,
    /// The device state's size in bytes.
    pub state_bytes: u64,
    /// BLAKE3 of the device state, hexadecimal.
    pub state_blake3: String,
}

/// Why an image is not used. It leads to a cold boot, never to a guess.
#[derive(Debug, thiserror::Error)]
pub enum ImageRefusal {
    /// There is none.
    #[error("there is no image")]
    None,
    /// A part can't be read.
    #[error("{path}: {source}")]
    Read {
        /// The part.
        path: PathBuf,
        /// What reading it said.
        source: io::Error,
    },
    /// Another process has locked its memory. It is not spent by that.
    #[error("{path}: {source}")]
    Busy {
        /// The memory.
        path: PathBuf,
        /// That it is locked.
        source: io::Error,
    },
    /// The manifest is none of this version.
    #[error("{path} is no manifest of format {FORMAT}: {detail}")]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// It was made by or for something else.
    #[error("its {what} is {image}, and here it is {here}")]
    Mismatch {
        /// What differs.
        what: &'static str,
        /// As the image has it.
        image: String,
        /// As it is here.
        here: String,
    },
    /// A part is not the one that the manifest names.
    #[error("{path} is damaged: its {what} does not match")]
    Damaged {
        /// The part.
        path: PathBuf,
        /// What does not match.
        what: &'static str,
    },
    /// The map is no map.
    #[error("{path}: {source}")]
    Map {
        /// The map.
        path: PathBuf,
        /// What is wrong with it.
        source: rouse_snapshot_format::OpenMapError,
    },
    /// It was good and could not be consumed.
    #[error("it can't be consumed: {0}")]
    Consume(io::Error),
}

impl ImageRefusal {
    /// A word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Read { .. } => "read",
            Self::Busy { .. } => "busy",
            Self::Manifest { .. } => "manifest",
            Self::Mismatch { what, .. } => what,
            Self::Damaged { .. } | Self::Map { .. } => "damaged",
            Self::Consume(_) => "consume",
        }
    }
}

/// Why a life could not be published as a generation.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The memory could not be made sparse.
    #[error(transparent)]
    Sparsify(#[from] rouse_snapshot_format::SparsifyError),
    /// The map could not be written.
    #[error(transparent)]
    Map(#[from] rouse_snapshot_format::WriteMapError),
    /// A file could not be written, synced or renamed.
    #[error("{path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A generation that was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Which.
    pub generation: Generation,
    /// What memory and state occupy on disk, in bytes.
    pub image_bytes: u64,
}

/// An app's directory, locked: one waker at a time works on it, and one VM.
#[derive(Debug)]
pub struct AppDir {
    path: PathBuf,
    app: AppId,
}

/// What was found in an app's directory.
#[derive(Debug)]
pub enum Found {
    /// Nobody runs the app. The newest generation that sleeps, if any.
    Asleep(Option<Generation>),
    /// A VM holds the lock, and this is what is known of it.
    Running(Option<RunRecord>),
}

impl AppDir {
    /// The directory of `app` under `apps`, made if it is not there.
    pub fn open(apps: &Path, app: &AppId) -> io::Result<Self> {
        let path = apps.join(app.as_str());
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        Ok(Self { path, app: app.clone() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The app's lock, if nobody holds it. The VMM gets a duplicate, so that it is held for as long
    /// as either of the two lives.
    pub fn lock(&self) -> io::Result<Option<OwnedFd>> {
        lock_exclusively(&self.path.join("app.lock"))
    }

    /// What there is. Removes the garbage of a life that has ended without a sleep.
    pub fn look(&self) -> io::Result<(Found, Option<OwnedFd>)> {
        let Some(lock) = self.lock()? else {
            return Ok((Found::Running(self.run_record()), None));
        };
        remove_dir(&self.path.join(LIVE))?;
        let newest = self.current();
        for (generation, path) in self.generations() {
            if Some(generation) != newest {
                remove_dir(&path)?;
            }
        }
        // A crash may have come between a generation's rename and this one.
        self.point_to(newest)?;
        Ok((Found::Asleep(newest), Some(lock)))
    }

    /// The newest generation that sleeps: a directory has such a name only when it is whole.
    fn current(&self) -> Option<Generation> {
        self.generations().map(|(generation, _)| generation).max()
    }

    fn generations(&self) -> impl Iterator<Item = (Generation, PathBuf)> + use<> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter_map(|e| Some((generation_of(e.file_name().to_str()?)?, e.path())))
    }

    /// Points `current`, which is there for people, to a generation.
    fn point_to(&self, generation: Option<Generation>) -> io::Result<()> {
        let current = self.path.join(CURRENT);
        let Some(generation) = generation else {
            return match fs::remove_file(current) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        };
        let link = self.path.join(".current");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(generation_name(generation), &link)?;
        fs::rename(&link, current)
    }

    /// The number for the next life: above all that were.
    pub fn next_generation(&self) -> Generation {
        let run = self.run_record().map(|r| r.generation).unwrap_or_default();
        run.max(self.current().unwrap_or_default()).next()
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
        let temporary = self.path.join(".run.json");
        fs::write(&temporary, serde_json::to_vec(record)?)?;
        fs::rename(&temporary, self.path.join(RUN))
    }

    /// Opens and checks the newest generation, and consumes it: from now on it is no image any more,
    /// whatever happens. That must be durable, by [`Self::sync`], before a vCPU runs.
    pub fn consume(
        &self,
        machine: &MachineConfig,
        vmm: &VmmIdentity,
    ) -> Result<Live, ImageRefusal> {
        let generation = self.current().ok_or(ImageRefusal::None)?;
        let from = self.path.join(generation_name(generation));
        self.check(&from, generation, machine, vmm)?;
        let memory_lock = lock(&from.join(MEMORY), FlockOperation::NonBlockingLockShared)
            .map_err(|source| ImageRefusal::Read { path: from.join(MEMORY), source })?
            .ok_or_else(|| ImageRefusal::Busy { path: from.join(MEMORY), source: in_use() })?;
        fs::rename(&from, self.path.join(LIVE))
            .and_then(|()| self.point_to(None))
            .map_err(ImageRefusal::Consume)?;
        Ok(Live { path: self.path.join(LIVE), memory_lock, from: Some(generation) })
    }

    fn check(
        &self,
        directory: &Path,
        generation: Generation,
        machine: &MachineConfig,
        vmm: &VmmIdentity,
    ) -> Result<(), ImageRefusal> {
        let path = directory.join(MANIFEST);
        let text = read_small(&path)
            .map_err(|source| ImageRefusal::Read { path: path.clone(), source })?;
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| {
            ImageRefusal::Manifest { path: path.clone(), detail: error.to_string() }
        })?;
        same("format", &manifest.format, &FORMAT)?;
        same("app", &manifest.app, &self.app)?;
        same("generation", &manifest.generation, &generation)?;
        same("VMM", &manifest.vmm.kind, &vmm.kind)?;
        same("VMM version", &manifest.vmm.version, &vmm.version)?;
        same("accelerator", &manifest.vmm.accelerator, &vmm.accelerator)?;
        same("CPU", &manifest.vmm.cpu, &vmm.cpu)?;
        same("memory size", &manifest.memory_bytes, &machine.memory_bytes())?;
        same("vCPU count", &manifest.vcpus, &machine.vcpus)?;
        same("machine", &manifest.machine, &machine.fingerprint())?;

        let damaged = |name: &str, what| ImageRefusal::Damaged { path: directory.join(name), what };
        let read = |name: &str, limit| {
            let path = directory.join(name);
            read_bounded(&path, limit).map_err(|source| ImageRefusal::Read { path, source })
        };
        let state = read(STATE, MAX_VM_STATE)?;
        if state.len() as u64 != manifest.state_bytes {
            return Err(damaged(STATE, "size"));
        }
        if blake3::hash(&state).to_hex().as_str() != manifest.state_blake3 {
            return Err(damaged(STATE, "checksum"));
        }
        let map_path = directory.join(MAP);
        let map_bytes = read(MAP, MAX_VM_STATE)?;
        if blake3::hash(&map_bytes).to_hex().as_str() != manifest.map_blake3 {
            return Err(damaged(MAP, "checksum"));
        }
        let map =
            Map::open(&map_path).map_err(|source| ImageRefusal::Map { path: map_path, source })?;
        if map.image_id().to_string() != manifest.image_id {
            return Err(damaged(MAP, "image id"));
        }
        let memory = directory.join(MEMORY);
        let size = fs::metadata(&memory)
            .map_err(|source| ImageRefusal::Read { path: memory.clone(), source })?
            .len();
        if size != manifest.memory_bytes || map.mem_size() != size {
            return Err(damaged(MEMORY, "size"));
        }
        Ok(())
    }

    /// A fresh `live` for a cold boot. An image that was refused is set aside, not destroyed: the
    /// newest one stays as `refused` for the operator to look at.
    pub fn fresh(&self, machine: &MachineConfig) -> io::Result<Live> {
        if let Some(generation) = self.current() {
            let aside = self.path.join("refused");
            remove_dir(&aside)?;
            fs::rename(self.path.join(generation_name(generation)), aside)?;
            self.point_to(None)?;
        }
        let path = self.path.join(LIVE);
        remove_dir(&path)?;
        fs::create_dir(&path)?;
        let memory =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path.join(MEMORY))?;
        memory.set_len(machine.memory_bytes())?;
        drop(memory);
        let memory_lock =
            lock(&path.join(MEMORY), FlockOperation::NonBlockingLockShared)?.ok_or_else(in_use)?;
        Ok(Live { path, memory_lock, from: None })
    }

    /// Makes a consumed image that no VMM has mapped an image again, as it was.
    pub fn put_back(&self, live: Live) -> io::Result<()> {
        let Some(generation) = live.from else { return Ok(()) };
        fs::rename(&live.path, self.path.join(generation_name(generation)))?;
        self.point_to(Some(generation))?;
        self.sync()
    }

    /// The `live` of an adopted VM.
    pub fn live(&self) -> io::Result<Live> {
        let path = self.path.join(LIVE);
        let memory_lock =
            lock(&path.join(MEMORY), FlockOperation::NonBlockingLockShared)?.ok_or_else(in_use)?;
        Ok(Live { path, memory_lock, from: None })
    }

    /// Makes renames in this directory durable.
    pub fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    /// Removes what is left of a life that has ended without a sleep.
    pub fn discard_live(&self) -> io::Result<()> {
        remove_dir(&self.path.join(LIVE))
    }

    /// Turns a life whose VM is gone, and whose memory and device state are synced, into a
    /// generation. Durable when it returns.
    pub fn publish(&self, live: Live, record: &RunRecord) -> Result<Published, PublishError> {
        let Live { path, memory_lock, from: _ } = live;
        // The VM is gone; with our own lock gone too, the file can be locked for punching.
        drop(memory_lock);
        let write = |path: &Path| {
            let path = path.to_owned();
            move |source| PublishError::Write { path, source }
        };
        let memory = path.join(MEMORY);
        let sparse = sparsify(&memory, &SparsifyOptions::default())?;
        File::open(&memory).and_then(|f| f.sync_all()).map_err(write(&memory))?;

        let image_id = ImageId::random();
        let map = sparse.into_map(image_id);
        let map_path = path.join(MAP);
        map.write(&map_path)?;
        let map_bytes = fs::read(&map_path).map_err(write(&map_path))?;
        let state_path = path.join(STATE);
        let state = fs::read(&state_path).map_err(write(&state_path))?;

        let slept = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let manifest = Manifest {
            format: FORMAT,
            app: self.app.clone(),
            generation: record.generation,
            image_id: image_id.to_string(),
            slept_unix_ms: u64::try_from(slept.as_millis()).unwrap_or(u64::MAX),
            vmm: record.identity.clone(),
            machine: record.machine.clone(),
            memory_bytes: map.mem_size(),
            vcpus: record.vcpus,
            map_blake3: blake3::hash(&map_bytes).to_hex().to_string(),
            state_bytes: state.len() as u64,
            state_blake3: blake3::hash(&state).to_hex().to_string(),
        };
        let manifest_path = path.join(MANIFEST);
        let text = serde_json::to_vec_pretty(&manifest).map_err(io::Error::from);
        text.and_then(|text| write_durably(&manifest_path, &text))
            .map_err(write(&manifest_path))?;

        let to = self.path.join(generation_name(record.generation));
        fs::rename(&path, &to)
            .and_then(|()| self.point_to(Some(record.generation)))
            .and_then(|()| self.sync())
            .map_err(write(&to))?;
        let blocks = |name: &str| fs::metadata(to.join(name)).map_or(0, |m| m.blocks() * 512);
        Ok(Published {
            generation: record.generation,
            image_bytes: blocks(MEMORY) + blocks(STATE) + blocks(MAP),
        })
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
        let dir = AppDir { path, app };
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
    /// The memory file.
    pub fn memory(&self) -> PathBuf {
        self.path.join(MEMORY)
    }

    /// The device state.
    pub fn state(&self) -> PathBuf {
        self.path.join(STATE)
    }

    /// A duplicate of the lock on the memory file, for the VMM.
    pub fn memory_lock(&self) -> io::Result<OwnedFd> {
        self.memory_lock.try_clone()
    }

    /// Makes way for a new device state: what the last wake loaded, its map and manifest go.
    pub fn clear_state(&self) -> io::Result<()> {
        for name in [MANIFEST, MAP, STATE] {
            match fs::remove_file(self.path.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// What makes memory and device state durable, to be run elsewhere; the VM may map the memory.
    pub fn sync_later(&self) -> impl FnOnce() -> io::Result<()> + Send + 'static {
        let (state, memory) = (self.state(), self.memory());
        move || {
            File::open(state)?.sync_all()?;
            File::open(memory)?.sync_all()
        }
    }
}

fn same<T: PartialEq + ToString>(
    what: &'static str,
    image: &T,
    here: &T,
) -> Result<(), ImageRefusal> {
    if image == here {
        return Ok(());
    }
    Err(ImageRefusal::Mismatch { what, image: image.to_string(), here: here.to_string() })
}

fn generation_name(generation: Generation) -> String {
    format!("gen-{generation}")
}

fn generation_of(name: &str) -> Option<Generation> {
    name.strip_prefix("gen-")?.parse().ok().map(Generation)
}

fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "another process has locked it")
}

/// A lock on the file at `path`, which is made if it is not there; none when it is held.
///
/// flock(2) locks belong to the open file, not to the process: a duplicate that another process
/// received keeps it. So it is only ever closed, never unlocked.
fn lock(path: &Path, how: FlockOperation) -> io::Result<Option<OwnedFd>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    match flock(&file, how) {
        Ok(()) => Ok(Some(file.into())),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    read_bounded(path, MAX_SMALL_FILE)
}

fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    if size > limit {
        let message = format!("has {size} bytes; the limit is {limit}");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Written to another name, synced, renamed, and the rename synced.
fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    let temporary = path.with_file_name(name);
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn remove_dir(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;
