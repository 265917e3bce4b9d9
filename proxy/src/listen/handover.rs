//! A newer process takes this one's place: it inherits the listening sockets, so that no connection is
//! refused, and says when it serves.
//!
//! It is started as this one was, from the same path and with the same arguments, and finds the sockets
//! as from systemd (`LISTEN_FDS`, sd_listen_fds(3)) but for `LISTEN_PID`, which nobody knows before it
//! runs.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};

/// Names the descriptor on which the new process says that it serves.
const READY: &str = "ROUSE_READY_FD";
/// The first of the descriptors that are handed over: SD_LISTEN_FDS_START.
const FIRST: i32 = 3;
/// How long the new process may take until it serves.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why no newer process serves.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandoverError {
    #[error("{program} can't be started: {source}")]
    Start { program: PathBuf, source: io::Error },
    #[error("sockets can't be handed over: {0}")]
    Sockets(io::Error),
    #[error("the new process ended before it served; what it said is in its log")]
    Ended,
    #[error("the new process did not serve within {0:?} and is ended")]
    Timeout(Duration),
}

/// How this process was started.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Origin {
    /// To be asked at the start: later the program's file may be another.
    pub(crate) fn now() -> io::Result<Self> {
        let arguments = std::env::args_os().skip(1).collect();
        Ok(Self { program: std::env::current_exe()?, arguments })
    }

    /// Starts the process that takes this one's place, and waits until it serves. Blocks.
    pub(crate) fn hand_over(&self, sockets: Vec<OwnedFd>) -> Result<Child, HandoverError> {
        let (mut ready, told) = io::pipe().map_err(HandoverError::Sockets)?;
        let count = i32::try_from(sockets.len()).unwrap_or(i32::MAX);
        let mut mappings: Vec<_> = sockets
            .into_iter()
            .zip(FIRST..)
            .map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd })
            .collect();
        let ready_fd = FIRST.saturating_add(count);
        mappings.push(FdMapping { parent_fd: OwnedFd::from(told), child_fd: ready_fd });
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env("LISTEN_FDS", count.to_string())
            .env_remove("LISTEN_PID")
            .env_remove("LISTEN_FDNAMES")
            .env(READY, ready_fd.to_string());
        command
            .fd_mappings(mappings)
            .map_err(|error| HandoverError::Sockets(io::Error::other(error)))?;
        let start = |source| HandoverError::Start { program: self.program.clone(), source };
        let mut child = command.spawn().map_err(start)?;
        // Our own ends of what it has now, so that its end is ours too.
        drop(command);
        let (said, heard) = std::sync::mpsc::channel();
        let reader = std::thread::Builder::new().name("handover".to_owned());
        let read = reader.spawn(move || {
            let mut byte = [0];
            // Nobody may be waiting any more.
            let _ = said.send(matches!(ready.read(&mut byte), Ok(1)));
        });
        read.map_err(HandoverError::Sockets)?;
        let outcome = match heard.recv_timeout(PATIENCE) {
            Ok(true) => return Ok(child),
            Ok(false) => HandoverError::Ended,
            Err(_) => HandoverError::Timeout(PATIENCE),
        };
        // What can't be ended has ended.
        let _ = child.kill();
        let _ = child.wait();
        Err(outcome)
    }
}

/// The name by which the waker knows a process that takes another's place: for a while both watch, and
/// what one of them agrees to is no word of the other's.
pub(crate) fn own_name(name: &str) -> String {
    if takes_over() { with_number(name, std::process::id()) } else { name.to_owned() }
}

/// Whether this process was started to take another's place.
pub(crate) fn takes_over() -> bool {
    std::env::var_os(READY).is_some()
}

fn with_number(name: &str, number: u32) -> String {
    let number = format!("-{number}");
    // Names are ASCII, of at most 128 bytes.
    let kept = name.len().min(128 - number.len());
    format!("{}{number}", name.get(..kept).unwrap_or_default())
}

/// Tells the process whose place this one takes that it serves; true if there is one.
pub(crate) fn tell_ready() -> bool {
    let Some(fd) = std::env::var(READY).ok().and_then(|fd| fd.parse::<u32>().ok()) else {
        return false;
    };
    // By its name, since a number alone is no descriptor that Rust would let us own.
    let told = File::options()
        .write(true)
        .open(format!("/proc/self/fd/{fd}"))
        .and_then(|mut pipe| pipe.write_all(b"1"));
    if let Err(error) = &told {
        tracing::error!(%error, "the process before can't be told that this one serves");
    }
    told.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_has_a_name_of_its_own() {
        assert_eq!(with_number("edge-1", 4711), "edge-1-4711");
        let long = with_number(&"a".repeat(128), u32::MAX);
        assert!(long.len() == 128 && long.ends_with("-4294967295"), "{long}");
    }
}
