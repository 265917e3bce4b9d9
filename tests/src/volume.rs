//! A small file system of the node's own, which can get full.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::statvfs;

/// The largest piece of the ballast, in bytes; pieces get smaller as it gets full.
const PIECE: i64 = 64 << 20;
/// The smallest: the file system's block.
const BLOCK: i64 = 4096;

/// Why there is no such file system.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// Only root mounts.
    #[error("this is not root")]
    NotRoot,
    /// Its file or its directory can't be made.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A program can't be run, or failed.
    #[error("{program}: {why}")]
    Program {
        /// Which.
        program: &'static str,
        /// What it said.
        why: String,
    },
}

/// What a [`Volume`] is formatted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// Each file has its own blocks.
    Ext4,
    /// Files can share blocks (reflinks). Of 300 MiB at the least.
    Xfs,
}

/// A file with a file system in it, mounted. Dropped, it is unmounted and gone, with all that is beside it
/// in the node's directory.
#[derive(Debug)]
pub struct Volume {
    root: PathBuf,
    mount: PathBuf,
}

impl Volume {
    /// Makes one of so many MiB, below `root`.
    pub fn make(root: &Path, kind: FileSystem, mib: u64) -> Result<Self, VolumeError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(VolumeError::NotRoot);
        }
        let (file, mount) = (root.join("state.img"), root.join("state"));
        let made = File::create(&file).and_then(|file| file.set_len(mib << 20));
        made.map_err(|source| VolumeError::File { path: file.clone(), source })?;
        fs::create_dir_all(&mount)
            .map_err(|source| VolumeError::File { path: mount.clone(), source })?;
        let (mkfs, args): (_, &[&str]) = match kind {
            // No blocks set aside for root: full is full.
            FileSystem::Ext4 => ("mkfs.ext4", &["-q", "-F", "-m", "0"]),
            FileSystem::Xfs => ("mkfs.xfs", &["-q", "-m", "reflink=1"]),
        };
        run(mkfs, Command::new(mkfs).args(args).arg(&file))?;
        run("mount", Command::new("mount").args(["-o", "loop"]).arg(&file).arg(&mount))?;
        Ok(Self { root: root.to_owned(), mount })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Fills it but for about `free` bytes.
    pub fn fill(&self, free: u64) -> io::Result<()> {
        let ballast = File::create(self.ballast())?;
        let left = || {
            let stat = statvfs(&self.mount)?;
            let bytes = stat.blocks_available().saturating_mul(stat.fragment_size());
            Ok::<_, Errno>(i64::try_from(bytes.saturating_sub(free)).unwrap_or(i64::MAX))
        };
        let (mut at, mut piece) = (0, PIECE);
        while piece >= BLOCK {
            let now = piece.min(left()? / BLOCK * BLOCK);
            if now <= 0 {
                break;
            }
            match fallocate(ballast.as_fd(), FallocateFlags::empty(), at, now) {
                Ok(()) => at += now,
                // Others write too, and the file system needs blocks to note which are taken.
                Err(Errno::ENOSPC) => piece = now / 2,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Gives back what [`Self::fill`] took.
    pub fn empty(&self) -> io::Result<()> {
        match fs::remove_file(self.ballast()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn ballast(&self) -> PathBuf {
        self.mount.join("ballast")
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let unmount = |lazily: &[&str]| {
            run("umount", Command::new("umount").args(lazily).arg(&self.mount)).is_ok()
        };
        // Lazily when somebody still has a file of it: it goes with its last user.
        if unmount(&[]) || unmount(&["-l"]) {
            let kept = std::env::var_os("ROUSE_KEEP").is_some();
            if !kept {
                let _ = fs::remove_dir_all(&self.root);
            }
        }
    }
}

fn run(program: &'static str, command: &mut Command) -> Result<(), VolumeError> {
    let failed = |why: String| VolumeError::Program { program, why };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed(format!("{}: {said}", output.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_volume_takes_nothing_and_an_emptied_one_does() {
        let dir = tempfile::tempdir().unwrap();
        let volume = match Volume::make(dir.path(), FileSystem::Ext4, 64) {
            Ok(volume) => volume,
            Err(why) => return println!("skipped: no volume here: {why}"),
        };
        let written = || fs::write(volume.path().join("x"), vec![1; 1 << 20]);
        let kind = |written: io::Result<()>| written.map_err(|error| error.kind());
        written().unwrap();
        fs::remove_file(volume.path().join("x")).unwrap();
        volume.fill(0).unwrap();
        assert_eq!(kind(written()), Err(io::ErrorKind::StorageFull));
        volume.empty().unwrap();
        volume.empty().unwrap();
        written().unwrap();
        let root = dir.path().to_owned();
        drop(volume);
        assert!(!root.exists(), "nothing is left");
    }
}
