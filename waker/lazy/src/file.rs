//! The file, from its mount to its end.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{Config, Session, SessionACL};
use rustix::fs::{Advice, fadvise};

use crate::backed::Backed;
use crate::error::{MountError, ServeError, UnmountError};
use crate::fs::Served;
use crate::known::{Known, Windows};
use crate::mount;
use crate::pool::Pool;

/// Threads that answer what need not wait, and hand on what must. More than one, as a write may be held up by the
/// disk; each has a buffer of 16 MiB, of which it touches 132 KiB.
const THREADS: usize = 4;
/// How long the threads may take to end once the kernel has ended the connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it may be busy at an unmount: a process that is being started has a copy of all that is open until it runs.
const BUSY: Duration = Duration::from_millis(500);
/// How long what was written may take to come back when somebody still has it open at an unmount.
const SYNC: Duration = Duration::from_secs(5);

/// Who owns the file: the user and group that QEMU runs as.
///
/// Root may name anybody. Who is not root may name others only where `/etc/fuse.conf` says `user_allow_other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

/// How a session ended, once it has.
#[derive(Default)]
struct End {
    outcome: Mutex<Option<Result<(), String>>>,
    came: Condvar,
}

impl End {
    fn lock(&self) -> MutexGuard<'_, Option<Result<(), String>>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has come before so long is over.
    fn within(&self, patience: Duration) -> bool {
        let waited = self.came.wait_timeout_while(self.lock(), patience, |end| end.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    fn wait(&self) -> Result<(), String> {
        let waited = self.came.wait_while(self.lock(), |end| end.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).clone().unwrap_or(Ok(()))
    }
}

/// A file that is filled while it is in use, mounted in a directory of its own. Dropping it unmounts it.
pub struct LazyFile {
    dir: PathBuf,
    path: PathBuf,
    connection: Option<u32>,
    backed: Arc<Backed>,
    end: Arc<End>,
    /// Held while it is unmounted, so that nobody does so twice.
    mounted: Mutex<bool>,
}

impl LazyFile {
    /// Mounts a file of this `name` and of `size` bytes at `dir`, which must be there.
    ///
    /// Its bytes are those of `backing`, open for reading and writing and of that size already, wherever `windows`
    /// has put them; only `owner`, and root, may open it.
    pub fn mount(
        dir: &Path,
        name: &str,
        backing: File,
        size: u64,
        windows: Arc<dyn Windows>,
        owner: Owner,
    ) -> Result<Self, MountError> {
        let mut parts = Path::new(name).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(one)), None) if one == name)
        {
            return Err(MountError::Name(name.into()));
        }
        let there = backing.metadata().map_err(MountError::Backing)?.len();
        if there != size || size == 0 {
            return Err(MountError::Size { there, wanted: size });
        }
        let window = windows.window_bytes();
        let known = Known::new(windows, size).ok_or(MountError::Window(window))?;
        let dir =
            dir.canonicalize().map_err(|source| MountError::Dir { dir: dir.into(), source })?;
        let backed = Arc::new(Backed { file: backing, size, known });
        let served = Served {
            backed: Arc::clone(&backed),
            name: OsStr::new(name).into(),
            owner,
            pool: Pool::default(),
            since: SystemTime::now(),
        };
        let end = Arc::new(End::default());
        if mount::connection(&dir).ok().flatten().is_some() {
            let source = io::ErrorKind::ResourceBusy.into();
            return Err(MountError::Refused { dir, source });
        }
        let device = mount::mount(&dir, owner)?;
        // From here on it is unmounted whatever happens.
        let mut file = Self {
            path: dir.join(name),
            dir,
            connection: None,
            backed,
            end: Arc::clone(&end),
            mounted: Mutex::new(true),
        };
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        let acl = if mount::for_others(owner) { SessionACL::All } else { SessionACL::Owner };
        let begun = Session::from_fd(served, device, acl, config).and_then(|session| {
            let run = move || {
                let outcome = session.run().map_err(|error| error.to_string());
                *end.lock() = Some(outcome);
                end.came.notify_all();
            };
            thread::Builder::new().name("rouse-lazy".into()).spawn(run)
        });
        if let Err(error) = begun {
            // Nothing serves it, and nobody can have it open.
            let _ = mount::detach(&file.dir);
            file.mounted = Mutex::new(false);
            return Err(MountError::Serve(error));
        }
        // Without it nothing is lost but a second way to end the connection, and how much may be dirty.
        file.connection = mount::connection(&file.dir).ok().flatten();
        if let Some(connection) = file.connection {
            mount::allow_dirty(connection);
        }
        Ok(file)
    }

    /// Where the file is: for `mem-path`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every window is in the backing file: from now on none is asked for.
    pub fn set_whole(&self) {
        self.backed.known.set_whole();
    }

    /// Has the kernel drop what it caches of the backing file and has on disk: what is in use is cached by the lazy
    /// file as well. To be called now and then, and after the backing file was synced.
    pub fn drop_backing_cache(&self) -> io::Result<()> {
        Ok(fadvise(&self.backed.file, 0, None, Advice::DontNeed)?)
    }

    /// Waits until it is unmounted from outside, or serving breaks off.
    pub fn wait(&self) -> Result<(), ServeError> {
        self.end.wait().map_err(|error| ServeError::Broken(io::Error::other(error)))
    }

    /// Unmounts it, and returns when the threads that serve it have ended.
    ///
    /// What was written is in the backing file then. Whoever still has it open after half a second is cut off: what
    /// was written so far is synced for at most five seconds, a read that waits ends by an error, a mapping by
    /// SIGBUS at its next fault, and what is written from then on is lost.
    /// A thread of ours that waits for a window ends when the window is there or given up.
    /// Any thread may call it, and [`Self::wait`] returns then.
    pub fn unmount(&self) -> Result<(), UnmountError> {
        let mut mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
        // When it is over already it was unmounted from outside: what is mounted there now is not ours.
        if *mounted && !self.end.within(Duration::ZERO) {
            self.end_it()?;
        }
        *mounted = false;
        Ok(())
    }

    fn end_it(&self) -> Result<(), UnmountError> {
        if !mount::unmount_soon(&self.dir, BUSY) {
            tracing::warn!(dir = %self.dir.display(), "a memory file is unmounted while it is in use");
            self.sync();
            mount::detach(&self.dir)
                .map_err(|source| UnmountError::Refused { dir: self.dir.clone(), source })?;
            if let Some(connection) = self.connection {
                // Where detaching has ended it there is none any more.
                let _ = mount::abort(connection);
            }
        }
        if self.end.within(PATIENCE) {
            Ok(())
        } else {
            Err(UnmountError::InUse { dir: self.dir.clone() })
        }
    }
}

