//! The cache: what it has, and handing it out.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::{fs::File, io};

use rustix::fs::{
    AtFlags, FlockOperation, Timespec, Timestamps, UTIME_OMIT, flock, fstat, utimensat,
};

use crate::disk::{self, Locked, Removed};
use crate::fault;
use crate::id::ContentId;
use crate::pinned::Pinned;
use crate::policy::Budget;
use crate::record::{self, Fault, LOCK};
use crate::state::{State, Trash};
use crate::stats::Stats;

/// The cache in one directory, open in this process alone. Clones are the same cache. Its calls block on
/// disk, none of them on a user of an entry.
#[derive(Clone, Debug)]
pub struct Cache(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    pub(crate) root: OwnedFd,
    /// Locked: nobody else has the cache open.
    pub(crate) lock: File,
    pub(crate) budget: Budget,
    pub(crate) state: Mutex<State>,
    /// Whoever needs others gone waits for their turn, so that two do not evict for the same room.
    pub(crate) turn: Mutex<()>,
    /// Something was unlinked.
    pub(crate) freed: Condvar,
}

/// What is known of an entry without using it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryInfo {
    /// Which.
    pub id: ContentId,
    /// What it occupies, in bytes, files that it shares with others included.
    pub allocated_bytes: u64,
    /// When it was last used, in milliseconds of Unix time.
    pub last_use_unix_ms: u64,
    /// Somebody uses it, here or elsewhere.
    pub pinned: bool,
}

impl Cache {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// How much it may occupy.
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// Whether there is such an entry. No use of it, and counted nowhere.
    pub fn contains(&self, id: &ContentId) -> bool {
        self.0.state().entries.contains_key(id)
    }

    /// The entry, kept for as long as the answer lives. One that is not what its record says any more goes.
    pub fn get(&self, id: &ContentId, now_unix_ms: u64) -> Option<Pinned> {
        let pinned = self.0.pin(id, now_unix_ms);
        let mut state = self.0.state();
        match pinned {
            Some(_) => state.stats.hits += 1,
            None => state.stats.misses += 1,
        }
        pinned
    }

    /// All entries, in the order of their ids. Looks at each one's lock.
    pub fn entries(&self) -> Vec<EntryInfo> {
        let state = self.0.state();
        let info = |(id, entry): (&ContentId, &crate::state::Entry)| EntryInfo {
            id: *id,
            allocated_bytes: entry.contents.parts.iter().map(|part| part.bytes).sum(),
            last_use_unix_ms: entry.last_use_unix_ms,
            pinned: entry.pins() > 0 || self.0.is_leased(id),
        };
        let mut all: Vec<_> = state.entries.iter().map(info).collect();
        all.sort_unstable_by_key(|entry| entry.id);
        all
    }

    /// What it has and did.
    pub fn stats(&self) -> Stats {
        let state = self.0.state();
        Stats {
            entries: state.entries.len() as u64,
            allocated_bytes: state.allocated(),
            reserved_bytes: state.reserved,
            ..state.stats
        }
    }

    /// Writes down when entries were last used, for the next [`Cache::open`]. [`Cache::evict`] does it too,
    /// and so does the cache's end. What a crash loses makes entries look less used than they are.
    pub fn flush_uses(&self) {
        self.0.flush_uses();
    }
}

