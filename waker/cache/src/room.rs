//! Room: who is let in, and who has to go for it.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::PoisonError;

use rustix::fs::fstatvfs;

use crate::cache::{Cache, Inner};
use crate::disk;
use crate::id::ContentId;
use crate::policy::{Choice, choose, pinned_bytes};
use crate::state::{State, Trash};

/// What an entry takes besides its files, in bytes: its directory, record and lock, and a new block of the
/// cache's own directory. Blocks are 4 KiB where this runs.
const OVERHEAD: u64 = 32 << 10;
/// One block in so many may hold extents and no data: ext4 has 340 in a block (4 KiB less a header of 12
/// bytes, by 12 bytes), and in the worst sparse file each is one block long.
const EXTENTS_PER_BLOCK: u64 = 256;

/// Which limit there is no room under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The cache's high mark.
    Budget,
    /// The file system's free blocks, less what is to stay free.
    FileSystem,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Budget => "the cache's budget",
            Self::FileSystem => "the file system",
        })
    }
}

/// No room, whoever goes. Where that could be known before, nothing was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room in {limit} for {needed} bytes: {free} are free or can be freed, {pinned} are in use; \
     raise the budget, or have fewer in use"
)]
pub struct NoRoom {
    /// What was asked for, with what the file system takes beside it, in bytes.
    pub needed: u64,
    /// What is free or would be with all evicted that can be, in bytes.
    pub free: u64,
    /// What entries in use occupy, in bytes.
    pub pinned: u64,
    /// Where there is no room.
    pub limit: Limit,
}

/// Why nothing was reserved.
#[derive(Debug, thiserror::Error)]
pub enum ReserveError {
    /// There is no room.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The cache's directory can't be worked on.
    #[error("{path}: {source}")]
    File {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What an eviction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Entries that went.
    pub entries: usize,
    /// What that freed, in bytes.
    pub bytes: u64,
    /// There is more to do: the low mark is not reached, and not for want of entries that may go.
    pub more: bool,
}

/// By how much there is too little, in bytes.
#[derive(Clone, Copy, Debug)]
struct Shortage {
    budget: u64,
    disk: u64,
}

impl Shortage {
    fn bytes(self) -> u64 {
        self.budget.max(self.disk)
    }
}

impl Cache {
    /// Background work: once the high mark was reached, evicts down to the low one, `at_most` entries a
    /// call. Also retries what could not be removed, and writes down uses. Never waits for a user.
    pub fn evict(&self, at_most: usize, now_unix_ms: u64) -> io::Result<Evicted> {
        let inner = &self.0;
        inner.flush_uses();
        inner.clear_stuck();
        let mut done = Evicted::default();
        loop {
            let trash = {
                let mut state = inner.state();
                let used = state.used();
                if used > inner.budget.high() {
                    state.draining = true;
                }
                let over = used.saturating_sub(inner.budget.low());
                if over == 0 {
                    state.draining = false;
                }
                if !state.draining {
                    return Ok(done);
                }
                if done.entries == at_most {
                    done.more = true;
                    return Ok(done);
                }
                let (choice, _) = inner.pick(&state, over, 1);
                inner.displace(&mut state, choice.ids, now_unix_ms)?
            };
            let Some(trash) = trash.into_iter().next() else { return Ok(done) };
            done.entries += 1;
            done.bytes += inner.delete(trash);
        }
    }
}

impl Inner {
    /// Promises `bytes` of files and what they take besides, in the end; evicts only what it has to. The
    /// answer is what has to be released.
    pub(crate) fn admit(&self, bytes: u64, now_unix_ms: u64) -> Result<u64, ReserveError> {
        let needed =
            bytes.saturating_add(bytes.div_ceil(EXTENTS_PER_BLOCK)).saturating_add(OVERHEAD);
        self.admit_exactly(needed, now_unix_ms)?;
        Ok(needed)
    }

