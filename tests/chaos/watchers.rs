//! Two threads that look on, all the time: at the processes, and at the apps' directories.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use crate::twins;
use crate::way_back::{Disk, Listing};
use crate::world::World;

/// Between two looks. Looking costs a core that the guests need.
const PROCESSES: Duration = Duration::from_millis(10);
const DIRECTORIES: Duration = Duration::from_millis(5);
/// How often a directory without a way back is looked at again, before that counts: it may have
/// been read in the middle of a rename.
const AGAIN: usize = 6;

/// The threads. Dropped, they end.
#[derive(Debug)]
pub(crate) struct Watchers {
    done: Arc<AtomicBool>,
    looks: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Watchers {
    /// Looks on from now. `one_disk`: the file system can't share what a copy would cost, so an app
    /// has one disk file and it stays the same.
    pub(crate) fn start(world: &Arc<World>, one_disk: bool) -> Self {
        let (done, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let looking = |every: Duration, mut look: Box<dyn FnMut() + Send>| {
            let (done, looks) = (done.clone(), looks.clone());
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    look();
                    looks.fetch_add(1, Ordering::Relaxed);
                    sleep(every);
                }
            })
        };
        let processes = {
            let world = world.clone();
            looking(PROCESSES, Box::new(move || look_at_processes(&world)))
        };
        let directories = {
            let world = world.clone();
            let mut disks = BTreeMap::new();
            let look = move || look_at_directories(&world, one_disk, &mut disks);
            looking(DIRECTORIES, Box::new(look))
        };
        Self { done, looks, threads: vec![processes, directories] }
    }

    /// How often they looked.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Whether both still look on: one that panicked has seen nothing since.
    pub(crate) fn look_on(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn look_at_processes(world: &World) {
    if let Some(twins) = twins::find(&world.root, &world.apps_dir) {
        let [one, other] = twins.pids;
        world.violated(format!("{} has two VMMs: {one} and {other}", twins.app));
    }
}

fn look_at_directories(world: &World, one_disk: bool, disks: &mut BTreeMap<String, Disk>) {
    for app in &world.apps {
        let name = app.name();
        match look_again(world, name, one_disk, disks.get(name).copied()) {
            Ok(Some(disk)) => {
                disks.insert(name.to_owned(), disk);
            }
            Ok(None) => {}
            Err(what) => {
                world.violated(format!("{name}: no way back: {what}"));
            }
        }
    }
}

/// One that shows a way back proves it; one that does not proves nothing until the others agree.
fn look_again(
    world: &World,
    app: &str,
    one_disk: bool,
    before: Option<Disk>,
) -> Result<Option<Disk>, String> {
    let look = || {
        let listing = Listing::read(&world.apps_dir.join(app));
        let disk = listing.judge(before.is_some())?;
        if one_disk && before.is_some() && disk != before {
            return Err(format!("another disk file took the place of the app's: {listing:?}"));
        }
        if one_disk && listing.disks() > 1 {
            return Err(format!("there are two disk files: {listing:?}"));
        }
        Ok(disk)
    };
    let mut seen = look();
    for _ in 1..AGAIN {
        if seen.is_ok() {
            break;
        }
        sleep(DIRECTORIES);
        seen = look();
    }
    seen
}
