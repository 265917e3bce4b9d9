//! A generation that comes from the store, and one that goes there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rouse_protocol::app::Generation;
use rouse_protocol::signature::AgentKey;
use rouse_snapshot_format::Map;
use rustix::fs::FlockOperation;

use super::disk::DiskId;
use super::files::{
    in_use, lock, read_bounded, read_small, remove_dir, remove_file, sync_dir, write_durably,
};
use super::manifest::{ImageRefusal, MAX_PART, Manifest};
use super::{
    AppDir, CONSUMED, DISK, DISK_ID, Live, MANIFEST, MAP, MEMORY, NEVER_RAN, PAIR, STATE,
    generation_name,
};
use crate::store::{Local, Record};

const RECORD: &str = "store.json";
/// The agent's, in an app's directory, and beside what is fetched or kept.
const KEY: &str = "key";
/// What is being fetched.
const DRAFT: &str = ".fetch";
/// What is being removed.
const GONE: &str = ".gone";

/// A generation that sleeps, checked but for its memory and disk themselves.
#[derive(Debug)]
pub struct Sleeping {
    /// What binds it.
    pub manifest: Manifest,
    /// The memory's map.
    pub map: Map,
    /// The device state.
    pub state: Vec<u8>,
    /// The memory file.
    pub memory: PathBuf,
    /// The disk; none: it has none.
    pub disk: Option<PathBuf>,
}

/// A directory for what a generation is made of, with its empty files for memory and disk.
#[derive(Debug)]
pub struct Draft<'a> {
    path: &'a Path,
}

impl<'a> Draft<'a> {
    /// In the empty directory at `path`.
    pub fn new(path: &'a Path) -> io::Result<Self> {
        for name in [MEMORY, DISK] {
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path.join(name))?;
        }
        Ok(Self { path })
    }

    /// The one at `path`.
    pub fn at(path: &'a Path) -> Self {
        Self { path }
    }

    /// The memory file.
    pub fn memory(&self) -> PathBuf {
        self.path.join(MEMORY)
    }

    /// The disk.
    pub fn disk(&self) -> PathBuf {
        self.path.join(DISK)
    }

    /// Puts the rest beside them: the map too, unless it is there. They are synced, if they are whole. Durable when
    /// it returns.
    pub fn finish(
        self,
        manifest: Manifest,
        map: Option<&Map>,
        state: &[u8],
        key: &AgentKey,
    ) -> io::Result<()> {
        let path = self.path;
        match &manifest.disk {
            None => fs::remove_file(path.join(DISK))?,
            Some(seal) => {
                let id = DiskId { id: seal.id.clone() };
                write_synced(&path.join(DISK_ID), &serde_json::to_vec(&id)?)?;
                // The memory knows the disk by when it was last written to.
                let written = u64::try_from(seal.written_unix_ns).unwrap_or(0);
                let written = UNIX_EPOCH + Duration::from_nanos(written);
                let disk = OpenOptions::new().write(true).open(path.join(DISK))?;
                disk.set_times(fs::FileTimes::new().set_modified(written))?;
                disk.sync_all()?;
            }
        }
        write_synced(&path.join(STATE), state)?;
        let bytes = match map {
            Some(map) => {
                let bytes = map.to_bytes().map_err(io::Error::other)?;
                write_synced(&path.join(MAP), &bytes)?;
                bytes
            }
            // It is there already.
            None => read_bounded(&path.join(MAP), MAX_PART)?,
        };
        let manifest =
            Manifest { map_blake3: blake3::hash(&bytes).to_hex().to_string(), ..manifest };
        write_synced(&path.join(MANIFEST), &serde_json::to_vec_pretty(&manifest)?)?;
        write_synced(&path.join(KEY), String::from(key.clone()).as_bytes())?;
        sync_dir(path)
    }
}

/// A generation that is in the store and leaves the app's directory. Whatever happens, nobody wakes it from
/// here any more.
#[derive(Debug)]
pub struct Leaving<'a> {
    dir: &'a AppDir,
    path: PathBuf,
}

