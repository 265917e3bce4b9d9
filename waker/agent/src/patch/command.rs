//! A program that says by its status whether all is well.

use std::io::{self, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// How much of the end of a program's output an error tells, in bytes.
const MAX_OUTPUT: usize = 2 * 1024;

/// The longest that a program may run, whatever it was allowed.
const MAX_TIME: Duration = Duration::from_secs(60 * 60);

/// Why a command is not well.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// There is no program in it.
    #[error("the command is empty: it needs a program")]
    Empty,
    /// It can't be started.
    #[error("{program} can't be started: {source}")]
    Start {
        /// What was to run.
        program: String,
        /// As the kernel says.
        source: io::Error,
    },
    /// It runs, but can't be followed. It was killed.
    #[error("{program} can't be waited for: {source}")]
    Wait {
        /// What runs.
        program: String,
        /// As the kernel says.
        source: io::Error,
    },
    /// It ended otherwise than with status 0.
    #[error("{program} ended with {status}; it said: {output}")]
    Status {
        /// What ran.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it said.
        output: String,
    },
    /// It was killed after its time.
    #[error("{program} took longer than {} ms and was killed; it said: {output}", timeout.as_millis())]
    Timeout {
        /// What ran.
        program: String,
        /// How long it was allowed.
        timeout: Duration,
        /// The end of what it said.
        output: String,
    },
}

/// Runs `argv` in a process group of its own, which is killed as a whole when the program is not
/// through within `timeout`. Well means status 0. What it leaves running after its end is its own.
pub fn run(argv: &[String], timeout: Duration) -> Result<(), CommandError> {
    let (name, arguments) = argv.split_first().ok_or(CommandError::Empty)?;
    let program = name.clone();
    let started = start(name, arguments);
    let (child, output) =
        started.map_err(|source| CommandError::Start { program: program.clone(), source })?;
    let mut running = Running { child, output, said: Vec::new() };
    let timeout = timeout.min(MAX_TIME);
    match running.until(Instant::now() + timeout) {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(CommandError::Status { program, status, output: running.said() }),
        Ok(None) => {
            running.kill();
            Err(CommandError::Timeout { program, timeout, output: running.said() })
        }
        Err(source) => {
            running.kill();
            Err(CommandError::Wait { program, source })
        }
    }
}

fn start(program: &str, arguments: &[String]) -> io::Result<(Child, PipeReader)> {
    let (output, said) = io::pipe()?;
    ioctl_fionbio(&output, true)?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said)
        .process_group(0)
        .spawn()?;
    Ok((child, output))
}

struct Running {
    child: Child,
    output: PipeReader,
    /// The end of what it has said.
    said: Vec<u8>,
}

impl Running {
    /// Its status, or none when it still runs at `deadline`. Reads along, so that it never waits
    /// for us.
    fn until(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        let ended = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        let mut open = true;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut polled =
                [PollFd::new(&ended, PollFlags::IN), PollFd::new(&self.output, PollFlags::IN)];
            // Without its output there is only its end to wait for.
            let watched = if open { &mut polled[..] } else { &mut polled[..1] };
            match poll(watched, Some(&left)) {
                Ok(0) => return Ok(None),
                Err(Errno::INTR) => continue,
                polled => polled?,
            };
            let has_ended = !polled[0].revents().is_empty();
            if open {
                open = self.read()?;
            }
            if has_ended {
                return self.child.wait().map(Some);
            }
            // One that talks without end is never polled in vain.
            if Instant::now() >= deadline {
                return Ok(None);
            }
        }
    }

    /// Reads what is there, a pipe's fill at most. Returns whether more may come.
    fn read(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 4096];
        for _ in 0..16 {
            match self.output.read(&mut chunk) {
                Ok(0) => return Ok(false),
                Ok(read) => {
                    self.said.extend_from_slice(&chunk[..read]);
                    let excess = self.said.len().saturating_sub(MAX_OUTPUT);
                    self.said.drain(..excess);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Kills the whole group. It has not been waited for, so its number is still its own.
    fn kill(&mut self) {
        let group = Pid::from_child(&self.child);
        // An error means that nobody of it is left.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }

    fn said(&self) -> String {
        let said = String::from_utf8_lossy(&self.said);
        let said = said.trim();
        if said.is_empty() { "nothing".to_owned() } else { said.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::OpenOptionsExt;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn sh(script: &str, timeout: Duration) -> Result<(), CommandError> {
        run(&["sh", "-c", script].map(str::to_owned), timeout)
    }

    #[test]
    fn the_status_is_the_answer() {
        sh("exit 0", LONG).unwrap();
        let error = sh("echo one; echo two >&2; exit 3", LONG).unwrap_err().to_string();
        assert_eq!(error, "sh ended with exit status: 3; it said: one\ntwo");
        let error = sh("kill -9 $$", LONG).unwrap_err().to_string();
        assert!(error.contains("signal: 9") && error.ends_with("it said: nothing"), "{error}");
        assert!(matches!(run(&[], LONG), Err(CommandError::Empty)));
        let missing = run(&["/nonexistent/program".to_owned()], LONG);
        assert!(matches!(missing, Err(CommandError::Start { .. })));
    }

    #[test]
    fn only_the_end_of_the_output_is_kept() {
        let much = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; exit 1";
        let Err(CommandError::Status { output, .. }) = sh(much, LONG) else { panic!("no status") };
        assert!(output.len() <= MAX_OUTPUT && output.ends_with("line 19998\nline 19999"));
    }

    #[test]
    fn nothing_can_be_asked_of_it() {
        sh("! read x", LONG).unwrap();
    }

    #[test]
    fn the_whole_group_is_killed_after_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alive");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Open before anyone writes, so that neither end waits for the other.
        let nonblocking = nix::libc::O_NONBLOCK;
        let mut alive = File::options().read(true).custom_flags(nonblocking).open(&path).unwrap();
        // Everyone in the group holds the pipe open until it dies, and nobody writes to it.
        let script = format!("exec 3> {}; echo up; sleep 600 & sleep 600", path.display());
        let error = sh(&script, Duration::from_millis(200)).unwrap_err();
        // A slow machine may not even have let it begin.
        assert!(matches!(error, CommandError::Timeout { .. }), "{error}");
        let patience = Instant::now() + Duration::from_secs(60);
        while let Err(error) = alive.read(&mut [0]) {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            assert!(Instant::now() < patience, "somebody of the group lives on");
            thread::yield_now();
        }
        // One that never stops talking does not outlive its time either.
        let error = sh("while :; do echo x; done", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, CommandError::Timeout { .. }), "{error}");
    }

    #[test]
    fn what_it_leaves_behind_does_not_hold_it_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("end");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // The one left behind has the output open, and ends with the test.
        sh(&format!("cat {} & exit 0", path.display()), LONG).unwrap();
        drop(File::options().write(true).open(&path).unwrap());
    }
}
