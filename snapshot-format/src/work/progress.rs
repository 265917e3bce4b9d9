//! How far an operation is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far an operation is, in bytes of the image that it works through. Whoever started the
/// operation looks at it from another thread, and may end the operation early: it then fails with
/// [`Cancelled`], and leaves what a failed one leaves.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
    cancelled: AtomicBool,
}

/// The operation was ended by [`Progress::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

impl Progress {
    /// Nothing done, nothing known.
    pub fn new() -> Self {
        Self::default()
    }

    /// What is done, in bytes.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// What there is to do in all, in bytes; 0 until it is known, and it may grow.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Has the operation end soon.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether it is to end.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(super) fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn advance(&self, bytes: u64) -> Result<(), Cancelled> {
        self.done.fetch_add(bytes, Ordering::Relaxed);
        self.check()
    }

    pub(super) fn check(&self) -> Result<(), Cancelled> {
        if self.is_cancelled() { Err(Cancelled) } else { Ok(()) }
    }
}
