//! The app's disk: written out before a sleep, and after it compared with what memory knows.

mod marker;
mod mounts;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use self::marker::Marker;
use self::mounts::Mount;

/// The file system on the app's disk.
#[derive(Debug)]
pub struct Disk {
    dir: PathBuf,
    mountinfo: PathBuf,
    sys: PathBuf,
    /// What the last flush of this agent left on the disk.
    flushed: Option<Marker>,
}

/// Why the disk could not be written out.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// Not 32 hexadecimal digits.
    #[error("{0:?} is no marker: it has 32 hexadecimal digits")]
    Marker(String),
    /// There is no disk to write to.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// What was dirty is not on the disk.
    #[error("the file system at {} can't be written out: {source}", dir.display())]
    Sync {
        /// Its mount point.
        dir: PathBuf,
        /// As the kernel says.
        source: io::Error,
    },
    /// The marker is not on the disk.
    #[error("the marker {} can't be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// As the kernel says.
        source: io::Error,
    },
}

/// Why the disk is not the one that memory knows, or not in order.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// It is not mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The kernel has stopped writing to it, or it was mounted so.
    #[error("the file system at {} is read-only: the kernel makes it so after an error of the disk", .0.display())]
    ReadOnly(PathBuf),
    /// The file system has counted errors.
    #[error("the file system at {} has counted {count} errors; check it with e2fsck from outside", dir.display())]
    Errors {
        /// Its mount point.
        dir: PathBuf,
        /// How many.
        count: u64,
    },
    /// The kernel's count can't be read.
    #[error("{} can't be read: {source}", path.display())]
    Count {
        /// The file.
        path: PathBuf,
        /// As the kernel says.
        source: io::Error,
    },
    /// The marker can't be read from the disk.
    #[error("the marker {} can't be read from the disk: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// As the kernel says.
        source: io::Error,
    },
    /// Memory and disk are not of one sleep.
    #[error(
        "memory and disk are of different instants: memory's last flush left the marker {memory}, the disk has {disk}"
    )]
    Marker {
        /// What was flushed.
        memory: String,
        /// What is there.
        disk: String,
    },
}

/// Why it is not known what is mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// Nothing is.
    #[error("nothing is mounted at {}: is the app's disk there, and did its mount succeed?", .0.display())]
    Nothing(PathBuf),
    /// The table of mounts can't be read.
    #[error("{} can't be read: {source}", path.display())]
    Table {
        /// The table.
        path: PathBuf,
        /// As the kernel says.
        source: io::Error,
    },
}

impl Disk {
    /// The file system that is mounted at `dir`, or will be.
    pub fn new(dir: PathBuf) -> Self {
        Self::seen_through(dir, "/proc/self/mountinfo".into(), "/sys".into())
    }

    /// As [`Self::new`], with another table of mounts, and another tree in the place of `/sys`.
    pub fn seen_through(dir: PathBuf, mountinfo: PathBuf, sys: PathBuf) -> Self {
        Self { dir, mountinfo, sys, flushed: None }
    }

    /// Writes out the whole file system, then leaves `marker` on it and in memory. Blocks for as
    /// long as the disk takes.
    pub fn flush(&mut self, marker: &str) -> Result<(), FlushError> {
        let marker = Marker::parse(marker).ok_or_else(|| FlushError::Marker(marker.to_owned()))?;
        self.mount()?;
        // What a flush that fails leaves behind is not known.
        self.flushed = None;
        let synced = File::open(&self.dir).and_then(|dir| Ok(rustix::fs::syncfs(dir)?));
        synced.map_err(|source| FlushError::Sync { dir: self.dir.clone(), source })?;
        let path = self.marker_file();
        marker.write(&path).map_err(|source| FlushError::Write { path, source })?;
        self.flushed = Some(marker);
        Ok(())
    }

    /// Is the disk in order, and the one that memory knows? Reads only, so that nothing of what
    /// memory holds goes to a disk of another instant on its account. The marker is compared only
    /// when this agent has flushed before: a guest that has booted knows no other disk.
    pub fn check(&self) -> Result<(), CheckError> {
        let mount = self.mount()?;
        if mount.read_only {
            return Err(CheckError::ReadOnly(self.dir.clone()));
        }
        if let Some(path) = mount.error_count(&self.sys) {
            let text = std::fs::read_to_string(&path);
            let count = text.and_then(|t| t.trim().parse::<u64>().map_err(io::Error::other));
            match count {
                Ok(0) => {}
                Ok(count) => return Err(CheckError::Errors { dir: self.dir.clone(), count }),
                Err(source) => return Err(CheckError::Count { path, source }),
            }
        }
        let Some(flushed) = &self.flushed else { return Ok(()) };
        let path = self.marker_file();
        match marker::read(&path) {
            Ok(block) if flushed.is_in(&block) => Ok(()),
            Ok(block) => Err(CheckError::Marker {
                memory: flushed.to_string(),
                disk: Marker::of_block(&block).map_or("something else".into(), |m| m.to_string()),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(CheckError::Marker { memory: flushed.to_string(), disk: "none".into() })
            }
            Err(source) => Err(CheckError::Read { path, source }),
        }
    }

    fn marker_file(&self) -> PathBuf {
        self.dir.join(marker::FILE)
    }

    fn mount(&self) -> Result<Mount, MountError> {
        let table = std::fs::read_to_string(&self.mountinfo)
            .map_err(|source| MountError::Table { path: self.mountinfo.clone(), source })?;
        let dir = self.dir.canonicalize();
        let dir: &Path = dir.as_ref().unwrap_or(&self.dir);
        mounts::find(&table, dir).ok_or_else(|| MountError::Nothing(self.dir.clone()))
    }
}

#[cfg(test)]
mod tests;
