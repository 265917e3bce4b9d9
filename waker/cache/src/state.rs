//! What the cache knows of its directory, under one mutex.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::id::ContentId;
use crate::ledger::Ledger;
use crate::policy::{Candidate, Part};
use crate::record::Contents;
use crate::stats::Stats;

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) contents: Arc<Contents>,
    pub(crate) last_use_unix_ms: u64,
    /// The last use is not on disk yet.
    pub(crate) dirty: bool,
    /// Each [`crate::Pinned`] has a clone, made only under the state's mutex.
    pub(crate) pin: Arc<()>,
}

impl Entry {
    pub(crate) fn new(contents: Contents, last_use_unix_ms: u64) -> Self {
        Self { contents: Arc::new(contents), last_use_unix_ms, dirty: false, pin: Arc::new(()) }
    }

    /// How many in this process hold it.
    pub(crate) fn pins(&self) -> usize {
        Arc::strong_count(&self.pin) - 1
    }

    /// A clock that was set back does not make it older.
    pub(crate) fn used(&mut self, now_unix_ms: u64) {
        self.last_use_unix_ms = self.last_use_unix_ms.max(now_unix_ms);
        self.dirty = true;
    }
}

/// A directory that is no entry any more. It counts until it is gone.
#[derive(Debug)]
pub(crate) struct Trash {
    pub(crate) name: String,
    pub(crate) parts: Vec<Part>,
    /// It was an entry, and went for want of room.
    pub(crate) evicted: bool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) entries: HashMap<ContentId, Entry>,
    /// Entries, trash and what was taken and has not left.
    pub(crate) ledger: Ledger,
    /// What the cache's directory itself occupies, in bytes.
    pub(crate) own: u64,
    /// What drafts were promised, in bytes.
    pub(crate) reserved: u64,
    /// Each draft's part of that, by name.
    pub(crate) drafts: HashMap<String, u64>,
    /// How many directories are being unlinked right now.
    pub(crate) deleting: usize,
    /// What could not be unlinked, or belongs to a process that lives.
    pub(crate) stuck: Vec<Trash>,
    /// The high mark was reached, and the low one not yet again.
    pub(crate) draining: bool,
    /// The next number of a draft, of trash, or of what is taken.
    pub(crate) next: u64,
    pub(crate) stats: Stats,
}

impl State {
    /// What is on disk, in bytes.
    pub(crate) fn allocated(&self) -> u64 {
        self.own.saturating_add(self.ledger.total())
    }

    /// What is on disk and what is promised, in bytes.
    pub(crate) fn used(&self) -> u64 {
        self.allocated().saturating_add(self.reserved)
    }

    /// The entries as the policy sees them; `leased` are in use elsewhere.
    pub(crate) fn candidates(&self, leased: &HashSet<ContentId>) -> Vec<Candidate<'_, ContentId>> {
        let candidate = |(id, entry)| {
            let (id, entry): (&ContentId, &Entry) = (id, entry);
            Candidate {
                id: *id,
                last_use_unix_ms: entry.last_use_unix_ms,
                pinned: entry.pins() > 0 || leased.contains(id),
                parts: &entry.contents.parts,
            }
        };
        self.entries.iter().map(candidate).collect()
    }

    /// A draft is over: what it was promised is free again.
    pub(crate) fn release(&mut self, draft: &str, bytes: u64) {
        self.reserved = self.reserved.saturating_sub(bytes);
        self.drafts.remove(draft);
    }
}
