//! Files that get their name only when they are whole.

use std::ffi::OsString;
use std::fs::{self, File};
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
    /// Something has that name, or got it meanwhile, and was not to be replaced.
    #[error("{0:?} is there already and is not replaced")]
    Exists(PathBuf),
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
    replace: bool,
}

impl Draft {
    /// One that takes the place of what has the name.
    pub(crate) fn create(path: &Path) -> Result<Self, WriteFileError> {
        Self::claim(path, true)
    }

    /// Unless `replace`, one for a name that is free: now, and when the file gets it.
    pub(crate) fn claim(path: &Path, replace: bool) -> Result<Self, WriteFileError> {
        check_free(path, replace)?;
        let name = path.file_name().ok_or_else(|| WriteFileError::NoName(path.to_owned()))?;
        let prefix: OsString = [".".as_ref(), name, ".".as_ref()].into_iter().collect();
        let file = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".tmp")
            .tempfile_in(directory(path))
            .map_err(|source| WriteFileError::Io { path: path.to_owned(), source })?;
        Ok(Self { file, path: path.to_owned(), replace })
    }

    /// The name that it is to get.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        self.file.as_file()
    }

    /// What goes wrong with the file is said with the name that it was to get.
    pub(crate) fn failed(&self, source: io::Error) -> WriteFileError {
        WriteFileError::Io { path: self.path.clone(), source }
    }

    /// Gives the file its name. With `sync` that is durable when it returns; without, it is atomic
    /// only for those who look while the machine runs.
    pub(crate) fn publish(self, sync: bool) -> Result<(), WriteFileError> {
        let Self { file, path, replace } = self;
        let failed = |source| WriteFileError::Io { path: path.clone(), source };
        if sync {
            file.as_file().sync_all().map_err(failed)?;
        }
        let named = if replace { file.persist(&path) } else { file.persist_noclobber(&path) };
        named.map_err(|e| match e.error.kind() {
            io::ErrorKind::AlreadyExists if !replace => WriteFileError::Exists(path.clone()),
            _ => failed(e.error),
        })?;
        if sync { sync_directory(&path) } else { Ok(()) }
    }
}

/// Whether a file may be made at `path`: to know it before any work is done.
pub(crate) fn check_free(path: &Path, replace: bool) -> Result<(), WriteFileError> {
    // What a link names is not what a rename would replace.
    if !replace && fs::symlink_metadata(path).is_ok() {
        return Err(WriteFileError::Exists(path.to_owned()));
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_is_only_taken_over_if_that_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        // Somebody comes while the file is being written.
        let draft = Draft::claim(&path, false).unwrap();
        fs::write(&path, "theirs").unwrap();
        let exists = |error| matches!(error, WriteFileError::Exists(there) if there == path);
        assert!(exists(draft.publish(false).unwrap_err()));
        assert!(exists(Draft::claim(&path, false).unwrap_err()));
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
        Draft::create(&path).unwrap().publish(true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

        // Also by a link to nowhere.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(matches!(Draft::claim(&link, false), Err(WriteFileError::Exists(_))));
    }
}
