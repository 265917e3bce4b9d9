//! Why something can't be done.

use std::io;
use std::path::PathBuf;

/// Why there can be no lazy file on this machine, for whoever we are.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The kernel has no FUSE, or its module is not loaded.
    #[error("there is no /dev/fuse; load the module `fuse`")]
    NoDevice,
    /// We may neither mount ourselves nor have `fusermount3` do so.
    #[error("only root mounts without `fusermount3`, which is not installed (package fuse3)")]
    NoFusermount,
    /// The device can't be opened.
    #[error("/dev/fuse can't be opened: {0}")]
    Device(io::Error),
}

/// Why a lazy file is not mounted. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// It is not to be had on this machine.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The name is empty, or leads elsewhere.
    #[error("{0:?} is no name of a file")]
    Name(String),
    /// The backing file is not of the size that was named, or that is none.
    #[error("the backing file has {there} bytes and not {wanted}")]
    Size {
        /// Its size in bytes.
        there: u64,
        /// What was named, in bytes.
        wanted: u64,
    },
    /// Windows are of a power of two of at least a page.
    #[error("a window can't be of {0} bytes")]
    Window(u64),
    /// The backing file can't be looked at.
    #[error("the backing file: {0}")]
    Backing(io::Error),
    /// The directory is not there, or not ours.
    #[error("{}: {source}", dir.display())]
    Dir {
        /// The directory to mount at.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel refused the mount.
    #[error("{} can't be mounted at: {source}", dir.display())]
    Refused {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// `fusermount3` refused the mount.
    #[error("fusermount3 does not mount at {}: {said}", dir.display())]
    Fusermount {
        /// The directory.
        dir: PathBuf,
        /// What it said.
        said: String,
    },
    /// Nothing serves it.
    #[error("it can't be served: {0}")]
    Serve(io::Error),
}

/// Why a lazy file is still mounted, or its threads have not ended.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// The system refused.
    #[error("{} can't be unmounted: {source}", dir.display())]
    Refused {
        /// Where it is mounted.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is detached, but somebody has it open and the connection can't be ended: we are not root, and `fusectl` is
    /// not mounted at `/sys/fs/fuse/connections`. It ends with whoever has it open, or with our process.
    #[error("{} is detached but still in use", dir.display())]
    InUse {
        /// Where it was mounted.
        dir: PathBuf,
    },
}

/// Why what a killed process left behind is not taken away.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// Something answers there.
    #[error("{} is served by a process that is alive", dir.display())]
    Alive {
        /// Where it is mounted.
        dir: PathBuf,
    },
    /// It is no mount of this crate's.
    #[error("{} is a mount of type {kind}, which is not ours", dir.display())]
    NotOurs {
        /// Where it is mounted.
        dir: PathBuf,
        /// The type of its file system.
        kind: String,
    },
    /// The system refused, or says nothing of its mounts.
    #[error("{}: {source}", dir.display())]
    System {
        /// Where to look.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why [`serve`](crate::serve) did not serve, or not to a good end.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It never began.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// It broke off.
    #[error("serving broke off: {0}")]
    Broken(io::Error),
}
