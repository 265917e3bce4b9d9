//! What those who fill and those who wait have in common.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rouse_snapshot_format::DecodeFrameError;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::FillError;
use super::pace::Pace;
use super::plan::{Hedging, Plan};
use super::{FillOptions, work};
use crate::layers::Layers;

/// One of so many requests may be a hedge.
const HEDGE_SHARE: u64 = 10;

/// How far a fill is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Requests made.
    pub requests: u64,
    /// Requests that failed, and frames that were corrupt: each has led to another request, or to the end.
    pub retries: u64,
    /// Requests for what another was at already.
    pub hedges: u64,
    /// Bytes of frames that came, each time they did.
    pub bytes: u64,
    /// Bytes written to the file.
    pub written: u64,
    /// How often somebody waited for a window that was not there.
    pub faults: u64,
    /// The most that was asked for and not yet written at once, in bytes.
    pub most_held: u64,
    /// From the start until the working set was there.
    pub working_set_after: Option<Duration>,
    /// From the start until everything was.
    pub whole_after: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Status {
    pub(super) working_set: bool,
    /// Nothing is written any more.
    pub(super) over: bool,
    pub(super) failed: bool,
}

pub(super) struct Inner {
    pub(super) plan: Plan,
    waiters: HashMap<usize, Vec<oneshot::Sender<()>>>,
    pub(super) failed: Option<FillError>,
    spoilt: HashMap<usize, u32>,
    pub(super) metrics: Metrics,
}

pub(super) struct Shared {
    pub(super) layers: Layers,
    pub(super) file: File,
    pub(super) options: FillOptions,
    pub(super) cancel: CancellationToken,
    /// Something has changed that the driver should look at.
    pub(super) kick: Notify,
    pub(super) queue: work::Queue,
    pub(super) bytes: AtomicU64,
    inner: Mutex<Inner>,
    status: watch::Sender<Status>,
    begun: Instant,
}

impl Shared {
    pub(super) fn new(layers: Layers, file: File, options: FillOptions) -> Self {
        let mut offsets = vec![0];
        let mut end = 0;
        for (_, frame) in layers.frames() {
            end += u64::from(frame.length);
            offsets.push(end);
        }
        let follows = (0..offsets.len() - 1).map(|number| layers.follows(number)).collect();
        let hedging = Hedging { floor: options.hedge_after, share: HEDGE_SHARE };
        let pace = Pace::new(Duration::ZERO);
        let plan = Plan::new(offsets, follows, layers.working_set_frames(), pace, hedging);
        let status =
            Status { working_set: plan.working_set_is_there(), over: false, failed: false };
        Self {
            layers,
            file,
            options,
            cancel: CancellationToken::new(),
            kick: Notify::new(),
            queue: work::Queue::default(),
            bytes: AtomicU64::new(0),
            inner: Mutex::new(Inner {
                plan,
                waiters: HashMap::new(),
                failed: None,
                spoilt: HashMap::new(),
                metrics: Metrics::default(),
            }),
            status: watch::Sender::new(status),
            begun: Instant::now(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Why those who wait are let go.
    pub(super) fn why(&self) -> FillError {
        self.lock().failed.clone().unwrap_or(FillError::Cancelled)
    }

    /// None: it is there.
    pub(super) fn wait_for(
        &self,
        frame: usize,
    ) -> Result<Option<oneshot::Receiver<()>>, FillError> {
        let mut inner = self.lock();
        if inner.plan.is_there(frame) {
            return Ok(None);
        }
        if let Some(failed) = &inner.failed {
            return Err(failed.clone());
        }
        let (tell, told) = oneshot::channel();
        let waiters = inner.waiters.entry(frame).or_default();
        // Those who gave up waiting must not pile up.
        waiters.retain(|waiter| !waiter.is_closed());
        waiters.push(tell);
        inner.metrics.faults += 1;
        inner.plan.need(frame);
        drop(inner);
        self.kick.notify_one();
        Ok(Some(told))
    }

    pub(super) async fn until(&self, is: impl Fn(&Status) -> bool) -> Result<(), FillError> {
        let mut status = self.status.subscribe();
        let reached = |status: &Status| status.over || is(status);
        // The sender lives as long as `self`.
        let status = status.wait_for(reached).await.map(|status| *status);
        match status {
            Ok(status) if is(&status) && !(status.over && status.failed) => Ok(()),
            _ => Err(self.why()),
        }
    }

    pub(super) fn written(&self, frame: usize, fault: bool, bytes: u64) {
        let now = self.now();
        let mut inner = self.lock();
        inner.plan.written(frame, fault);
        inner.metrics.written += bytes;
        let working_set = inner.plan.working_set_is_there();
        if working_set && inner.metrics.working_set_after.is_none() {
            inner.metrics.working_set_after = Some(now);
            self.status.send_modify(|status| status.working_set = true);
        }
        for waiter in inner.waiters.remove(&frame).unwrap_or_default() {
            // Whoever does not wait any more need not be told.
            let _ = waiter.send(());
        }
        drop(inner);
        self.kick.notify_one();
    }

    pub(super) fn spoilt(&self, frame: usize, fault: bool, source: DecodeFrameError) {
        let mut inner = self.lock();
        inner.plan.spoilt(frame, fault);
        inner.metrics.retries += 1;
        let times = inner.spoilt.entry(frame).or_default();
        *times += 1;
        let over = *times >= self.options.patience.tries;
        drop(inner);
        if over {
            let (key, source) = (self.layers.key_of(frame).clone(), Arc::new(source));
            self.fail(FillError::Corrupt { key, frame, source });
        }
        self.kick.notify_one();
    }

    /// Ends it; what was first is why.
    pub(super) fn fail(&self, error: FillError) {
        let mut inner = self.lock();
        inner.failed.get_or_insert(error);
        // Dropped, they tell those who wait.
        inner.waiters.clear();
        drop(inner);
        self.kick.notify_one();
    }

    /// Nothing is written any more.
    pub(super) fn over(&self) {
        let now = self.now();
        let mut inner = self.lock();
        if inner.plan.whole_is_there() {
            inner.metrics.whole_after = Some(now);
        } else {
            let broken = || FillError::Broken("its task ended early".into());
            inner.failed.get_or_insert_with(broken);
            inner.waiters.clear();
        }
        let failed = inner.failed.is_some();
        drop(inner);
        self.status.send_modify(|status| (status.over, status.failed) = (true, failed));
    }

    pub(super) fn metrics(&self) -> Metrics {
        let inner = self.lock();
        let hedges = inner.plan.hedges();
        Metrics { hedges, bytes: self.bytes.load(Ordering::Relaxed), ..inner.metrics }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("layers", &self.layers).finish_non_exhaustive()
    }
}
