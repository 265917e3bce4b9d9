//! Flushes and patches, away from the control port's loop: a life must never wait for them.
//!
//! Each kind has a thread and a short queue of its own, so that a command that takes its time, or a
//! disk that hangs, keeps nothing else from being done. What concerns the disk is done in the order
//! in which it was asked.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use rouse_protocol::control::{FromAgent, Patch};
use tracing::{debug, warn};

use crate::disk::Disk;
use crate::patch::{command, env, ssh};
use crate::voice::Voice;

/// How many of a kind wait while one is done; more are refused. The waker has one of each at a time.
const WAITING: usize = 4;

/// The threads that carry out flushes and patches. They end once this is dropped and they are
/// through with what they have.
#[derive(Debug)]
pub struct Lanes {
    disk: Lane<OfDisk>,
    env: Lane<BTreeMap<String, String>>,
    ssh: Lane<u16>,
    command: Lane<(Vec<String>, Duration)>,
}

#[derive(Debug)]
enum OfDisk {
    Flush(String),
    Check,
}

impl Lanes {
    /// Starts the threads. Flushes and checks are of `disk`, and well without one; the app's
    /// environment is written to `env_file`.
    pub fn start(mut disk: Option<Disk>, env_file: PathBuf) -> io::Result<Self> {
        let of_disk = move |task| match (task, &mut disk) {
            (OfDisk::Flush(marker), Some(disk)) => told(disk.flush(&marker)),
            (OfDisk::Check, Some(disk)) => told(disk.check()),
            (OfDisk::Flush(_) | OfDisk::Check, None) => None,
        };
        Ok(Self {
            disk: Lane::start("disk", of_disk)?,
            env: Lane::start("env", move |vars| told(env::write(&env_file, &vars)))?,
            ssh: Lane::start("ssh", |port| told(ssh::greets(port)))?,
            command: Lane::start("command", |(argv, timeout): (Vec<_>, _)| {
                told(command::run(&argv, timeout))
            })?,
        })
    }

    /// Has the disk flushed, and `voice` tell how that ended. Fails only as saying so fails.
    pub(crate) fn flush(&self, id: u64, marker: String, voice: &Voice) -> io::Result<()> {
        self.disk.take(OfDisk::Flush(marker), Asked { id, what: "flush" }, voice)
    }

    /// Has `patch` carried out, and `voice` tell how that ended. Fails only as saying so fails.
    pub(crate) fn patch(&self, id: u64, patch: Patch, voice: &Voice) -> io::Result<()> {
        let asked = Asked { id, what: patch.as_str() };
        match patch {
            Patch::Env { vars } => self.env.take(vars, asked, voice),
            Patch::Disk => self.disk.take(OfDisk::Check, asked, voice),
            Patch::Ssh { port } => self.ssh.take(port, asked, voice),
            Patch::Command { argv, timeout_ms } => {
                self.command.take((argv, Duration::from_millis(timeout_ms)), asked, voice)
            }
        }
    }
}

fn told<T, E: std::error::Error>(done: Result<T, E>) -> Option<String> {
    done.err().map(|error| error.to_string())
}

/// What an answer belongs to.
#[derive(Clone, Copy, Debug)]
struct Asked {
    id: u64,
    what: &'static str,
}

impl Asked {
    fn answer(self, error: Option<String>) -> FromAgent {
        let Self { id, what } = self;
        match &error {
            // An error may quote what the app printed: it is for the waker, not for the console.
            Some(_) => warn!(id, what, "failed"),
            None => debug!(id, what, "done"),
        }
        if what == "flush" {
            FromAgent::Flushed { id, error }
        } else {
            FromAgent::Patched { id, error }
        }
    }
}

/// One thread and what waits for it.
#[derive(Debug)]
struct Lane<T> {
    queue: SyncSender<(T, Asked, Voice)>,
}

impl<T: Send + 'static> Lane<T> {
    /// `work` answers with what went wrong.
    fn start(
        name: &str,
        mut work: impl FnMut(T) -> Option<String> + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, waiting) = sync_channel::<(T, Asked, Voice)>(WAITING);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            for (task, asked, voice) in waiting {
                if let Err(error) = voice.say(&asked.answer(work(task))) {
                    warn!(%error, "an answer can't be given");
                }
            }
        })?;
        Ok(Self { queue })
    }

    fn take(&self, task: T, asked: Asked, voice: &Voice) -> io::Result<()> {
        let why = match self.queue.try_send((task, asked, voice.clone())) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Full(_)) => {
                format!("{WAITING} of the same kind wait already; ask again when they are answered")
            }
            Err(TrySendError::Disconnected(_)) => {
                "the agent's thread for it has ended; restart the agent".to_owned()
            }
        };
        voice.say(&asked.answer(Some(why)))
    }
}
