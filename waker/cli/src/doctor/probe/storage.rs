//! What the state directory and its file system can do, found out with files that have no name.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, ioctl_ficlone, statvfs};

use super::host::read;
use super::mounts::{self, Mount};

/// How much is written into a file to be cloned or punched, in bytes: a block of any file system.
const PIECE: usize = 64 * 1024;

/// Whether the state directory is there.
#[derive(Debug)]
pub(in crate::doctor) enum There {
    /// It is.
    Yes { uid: u32, mode: u32 },
    /// Something else is.
    NoDirectory,
    /// Nothing is.
    No,
    /// It can't be seen.
    Unseen(io::Error),
}

/// What was found.
#[derive(Debug)]
pub(in crate::doctor) struct Storage {
    /// The state directory.
    pub(in crate::doctor) path: PathBuf,
    pub(in crate::doctor) there: There,
    /// Where the rest was tried: there, or in the first directory above that there is.
    pub(in crate::doctor) tried: PathBuf,
    pub(in crate::doctor) writable: io::Result<()>,
    pub(in crate::doctor) mount: Option<Mount>,
    /// In bytes, for users other than root.
    pub(in crate::doctor) free: io::Result<u64>,
    /// None where no file could be made.
    pub(in crate::doctor) reflink: Option<io::Result<()>>,
    pub(in crate::doctor) punch: Option<io::Result<()>>,
}

impl Storage {
    /// Whose the directory is.
    pub(in crate::doctor) fn owner(&self) -> Option<u32> {
        match self.there {
            There::Yes { uid, .. } => Some(uid),
            _ => None,
        }
    }
}

pub(in crate::doctor) fn look(path: &Path) -> Storage {
    let there = match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => {
            There::Yes { uid: meta.uid(), mode: meta.permissions().mode() & 0o7777 }
        }
        Ok(_) => There::NoDirectory,
        Err(error) if error.kind() == io::ErrorKind::NotFound => There::No,
        Err(error) => There::Unseen(error),
    };
    let above = path.ancestors().find(|place| place.is_dir()).unwrap_or(Path::new("/"));
    let tried = above.canonicalize().unwrap_or_else(|_| above.to_owned());
    let file = filled(&tried);
    Storage {
        path: path.to_owned(),
        there,
        mount: read("/proc/self/mountinfo").ok().and_then(|table| mounts::of(&tried, &table)),
        free: statvfs(&tried)
            .map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize))
            .map_err(io::Error::from),
        reflink: file.as_ref().ok().map(|file| clone(file, &tried)),
        punch: file.as_ref().ok().map(punch),
        writable: file.map(drop),
        tried,
    }
}

/// A file with something in it, gone when it is closed.
fn filled(directory: &Path) -> io::Result<File> {
    let mut file = tempfile::tempfile_in(directory)?;
    file.write_all(&[1; PIECE])?;
    Ok(file)
}

fn clone(file: &File, directory: &Path) -> io::Result<()> {
    let copy = tempfile::tempfile_in(directory)?;
    Ok(ioctl_ficlone(&copy, file)?)
}

fn punch(file: &File) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, 0, PIECE as u64)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_in_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let facts = look(dir.path());
        assert!(matches!(facts.there, There::Yes { mode: 0o700, .. }), "{facts:?}");
        assert!(facts.writable.is_ok() && facts.reflink.is_some() && facts.punch.is_some());
        assert!(facts.mount.is_some() && facts.free.is_ok());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_not_there_is_tried_above() {
        let dir = tempfile::tempdir().unwrap();
        let facts = look(&dir.path().join("a/b"));
        assert!(matches!(facts.there, There::No), "{facts:?}");
        assert_eq!(
            (facts.tried, facts.writable.is_ok()),
            (dir.path().canonicalize().unwrap(), true)
        );
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(look(&file).there, There::NoDirectory));
        assert!(matches!(look(&file.join("x")).there, There::Unseen(_)));
    }
}