impl Inner {
    /// Nothing that is done under the mutex panics halfway through a change.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pin(self: &Arc<Self>, id: &ContentId, now_unix_ms: u64) -> Option<Pinned> {
        let mut state = self.state();
        let entry = state.entries.get_mut(id)?;
        let contents = entry.contents.clone();
        match record::check(self.root.as_fd(), id, &contents) {
            Ok(()) => {
                entry.used(now_unix_ms);
                return Some(Pinned::new(self.clone(), *id, entry.pin.clone(), contents));
            }
            Err(Fault::Unread(error)) => {
                tracing::warn!(%id, %error, "an entry of the cache can't be looked at");
                return None;
            }
            Err(Fault::Differs(why)) => {
                tracing::error!(%id, why, "an entry of the cache is not what it was: it goes");
            }
        }
        // Whoever has it pinned still finds what is left of it under its name.
        if entry.pins() > 0 || self.is_leased(id) {
            return None;
        }
        state.stats.discarded += 1;
        let trash = self.set_aside(&mut state, id, false);
        drop(state);
        match trash {
            Ok(trash) => {
                self.delete(trash);
            }
            Err(error) => tracing::warn!(%id, %error, "a spoilt entry can't be removed"),
        }
        None
    }

    /// Whether another holds a lease of the entry. Called under the state's mutex, as leases are given out
    /// under it. In doubt, yes.
    pub(crate) fn is_leased(&self, id: &ContentId) -> bool {
        let dir = match disk::open_dir(self.root.as_fd(), &id.to_string()) {
            Ok(dir) => dir,
            Err(error) => return error.kind() != io::ErrorKind::NotFound,
        };
        match disk::try_lock(dir.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(Locked::Held) => true,
            Ok(Locked::Ours(file)) => {
                // Closing is not enough: a process that is just being started may have a duplicate.
                let _ = flock(&file, FlockOperation::Unlock);
                false
            }
            Ok(Locked::Missing) => false,
            Err(error) => {
                tracing::warn!(%id, %error, "an entry's lock can't be tried: it stays");
                true
            }
        }
    }

    /// A name that nothing has yet, for a draft or for what is no entry any more.
    pub(crate) fn fresh_name(state: &mut State, kind: &str) -> String {
        // A directory found at the start may have had the highest number.
        state.next = state.next.wrapping_add(1);
        format!(".{kind}-{}", state.next)
    }

    /// Takes the entry's name away; it counts until [`Self::delete`] is through with it.
    pub(crate) fn set_aside(
        &self,
        state: &mut State,
        id: &ContentId,
        evicted: bool,
    ) -> io::Result<Trash> {
        let name = self.rename_entry(state, id, "trash")?;
        let parts = match state.entries.remove(id) {
            Some(entry) => entry.contents.parts.clone(),
            None => Vec::new(),
        };
        state.deleting += 1;
        Ok(Trash { name, parts, evicted })
    }

    /// Renames an entry's directory to a fresh name of that kind.
    pub(crate) fn rename_entry(
        &self,
        state: &mut State,
        id: &ContentId,
        kind: &str,
    ) -> io::Result<String> {
        loop {
            let name = Self::fresh_name(state, kind);
            fault::hit("set-aside")?;
            match disk::rename_new(self.root.as_fd(), &id.to_string(), &name) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // Somebody removed it: then there is nothing to remove under the new name either.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(name),
                renamed => {
                    renamed?;
                    self.measure_own(state);
                    return Ok(name);
                }
            }
        }
    }

    /// Unlinks, without the mutex, and takes what is gone out of the reckoning.
    pub(crate) fn delete(&self, trash: Trash) -> u64 {
        let removed = disk::remove(&self.root, &self.path, &trash.name);
        let mut state = self.state();
        state.deleting = state.deleting.saturating_sub(1);
        let mut freed = 0;
        match removed {
            Ok(Removed::Gone) => {
                freed = state.ledger.remove(&trash.parts);
                if trash.evicted {
                    state.stats.evicted_bytes += freed;
                }
            }
            Ok(Removed::InUse) => state.stuck.push(trash),
            Err(error) => {
                tracing::warn!(name = trash.name, %error, "the cache can't remove it: it stays for now");
                state.stuck.push(trash);
            }
        }
        drop(state);
        self.freed.notify_all();
        freed
    }

    /// The cache's own directory grows with its names.
    pub(crate) fn measure_own(&self, state: &mut State) {
        if let Ok(stat) = fstat(&self.root) {
            state.own = disk::part(&stat).bytes;
        }
    }

    pub(crate) fn flush_uses(&self) {
        let mut dirty = Vec::new();
        for (id, entry) in &mut self.state().entries {
            if std::mem::take(&mut entry.dirty) {
                dirty.push((*id, entry.last_use_unix_ms));
            }
        }
        for (id, last_use) in dirty {
            let written = disk::open_dir(self.root.as_fd(), &id.to_string())
                .and_then(|dir| write_use(&dir, last_use));
            // Evicted meanwhile, perhaps.
            if let Err(error) = written {
                tracing::debug!(%id, %error, "an entry's last use is not written down");
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.flush_uses();
        // Closing is not enough: a process that is just being started may have a duplicate.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

/// Sets the lock's time of last change.
pub(crate) fn write_use(dir: &OwnedFd, last_use_unix_ms: u64) -> io::Result<()> {
    let seconds = i64::try_from(last_use_unix_ms / 1000).unwrap_or(i64::MAX);
    let nanoseconds = (last_use_unix_ms % 1000 * 1_000_000) as _;
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
    };
    Ok(utimensat(dir, LOCK, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
