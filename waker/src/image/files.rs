//! Files that must not be torn, lost or read without bound.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// The longest manifest, key or record that is read, in bytes.
const MAX_SMALL_FILE: u64 = 64 * 1024;

/// A lock on the file at `path`, which is made if it is not there; none when it is held.
///
/// flock(2) locks belong to the open file, not to the process: a duplicate that another process
/// received keeps it. So it is only ever closed, never unlocked.
pub(super) fn lock(path: &Path, how: FlockOperation) -> io::Result<Option<OwnedFd>> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    match flock(&file, how) {
        Ok(()) => Ok(Some(file.into())),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn in_use() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "another process has locked it")
}

pub(super) fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    read_bounded(path, MAX_SMALL_FILE)
}

pub(super) fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    if size > limit {
        let message = format!("has {size} bytes; the limit is {limit}");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Written to another name, synced, renamed, and the rename synced.
pub(super) fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    let temporary = path.with_file_name(name);
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}

/// Makes renames and removals in a directory durable.
pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

pub(super) fn remove_dir(path: &Path) -> io::Result<()> {
    gone(fs::remove_dir_all(path))
}

pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    gone(fs::remove_file(path))
}

/// That something is not there is what its removal is for.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A copy of `from` at the fresh path `to` that shares its blocks; none where the file system can't.
pub(super) fn reflink(from: &Path, to: &Path) -> io::Result<Option<File>> {
    let source = File::open(from)?;
    let copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    match rustix::fs::ioctl_ficlone(&copy, &source) {
        Ok(()) => Ok(Some(copy)),
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::XDEV | Errno::NOSYS) => {
            fs::remove_file(to)?;
            Ok(None)
        }
        Err(error) => {
            let _ = fs::remove_file(to);
            Err(error.into())
        }
    }
}
