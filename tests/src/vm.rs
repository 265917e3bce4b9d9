//! The VMM processes of a node: finding them, and seeing to it that none is left.

use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;

use crate::wait::{TICK, patience};

/// A VMM process as the waker recorded it, in `run.json` or `vmm.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Vm {
    /// Its process.
    pub pid: i32,
    /// When that process began, in the clock ticks of `/proc/PID/stat`: with it the pid names
    /// this process and none that got the number later.
    pub start_ticks: u64,
}

impl Vm {
    /// What `file` records, when that process still runs.
    pub fn recorded_in(file: &Path) -> Option<Self> {
        let vm: Self = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
        vm.runs().then_some(vm)
    }

    /// Whether it still runs.
    pub fn runs(&self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// The files below `dir` that it has open, by the names they have now; none when it is gone.
    pub fn open_below(&self, dir: &Path) -> Vec<PathBuf> {
        let Ok(descriptors) = std::fs::read_dir(format!("/proc/{}/fd", self.pid)) else {
            return Vec::new();
        };
        let files = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        files.filter(|file| file.starts_with(dir)).collect()
    }

    /// Kills it as a crash would, and returns when it is gone. One that outlives SIGKILL is left
    /// after [`patience`].
    pub fn kill(&self) {
        let start = Instant::now();
        while self.runs() && start.elapsed() < patience() {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
            std::thread::sleep(TICK);
        }
    }
}

/// The processes that fill guests' memories on the node in `root`.
pub(crate) fn pagers_of(root: &Path) -> Vec<Vm> {
    let apps = std::fs::read_dir(root.join("state/apps")).into_iter().flatten().flatten();
    apps.filter_map(|app| Vm::recorded_in(&app.path().join("lazy.json"))).collect()
}

/// All VMM processes of the node in `root`: those whose command line names that directory. It
/// finds also what a killed waker had no time to record.
pub fn vmms_of(root: &Path) -> Vec<Vm> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let root = root.to_string_lossy();
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| {
            let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let cmdline = String::from_utf8_lossy(&cmdline);
            let program = cmdline.split('\0').next().unwrap_or_default();
            if !program.contains("qemu") || !cmdline.contains(&*root) {
                return None;
            }
            Some(Vm { pid, start_ticks: start_ticks(pid)? })
        })
        .collect()
}

/// When a process began, in clock ticks; none when there is none, or only what its parent has
/// not taken notice of.
fn start_ticks(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in brackets, and may hold anything.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // State is field 3, the start time field 22.
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_that_a_process_has_open_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("open");
        let file = std::fs::File::create(&path).unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let own = Vm { pid, start_ticks: start_ticks(pid).unwrap() };
        assert_eq!(own.open_below(dir.path()), [path]);
        drop(file);
        assert!(own.open_below(dir.path()).is_empty(), "a closed file is not open");
    }

    #[test]
    fn a_process_is_known_by_pid_and_start() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let vm = Vm { pid, start_ticks: start_ticks(pid).unwrap() };
        assert!(vm.runs(), "a started process runs");
        assert!(
            !Vm { start_ticks: vm.start_ticks + 1, ..vm }.runs(),
            "another start, another process"
        );
        vm.kill();
        assert!(!vm.runs(), "a killed process does not run, taken notice of or not");
        child.wait().unwrap();
    }
}