    /// [`Self::admit`] of so much and no more.
    pub(crate) fn admit_exactly(&self, needed: u64, now_unix_ms: u64) -> Result<(), ReserveError> {
        let failed = |source| ReserveError::File { path: self.path.clone(), source };
        {
            let mut state = self.state();
            if self.shortage(&state, needed).map_err(failed)?.bytes() == 0 {
                state.reserved += needed;
                return Ok(());
            }
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        loop {
            let short = self.shortage(&state, needed).map_err(failed)?;
            if short.bytes() == 0 {
                state.reserved += needed;
                return Ok(());
            }
            if state.deleting > 0 {
                // What is on its way out may do.
                state = self.freed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (choice, leased) = self.pick(&state, short.bytes(), usize::MAX);
            let most = choice.bytes;
            if most < short.bytes() {
                let limit = if most < short.budget { Limit::Budget } else { Limit::FileSystem };
                let by_limit = if limit == Limit::Budget { short.budget } else { short.disk };
                let free = needed.saturating_add(most).saturating_sub(by_limit);
                let pinned = pinned_bytes(&state.candidates(&leased));
                state.stats.refused += 1;
                return Err(NoRoom { needed, free, pinned, limit }.into());
            }
            state.draining |= short.budget > 0;
            let all = self.displace(&mut state, choice.ids, now_unix_ms).map_err(failed)?;
            drop(state);
            for trash in all {
                self.delete(trash);
            }
            state = self.state();
        }
    }

    /// Who goes for `need` bytes, and who of those whose turn it is can't, since others have leased them.
    /// Where the choice is not enough, all that could go are in it.
    fn pick(
        &self,
        state: &State,
        need: u64,
        at_most: usize,
    ) -> (Choice<ContentId>, HashSet<ContentId>) {
        let (mut free, mut leased) = (HashSet::new(), HashSet::new());
        loop {
            let choice = choose(&state.candidates(&leased), need, at_most);
            let before = leased.len();
            for id in &choice.ids {
                // The mutex is ours, so that whoever has no lease gets none meanwhile.
                if !free.contains(id) {
                    if self.is_leased(id) {
                        leased.insert(*id)
                    } else {
                        free.insert(*id)
                    };
                }
            }
            if leased.len() == before {
                return (choice, leased);
            }
        }
    }

    /// Sets these aside.
    fn displace(
        &self,
        state: &mut State,
        ids: Vec<ContentId>,
        now_unix_ms: u64,
    ) -> io::Result<Vec<Trash>> {
        let mut all = Vec::new();
        for id in ids {
            let last_use = state.entries.get(&id).map_or(0, |entry| entry.last_use_unix_ms);
            match self.set_aside(state, &id, true) {
                Ok(trash) => {
                    let age = now_unix_ms.saturating_sub(last_use);
                    tracing::info!(%id, age_seconds = age / 1000, "evicted from the cache");
                    state.stats.evictions += 1;
                    state.stats.ages.record(age);
                    all.push(trash);
                }
                Err(error) => {
                    // Those that have lost their names are removed by the next eviction.
                    state.deleting = state.deleting.saturating_sub(all.len());
                    state.stuck.append(&mut all);
                    return Err(error);
                }
            }
        }
        Ok(all)
    }

    fn shortage(&self, state: &State, needed: u64) -> io::Result<Shortage> {
        let budget = state.used().saturating_add(needed).saturating_sub(self.budget.high());
        let found = fstatvfs(&self.root)?;
        let available = found.f_bavail.saturating_mul(found.f_frsize);
        let wanted =
            |promised: u64| needed.saturating_add(promised).saturating_add(self.budget.keep_free());
        let mut disk = wanted(state.reserved).saturating_sub(available);
        if disk > 0 {
            // What drafts have written is no longer among what is available.
            let promised = state.reserved.saturating_sub(self.written(state));
            disk = wanted(promised).saturating_sub(available);
        }
        Ok(Shortage { budget, disk })
    }

    /// What drafts have written of what they were promised, in bytes.
    fn written(&self, state: &State) -> u64 {
        let written = |(name, promised): (&String, &u64)| {
            let dir = disk::open_dir(self.root.as_fd(), name).ok()?;
            let parts = disk::measure(dir.as_fd()).ok()?;
            Some(state.ledger.fresh(&parts).min(*promised))
        };
        state.drafts.iter().filter_map(written).sum()
    }
}