impl Leaving<'_> {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves its parts into another directory on the same file system.
    pub fn move_into(&self, to: &Path) -> io::Result<()> {
        for name in [MANIFEST, MEMORY, MAP, STATE, DISK, DISK_ID, KEY] {
            match fs::rename(self.path.join(name), to.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes what is left of it.
    pub fn remove(self) -> io::Result<()> {
        remove_dir(&self.path)?;
        self.dir.sync()
    }
}

impl AppDir {
    /// What this node notes of the app in the store.
    pub fn store_record(&self) -> io::Result<Option<Record>> {
        let path = self.path.join(RECORD);
        match read_small(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes it, durably.
    pub fn write_store_record(&self, record: &Record) -> io::Result<()> {
        write_durably(&self.path.join(RECORD), &serde_json::to_vec(record)?)
    }

    /// What there is of the app. An app that runs has remains.
    pub fn local(&self) -> io::Result<Local> {
        let live = self.live_path();
        Ok(match self.current()? {
            Some(generation) => Local::Asleep(generation),
            // What was to become a generation is one as soon as it is looked at closely.
            None => match Manifest::read(&live) {
                Ok(manifest) => Local::Asleep(manifest.generation),
                Err(_) if live.join(DISK).try_exists()? => Local::Remains,
                Err(_) => Local::Nothing,
            },
        })
    }

    /// The generation that sleeps here, if there is one, to be sent.
    pub fn sleeping(&self) -> Result<Option<Sleeping>, ImageRefusal> {
        let unknown = |source| ImageRefusal::Busy { path: self.path.clone(), source };
        let Some(generation) = self.current().map_err(unknown)? else { return Ok(None) };
        let from = self.path.join(generation_name(generation));
        let manifest = {
            let _turn = self.turns.take();
            self.merge(&from, Manifest::read(&from)?)?
        };
        let map = manifest.names(&from)?;
        let state = from.join(STATE);
        let state = read_bounded(&state, MAX_PART)
            .map_err(|source| ImageRefusal::reading(state.clone(), source))?;
        let disk = Some(from.join(DISK)).filter(|_| manifest.disk.is_some());
        Ok(Some(Sleeping { manifest, map, state, memory: from.join(MEMORY), disk }))
    }

    /// Where a generation is fetched to: what an earlier try has left is removed.
    pub fn clear_draft(&self) -> io::Result<PathBuf> {
        let path = self.path.join(DRAFT);
        remove_dir(&path)?;
        Ok(path)
    }

    /// [`Self::clear_draft`], made.
    pub fn make_draft(&self) -> io::Result<PathBuf> {
        let path = self.clear_draft()?;
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(path)
    }

    /// Takes a generation that is free away from what this node wakes, with the key beside it. None: it is not
    /// here, or kept for a way back.
    pub fn leaving(
        &self,
        generation: Generation,
        key: &AgentKey,
    ) -> io::Result<Option<Leaving<'_>>> {
        let _turn = self.turns.take();
        let from = self.path.join(generation_name(generation));
        if self.current()? != Some(generation) || from.join(PAIR).try_exists()? {
            return Ok(None);
        }
        self.trim_now(&from)?;
        write_durably(&from.join(KEY), String::from(key.clone()).as_bytes())?;
        let path = self.path.join(GONE);
        remove_dir(&path)?;
        fs::rename(&from, &path)?;
        self.point_to(None)?;
        self.sync()?;
        Ok(Some(Leaving { dir: self, path }))
    }

    /// Removes what a fetch or a removal that were cut off have left.
    pub(super) fn forget_fetches(&self) -> io::Result<()> {
        remove_dir(&self.path.join(DRAFT))?;
        remove_dir(&self.path.join(GONE))
    }

    /// Removes a generation that is in the store. A crash leaves it whole, or not at all.
    fn remove(&self, generation: Generation) -> io::Result<()> {
        let gone = self.path.join(GONE);
        remove_dir(&gone)?;
        fs::rename(self.path.join(generation_name(generation)), &gone)?;
        self.sync()?;
        remove_dir(&gone)
    }

    /// Makes what is whole in the directory at `path`, [`Self::clear_draft`]'s, the app's newest generation. What
    /// was here is thrown away if it is `superseded`, and set aside otherwise. Durable when it returns.
    pub fn adopt(&self, path: &Path, superseded: bool) -> io::Result<(Generation, AgentKey)> {
        let _turn = self.turns.take();
        let manifest = Manifest::read(path).map_err(io::Error::other)?;
        let key = read_small(&path.join(KEY))?;
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{KEY}: {error}"));
        let key: AgentKey = String::from_utf8_lossy(&key).trim().parse().map_err(wrong)?;
        // A restored guest has it in its memory.
        fs::rename(path.join(KEY), self.path.join(KEY))?;
        self.make_way(superseded)?;
        let generation = manifest.generation;
        fs::rename(path, self.path.join(generation_name(generation)))?;
        self.point_to(Some(generation))?;
        self.sync()?;
        Ok((generation, key))
    }

    /// As [`Self::adopt`], and consumed at once: the memory is still on its way. Until [`Self::runs_now`] it is
    /// nobody's loss if it goes.
    pub fn begin_fetched(&self, path: &Path, superseded: bool) -> io::Result<Live> {
        let _turn = self.turns.take();
        fs::rename(path.join(KEY), self.path.join(KEY))?;
        fs::rename(path.join(MANIFEST), path.join(CONSUMED))?;
        write_synced(&path.join(NEVER_RAN), b"")?;
        sync_dir(path)?;
        self.make_way(superseded)?;
        let live = self.live_path();
        fs::rename(path, &live)?;
        self.point_to(None)?;
        self.sync()?;
        let memory_lock = lock(&live.join(MEMORY), FlockOperation::NonBlockingLockShared)?;
        Ok(Live { path: live, memory_lock: memory_lock.ok_or_else(in_use)?, from: None })
    }

    /// A vCPU is about to run on what was fetched. Durable when it returns.
    pub fn runs_now(&self, live: &Path) -> io::Result<()> {
        remove_file(&live.join(NEVER_RAN))?;
        sync_dir(live)
    }

    /// What is here is not woken any more.
    fn make_way(&self, superseded: bool) -> io::Result<()> {
        for (generation, there) in self.generations()? {
            if superseded {
                self.remove(generation)?;
            } else {
                self.set_aside(&there)?;
            }
        }
        let live = self.live_path();
        if live.join(NEVER_RAN).try_exists()? {
            remove_dir(&live)?;
        } else if live.try_exists()? {
            self.set_aside(&live)?;
        }
        self.sync()
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file: File = file?;
    file.write_all(bytes)?;
    file.sync_all()
}
