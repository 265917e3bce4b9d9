//! A file of an entry in another place.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, SeekFrom, fchmod, ioctl_ficlone, linkat, openat, seek,
};
use rustix::io::Errno;

use crate::disk::{self, FILE_MODE};
use crate::pinned::Pinned;

/// What is copied at once, in bytes.
const PIECE: usize = 1 << 20;

/// What the other place is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Nobody writes there, and so it may be the same file under a second name.
    ReadOnly,
    /// It has to be a file of its own.
    Writable,
}

/// How a file came to its other place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// Another file with the same blocks, until either is written to.
    Reflink,
    /// The same file.
    HardLink,
    /// Another file with so many bytes of data, and holes where there were holes.
    Copy {
        /// What was copied, in bytes.
        bytes: u64,
    },
}

/// Why a file was not shared. Nothing is left in the other place.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// The entry has no such file.
    #[error("the entry has no file {0:?}")]
    NoFile(String),
    /// A file can't be read or made; what is there already is not replaced.
    #[error("{path}: {source}")]
    File {
        /// The other place.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Pinned {
    /// Puts the file `name` at `to`, where nothing is: by reflink where the file system can, else by hard
    /// link where that will do, else as a copy. It has mode 0600, is not synced, and does not count here.
    pub fn share(&self, name: &str, to: &Path, how: Use) -> Result<Shared, ShareError> {
        if !self.files().iter().any(|file| file.name == name) {
            return Err(ShareError::NoFile(name.to_owned()));
        }
        self.place(name, to, how).map_err(|source| ShareError::File { path: to.to_owned(), source })
    }

    fn place(&self, name: &str, to: &Path, how: Use) -> io::Result<Shared> {
        let dir = self.dir()?;
        let source = disk::open_file(dir.as_fd(), name)?;
        let copy = create(to)?;
        let undo = |error: io::Error| {
            let _ = fs::remove_file(to);
            error
        };
        match ioctl_ficlone(&copy, &source) {
            Ok(()) => return Ok(Shared::Reflink),
            // The file system can't, or `to` is on another.
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::XDEV | Errno::NOSYS) => {}
            Err(errno) => return Err(undo(errno.into())),
        }
        if how == Use::ReadOnly {
            fs::remove_file(to)?;
            match linkat(&dir, name, CWD, to, AtFlags::empty()) {
                Ok(()) => return Ok(Shared::HardLink),
                Err(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno.into()),
            }
            let copy = create(to)?;
            return copy_data(&source, &copy).map(|bytes| Shared::Copy { bytes }).map_err(undo);
        }
        copy_data(&source, &copy).map(|bytes| Shared::Copy { bytes }).map_err(undo)
    }
}

fn create(to: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(CWD, to, flags, Mode::empty() | FILE_MODE)?;
    fchmod(&file, FILE_MODE)?;
    Ok(file.into())
}

/// Copies what is no hole, and says how much that was.
fn copy_data(from: &File, to: &File) -> io::Result<u64> {
    let size = from.metadata()?.len();
    to.set_len(size)?;
    let mut buffer = vec![0; PIECE];
    let (mut at, mut copied) = (0, 0);
    while at < size {
        let start = match seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let end = seek(from, SeekFrom::Hole(start))?.min(size);
        at = start;
        while at < end {
            let length = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
            from.read_exact_at(&mut buffer[..length], at)?;
            to.write_all_at(&buffer[..length], at)?;
            at += length as u64;
            copied += length as u64;
        }
    }
    Ok(copied)
}
