//! Opening: what an earlier life left is served, finished, or removed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, fchmod, flock, mkdirat, openat};
use rustix::io::Errno;

use crate::cache::{Cache, Inner};
use crate::disk::{self, DIR_MODE, FILE_MODE, Found};
use crate::id::ContentId;
use crate::policy::Budget;
use crate::record::{self, Fault};
use crate::state::{Entry, State, Trash};

/// The lock of the whole cache.
const OWN_LOCK: &str = ".lock";

/// Why a cache can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it, or another part of this one.
    #[error(
        "{path}: another process has this cache open: end it, or give this one its own directory"
    )]
    InUse {
        /// The cache's directory.
        path: PathBuf,
    },
    /// It can't be read or written; or it is a symbolic link, which is not followed.
    #[error("{path}: {source}")]
    File {
        /// The directory, or what in it.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Cache {
    /// Opens the cache at `path`, whose parent is there. Reads every entry's record, removes what a crash
    /// left, and evicts nothing: where the budget is less than it was, [`Cache::evict`] is next.
    pub fn open(path: &Path, budget: Budget, now_unix_ms: u64) -> Result<Self, OpenError> {
        let failed = |path: PathBuf| move |source| OpenError::File { path, source };
        let path = std::path::absolute(path).map_err(failed(path.to_owned()))?;
        let root = open_root(&path).map_err(failed(path.clone()))?;
        let lock = open_lock(&root).map_err(failed(path.join(OWN_LOCK)))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(OpenError::InUse { path }),
            Err(errno) => return Err(failed(path.join(OWN_LOCK))(errno.into())),
        }
        let found = disk::list(root.as_fd(), usize::MAX).map_err(failed(path.clone()))?;
        let inner = Inner {
            path,
            root,
            lock: lock.into(),
            budget,
            state: Mutex::default(),
            turn: Mutex::default(),
            freed: Condvar::new(),
        };
        {
            let mut state = inner.state();
            for found in found {
                inner.sort(&mut state, found, now_unix_ms)?;
            }
            inner.measure_own(&mut state);
            state.draining = state.used() > budget.high();
        }
        inner.clear_stuck();
        Ok(Self(Arc::new(inner)))
    }
}

impl Inner {
    /// An entry, garbage, or somebody else's.
    fn sort(&self, state: &mut State, found: Found, now_unix_ms: u64) -> Result<(), OpenError> {
        let name = found.name.unwrap_or_default();
        if name == OWN_LOCK {
            return Ok(());
        }
        let directory = FileType::from_raw_mode(found.stat.st_mode) == FileType::Directory;
        if directory && let Some(number) = garbage(&name) {
            state.next = state.next.max(number);
            self.count(state, name);
            return Ok(());
        }
        let Some(id) = name.parse::<ContentId>().ok().filter(|_| directory) else {
            tracing::warn!(name, path = %self.path.display(), "not the cache's: left alone");
            return Ok(());
        };
        match record::load(self.root.as_fd(), &id) {
            Ok(contents) => {
                state.ledger.add(&contents.parts);
                // A clock that was ahead does not keep an entry for ever.
                let last_use = contents.last_use_unix_ms.min(now_unix_ms);
                state.entries.insert(id, Entry::new(contents, last_use));
                Ok(())
            }
            Err(Fault::Differs(why)) => {
                tracing::error!(%id, why, "an entry of the cache is not what its record says: it goes");
                state.stats.discarded += 1;
                let name = self.rename_entry(state, &id, "trash").map_err(|source| {
                    OpenError::File { path: self.path.join(id.to_string()), source }
                })?;
                self.count(state, name);
                Ok(())
            }
            Err(Fault::Unread(source)) => {
                Err(OpenError::File { path: self.path.join(id.to_string()), source })
            }
        }
    }

    /// Notes what is to be removed, and what it occupies.
    fn count(&self, state: &mut State, name: String) {
        let measured =
            disk::open_dir(self.root.as_fd(), &name).and_then(|dir| disk::measure(dir.as_fd()));
        let parts = measured.unwrap_or_else(|error| {
            tracing::warn!(name, %error, "garbage in the cache can't be measured");
            Vec::new()
        });
        state.ledger.add(&parts);
        state.stuck.push(Trash { name, parts, evicted: false });
    }

    /// Removes what can be removed of what is no entry; the rest is measured anew, since it may grow.
    pub(crate) fn clear_stuck(&self) {
        let stuck = {
            let mut state = self.state();
            let stuck = std::mem::take(&mut state.stuck);
            state.deleting += stuck.len();
            stuck
        };
        for mut trash in stuck {
            let measured = disk::open_dir(self.root.as_fd(), &trash.name)
                .and_then(|dir| disk::measure(dir.as_fd()));
            if let Ok(parts) = measured {
                let ledger = &mut self.state().ledger;
                ledger.remove(&trash.parts);
                ledger.add(&parts);
                trash.parts = parts;
            }
            self.delete(trash);
        }
    }
}

/// The number in a name that we give to what is no entry.
fn garbage(name: &str) -> Option<u64> {
    let kinds = [".draft-", ".trash-", ".taken-"];
    kinds.iter().find_map(|kind| name.strip_prefix(kind))?.parse().ok()
}

fn open_root(path: &Path) -> io::Result<OwnedFd> {
    match mkdirat(CWD, path, DIR_MODE) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, path, flags, Mode::empty())?;
    // Guests' memory is nobody else's to read.
    fchmod(&root, DIR_MODE)?;
    Ok(root)
}

fn open_lock(root: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(root, OWN_LOCK, flags, FILE_MODE)?)
}