impl LazyFile {
    /// Has what was written come back before the connection ends, if that is soon.
    fn sync(&self) {
        let path = self.path.clone();
        let (tell, told) = mpsc::channel();
        let sync = move || {
            // Who may not open it can't, and whoever has written is cut off all the same.
            let _ = File::open(path).and_then(|file| file.sync_data());
            let _ = tell.send(());
        };
        // On a thread of its own, as it may be what hangs.
        if thread::Builder::new().name("rouse-lazy-sync".into()).spawn(sync).is_ok() {
            let _ = told.recv_timeout(SYNC);
        }
    }
}

impl Drop for LazyFile {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            tracing::warn!(%error, "a memory file is not unmounted");
        }
    }
}

impl std::fmt::Debug for LazyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LazyFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Mounts a file as [`LazyFile::mount`] does, says so to `ready`, and serves it until it is unmounted: by whoever kept
/// what `ready` was given, say when a signal comes, or from outside. All that a process of its own need do.
pub fn serve(
    dir: &Path,
    name: &str,
    backing: File,
    size: u64,
    windows: Arc<dyn Windows>,
    owner: Owner,
    ready: impl FnOnce(&Arc<LazyFile>),
) -> Result<(), ServeError> {
    let file = Arc::new(LazyFile::mount(dir, name, backing, size, windows, owner)?);
    ready(&file);
    file.wait()
}
