//! QEMUs started before a wake needs them, so that process start is not on its path.
//!
//! They stand at `--preconfig`: machine, CPU and devices are named, memory is not, so one serves
//! any app of its shape. What they serve a wake with they know only from QMP.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::args::{self, Shape};
use super::{StartError, Started, Starter, remove};

/// A refill waits this long after a VMM was taken: starting a process costs some 80 ms of a core, and
/// just then the resumed guest needs it.
const REFILL_AFTER: Duration = Duration::from_secs(1);

/// After a start that failed.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Pre-started QEMUs by shape.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    starter: Arc<Starter>,
    stop: CancellationToken,
    filler: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    size: usize,
    state: Mutex<State>,
    /// Something was taken, or other shapes are wanted.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    wanted: Vec<Shape>,
    ready: HashMap<Shape, Vec<Started>>,
}

impl Pool {
    /// Keeps `size` QEMUs of each wanted shape; none when `size` is 0.
    pub(super) fn new(starter: Arc<Starter>, size: usize) -> Self {
        let shared = Shared { size, state: Mutex::default(), changed: Notify::new() };
        Self {
            shared: Arc::new(shared),
            starter,
            stop: CancellationToken::new(),
            filler: Mutex::default(),
        }
    }

    /// Says which shapes wakes may ask for. Must be called in a runtime.
    pub(super) fn want(&self, mut shapes: Vec<Shape>) {
        shapes.sort_unstable_by_key(|s| (s.memory_mib, s.vcpus, s.port, s.outbound, s.disk));
        shapes.dedup();
        self.shared.lock().wanted = shapes;
        self.shared.changed.notify_one();
        let mut filler = self.filler.lock().expect("no holder panics");
        if filler.is_empty() && self.shared.size > 0 && !self.stop.is_cancelled() {
            let (shared, starter) = (Arc::clone(&self.shared), Arc::clone(&self.starter));
            let stop = self.stop.clone();
            filler.spawn(async move { fill(&shared, &starter, &stop).await });
        }
    }

    /// A QEMU of this shape: one that stands ready, or else a new one.
    pub(super) async fn take(&self, shape: Shape) -> Result<Started, StartError> {
        loop {
            let ready = self.shared.lock().ready.get_mut(&shape).and_then(Vec::pop);
            let Some(ready) = ready else {
                return start(&self.starter, shape).await;
            };
            self.shared.changed.notify_one();
            if ready.process.exited().borrow().is_none() {
                return Ok(ready);
            }
            remove(&ready.runtime);
        }
    }

    /// Ends all that are ready and starts no more.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        let mut filler = std::mem::take(&mut *self.filler.lock().expect("no holder panics"));
        while filler.join_next().await.is_some() {}
        let ready = std::mem::take(&mut self.shared.lock().ready);
        for started in ready.into_values().flatten() {
            started.end().await;
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// A shape that there are too few of, and what is ready of shapes that nobody wants any more.
    fn next(&self) -> (Option<Shape>, Vec<Started>) {
        let mut state = self.lock();
        let unwanted: Vec<Shape> =
            state.ready.keys().filter(|s| !state.wanted.contains(s)).copied().collect();
        let surplus = unwanted.iter().filter_map(|s| state.ready.remove(s)).flatten().collect();
        let short = |shape: &&Shape| state.ready.get(shape).map_or(0, Vec::len) < self.size;
        (state.wanted.iter().find(short).copied(), surplus)
    }
}

/// Runs until `stop`, but never cuts off a start: that would leave a process behind.
async fn fill(shared: &Shared, starter: &Starter, stop: &CancellationToken) {
    while !stop.is_cancelled() {
        let (missing, surplus) = shared.next();
        for started in surplus {
            started.end().await;
        }
        let pause = match missing {
            None => {
                stop.run_until_cancelled(shared.changed.notified()).await;
                REFILL_AFTER
            }
            Some(shape) => match start(starter, shape).await {
                Ok(started) => {
                    shared.lock().ready.entry(shape).or_default().push(started);
                    Duration::ZERO
                }
                Err(error) => {
                    tracing::warn!(%error, "no VMM could be started ahead of its wake");
                    RETRY_AFTER
                }
            },
        };
        stop.run_until_cancelled(tokio::time::sleep(pause)).await;
    }
}

async fn start(starter: &Starter, shape: Shape) -> Result<Started, StartError> {
    starter
        .start(|runtime: &Path| {
            let mut args = args::common(&shape, runtime);
            args.extend(args::machine(None));
            args.extend(["--preconfig", "-incoming", "defer"].map(str::to_owned));
            args
        })
        .await
}
