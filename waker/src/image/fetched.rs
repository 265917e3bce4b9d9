//! A generation that comes from the store, and one that goes there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rouse_protocol::app::Generation;
use rouse_protocol::signature::AgentKey;
use rouse_snapshot_format::Map;

use super::disk::DiskId;
use super::files::{read_bounded, read_small, remove_dir, sync_dir, write_durably};
use super::manifest::{ImageRefusal, MAX_PART, Manifest};
use super::{AppDir, DISK, DISK_ID, MANIFEST, MAP, MEMORY, STATE, generation_name};
use crate::store::{Local, Record};

const RECORD: &str = "store.json";
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

/// Empty files to be filled with what a generation is made of.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
}

impl Draft {
    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The memory file.
    pub fn memory(&self) -> PathBuf {
        self.path.join(MEMORY)
    }

    /// The disk.
    pub fn disk(&self) -> PathBuf {
        self.path.join(DISK)
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

    /// An empty place to fetch a generation to; what an earlier try has left is removed.
    pub fn draft(&self) -> io::Result<Draft> {
        let path = self.path.join(DRAFT);
        remove_dir(&path)?;
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        for name in [MEMORY, DISK] {
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path.join(name))?;
        }
        Ok(Draft { path })
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

    /// Makes what was fetched the app's newest generation. Its files are whole and synced. Durable when it
    /// returns.
    pub fn adopt(
        &self,
        draft: Draft,
        manifest: Manifest,
        map: &Map,
        state: &[u8],
        key: &AgentKey,
        superseded: bool,
    ) -> io::Result<()> {
        let _turn = self.turns.take();
        let Draft { path } = draft;
        match &manifest.disk {
            None => fs::remove_file(path.join(DISK))?,
            Some(seal) => {
                let id = DiskId { id: seal.id.clone() };
                write_durably(&path.join(DISK_ID), &serde_json::to_vec(&id)?)?;
                // The memory knows the disk by when it was last written to.
                let written = u64::try_from(seal.written_unix_ns).unwrap_or(0);
                let written = UNIX_EPOCH + Duration::from_nanos(written);
                let disk = OpenOptions::new().write(true).open(path.join(DISK))?;
                disk.set_times(fs::FileTimes::new().set_modified(written))?;
                disk.sync_all()?;
            }
        }
        write_synced(&path.join(STATE), state)?;
        let bytes = map.to_bytes().map_err(io::Error::other)?;
        write_synced(&path.join(MAP), &bytes)?;
        let generation = manifest.generation;
        let manifest =
            Manifest { map_blake3: blake3::hash(&bytes).to_hex().to_string(), ..manifest };
        write_synced(&path.join(MANIFEST), &serde_json::to_vec_pretty(&manifest)?)?;
        sync_dir(&path)?;
        // A restored guest has it in its memory.
        write_durably(&self.path.join("key"), String::from(key.clone()).as_bytes())?;
        for (generation, there) in self.generations()? {
            if superseded {
                self.remove(generation)?;
            } else {
                self.set_aside(&there)?;
            }
        }
        let live = self.live_path();
        if live.try_exists()? {
            self.set_aside(&live)?;
        }
        fs::rename(&path, self.path.join(generation_name(generation)))?;
        self.point_to(Some(generation))?;
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
