//! How many visitors may be at an app at once; the others wait, first come first served.
//!
//! A place is for a request. Who gets an upgrade gives it back: a WebSocket may last for days.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// An app's places.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// 0: as many as come.
    limit: AtomicU32,
    free: ArcSwapOption<Semaphore>,
}

impl Places {
    pub(crate) fn new(limit: u32) -> Self {
        let places = Self::default();
        places.set(limit);
        places
    }

    /// From now on there are so many; 0: as many as come. Who is there or waits by then counts for the
    /// limit that there was.
    pub(crate) fn set(&self, limit: u32) {
        if self.limit.swap(limit, Ordering::Relaxed) != limit {
            let size = usize::try_from(limit).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
            self.free.store((limit > 0).then(|| Arc::new(Semaphore::new(size))));
        }
    }

    fn limited(&self) -> Option<Arc<Semaphore>> {
        if self.limit.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.free.load_full()
    }

    /// A place that nobody waits for; the outer none: there is none. Costs an app without a limit a load.
    pub(crate) fn at_once(&self) -> Option<Option<OwnedSemaphorePermit>> {
        match self.limited() {
            None => Some(None),
            Some(free) => free.try_acquire_owned().ok().map(Some),
        }
    }

    /// A place, in turn.
    pub(crate) async fn in_turn(&self) -> Option<OwnedSemaphorePermit> {
        // It is never closed.
        self.limited()?.acquire_owned().await.ok()
    }
}
