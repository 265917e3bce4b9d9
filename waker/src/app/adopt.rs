//! An app as a waker finds it: asleep, or with a VM that an earlier waker has started.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use rouse_protocol::app::Generation;
use rouse_protocol::wake::{Outcome, SleepReason};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Node;
use super::actor::{Actor, Wake};
use super::history::History;
use super::keep::{Keep, Now};
use super::ops;
use super::sending::Sending;
use super::sleep::Sleep;
use super::unopened::Shown;
use crate::config::AppConfig;
use crate::image::{AppDir, Found};
use crate::lifecycle::{Lifecycle, Limits};
use crate::vmm::{Life, RunRecord};

impl Actor {
    /// An app as it is found on disk.
    pub(super) async fn open(
        node: Node,
        config: AppConfig,
        dir: Arc<AppDir>,
        view: Shown,
    ) -> io::Result<Self> {
        let key = dir.key()?;
        let (found, lock) = dir.look()?;
        let newest = Generation(dir.next_generation().0.saturating_sub(1));
        let (_, phases) = mpsc::unbounded_channel();
        let (patched, patches) = mpsc::unbounded_channel();
        let standing = dir.standing();
        let mut actor = Self {
            lifecycle: Lifecycle::asleep(
                Limits { paused: config.paused, ..node.limits },
                newest,
                standing.clone(),
            ),
            noted: standing,
            keep: Keep::new(&config.policy.policies, Now::read()),
            node,
            config: Arc::new(config),
            dir,
            key,
            lock,
            machine: None,
            exit_told: false,
            live: None,
            stalled_until: None,
            seat: None,
            memory: None,
            settling: None,
            ready: None,
            doing: JoinSet::new(),
            flushes: JoinSet::new(),
            settles: JoinSet::new(),
            patching: JoinSet::new(),
            hooks: JoinSet::new(),
            trims: JoinSet::new(),
            woken_by: Vec::new(),
            looks: JoinSet::new(),
            sending: Sending::default(),
            served: watch::Sender::new(false),
            lives: 0,
            patched,
            patches,
            phases,
            history: History::default(),
            drained_for: SleepReason::Idle,
            wake: Wake::default(),
            sleep: Sleep::default(),
            since: SystemTime::now(),
            view,
            stopping: None,
            last_sleep: false,
        };
        if let Found::Running(record) = found {
            actor.adopt(record.map(|record| *record)).await?;
        }
        actor.publish_view();
        actor.trim();
        actor.sending.due = true;
        Ok(actor)
    }

    /// Takes over the VM that holds the lock. One that can't be taken over is ended: nobody could
    /// put it to sleep, and a second one must never run beside it.
    async fn adopt(&mut self, record: Option<RunRecord>) -> io::Result<()> {
        let Some(record) = record else {
            let message = "a process holds the app's lock and left no record of itself";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, message));
        };
        let app = &self.config.id;
        let live = self.dir.live()?;
        let life = Life {
            app: app.clone(),
            generation: record.generation,
            key: self.agent_key(),
            machine: Arc::clone(&self.config.machine),
            memory: self.dir.mapped(&live),
            disk: live.disk(),
            mark: record.mark,
            keep_pair: record.keep_pair,
            locks: Arc::new([]),
        };
        match self.node.vmm.adopt(&life, &record).await {
            Ok(machine) => {
                // Before anything can resume it.
                let dir = Arc::clone(&self.dir);
                ops::blocking(move || dir.undo()).await?;
                self.reserve_again(&live).await;
                let stands = machine.stands();
                tracing::info!(%app, pid = record.pid, generation = %record.generation, stands, "adopted its VM");
                let limits = Limits { paused: self.config.paused, ..self.node.limits };
                let (generation, standing) = (record.generation, self.noted.clone());
                self.lifecycle = if stands {
                    Lifecycle::paused(limits, generation, standing, Instant::now())
                } else {
                    Lifecycle::awake(limits, generation, standing)
                };
                self.seat = Some(self.node.admission.adopt(u64::from(record.memory_mib)));
                self.ready = Some(self.ready_of(&record, Outcome::Awake));
                self.machine = Some(machine);
                self.live = Some(live);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%app, %error, "its VM can't be adopted and is ended");
                drop(live);
                if let Ok(process) =
                    crate::vmm::process::Process::adopt(record.pid, record.start_ticks)
                {
                    process.kill().await;
                }
                let (found, lock) = self.dir.look()?;
                self.lock = lock;
                match found {
                    Found::Asleep(_) => Ok(()),
                    Found::Running(_) => Err(io::Error::new(
                        io::ErrorKind::ResourceBusy,
                        "a process that is not its VM holds the app's lock",
                    )),
                }
            }
        }
    }
}
