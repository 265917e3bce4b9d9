//! One program under test as a child process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait::{TICK, patience};

/// How much of a log is shown when a test fails.
const TAIL: usize = 64 * 1024;

/// A program that is started with `--config FILE` and runs until it is stopped. What it says goes
/// to a file. Dropped, it is killed.
#[derive(Debug)]
pub struct Daemon {
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    log: PathBuf,
    child: Option<Child>,
}

impl Daemon {
    /// `program` with `args`, logging to `log`. Not started yet.
    pub fn new(program: impl Into<PathBuf>, args: Vec<String>, log: impl Into<PathBuf>) -> Self {
        // Our crates are rouse_proxy, rouse_gate, …: a filter names each.
        let level = std::env::var("ROUSE_LOG").unwrap_or_else(|_| {
            "info,rouse_waker=debug,rouse_proxy=debug,rouse_gate=debug,pingora_core=warn".into()
        });
        let named = ["ROUSE_LOG", "RUST_LOG"].map(|name| (name.to_owned(), level.clone()));
        let plain = ("NO_COLOR".to_owned(), "1".to_owned());
        Self {
            program: program.into(),
            args,
            env: named.into_iter().chain([plain]).collect(),
            log: log.into(),
            child: None,
        }
    }

    /// Adds a variable to its environment.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets a variable of the environment in which it is started from now on.
    pub fn set_env(&mut self, name: &str, value: impl Into<String>) {
        self.unset_env(name);
        self.env.push((name.into(), value.into()));
    }

    /// Takes a variable out of the environment in which it is started from now on.
    pub fn unset_env(&mut self, name: &str) {
        self.env.retain(|(set, _)| set != name);
    }

    /// Starts it. It need not be ready when this returns.
    pub fn start(&mut self) {
        assert!(!self.runs(), "{} runs already", self.program.display());
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap_or_else(|e| panic!("{}: {e}", self.log.display()));
        let errors = log.try_clone().expect("a file can be opened twice");
        let child = Command::new(&self.program)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", self.program.display()));
        self.child = Some(child);
    }

    /// Its process id. Panics when it was not started.
    pub fn pid(&self) -> u32 {
        self.child
            .as_ref()
            .map(Child::id)
            .unwrap_or_else(|| panic!("{} was not started", self.name()))
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Panics, showing what it said, when it does not run.
    pub fn assert_runs(&mut self) {
        assert!(self.runs(), "{} has ended:\n{}", self.name(), self.tail());
    }

    /// Asks it to stop (SIGTERM) and waits until it has.
    pub async fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(
                start.elapsed() < patience(),
                "{} does not stop:\n{}",
                self.name(),
                self.tail()
            );
            tokio::time::sleep(TICK).await;
        }
    }

    /// Kills it as a crash would (SIGKILL), and returns when it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a pid fits");
        kill(Pid::from_raw(pid), signal).unwrap_or_else(|e| panic!("{}: {e}", self.name()));
    }

    /// All it has said since the node began.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The end of what it said.
    pub fn tail(&self) -> String {
        let log = self.log();
        let from = log.len().saturating_sub(TAIL);
        let from = (from..=log.len()).find(|i| log.is_char_boundary(*i)).unwrap_or(from);
        format!("--- {}\n{}---", self.log.display(), &log[from..])
    }

    fn name(&self) -> String {
        let name = self.program.file_name().unwrap_or_default();
        Path::new(name).display().to_string()
    }

    /// How it has ended, told once; none while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().ok().flatten()?;
        self.child = None;
        Some(status)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}
