//! An image and the map beside it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::map::{Map, OpenMapError};

/// An image with its map, open and locked. Whether its bytes are those that the map speaks of is
/// seen only when they are read: by [`Map::checksum`].
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
    file: File,
    map: Map,
    /// The map was made of the file since it was locked.
    scanned: bool,
}

/// Why an image can't be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenImageError {
    /// The file could not be opened or looked at.
    #[error("the image {path:?} can't be opened: {source}")]
    Open {
        /// The image.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is a directory, a device or a pipe.
    #[error("the image {0:?} is no regular file")]
    NotAFile(PathBuf),
    /// Somebody holds a lock on it: a VM has it mapped, or it is being changed.
    #[error("the image {0:?} is in use")]
    InUse(PathBuf),
    /// Its map can't be read.
    #[error("{path:?}: {source}")]
    Map {
        /// The map.
        path: PathBuf,
        /// What is wrong with it.
        source: OpenMapError,
    },
    /// The map is one of another image.
    #[error("the image {path:?} has {there} bytes, and its map says {mem_size}")]
    Size {
        /// The image.
        path: PathBuf,
        /// The file's size in bytes.
        there: u64,
        /// The map's.
        mem_size: u64,
    },
}

/// How an image is to be locked (`flock`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Others may read it, too; nobody may be changing it.
    Read,
    /// Nobody else may have it.
    Write,
    /// For giving blocks of zeros back: others may read it and have it mapped; nobody may be
    /// changing it.
    Punch,
}

impl Image {
    /// Opens an image to read it, with the map at `map`. It is locked (`flock`, shared) as long as
    /// this value lives.
    pub fn open(path: impl AsRef<Path>, map: impl AsRef<Path>) -> Result<Self, OpenImageError> {
        Self::open_as(path.as_ref(), map.as_ref(), Access::Read)
    }

    /// [`Self::open`] with a map that is in memory.
    pub fn with_map(path: impl AsRef<Path>, map: Map) -> Result<Self, OpenImageError> {
        let path = path.as_ref();
        Self::pair(path, open_file(path, Access::Read)?, map)
    }

    pub(crate) fn open_as(path: &Path, map: &Path, access: Access) -> Result<Self, OpenImageError> {
        let file = open_file(path, access)?;
        let map = Map::open(map)
            .map_err(|source| OpenImageError::Map { path: map.to_owned(), source })?;
        Self::pair(path, file, map)
    }

    fn pair(path: &Path, file: File, map: Map) -> Result<Self, OpenImageError> {
        let there = file
            .metadata()
            .map_err(|source| OpenImageError::Open { path: path.to_owned(), source })?
            .len();
        if there != map.mem_size() {
            let mem_size = map.mem_size();
            return Err(OpenImageError::Size { path: path.to_owned(), there, mem_size });
        }
        Ok(Self { path: path.to_owned(), file, map, scanned: false })
    }

    /// A file that is locked and the map that has been made of it since.
    pub(crate) fn scanned(path: PathBuf, file: File, map: Map) -> Self {
        Self { path, file, map, scanned: true }
    }

    /// Whether it is known that the pages that the map calls ZERO are.
    pub(crate) fn zeros_are_known(&self) -> bool {
        self.scanned
    }

    /// Where the map of the image at `path` lies unless somebody says otherwise: beside it, with the
    /// ending `.map`.
    pub fn map_path(path: impl AsRef<Path>) -> PathBuf {
        path.as_ref().with_extension("map")
    }

    /// Where the image is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The image's file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What is known of it.
    pub fn map(&self) -> &Map {
        &self.map
    }
}

/// A regular file, locked.
pub(crate) fn open_file(path: &Path, access: Access) -> Result<File, OpenImageError> {
    let failed = |source| OpenImageError::Open { path: path.to_owned(), source };
    let (write, alone) = (access != Access::Read, access == Access::Write);
    // Looked at before it is opened: to open a pipe is to wait for who writes to it.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(OpenImageError::NotAFile(path.to_owned()));
    }
    let file = OpenOptions::new().read(true).write(write).open(path).map_err(failed)?;
    let locked = if alone { file.try_lock() } else { file.try_lock_shared() };
    match locked {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenImageError::InUse(path.to_owned())),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}
