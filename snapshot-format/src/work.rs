//! Long operations: how many threads do them, how far they are, and a word to stop them.

mod pool;
mod progress;

use std::num::NonZeroUsize;
use std::thread;

pub(crate) use pool::{ordered, parallel};
pub use progress::{Cancelled, Progress};

/// What all threads of an operation may take together for what they work on, in bytes.
pub(crate) const MEMORY: u64 = 32 * 1024 * 1024;

/// How a long operation is to go about its work, and who watches it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work<'a> {
    /// How many threads do it; none: one per core that this process may use.
    pub threads: Option<NonZeroUsize>,
    /// Where to tell how far it is, and to look whether it is to go on.
    pub progress: Option<&'a Progress>,
}

impl Work<'_> {
    /// The number of threads, of which more than `jobs` would have nothing to do.
    pub(crate) fn threads_for(&self, jobs: usize) -> usize {
        let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.map_or_else(cores, NonZeroUsize::get).min(jobs).max(1)
    }

    /// [`Self::threads_for`], and no more than keep within [`MEMORY`] when each takes `bytes`.
    pub(crate) fn threads_within(&self, jobs: usize, bytes: u64) -> usize {
        self.threads_for(jobs.min((MEMORY / bytes.max(1)).max(1) as usize))
    }

    /// So many bytes more are to be done.
    pub(crate) fn expect(&self, bytes: u64) {
        if let Some(progress) = self.progress {
            progress.expect(bytes);
        }
    }

    /// So many bytes more are done.
    pub(crate) fn advance(&self, bytes: u64) -> Result<(), Cancelled> {
        self.progress.map_or(Ok(()), |progress| progress.advance(bytes))
    }

    /// Whether it is to go on.
    pub(crate) fn check(&self) -> Result<(), Cancelled> {
        self.progress.map_or(Ok(()), Progress::check)
    }
}
