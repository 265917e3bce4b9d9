//! How many nodes run at once, over all test processes of one target directory.

use std::fs::File;
use std::path::Path;

use crate::wait::TICK;

/// The right to run one node. Given back on drop, or by the kernel when the process dies.
#[derive(Debug)]
pub(crate) struct Slot {
    _lock: File,
}

impl Slot {
    /// Waits for a free slot of those in `dir`. Without a limit in time: who waits has a place in
    /// line behind tests that end.
    pub(crate) async fn take(dir: &Path) -> Self {
        std::fs::create_dir_all(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        loop {
            for n in 0..slots() {
                let path = dir.join(format!("slot-{n}"));
                let lock =
                    File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                if lock.try_lock().is_ok() {
                    return Self { _lock: lock };
                }
            }
            tokio::time::sleep(TICK).await;
        }
    }
}

fn slots() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let named = std::env::var("ROUSE_NODES").ok().and_then(|s| s.parse().ok());
    named.unwrap_or(cores.min(4)).max(1)
}
