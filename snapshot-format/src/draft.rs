//! Files that get their name only when they are whole.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Why a file could not be written. Its name holds what it held before, except after
/// [`Self::NotDurable`].
#[derive(Debug, thiserror::Error)]
pub enum WriteFileError {
    /// The path has no file name.
    #[error("{0:?} names no file")]
    NoName(PathBuf),
    /// The file could not be made, written, synced or renamed.
    #[error("{path:?} can't be written: {source}")]
    Io {
        /// The name that it was to get.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It has its name, but the directory could not be synced: after a power loss what was there
    /// before may be back.
    #[error("{path:?} is written, but may be lost with the power: {source}")]
    NotDurable {
        /// The name that it has.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A file under a temporary name in the directory where it will be; gone when dropped. Mode 0600,
/// as everything that holds somebody's memory.
#[derive(Debug)]
pub(crate) struct Draft {
    file: NamedTempFile,
    path: PathBuf,
}

impl Draft {
    pub(crate) fn create(path: &Path) -> Result<Self, WriteFileError> {
        let name = path.file_name().ok_or_else(|| WriteFileError::NoName(path.to_owned()))?;
        let prefix: OsString = [".".as_ref(), name, ".".as_ref()].into_iter().collect();
        let file = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".tmp")
            .tempfile_in(directory(path))
            .map_err(|source| WriteFileError::Io { path: path.to_owned(), source })?;
        Ok(Self { file, path: path.to_owned() })
    }

    pub(crate) fn file(&self) -> &File {
        self.file.as_file()
    }

    /// What goes wrong with the file is said with the name that it was to get.
    pub(crate) fn failed(&self, source: io::Error) -> WriteFileError {
        WriteFileError::Io { path: self.path.clone(), source }
    }

    /// Gives the file its name, in the place of what had it. With `sync` that is durable when it
    /// returns; without, it is atomic only for those who look while the machine runs.
    pub(crate) fn publish(self, sync: bool) -> Result<(), WriteFileError> {
        let Self { file, path } = self;
        let failed = |source| WriteFileError::Io { path: path.clone(), source };
        if sync {
            file.as_file().sync_all().map_err(failed)?;
        }
        file.persist(&path).map_err(|e| failed(e.error))?;
        if sync { sync_directory(&path) } else { Ok(()) }
    }
}

/// Makes a rename to `path` durable.
pub(crate) fn sync_directory(path: &Path) -> Result<(), WriteFileError> {
    File::open(directory(path))
        .and_then(|dir| dir.sync_all())
        .map_err(|source| WriteFileError::NotDurable { path: path.to_owned(), source })
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    }
}
