//! Which entries go: no I/O, and the clock is an argument.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

#[cfg(test)]
mod tests;

/// Where a file's blocks are: device and inode number. Two names of one file have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub number: u64,
}

/// One file or directory of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which it is.
    pub inode: Inode,
    /// What it occupies, in bytes: `st_blocks` × 512.
    pub bytes: u64,
}

/// How much the cache may occupy on disk. All in allocated bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    high: u64,
    low: u64,
    keep_free: u64,
}

/// Marks that make no budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the low mark ({low} bytes) is above the high one ({high} bytes): lower it")]
pub struct BudgetError {
    /// The high mark.
    pub high: u64,
    /// The low mark.
    pub low: u64,
}

impl Budget {
    /// Entries and reservations never exceed `high` together; where they would, entries go until they are
    /// at `low`. `keep_free` stays free in the file system, whoever fills it.
    pub fn new(high: u64, low: u64, keep_free: u64) -> Result<Self, BudgetError> {
        if low > high {
            return Err(BudgetError { high, low });
        }
        Ok(Self { high, low, keep_free })
    }

    /// What is never exceeded, in bytes.
    pub fn high(&self) -> u64 {
        self.high
    }

    /// Where an eviction ends, in bytes.
    pub fn low(&self) -> u64 {
        self.low
    }

    /// What stays free in the file system, in bytes.
    pub fn keep_free(&self) -> u64 {
        self.keep_free
    }
}

/// An entry, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a, K> {
    /// Which; of two that were used at one time the lesser goes first.
    pub id: K,
    /// When it was last used, in milliseconds of Unix time.
    pub last_use_unix_ms: u64,
    /// It is in use and stays.
    pub pinned: bool,
    /// What it occupies. What another candidate has too is free only when both are gone.
    pub parts: &'a [Part],
}

/// Who goes, and what that frees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<K> {
    /// In the order of going.
    pub ids: Vec<K>,
    /// What is free when they are gone, in bytes.
    pub bytes: u64,
}

/// The least recently used that are not pinned, one by one, until `need` bytes are free, `at_most` are
/// gone, or none is left.
pub fn choose<K: Copy + Ord + Hash + Debug>(
    candidates: &[Candidate<'_, K>],
    need: u64,
    at_most: usize,
) -> Choice<K> {
    let mut names: HashMap<Inode, usize> = HashMap::new();
    for part in candidates.iter().flat_map(|candidate| candidate.parts) {
        *names.entry(part.inode).or_default() += 1;
    }
    let mut order: Vec<_> = candidates.iter().filter(|candidate| !candidate.pinned).collect();
    order.sort_unstable_by_key(|candidate| (candidate.last_use_unix_ms, candidate.id));
    let mut choice = Choice { ids: Vec::new(), bytes: 0 };
    for candidate in order.into_iter().take(at_most) {
        if choice.bytes >= need {
            break;
        }
        choice.ids.push(candidate.id);
        for part in candidate.parts {
            let Some(left) = names.get_mut(&part.inode) else { continue };
            *left = left.saturating_sub(1);
            if *left == 0 {
                choice.bytes = choice.bytes.saturating_add(part.bytes);
            }
        }
    }
    choice
}

/// What the pinned occupy, each file once, in bytes.
pub fn pinned_bytes<K>(candidates: &[Candidate<'_, K>]) -> u64 {
    let pinned = candidates.iter().filter(|candidate| candidate.pinned);
    let files: HashMap<Inode, u64> =
        pinned.flat_map(|c| c.parts).map(|part| (part.inode, part.bytes)).collect();
    files.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}
