//! Running a program once, to its end.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;

/// After this long a program has failed: the slowest of them takes half a minute on a slow disk.
const LIMIT: Duration = Duration::from_secs(600);
/// How long one that was killed may take until it is gone: as long as the system call that it is in.
const STOP: Duration = Duration::from_secs(30);
/// Between two looks.
const TICK: Duration = Duration::from_millis(10);

/// Runs programs one after the other. What they say goes to files in its directory.
#[derive(Debug)]
pub(super) struct Runner {
    dir: PathBuf,
}

impl Runner {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Runs a program, and tells how long it took, its start included. Any exit code but 0 is an
    /// error, with what the program said.
    pub(super) async fn run(&self, command: Command) -> anyhow::Result<Duration> {
        self.run_into(command, Stdio::null()).await
    }

    /// Runs a program, and returns what it printed.
    pub(super) async fn output(&self, command: Command) -> anyhow::Result<String> {
        let path = self.dir.join("stdout");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        self.run_into(command, file.into()).await?;
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// Runs a program, and tells the most memory that it had, in bytes.
    pub(super) async fn peak_memory(&self, command: &Command) -> anyhow::Result<u64> {
        let mut meter = Command::new(std::env::current_exe().context("where this program is")?);
        meter.arg("peak-memory").arg("--").arg(command.get_program()).args(command.get_args());
        let said = self.output(meter).await?;
        said.trim().parse().with_context(|| format!("not a number of bytes: {said:?}"))
    }

    async fn run_into(&self, command: Command, stdout: Stdio) -> anyhow::Result<Duration> {
        let told = format!("{command:?}");
        let log = self.dir.join("stderr");
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = tokio::process::Command::from(command);
        command.stdin(Stdio::null()).stdout(stdout).stderr(file).process_group(0);

        let start = Instant::now();
        let mut running = Running(command.spawn().with_context(|| told.clone())?);
        let ended = tokio::time::timeout(LIMIT, running.0.wait()).await;
        let took = start.elapsed();
        let Ok(status) = ended else { bail!("{told} did not end within {} s", LIMIT.as_secs()) };
        let status = status?;
        if !status.success() {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            bail!("{told}: {status}\n{}", said.trim());
        }
        Ok(took)
    }
}

/// A process that leads a group. Dropped, the group is gone: nobody writes into a directory that is
/// about to be removed.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // There is no pid any more once its end was seen.
        let Some(pid) = self.0.id().and_then(|pid| i32::try_from(pid).ok()) else { return };
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        let start = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) && start.elapsed() < STOP {
            std::thread::sleep(TICK);
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct PeakArgs {
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs one command and prints its largest resident set, in bytes.
///
/// A process of its own, because the kernel tells that only of all children together, and counts
/// with a child what its parent had when it was started: this one has a few MiB.
pub(crate) fn peak_memory(args: &PeakArgs) -> anyhow::Result<()> {
    let (program, rest) = args.command.split_first().context("no command")?;
    let status = Command::new(program)
        .args(rest)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .with_context(|| program.display().to_string())?;
    ensure!(status.success(), "{}: {status}", program.display());
    let kib = u64::try_from(getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss())?;
    println!("{}", kib * 1024);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_program_that_fails_is_an_error_with_its_words() {
        let dir = tempfile::tempdir().unwrap();
        let runner = Runner::new(dir.path());
        assert!(runner.run(sh("exit 0")).await.is_ok());
        assert_eq!(runner.output(sh("echo 17; echo no >&2")).await.unwrap(), "17\n");
        let error = runner.run(sh("echo the disk is full >&2; exit 3")).await.unwrap_err();
        assert!(error.to_string().contains("the disk is full"), "{error}");
        assert!(runner.run(Command::new("/no/such/program")).await.is_err());
    }

    #[tokio::test]
    async fn whoever_stops_waiting_ends_the_whole_group() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let script = format!("sleep 600 & echo $! > '{}'; sleep 601", pid.display());
        let runner = Runner::new(dir.path());
        let started = async {
            loop {
                match std::fs::read_to_string(&pid) {
                    Ok(pid) if pid.ends_with('\n') => break pid.trim().to_owned(),
                    _ => tokio::time::sleep(TICK).await,
                }
            }
        };
        let child = tokio::select! {
            ended = runner.run(sh(&script)) => panic!("it runs on: {ended:?}"),
            child = started => child,
        };
        // Whoever takes care of orphans may not have taken notice of it yet.
        let runs = || {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
        };
        let start = Instant::now();
        while runs() {
            assert!(start.elapsed() < STOP, "the child of the child is gone");
            tokio::time::sleep(TICK).await;
        }
    }
}
