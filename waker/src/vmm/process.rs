//! A VMM process that this waker or an earlier one has started.
//!
//! It is known by pid and start time, held by a pidfd (pidfd_open(2)) so that no signal can reach
//! a stranger, and outlives the waker.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::net::unix::pipe::Receiver;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// One process and the task that waits for its end.
#[derive(Debug)]
pub struct Process {
    pid: i32,
    start_ticks: u64,
    pidfd: OwnedFd,
    exited: watch::Receiver<Option<String>>,
    _waiter: JoinSet<()>,
}

impl Process {
    /// Holds a child of ours.
    pub fn of_child(mut child: Child) -> io::Result<Self> {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or_else(gone)?;
        let (start_ticks, pidfd) = match open(pid) {
            Ok(held) => held,
            Err(error) => {
                // Nobody else would find it. Its end is seen to by the runtime.
                let _ = child.start_kill();
                return Err(error);
            }
        };
        let (end, exited) = watch::channel(None);
        let mut waiter = JoinSet::new();
        waiter.spawn(async move {
            let how = match child.wait().await {
                Ok(status) => status.to_string(),
                Err(error) => format!("its end can't be seen: {error}"),
            };
            end.send_replace(Some(how));
        });
        Ok(Self { pid, start_ticks, pidfd, exited, _waiter: waiter })
    }

    /// Holds a process that an earlier waker started, if it still is that one.
    pub fn adopt(pid: i32, start_ticks: u64) -> io::Result<Self> {
        let (ticks, pidfd) = open(pid)?;
        if ticks != start_ticks {
            return Err(gone());
        }
        let (end, exited) = watch::channel(None);
        // Nothing is read: a pidfd turns readable when its process ends, and this is the type of
        // tokio's that waits for any descriptor's readability.
        let readable = Receiver::from_owned_fd_unchecked(pidfd.try_clone()?)?;
        let mut waiter = JoinSet::new();
        waiter.spawn(async move {
            let how = match readable.readable().await {
                Ok(()) => "ended (it was no child of this waker)".to_owned(),
                Err(error) => format!("its end can't be seen: {error}"),
            };
            end.send_replace(Some(how));
        });
        Ok(Self { pid, start_ticks, pidfd, exited, _waiter: waiter })
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// What holds it.
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// When it started, in clock ticks after boot.
    pub fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// Turns to how it ended.
    pub fn exited(&self) -> watch::Receiver<Option<String>> {
        self.exited.clone()
    }

    /// SIGKILL, and waits for the end.
    pub async fn kill(&self) {
        // It fails only when the process has ended.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        // It fails only when the waiter is gone, and it is ours.
        let _ = self.exited.clone().wait_for(Option::is_some).await;
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the process is gone")
}

/// The start time and a pidfd of the same process.
fn open(pid: i32) -> io::Result<(u64, OwnedFd)> {
    let raw = Pid::from_raw(pid).ok_or_else(gone)?;
    let pidfd = pidfd_open(raw, PidfdFlags::NONBLOCK)?;
    // Read after the pidfd is open: as long as /proc shows it, it is the process we hold.
    Ok((start_ticks(pid)?, pidfd))
}

/// Field 22 of `/proc/PID/stat` (proc(5)): when the process started, in clock ticks after boot.
/// A process that has ended and only waits to be reaped counts as gone.
pub fn start_ticks(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the command in parentheses and may itself hold spaces and parentheses.
    let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    if matches!(fields.next(), None | Some("Z" | "X")) {
        return Err(gone());
    }
    fields.nth(18).and_then(|f| f.parse().ok()).ok_or_else(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_is_known_by_pid_and_start_time() {
        let child = tokio::process::Command::new("sleep").arg("600").spawn().unwrap();
        let ours = Process::of_child(child).unwrap();
        assert!(ours.exited().borrow().is_none());
        let wrong = Process::adopt(ours.pid(), ours.start_ticks() + 1).unwrap_err();
        assert_eq!(wrong.kind(), io::ErrorKind::NotFound);

        let adopted = Process::adopt(ours.pid(), ours.start_ticks()).unwrap();
        adopted.kill().await;
        ours.exited().wait_for(Option::is_some).await.unwrap();
        assert!(Process::adopt(ours.pid(), ours.start_ticks()).is_err());
    }
}
