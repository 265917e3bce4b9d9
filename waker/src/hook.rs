//! The operator's program that is run when an app is parked.

use std::io;
use std::os::fd::AsFd;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How much of what a program says is kept, in bytes: the last of it.
const KEPT: usize = 4096;
/// How long a program may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// What it gets of the waker's environment.
const INHERITED: [&str; 3] = ["PATH", "HOME", "LANG"];
/// How many reads of [`KEPT`] bytes empty a pipe: it holds 64 KiB unless it was enlarged (pipe(7)).
const READS: usize = 32;

/// A program and how long it may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    program: String,
    args: Vec<String>,
    timeout: Duration,
}

/// A hook names no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hook is a program and its arguments, and this one is empty")]
pub struct NoProgram;

/// Why a hook did not go well.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// It can't be run.
    #[error("can't run {program}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// What running it said.
        source: io::Error,
    },
    /// It runs, or ran, and its end can't be seen. It has been killed.
    #[error("{program} can't be waited for: {source}")]
    Wait {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// It ended badly.
    #[error("{program} ended with {status}; it said: {output}")]
    Failed {
        /// The program.
        program: String,
        /// Its exit code or signal.
        status: ExitStatus,
        /// The last of what it said on standard output and standard error.
        output: String,
    },
    /// It took longer than it may, and was ended.
    #[error("{program} was ended after {after:?}; it said: {output}")]
    Timeout {
        /// The program.
        program: String,
        /// How long it could take.
        after: Duration,
        /// The last of what it said on standard output and standard error.
        output: String,
    },
}

impl Hook {
    /// The program that `argv` begins with, with the rest as arguments; it may take `timeout`.
    pub fn new(argv: Vec<String>, timeout: Duration) -> Result<Self, NoProgram> {
        let mut args = argv;
        if args.first().is_none_or(String::is_empty) {
            return Err(NoProgram);
        }
        let program = args.remove(0);
        Ok(Self { program, args, timeout })
    }
}

/// Runs a hook to its end, with `vars` in its environment beside `PATH`, `HOME` and `LANG`.
///
/// It has a process group of its own, and nothing of that group outlives the run: at the timeout
/// all of it gets SIGTERM, and SIGKILL 2 s later. What a program that has ended leaves behind in
/// its group gets SIGKILL, and so does the whole group when the future is dropped, since nobody is
/// there any more to wait.
pub async fn run(hook: &Hook, vars: &[(&str, String)]) -> Result<(), HookError> {
    let program = || hook.program.clone();
    let (mut group, mut said) =
        start(hook, vars).map_err(|source| HookError::Spawn { program: program(), source })?;
    let ended = timeout(hook.timeout, group.ended(&mut said)).await;
    let in_time = ended.is_ok();
    if !in_time {
        group.signal(Signal::TERM);
        let _ = timeout(GRACE, group.all_ended(&mut said)).await;
    }
    let killed = group.kill().await;
    let status = ended
        .unwrap_or(Ok(()))
        .and(killed)
        .map_err(|source| HookError::Wait { program: program(), source })?;
    match in_time {
        true if status.success() => Ok(()),
        true => Err(HookError::Failed { program: program(), status, output: said.text() }),
        false => {
            let (after, output) = (hook.timeout, said.text());
            Err(HookError::Timeout { program: program(), after, output })
        }
    }
}

fn start(hook: &Hook, vars: &[(&str, String)]) -> io::Result<(Group, Said)> {
    let (theirs, ours) = pipe::pipe()?;
    let theirs = theirs.into_blocking_fd()?;
    let mut command = Command::new(&hook.program);
    command.args(&hook.args).process_group(0).current_dir("/").env_clear();
    command.envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.envs(vars.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(theirs.try_clone()?).stderr(theirs);
    // Of use only until the group has an owner.
    command.kill_on_drop(true);
    let child = command.spawn()?;
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let pid = pid.ok_or(io::ErrorKind::NotFound)?;
    let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
    // Nothing is read: it turns readable when the process ends, and this type waits for that.
    let pidfd = pipe::Receiver::from_owned_fd_unchecked(pidfd)?;
    let group = Group { child, pid, pidfd, killed: false };
    Ok((group, Said { pipe: ours, kept: Vec::new(), open: true }))
}

/// A process group whose leader is our child. The leader is not reaped before the group is killed,
/// so that no other group can have its number by then.
struct Group {
    child: Child,
    pid: Pid,
    pidfd: pipe::Receiver,
    killed: bool,
}

impl Group {
    fn signal(&self, signal: Signal) {
        // It fails only when nobody of the group is left.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Waits for the leader's end, and takes in what is said until then.
    async fn ended(&self, said: &mut Said) -> io::Result<()> {
        loop {
            tokio::select! {
                ended = self.pidfd.readable() => return ended.map(drop),
                () = said.more(), if said.open => {}
            }
        }
    }

    /// Waits for the end of everyone who can say something, and of the leader.
    async fn all_ended(&self, said: &mut Said) -> io::Result<()> {
        self.ended(said).await?;
        while said.open {
            said.more().await;
        }
        Ok(())
    }

    /// Kills who is left, and waits for the leader's end: not for ever, since a process that hangs
    /// within the kernel can't be killed. The runtime reaps it whenever it ends.
    async fn kill(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::KILL);
        self.killed = true;
        match timeout(GRACE, self.child.wait()).await {
            Ok(status) => status,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it can't be killed")),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.killed {
            self.signal(Signal::KILL);
        }
    }
}

/// What a program says.
struct Said {
    pipe: pipe::Receiver,
    kept: Vec<u8>,
    open: bool,
}

impl Said {
    /// Waits until something is said or everyone has hung up, and takes it in.
    async fn more(&mut self) {
        match self.pipe.readable().await {
            Ok(()) => {
                let mut piece = [0; KEPT];
                match self.pipe.try_read(&mut piece) {
                    Ok(0) => self.open = false,
                    Ok(read) => self.keep(&piece[..read]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => self.open = false,
                }
            }
            Err(_) => self.open = false,
        }
    }

    fn keep(&mut self, piece: &[u8]) {
        self.kept.extend_from_slice(piece);
        self.kept.drain(..self.kept.len().saturating_sub(KEPT));
    }

    /// The last of all that was said.
    fn text(&mut self) -> String {
        // What is in the pipe by now, also if the runtime has not been told of it yet. Somebody
        // outside the group may hold the other end and go on, so there is a bound.
        for _ in 0..READS {
            let mut piece = [0; KEPT];
            match rustix::io::read(self.pipe.as_fd(), &mut piece) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => break,
                Ok(read) => self.keep(&piece[..read]),
            }
        }
        String::from_utf8_lossy(&self.kept).trim().to_owned()
    }
}

#[cfg(test)]
#[path = "hook_tests.rs"]
mod tests;
