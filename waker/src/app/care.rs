//! What an app that runs is done to beside wakes and sleeps: patched, parked, looked at.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rouse_protocol::app::Generation;
use rouse_protocol::status::AppStatus;
use rouse_protocol::wake::{Outcome, Served};
use rouse_protocol::watch::{AppState, AppView};
use tokio::time::Instant;

use super::actor::Actor;
use super::ops;
use super::patches::{Patched, Patches};
use crate::hook;
use crate::image::{self, Live};
use crate::lifecycle::Event;
use crate::vmm::touched::Touched;

impl Actor {
    /// A proxy has sent the first byte since the newest wake.
    pub(super) fn first_byte(&mut self, served: Served) {
        if served.generation == self.lifecycle.generation() {
            self.history.phases(served.phases);
            self.served.send_replace(true);
            self.look();
        }
    }

    /// Finds out what the newest wake took, if it was one from an image: the next one's working set.
    fn look(&mut self) {
        let resumed = self.ready.as_ref().is_some_and(|ready| ready.outcome == Outcome::Resumed);
        let machine = self.machine.as_ref().filter(|_| resumed && self.woken_by.is_empty());
        if let Some(machine) = machine
            && self.looks.is_empty()
        {
            self.looks.spawn_blocking(machine.mapped());
        }
    }

    /// Waits for a look that is not over: milliseconds.
    pub(super) async fn finish_look(&mut self) {
        while let Some(touched) = self.looks.join_next().await {
            self.looked(touched);
        }
    }

    pub(super) fn looked(&mut self, touched: Result<Touched, tokio::task::JoinError>) {
        let app = &self.config.id;
        match touched {
            Ok(Touched::Ranges(ranges)) => self.woken_by = ranges,
            Ok(Touched::Unknown(reason)) => {
                tracing::debug!(%app, %reason, "what its wake took is not known");
            }
            Err(error) => tracing::error!(%app, %error, "looking at what its wake took broke off"),
        }
    }

    /// Patches the guest once it serves.
    pub(super) fn patch(&mut self, generation: Generation, lives: u64, boots: bool) {
        self.patching.abort_all();
        self.served.send_replace(false);
        let Some(control) = self.machine.as_ref().and_then(|machine| machine.agent()) else {
            return;
        };
        let patches = Patches {
            generation,
            control,
            config: Arc::clone(&self.config),
            lives,
            boots,
            served: self.served.subscribe(),
            done: self.patched.clone(),
        };
        self.patching.spawn(patches.run());
    }

    pub(super) async fn patched(&mut self, patched: Patched) {
        let Patched { generation, trace } = patched;
        self.node.metrics.patched(&trace);
        self.history.patch(generation, trace.clone());
        let Some(error) = trace.error else { return };
        let detail = format!("after its wake, the check `{}` failed: {error}", trace.patch);
        tracing::error!(app = %self.config.id, %generation, detail, "is parked");
        // What it believes of a disk that is not the one it knows must not be written there.
        let flush = trace.patch != "disk";
        self.event(Event::Park { detail, generation: Some(generation), flush }).await;
    }

    /// A life goes on after a pause: patched as after any wake.
    pub(super) fn unpaused(&mut self) {
        let generation = self.lifecycle.generation();
        self.history.begin(generation);
        self.history.end(Ok((Outcome::Unpaused, None)));
        self.node.metrics.woken(Outcome::Unpaused, &[]);
        self.patch(generation, self.lives, false);
    }

    /// Told to the log, and to the operator's program if there is one.
    pub(super) fn parked(&mut self, detail: String) {
        let app = self.config.id.clone();
        tracing::error!(%app, detail, "parked: `rouse clear` lets it wake again");
        self.node.metrics.parked();
        let Some(hook) = self.config.on_park.clone() else { return };
        let vars = [
            ("ROUSE_APP", app.to_string()),
            ("ROUSE_REASON", detail),
            ("ROUSE_GENERATION", self.lifecycle.generation().to_string()),
        ];
        let metrics = Arc::clone(&self.node.metrics);
        self.hooks.spawn(async move {
            let ran = hook::run(&hook, &vars).await;
            metrics.hook(ran.is_ok());
            match ran {
                Ok(()) => tracing::info!(%app, "its on_park hook has ended well"),
                Err(error) => tracing::error!(%app, %error, "its on_park hook failed"),
            }
        });
    }

    /// The VMM had stopped the guest, since there was no room on the host's disk. It asks again, until
    /// there is.
    pub(super) async fn go_on(&mut self) {
        self.stalled_until = None;
        self.node.metrics.stalled();
        tracing::error!(app = %self.config.id, "its guest stands still: the file system of its disk is full");
        if let Some(machine) = &mut self.machine
            && let Err(error) = machine.resume().await
        {
            tracing::error!(app = %self.config.id, %error, "it does not go on");
        }
    }

    /// Has a block for each page of an adopted VM's memory, which an earlier waker may not have had.
    pub(super) async fn reserve_again(&self, live: &Live) {
        if !self.node.vmm.ram_is_file() {
            return;
        }
        let memory = live.memory();
        if let Err(error) = ops::blocking(move || image::reserve(&memory)).await {
            tracing::warn!(app = %self.config.id, %error, "its guest may meet a full disk");
        }
    }

    pub(super) fn status(&self) -> AppStatus {
        let mut view = AppView::clone(&self.view.borrow().0);
        if let AppState::Awake(ready) | AppState::Draining { ready, .. } = &mut view.state {
            ready.key = None;
        }
        let sizes = self.dir.sizes();
        AppStatus {
            view,
            memory_mib: self.config.machine.memory_mib,
            vcpus: self.config.machine.vcpus,
            pid: self.machine.as_ref().map(|machine| machine.record().pid),
            image_bytes: sizes.image_bytes,
            disk_bytes: sizes.disk.map(|(occupied, _)| occupied),
            disk_size: sizes.disk.map(|(_, size)| size),
            busy_until_unix_ms: self.busy_until().map(unix_ms),
            failures: self.noted.failures,
            last_wake: self.history.newest().cloned(),
        }
    }
}

/// A moment to come, by the clock on the wall.
fn unix_ms(at: Instant) -> u64 {
    let wall = SystemTime::now() + at.saturating_duration_since(Instant::now());
    let since = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
