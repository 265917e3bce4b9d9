//! Files and directories, by descriptor and name, so that no symbolic link is followed.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat, fchmod, flock, fstat,
    openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use crate::fault;
use crate::policy::{Inode, Part};
use crate::record::{LOCK, RECORD};

/// Of directories.
pub(crate) const DIR_MODE: Mode = Mode::RWXU;
/// Of files.
pub(crate) const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// More names than this are no entry of ours, whatever they are.
pub(crate) const MAX_NAMES: usize = 32;
/// What `st_blocks` counts, in bytes, whatever the file system's block is: stat(2).
const STAT_BLOCK: u64 = 512;

/// A name in a directory and what it stands for; a link itself, not what it leads to.
#[derive(Debug)]
pub(crate) struct Found {
    /// None where it is no UTF-8, and so nothing of ours.
    pub(crate) name: Option<String>,
    pub(crate) stat: Stat,
}

impl Found {
    pub(crate) fn is(&self, kind: FileType) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == kind
    }
}

/// What the file or directory occupies.
pub(crate) fn part(stat: &Stat) -> Part {
    let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
    Part {
        inode: Inode { device: stat.st_dev, number: stat.st_ino },
        bytes: blocks.saturating_mul(STAT_BLOCK),
    }
}

pub(crate) fn open_dir(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

/// Opens for reading. A pipe that somebody put there does not hang us.
pub(crate) fn open_file(dir: BorrowedFd<'_>, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(openat(dir, name, flags, Mode::empty())?.into())
}

pub(crate) fn create_file(dir: BorrowedFd<'_>, name: &str) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, FILE_MODE)?;
    // The umask may only have taken rights away, and an owner without them could not read it.
    fchmod(&file, FILE_MODE)?;
    Ok(file.into())
}

pub(crate) fn stat(dir: BorrowedFd<'_>, name: &str) -> io::Result<Stat> {
    Ok(statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// What is in a directory, up to `at_most` names; more are an error.
pub(crate) fn list(dir: BorrowedFd<'_>, at_most: usize) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let raw = entry.file_name();
        if raw == c"." || raw == c".." {
            continue;
        }
        if found.len() == at_most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too many names"));
        }
        match statat(dir, raw, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => found.push(Found { name: raw.to_str().ok().map(str::to_owned), stat }),
            // Gone between the two.
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(found)
}

/// The directory itself and what is in it.
pub(crate) fn measure(dir: BorrowedFd<'_>) -> io::Result<Vec<Part>> {
    let mut parts = vec![part(&fstat(dir)?)];
    parts.extend(list(dir, usize::MAX)?.iter().map(|found| part(&found.stat)));
    Ok(parts)
}

/// An attempt at a lock.
#[derive(Debug)]
pub(crate) enum Locked {
    /// Held for as long as the file lives.
    Ours(File),
    /// Somebody else holds it.
    Held,
    /// There is no lock file, and so nobody who could hold it.
    Missing,
}

/// Tries the lock of an entry, a draft, or what was one.
pub(crate) fn try_lock(dir: BorrowedFd<'_>, how: FlockOperation) -> io::Result<Locked> {
    let file = match open_file(dir, LOCK) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Locked::Missing),
        // A link in its place: no lock that we gave out.
        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            return Ok(Locked::Missing);
        }
        Err(error) => return Err(error),
    };
    match flock(&file, how) {
        Ok(()) => Ok(Locked::Ours(file)),
        Err(Errno::WOULDBLOCK) => Ok(Locked::Held),
        Err(errno) => Err(errno.into()),
    }
}

/// Renames, unless something has the new name.
pub(crate) fn rename_new(dir: BorrowedFd<'_>, from: &str, to: &str) -> io::Result<()> {
    Ok(renameat_with(dir, from, dir, to, RenameFlags::NOREPLACE)?)
}

pub(crate) fn sync(dir: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::fs::fsync(dir)?)
}

/// How a removal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removed {
    Gone,
    /// Somebody holds its lock: it stays.
    InUse,
}

/// Unlinks a directory of ours that is no entry any more, and what is in it. The record goes first: what
/// has none can't be served, whatever of this a power failure undoes.
pub(crate) fn remove(root: &OwnedFd, path: &Path, name: &str) -> io::Result<Removed> {
    let dir = match open_dir(root.as_fd(), name) {
        Ok(dir) => dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Removed::Gone),
        Err(error) => return Err(error),
    };
    let lock = try_lock(dir.as_fd(), FlockOperation::NonBlockingLockExclusive)?;
    if matches!(lock, Locked::Held) {
        return Ok(Removed::InUse);
    }
    fault::hit("remove")?;
    remove_locked(dir.as_fd(), &path.join(name))?;
    Ok(Removed::Gone)
}

/// [`remove`] by who holds the lock.
pub(crate) fn remove_locked(dir: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    match unlinkat(dir, RECORD, AtFlags::empty()) {
        // A directory of that name goes with the rest.
        Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
        Err(errno) => return Err(errno.into()),
    }
    fault::hit("record-removed")?;
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fault::hit("removed"),
    }
}
