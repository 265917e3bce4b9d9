//! An entry in use.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::FlockOperation;

use crate::cache::Inner;
use crate::disk::{self, Locked};
use crate::id::ContentId;
use crate::record::{Contents, EntryFile};
use crate::taken::{TakeError, Taken};

/// An entry that stays for as long as this lives. Its files are to be read only: others may have the same
/// ones. Who wants to write takes the entry, or shares a file.
#[derive(Debug)]
pub struct Pinned {
    pub(crate) inner: Arc<Inner>,
    pub(crate) id: ContentId,
    pub(crate) pin: Arc<()>,
    contents: Arc<Contents>,
}

impl Pinned {
    pub(crate) fn new(
        inner: Arc<Inner>,
        id: ContentId,
        pin: Arc<()>,
        contents: Arc<Contents>,
    ) -> Self {
        Self { inner, id, pin, contents }
    }

    /// Which it is.
    pub fn id(&self) -> &ContentId {
        &self.id
    }

    /// Its files, in the order of their names.
    pub fn files(&self) -> &[EntryFile] {
        &self.contents.files
    }

    /// Where its file `name` is, if it has it. For a VMM: good for as long as this or a lease lives.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        let file = self.files().iter().find(|file| file.name == name)?;
        Some(self.inner.path.join(self.id.to_string()).join(&file.name))
    }

    /// Opens its file `name` for reading.
    pub fn open(&self, name: &str) -> io::Result<File> {
        if !self.files().iter().any(|file| file.name == name) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the entry has no such file"));
        }
        disk::open_file(self.dir()?.as_fd(), name)
    }

    /// A descriptor that keeps the entry for as long as it or a duplicate is open in any process: for the
    /// VMM that maps a file. It outlives this process.
    pub fn lease(&self) -> io::Result<OwnedFd> {
        // Under the mutex, since an eviction tries the lock under it.
        let _state = self.inner.state();
        match disk::try_lock(self.dir()?.as_fd(), FlockOperation::NonBlockingLockShared)? {
            Locked::Ours(file) => Ok(file.into()),
            Locked::Held => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "somebody has locked the entry exclusively",
            )),
            Locked::Missing => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// [`crate::Cache::take`] by who has it pinned, and thus had the time to look at it.
    pub fn take(self) -> Result<Taken, TakeError> {
        self.inner.clone().take(&self.id, Some(&self.pin))
    }

    pub(crate) fn dir(&self) -> io::Result<OwnedFd> {
        disk::open_dir(self.inner.root.as_fd(), &self.id.to_string())
    }
}
