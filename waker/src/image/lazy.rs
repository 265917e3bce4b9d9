//! A life whose memory file is filled while it runs, by a process of its own ([`pager`](crate::pager)).
//!
//! That process outlives a waker, and is known by `lazy.json` in the app's directory. The VM has the file on the
//! process's mount mapped; what it writes is in the memory file beside the disk once that one is synced.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rouse_snapshot_format::Progress;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::files::{read_small, remove_dir, remove_file};
use super::{AppDir, Live, MEMORY};
use crate::vmm::process::start_ticks;

const LAZY: &str = "lazy";
const RECORD: &str = "lazy.json";
/// How often it is looked at whether all of the memory is there. Other processes tell nobody.
const LOOK: Duration = Duration::from_millis(20);
/// How long the process may take to end.
const END: Duration = Duration::from_secs(15);

/// What a pager tells of itself, for as long as it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LazyRecord {
    /// Its process.
    pub pid: i32,
    /// When that started, in clock ticks after boot.
    pub start_ticks: u64,
    /// How far it is.
    pub state: Filled,
}

/// How far a memory file is filled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filled {
    /// Not all of it is there.
    Filling,
    /// All of it is.
    Whole,
    /// The rest can't be had.
    Failed(String),
}

impl LazyRecord {
    /// Of this process.
    pub fn own(state: Filled) -> io::Result<Self> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Ok(Self { pid, start_ticks: start_ticks(pid)?, state })
    }

    /// Writes it where [`AppDir`] looks for it.
    pub fn write(&self, app_dir: &Path) -> io::Result<()> {
        let draft = app_dir.join(".lazy.json");
        fs::write(&draft, serde_json::to_vec(self)?)?;
        fs::rename(draft, app_dir.join(RECORD))
    }

    fn lives(&self) -> bool {
        start_ticks(self.pid).is_ok_and(|ticks| ticks == self.start_ticks)
    }
}

impl AppDir {
    /// Where a pager mounts: a directory that nothing else is in.
    pub fn lazy_mount(&self) -> PathBuf {
        self.path.join(LAZY)
    }

    /// The pager of the life that runs, if it has one.
    fn lazy(&self) -> Option<LazyRecord> {
        let record: LazyRecord =
            serde_json::from_slice(&read_small(&self.path.join(RECORD)).ok()?).ok()?;
        record.lives().then_some(record)
    }

    /// The file that a life's VM has mapped, or is to map.
    pub fn mapped(&self, live: &Live) -> PathBuf {
        if self.lazy().is_some() { self.lazy_mount().join(MEMORY) } else { live.memory() }
    }

    /// Waits until all of a standing VM's memory is in the file beside its disk. False: it was called off.
    pub(super) fn gather(&self, progress: &Progress) -> io::Result<bool> {
        loop {
            let Some(record) = self.lazy() else { return Ok(true) };
            if progress.is_cancelled() {
                return Ok(false);
            }
            match record.state {
                Filled::Filling => std::thread::sleep(LOOK),
                Filled::Failed(why) => return Err(io::Error::other(why)),
                Filled::Whole => {
                    // As the pager sees it: this process may have been started with other mounts.
                    let seen = PathBuf::from(format!("/proc/{}/root", record.pid));
                    let path = self.lazy_mount().join(MEMORY).canonicalize();
                    let path = path.unwrap_or_else(|_| self.lazy_mount().join(MEMORY));
                    let below = path.strip_prefix("/").unwrap_or(&path);
                    File::open(seen.join(below))?.sync_all()?;
                    return Ok(true);
                }
            }
        }
    }

    /// Ends the pager of a life that is over, if there is one.
    pub(super) fn end_lazy(&self) -> io::Result<()> {
        if let Some(record) = self.lazy() {
            let raw = Pid::from_raw(record.pid).ok_or(io::ErrorKind::InvalidData)?;
            match pidfd_open(raw, PidfdFlags::empty()) {
                Ok(process) if record.lives() => {
                    let _ = pidfd_send_signal(&process, Signal::TERM);
                    let begun = Instant::now();
                    while record.lives() {
                        if begun.elapsed() > END {
                            tracing::warn!(app = %self.app, pid = record.pid, "its pager does not end, and is killed");
                            let _ = pidfd_send_signal(&process, Signal::KILL);
                            break;
                        }
                        std::thread::sleep(LOOK / 4);
                    }
                }
                _ => {}
            }
        }
        if !self.path.join(RECORD).try_exists()? {
            return Ok(());
        }
        if let Err(error) = rouse_lazy::clean(&self.lazy_mount()) {
            tracing::warn!(app = %self.app, %error, "what its pager has mounted stays");
        }
        remove_file(&self.path.join(RECORD))?;
        match fs::remove_dir(self.lazy_mount()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // Still mounted, to somebody: a later life makes do without.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
            removed => removed,
        }
    }

    /// An empty directory for a pager's mount.
    pub fn make_lazy_mount(&self) -> io::Result<PathBuf> {
        use std::os::unix::fs::DirBuilderExt as _;
        self.end_lazy()?;
        let path = self.lazy_mount();
        if path.try_exists()? {
            remove_dir(&path)?;
        }
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(path)
    }
}
