//! An entry that is being written.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, FlockOperation, Mode, fchmod, flock, mkdirat};
use rustix::io::Errno;

use crate::cache::{Cache, Inner, write_use};
use crate::disk::{self, DIR_MODE, FILE_MODE};
use crate::fault;
use crate::id::ContentId;
use crate::pinned::Pinned;
use crate::record::{self, EntryFile, LOCK, MAX_FILES, is_file_name};
use crate::room::{NoRoom, ReserveError};
use crate::state::{Entry, Trash};

/// Why a draft did not become an entry. The draft is gone.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// It outgrew what was reserved, and there is no room for the rest.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// It has no file, too many, or something that is none.
    #[error(
        "{path}: {what}: an entry is 1 to {MAX_FILES} plain files with names of a-z, 0-9, '.', '-', '_'"
    )]
    Unfit {
        /// The draft, or what in it.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Something that is not the cache's has the entry's name, or the entry of that name is spoilt and in use.
    #[error("{path} is in the way: look at it, and remove it")]
    Occupied {
        /// What is in the way.
        path: PathBuf,
    },
    /// A file can't be written or synced.
    #[error("{path}: {source}")]
    File {
        /// The draft's directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Room for an entry, and the directory in which it is written. Dropped, both are given back: whoever
/// writes there has ended by then.
#[derive(Debug)]
pub struct Draft {
    inner: Arc<Inner>,
    name: String,
    path: PathBuf,
    dir: OwnedFd,
    lock: File,
    reserved: u64,
    published: bool,
}

impl Cache {
    /// Room for files that will occupy `bytes` on disk, all together; evicts what has to go for that.
    pub fn reserve(&self, bytes: u64, now_unix_ms: u64) -> Result<Draft, ReserveError> {
        let inner = &self.0;
        let reserved = inner.admit(bytes, now_unix_ms)?;
        let made = make(inner);
        let mut state = inner.state();
        match made {
            Ok((name, dir, lock)) => {
                state.drafts.insert(name.clone(), reserved);
                inner.measure_own(&mut state);
                let path = inner.path.join(&name);
                let inner = inner.clone();
                Ok(Draft { inner, name, path, dir, lock, reserved, published: false })
            }
            Err(source) => {
                state.reserved = state.reserved.saturating_sub(reserved);
                Err(ReserveError::File { path: inner.path.clone(), source })
            }
        }
    }
}

fn make(inner: &Inner) -> io::Result<(String, OwnedFd, File)> {
    let name = loop {
        let name = Inner::fresh_name(&mut inner.state(), "draft");
        match mkdirat(&inner.root, name.as_str(), DIR_MODE) {
            Ok(()) => break name,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    let filled = || {
        fault::hit("draft-made")?;
        let dir = disk::open_dir(inner.root.as_fd(), &name)?;
        // The umask may have taken the owner's own rights away.
        fchmod(&dir, DIR_MODE)?;
        let lock = disk::create_file(dir.as_fd(), LOCK)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        fault::hit("draft-locked")?;
        Ok((dir, lock))
    };
    match filled() {
        Ok((dir, lock)) => Ok((name, dir, lock)),
        Err(error) => {
            inner.state().deleting += 1;
            inner.delete(Trash { name, parts: Vec::new(), evicted: false });
            Err(error)
        }
    }
}

impl Draft {
    /// The directory. Plain files may also be put there by path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes an empty file, to be read and written.
    pub fn create(&self, name: &str) -> io::Result<File> {
        if !is_file_name(name) {
            let what = format!("{name:?} is no name for a file of an entry");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        disk::create_file(self.dir.as_fd(), name)
    }

    /// Room for `bytes` more, before they are written.
    pub fn grow(&mut self, bytes: u64, now_unix_ms: u64) -> Result<(), ReserveError> {
        let more = self.inner.admit(bytes, now_unix_ms)?;
        self.promised(more);
        Ok(())
    }

    /// A descriptor for a process that writes here: as long as it is open there, the draft is not taken for
    /// a crash's and stays.
    pub fn lease(&self) -> io::Result<OwnedFd> {
        Ok(self.lock.try_clone()?.into())
    }

    /// Makes it the entry `id`, durably, and pins that. Where the entry is already there, from another
    /// draft, that one is the answer and this one goes. Descriptors that write into it are closed by then.
    pub fn publish(mut self, id: &ContentId, now_unix_ms: u64) -> Result<Pinned, PublishError> {
        let files = self.settle()?;
        let path = self.path.clone();
        let failed = |source| PublishError::File { path: path.clone(), source };
        record::write(self.dir.as_fd(), id, &files).map_err(failed)?;
        write_use(&self.dir, now_unix_ms).map_err(failed)?;
        fault::hit("recorded").and_then(|()| disk::sync(self.dir.as_fd())).map_err(failed)?;
        fault::hit("draft-synced").map_err(failed)?;
        let parts = disk::measure(self.dir.as_fd()).map_err(failed)?;
        let inner = self.inner.clone();
        let occupied = || PublishError::Occupied { path: inner.path.join(id.to_string()) };
        let contents = loop {
            let mut state = inner.state();
            if state.entries.contains_key(id) {
                drop(state);
                if let Some(pinned) = inner.pin(id, now_unix_ms) {
                    return Ok(pinned);
                }
                if inner.state().entries.contains_key(id) {
                    return Err(occupied());
                }
                continue;
            }
            let fresh = state.ledger.fresh(&parts);
            if let Some(more @ 1..) = fresh.checked_sub(self.reserved) {
                drop(state);
                inner.admit_exactly(more, now_unix_ms).map_err(|error| match error {
                    ReserveError::NoRoom(no_room) => PublishError::NoRoom(no_room),
                    ReserveError::File { path, source } => PublishError::File { path, source },
                })?;
                self.promised(more);
                continue;
            }
            match disk::rename_new(inner.root.as_fd(), &self.name, &id.to_string()) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(occupied());
                }
                renamed => renamed.map_err(failed)?,
            }
            // From here on it is an entry, and no draft that is given back.
            self.published = true;
            state.release(&self.name, self.reserved);
            inner.measure_own(&mut state);
            let loaded = flock(&self.lock, FlockOperation::Unlock)
                .map_err(|errno| record::Fault::from(io::Error::from(errno)))
                .and_then(|()| record::load(inner.root.as_fd(), id));
            match loaded {
                Ok(contents) => {
                    state.ledger.add(&contents.parts);
                    let entry = Entry::new(contents, now_unix_ms);
                    let kept = (entry.pin.clone(), entry.contents.clone());
                    state.entries.insert(*id, entry);
                    state.stats.published += 1;
                    break kept;
                }
                Err(fault) => {
                    // Somebody still wrote to it.
                    let source = io::Error::other(fault.to_string());
                    state.ledger.add(&parts);
                    let trash = inner.rename_entry(&mut state, id, "trash").map_err(failed)?;
                    state.deleting += 1;
                    drop(state);
                    inner.delete(Trash { name: trash, parts, evicted: false });
                    return Err(failed(source));
                }
            }
        };
        let pinned = Pinned::new(inner.clone(), *id, contents.0, contents.1);
        let synced = fault::hit("renamed").and_then(|()| disk::sync(inner.root.as_fd()));
        match synced.and_then(|()| fault::hit("published")) {
            Ok(()) => Ok(pinned),
            Err(source) => {
                unpublish(pinned);
                Err(failed(source))
            }
        }
    }

    /// Every file plain, ours alone, and on disk.
    fn settle(&self) -> Result<Vec<EntryFile>, PublishError> {
        let failed = |path: PathBuf| move |source| PublishError::File { path, source };
        let found =
            disk::list(self.dir.as_fd(), disk::MAX_NAMES).map_err(failed(self.path.clone()))?;
        let mut files = Vec::new();
        for found in found {
            let name = found.name.clone().unwrap_or_default();
            if name == LOCK {
                continue;
            }
            let path = self.path.join(&name);
            if !found.is(FileType::RegularFile) {
                return Err(PublishError::Unfit { path, what: "no plain file" });
            }
            if !is_file_name(&name) {
                return Err(PublishError::Unfit { path, what: "a name that is not allowed" });
            }
            let synced = disk::open_file(self.dir.as_fd(), &name).and_then(|file| {
                if Mode::from_raw_mode(found.stat.st_mode) != FILE_MODE {
                    fchmod(&file, FILE_MODE)?;
                }
                file.sync_all()?;
                file.metadata()
            });
            let size = synced.map_err(failed(path))?.len();
            files.push(EntryFile { name, size });
            fault::hit("file-synced").map_err(failed(self.path.clone()))?;
        }
        if files.is_empty() || files.len() > MAX_FILES {
            let what = if files.is_empty() { "no file" } else { "too many files" };
            return Err(PublishError::Unfit { path: self.path.clone(), what });
        }
        files.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(files)
    }

    fn promised(&mut self, more: u64) {
        self.reserved += more;
        self.inner.state().drafts.insert(self.name.clone(), self.reserved);
    }
}

/// Takes back what may not be durable, unless somebody uses it already: it is whole all the same.
fn unpublish(pinned: Pinned) {
    let inner = pinned.inner.clone();
    let mut state = inner.state();
    let known = state.entries.get(&pinned.id);
    let ours = known.is_some_and(|entry| {
        Arc::ptr_eq(&entry.pin, &pinned.pin) && entry.pins() == 1 && !inner.is_leased(&pinned.id)
    });
    if !ours {
        return;
    }
    let trash = inner.set_aside(&mut state, &pinned.id, false);
    drop(state);
    match trash {
        Ok(trash) => {
            inner.delete(trash);
        }
        Err(error) => tracing::warn!(id = %pinned.id, %error, "an entry can't be taken back"),
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.published {
            return;
        }
        let removed = disk::remove_locked(self.dir.as_fd(), &self.path);
        let left = removed.err().map(|error| {
            let name = &self.name;
            tracing::warn!(name, %error, "a draft can't be removed: it stays for now");
            disk::measure(self.dir.as_fd()).unwrap_or_default()
        });
        let mut state = self.inner.state();
        if let Some(parts) = left {
            state.ledger.add(&parts);
            state.stuck.push(Trash { name: self.name.clone(), parts, evicted: false });
        }
        state.release(&self.name, self.reserved);
        drop(state);
        self.inner.freed.notify_all();
    }
}
