//! Fills a sparse file from the archives of an image in a store.
//!
//! Memory, besides the index and some 60 bytes for each frame: at most 128 MiB, whatever the image and
//! whatever the store does. At most 50 MiB are asked for and not yet written, each of which may be there twice (as it
//! came, and as a frame); decoding takes a window and 256 KiB on each of at most four threads, and buffers that are kept for reuse at most 8 MiB.

mod error;
mod fetch;
mod pace;
mod plan;
mod run;
mod shared;
mod work;

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use rouse_snapshot_format::{Map, PAGE};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use self::shared::Shared;
use crate::layers::Layers;
use crate::retry::Patience;

pub use self::error::{FillError, StartError};
pub use self::shared::Metrics;

/// How to go about a [`Fill`].
#[derive(Clone, Copy, Debug)]
pub struct FillOptions {
    /// How long the same frame is tried.
    pub patience: Patience,
    /// How long a request may bring nothing before it counts as broken off.
    pub stall: Duration,
    /// No request is hedged that is younger than this.
    pub hedge_after: Duration,
}

impl Default for FillOptions {
    /// A request is hedged after 500 ms at the earliest: far above what an object store takes to its first byte
    /// in the worst case that is no failure.
    fn default() -> Self {
        Self {
            patience: Patience::default(),
            stall: Duration::from_secs(20),
            hedge_after: Duration::from_millis(500),
        }
    }
}

/// A sparse file that is being filled.
///
/// A window that is there is never written again, so whoever waited for it may write to it while the
/// rest comes in. Dropping it ends it.
#[derive(Debug)]
pub struct Fill {
    shared: Arc<Shared>,
    /// The one task that asks and waits; ends with the fill.
    _driver: JoinSet<()>,
}

impl Fill {
    /// Begins to fill `file`, which must be empty: makes it as large as the image, and refuses if its file system
    /// has no room for the DATA. To be called within a Tokio runtime.
    pub fn start(layers: Layers, file: File, options: FillOptions) -> Result<Self, StartError> {
        let map = layers.map();
        admission(map, &file)?;
        file.set_len(map.mem_size()).map_err(StartError::File)?;
        let shared = Arc::new(Shared::new(layers, file, options));
        let workers = work::Workers::start(&shared).map_err(StartError::Thread)?;
        let mut driver = JoinSet::new();
        driver.spawn(run::drive(Arc::clone(&shared), workers));
        Ok(Self { shared, _driver: driver })
    }

    /// Returns when `window` is in the file, and has it fetched before what nobody waits for.
    pub async fn need(&self, window: u64) -> Result<(), FillError> {
        match self.ask(window)? {
            None => Ok(()),
            Some(wait) => wait.await.map_err(|_| self.shared.why()),
        }
    }

    /// [`Self::need`] for a thread that may block.
    ///
    /// # Panics
    /// Within an asynchronous task, which it would block.
    pub fn need_blocking(&self, window: u64) -> Result<(), FillError> {
        match self.ask(window)? {
            None => Ok(()),
            Some(wait) => wait.blocking_recv().map_err(|_| self.shared.why()),
        }
    }

    fn ask(&self, window: u64) -> Result<Option<oneshot::Receiver<()>>, FillError> {
        let map = self.shared.layers.map();
        if window >= map.windows() {
            return Err(FillError::Unknown { window, windows: map.windows() });
        }
        match self.shared.layers.frame_of(window) {
            // It is a hole, which it was from the start.
            None => Ok(None),
            Some(frame) => self.shared.wait_for(frame),
        }
    }

    /// Returns when the working set is in the file.
    pub async fn working_set(&self) -> Result<(), FillError> {
        self.shared.until(|status| status.working_set).await
    }

    /// Returns when everything is in the file, and nothing will be written to it any more. Syncing it is up to
    /// the caller.
    pub async fn whole(&self) -> Result<(), FillError> {
        self.shared.until(|status| status.over).await
    }

    /// Has it end soon; [`Self::whole`] tells when.
    pub fn cancel(&self) {
        self.shared.cancel.cancel();
    }

    /// The map of the image.
    pub fn map(&self) -> &Map {
        self.shared.layers.map()
    }

    /// How far it is.
    pub fn metrics(&self) -> Metrics {
        self.shared.metrics()
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.shared.cancel.cancel();
    }
}

/// Whether there is room for what will be allocated: a file system that fills up under a running guest
/// is one that can't be mended.
fn admission(map: &Map, file: &File) -> Result<(), StartError> {
    let there = file.metadata().map_err(StartError::File)?.len();
    if there != 0 {
        return Err(StartError::NotEmpty(there));
    }
    let room = rustix::fs::fstatvfs(file).map_err(|error| StartError::File(error.into()))?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    room_for(map.counts().data * PAGE, free)
}

fn room_for(needed: u64, free: u64) -> Result<(), StartError> {
    if needed > free { Err(StartError::NoRoom { needed, free }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use rouse_snapshot_format::{ImageId, PageState, PageStates, WindowSize};

    use super::*;

    #[test]
    fn a_file_that_is_not_empty_or_finds_no_room_is_refused() {
        let states = PageStates::all(PAGE, PageState::Zero);
        let map = Map::new(ImageId::random(), None, WindowSize::MIN, states).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        admission(&map, &file).unwrap();
        file.write_all(b"x").unwrap();
        assert!(matches!(admission(&map, &file), Err(StartError::NotEmpty(1))));
        room_for(7, 7).unwrap();
        assert!(matches!(room_for(8, 7), Err(StartError::NoRoom { needed: 8, free: 7 })));
    }
}
