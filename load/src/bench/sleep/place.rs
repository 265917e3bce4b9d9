//! The file system that is measured on, and its disk.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::stat::{major, minor};

use super::SPACE;
use crate::machine;

/// How long everything is left alone before something is timed. Blocks of files that were removed
/// are told to the disk after a sync (`discard`), and an app that wakes later than at once finds a VMM
/// that was started in advance.
const SETTLE: Duration = Duration::from_millis(1500);
/// The unit of a block device's `stat`, whatever its sectors are, in bytes
/// (Documentation/block/stat.rst of Linux).
const SECTOR: u64 = 512;

/// What to do about a place that is of no use.
const ELSEWHERE: &str = "set TMPDIR to a directory with a short path on another disk";

/// Where everything is measured.
#[derive(Debug)]
pub(super) struct Place {
    dir: PathBuf,
    filesystem: String,
    /// The statistics of its disk; not all file systems are on one.
    disk: PathBuf,
}

impl Place {
    /// The file system that `dir` is on. One that is in memory or full is an error.
    pub(super) fn of(dir: &Path) -> anyhow::Result<Self> {
        let stat = machine::installed("stat")?;
        let told = Command::new(stat).args(["--file-system", "--format=%T"]).arg(dir).output()?;
        ensure!(told.status.success(), "stat: {}", String::from_utf8_lossy(&told.stderr).trim());
        let filesystem = String::from_utf8_lossy(&told.stdout).trim().to_owned();
        ensure_disk(dir, &filesystem)?;
        machine::ensure_space(dir, SPACE, ELSEWHERE)?;
        let device = std::fs::metadata(dir).with_context(|| dir.display().to_string())?.dev();
        let disk = format!("/sys/dev/block/{}:{}/stat", major(device), minor(device));
        Ok(Self { dir: dir.to_owned(), filesystem, disk: disk.into() })
    }

    /// Its kind, as `stat` names it.
    pub(super) fn filesystem(&self) -> String {
        self.filesystem.clone()
    }

    /// Writes back whatever is dirty and waits until the disk is quiet.
    pub(super) async fn settle(&self) -> anyhow::Result<()> {
        let dir = self.dir.clone();
        let sync = tokio::task::spawn_blocking(move || {
            let open = File::open(&dir)?;
            Ok::<_, std::io::Error>(nix::unistd::syncfs(&open)?)
        });
        sync.await?.with_context(|| format!("syncing {}", self.dir.display()))?;
        tokio::time::sleep(SETTLE).await;
        Ok(())
    }

    /// How much the disk was ever given to write, by anybody, in bytes; none where the system does
    /// not tell.
    pub(super) fn written(&self) -> Option<u64> {
        written_in(&std::fs::read_to_string(&self.disk).ok()?)
    }

    /// How much it was given since [`Self::written`] said `before`.
    pub(super) fn written_since(&self, before: Option<u64>) -> Option<u64> {
        self.written()?.checked_sub(before?)
    }
}

/// An error, which says what to do, if `dir` is on a file system that is in memory.
fn ensure_disk(dir: &Path, filesystem: &str) -> anyhow::Result<()> {
    ensure!(
        !["tmpfs", "ramfs"].contains(&filesystem),
        "{} is in memory ({filesystem}), where nothing is ever written; {ELSEWHERE}",
        dir.display()
    );
    Ok(())
}

/// The seventh number of a block device's `stat`.
fn written_in(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(6)?.parse::<u64>().ok()?.checked_mul(SECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_disk_has_written() {
        let stat =
            "  2763221   337239 130497922  5445194  1870862   502138 1361882448 20050367   0\n";
        assert_eq!(written_in(stat), Some(1_361_882_448 * 512));
        for none in ["", "1 2 3 4 5 6", "1 2 3 4 5 6 x", "1 2 3 4 5 6 18446744073709551615"] {
            assert_eq!(written_in(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_place_without_a_disk_tells_nothing() {
        let place = |disk: &str| Place {
            dir: "/".into(),
            filesystem: "overlayfs".into(),
            disk: disk.into(),
        };
        let none = place("/sys/dev/block/0:0/stat");
        assert_eq!((none.written(), none.written_since(Some(1))), (None, None));
        let dir = tempfile::tempdir().unwrap();
        let stat = dir.path().join("stat");
        std::fs::write(&stat, "0 0 0 0 0 0 10 0").unwrap();
        let there = place(stat.to_str().unwrap());
        assert_eq!(there.written_since(Some(5000)), Some(120));
        assert_eq!(there.written_since(None), None);
        assert_eq!(there.written_since(Some(5121)), None, "a disk that counts anew");
    }

    #[test]
    fn memory_is_no_place_to_measure_a_disk() {
        let error = ensure_disk(Path::new("/tmp"), "tmpfs").unwrap_err().to_string();
        assert!(error.contains("/tmp is in memory") && error.contains("TMPDIR"), "{error}");
        assert!(ensure_disk(Path::new("/tmp"), "ext2/ext3").is_ok());
        assert!(Place::of(Path::new("/no/such/directory")).is_err());
    }
}
