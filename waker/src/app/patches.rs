//! What is done to a running guest after the first byte, each with its own time and result.
//!
//! Clock and entropy were pushed in the instant of the resume; here it is only seen how that went.

use std::sync::Arc;
use std::time::Duration;

use rouse_protocol::app::Generation;
use rouse_protocol::control::Patch;
use rouse_protocol::status::PatchTrace;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::config::AppConfig;
use crate::vmm::control::{Alive, AskError, Control};

/// Nobody may ever tell of a first byte: an operator woke it, or the visitor has left.
const UNTOLD: Duration = Duration::from_secs(5);

/// One patch that is over.
#[derive(Debug)]
pub(super) struct Patched {
    pub(super) generation: Generation,
    pub(super) trace: PatchTrace,
}

/// Everything that patching one wake needs.
pub(super) struct Patches {
    pub(super) generation: Generation,
    pub(super) control: Arc<Control>,
    pub(super) config: Arc<AppConfig>,
    /// How often the agent had taken over a life before this wake.
    pub(super) lives: u64,
    /// The guest boots: how long that takes is not ours to judge.
    pub(super) boots: bool,
    /// Turns true when a first byte has gone out.
    pub(super) served: watch::Receiver<bool>,
    pub(super) done: mpsc::UnboundedSender<Patched>,
}

impl Patches {
    /// Carries them out in order; ends early when the VM has gone.
    pub(super) async fn run(mut self) {
        if self.boots && self.lives().await.is_err() {
            return;
        }
        let served = self.served.wait_for(|served| *served);
        // Either way it is time.
        let _ = tokio::time::timeout(UNTOLD, served).await;
        let timeout = self.config.patch.timeout;
        let began = Instant::now();
        match self.alive(timeout).await {
            Ok(alive) => {
                self.tell("clock", began, alive.clock_error.map(AskError::Refused));
                self.tell("entropy", began, alive.entropy_error.map(AskError::Refused));
            }
            Err(AskError::Closed) => return,
            Err(error) => return self.tell("clock", began, Some(error)),
        }
        for patch in self.wanted() {
            let (name, began) = (patch.as_str(), Instant::now());
            match self.ask(patch, timeout).await {
                Err(AskError::Closed) => return,
                result => self.tell(name, began, result.err()),
            }
        }
    }

    fn wanted(&self) -> Vec<Patch> {
        let AppConfig { env, patch, machine, .. } = &*self.config;
        let mut wanted = Vec::new();
        if machine.disk.is_some() {
            wanted.push(Patch::Disk);
        }
        if !env.is_empty() {
            wanted.push(Patch::Env { vars: env.clone() });
        }
        wanted.extend(patch.ssh_port.map(|port| Patch::Ssh { port }));
        wanted.extend(patch.command.clone().map(|argv| {
            let timeout_ms = u64::try_from(patch.timeout.as_millis()).unwrap_or(u64::MAX);
            Patch::Command { argv, timeout_ms }
        }));
        wanted
    }

    /// Until the agent has taken over the life that began with this wake.
    async fn alive(&self, timeout: Duration) -> Result<Alive, AskError> {
        let taken = tokio::time::timeout(timeout, self.lives()).await;
        taken.unwrap_or(Err(AskError::Timeout(timeout)))
    }

    async fn lives(&self) -> Result<Alive, AskError> {
        let mut heard = self.control.heard();
        let taken = heard.wait_for(|heard| heard.lives > self.lives).await;
        taken.ok().and_then(|heard| heard.alive.clone()).ok_or(AskError::Closed)
    }

    /// Twice, when there was no answer: an agent that has just been started anew never heard of the
    /// first. Asked for again, each comes to the same.
    async fn ask(&self, patch: Patch, timeout: Duration) -> Result<(), AskError> {
        // The guest's own bound comes first, so that it can say why.
        let within = timeout + timeout / 2;
        match self.control.patch(patch.clone(), within).await {
            Err(AskError::Timeout(_)) => self.control.patch(patch, within).await,
            other => other,
        }
    }

    fn tell(&self, patch: &str, began: Instant, error: Option<AskError>) {
        let trace = PatchTrace {
            patch: patch.to_owned(),
            us: u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX),
            error: error.map(|error| error.to_string()),
        };
        // The app's task listens for as long as this one is its own.
        let _ = self.done.send(Patched { generation: self.generation, trace });
    }
}
