//! Windows that come when a test says so, and files to fill with them.
#![allow(clippy::unwrap_used, clippy::print_stderr, dead_code)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rouse_lazy::{LazyFile, Owner, Windows, available};
use tempfile::TempDir;

pub(crate) const WINDOW: u64 = 256 << 10;
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Whether there is FUSE; says why not.
pub(crate) fn is_there() -> bool {
    match available() {
        Ok(()) => true,
        Err(why) => {
            eprintln!("skipped: {why}");
            false
        }
    }
}

pub(crate) fn us() -> Owner {
    Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

/// Bytes of which no two places look alike.
pub(crate) fn noise(length: u64, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut bytes = vec![0; length as usize];
    bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        *word = x.to_le_bytes();
    });
    bytes
}

#[derive(Default)]
struct State {
    there: BTreeSet<u64>,
    lost: BTreeSet<u64>,
    asked: Vec<u64>,
    open: bool,
}

/// Brings each window once, when it is told to.
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    backing: File,
    pub(crate) bytes: Vec<u8>,
}

impl Gate {
    fn bring(&self, state: &mut State, window: u64) {
        let start = window * WINDOW;
        let end = (start + WINDOW).min(self.bytes.len() as u64);
        assert!(state.there.insert(window), "window {window} came twice");
        let bytes = &self.bytes[start as usize..end as usize];
        self.backing.write_all_at(bytes, start).unwrap();
    }

    /// This window comes.
    pub(crate) fn release(&self, window: u64) {
        let mut state = self.state.lock().unwrap();
        self.bring(&mut state, window);
        self.changed.notify_all();
    }

    /// Each window comes once it is asked for.
    pub(crate) fn open(&self) {
        self.state.lock().unwrap().open = true;
        self.changed.notify_all();
    }

    /// This window never comes.
    pub(crate) fn lose(&self, window: u64) {
        self.state.lock().unwrap().lost.insert(window);
        self.changed.notify_all();
    }

    /// Returns once this window has been asked for.
    pub(crate) fn until_asked(&self, window: u64) {
        let state = self.state.lock().unwrap();
        let (_state, timeout) = self
            .changed
            .wait_timeout_while(state, PATIENCE, |state| !state.asked.contains(&window))
            .unwrap();
        assert!(!timeout.timed_out(), "nobody asks for window {window}");
    }

    pub(crate) fn asked(&self) -> Vec<u64> {
        self.state.lock().unwrap().asked.clone()
    }
}

impl Windows for Gate {
    fn window_bytes(&self) -> u64 {
        WINDOW
    }

    fn need(&self, window: u64) -> io::Result<()> {
        assert!(window * WINDOW < self.bytes.len() as u64, "there is no window {window}");
        let mut state = self.state.lock().unwrap();
        state.asked.push(window);
        self.changed.notify_all();
        loop {
            if state.there.contains(&window) {
                return Ok(());
            }
            if state.lost.contains(&window) {
                return Err(io::Error::other("lost"));
            }
            if state.open {
                self.bring(&mut state, window);
                return Ok(());
            }
            state = self.changed.wait(state).unwrap();
        }
    }
}

/// A directory to mount at, and a backing file beside it, which others may reach.
pub(crate) struct Place {
    pub(crate) root: TempDir,
    pub(crate) dir: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let dir = root.path().join("mount");
        fs::create_dir(&dir).unwrap();
        Self { root, dir }
    }

    /// The sparse file behind it, as seen by whoever does not go through the mount.
    pub(crate) fn backing(&self) -> File {
        let path = self.root.path().join("backing.img");
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
    }
}

/// A mounted file of noise, none of which is there.
pub(crate) struct Case {
    pub(crate) file: Option<LazyFile>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) place: Place,
}

impl Case {
    pub(crate) fn new(size: u64) -> Self {
        Self::owned(size, us())
    }

    pub(crate) fn owned(size: u64, owner: Owner) -> Self {
        let place = Place::new();
        let backing = place.backing();
        backing.set_len(size).unwrap();
        let gate = Gate {
            state: Mutex::default(),
            changed: Condvar::new(),
            backing: place.backing(),
            bytes: noise(size, 7),
        };
        let gate = Arc::new(gate);
        let file =
            LazyFile::mount(&place.dir, "memory.img", backing, size, gate.clone(), owner).unwrap();
        Self { file: Some(file), gate, place }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.place.dir.join("memory.img")
    }

    pub(crate) fn open(&self) -> File {
        File::options().read(true).write(true).open(self.path()).unwrap()
    }

    pub(crate) fn unmount(&mut self) {
        self.file.take().unwrap().unmount().unwrap();
    }

    /// What is in the backing file there.
    pub(crate) fn backed(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.place.backing().read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }
}

impl Drop for Case {
    /// What waits for a window is let go, so that a test that fails also ends.
    fn drop(&mut self) {
        self.gate.open();
    }
}

pub(crate) fn map(file: &File) -> memmap2::MmapMut {
    // SAFETY: nothing makes the file shorter while the test has it mapped.
    unsafe { memmap2::MmapMut::map_mut(file) }.unwrap()
}
