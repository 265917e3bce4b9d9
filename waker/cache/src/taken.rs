//! An entry that leaves the cache for single use.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, RenameFlags, fsync, renameat_with, unlinkat};
use rustix::io::Errno;

use crate::cache::{Cache, Inner};
use crate::disk;
use crate::fault;
use crate::id::ContentId;
use crate::policy::Part;
use crate::record::{self, EntryFile, Fault, LOCK, RECORD};
use crate::state::Trash;

/// Why an entry was not taken. It is where it was, or, where what failed may have been the rename, gone.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// There is none.
    #[error("{0} is not in the cache")]
    Absent(ContentId),
    /// Somebody else uses it, here or in another process.
    #[error("{0} is in use: share its files instead")]
    Pinned(ContentId),
    /// A file of it has a name elsewhere, where writing to it would be seen.
    #[error("{id}: {file} has other names: share it instead")]
    Shared {
        /// The entry.
        id: ContentId,
        /// The file.
        file: String,
    },
    /// A file can't be looked at or moved.
    #[error("{path}: {source}")]
    File {
        /// The entry's directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// An entry's directory that is the caller's. It counts until it has left the cache's directory; dropped
/// before, it is removed, and never an entry again.
#[derive(Debug)]
pub struct Taken {
    inner: Arc<Inner>,
    name: String,
    files: Vec<EntryFile>,
    parts: Vec<Part>,
}

impl Cache {
    /// Takes the entry out for single use, if nobody else uses it and no file of it has another name. When
    /// this returns no crash brings the entry back.
    pub fn take(&self, id: &ContentId) -> Result<Taken, TakeError> {
        self.0.take(id, None)
    }
}

impl Inner {
    /// `own` is the taker's pin.
    pub(crate) fn take(
        self: &Arc<Self>,
        id: &ContentId,
        own: Option<&Arc<()>>,
    ) -> Result<Taken, TakeError> {
        let failed = |source| TakeError::File { path: self.path.join(id.to_string()), source };
        // Sees whether it is still what it was, and removes it otherwise. Not a use to be remembered.
        let pinned = self.pin(id, 0).ok_or(TakeError::Absent(*id))?;
        let mut state = self.state();
        let entry = state.entries.get(id).filter(|entry| Arc::ptr_eq(&entry.pin, &pinned.pin));
        let entry = entry.ok_or(TakeError::Absent(*id))?;
        let own = own.filter(|own| Arc::ptr_eq(own, &entry.pin)).is_some();
        if entry.pins() > 1 + usize::from(own) || self.is_leased(id) {
            return Err(TakeError::Pinned(*id));
        }
        let dir = pinned.dir().map_err(failed)?;
        for file in pinned.files() {
            if disk::stat(dir.as_fd(), &file.name).map_err(failed)?.st_nlink > 1 {
                return Err(TakeError::Shared { id: *id, file: file.name.clone() });
            }
        }
        if let Err(Fault::Unread(source)) = record::check(self.root.as_fd(), id, &entry.contents) {
            return Err(failed(source));
        }
        let contents = entry.contents.clone();
        let name = self.rename_entry(&mut state, id, "taken").map_err(failed)?;
        state.entries.remove(id);
        drop(state);
        let taken = Taken {
            inner: self.clone(),
            name,
            files: contents.files.clone(),
            parts: contents.parts.clone(),
        };
        fault::hit("taken").and_then(|()| disk::sync(self.root.as_fd())).map_err(failed)?;
        fault::hit("taken-synced").map_err(failed)?;
        self.state().stats.taken += 1;
        Ok(taken)
    }
}

impl Taken {
    /// Where it is until it is moved. Who renames it on their own syncs both directories, and finds the
    /// cache's `entry.json` and `lock` beside the files.
    pub fn path(&self) -> PathBuf {
        self.inner.path.join(&self.name)
    }

    /// Its files, in the order of their names.
    pub fn files(&self) -> &[EntryFile] {
        &self.files
    }

    /// Renames the directory to `to`, which is not there, on the same file system, and has nothing but the
    /// files in it. Durable when it returns; where it fails this can be tried again elsewhere.
    pub fn move_to(&mut self, to: &Path) -> io::Result<()> {
        let dir = disk::open_dir(self.inner.root.as_fd(), &self.name)?;
        for name in [RECORD, LOCK] {
            match unlinkat(&dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        fsync(&dir)?;
        fault::hit("stripped")?;
        renameat_with(&self.inner.root, self.name.as_str(), CWD, to, RenameFlags::NOREPLACE)?;
        fault::hit("moved")?;
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        disk::sync(self.inner.root.as_fd())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.inner.state().deleting += 1;
        // Nothing there: it was moved, and what it occupies is not the cache's any more.
        let (name, parts) = (std::mem::take(&mut self.name), std::mem::take(&mut self.parts));
        self.inner.delete(Trash { name, parts, evicted: false });
    }
}
