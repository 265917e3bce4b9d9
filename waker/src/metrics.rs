//! What the waker counts. Names and labels are an interface: see README.md.

mod cache;
mod store;

use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};
use std::time::Duration;

use rouse_cache::Cache;
use rouse_protocol::status::PatchTrace;
use rouse_protocol::wake::{Outcome, PhaseTime};

use self::cache::CacheMetrics;
use self::store::StoreMetrics;
use crate::admission::Figures;
use crate::store::{Cost, FetchError, Fetched, Freed, UploadError};

/// Seconds: 1 ms to 300 s, dense where wakes are.
const BUCKETS: [f64; 24] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0,
    5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0,
];

/// The waker's metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// `rouse_waker_wakes_total{outcome}`: wakes that came to an end: resumed, cold, failed, no-room.
    wakes: IntCounterVec,
    /// `rouse_waker_wake_phase_seconds{phase}`: the waker's phases of each wake.
    phases: HistogramVec,
    /// `rouse_waker_images_refused_total{reason}`: images that led to a cold boot.
    refused: IntCounterVec,
    /// `rouse_waker_sleeps_total{end}`: sleeps that came to an end: asleep or the refusal.
    sleeps: IntCounterVec,
    /// `rouse_waker_apps{state}`: apps now.
    apps: IntGaugeVec,
    /// `rouse_waker_vm_exits_total`: VMs that ended by themselves.
    exits: IntCounter,
    /// `rouse_waker_patch_seconds{patch,end}`: what was done to a guest after the first byte.
    patches: HistogramVec,
    /// `rouse_waker_flushes_total{end}`: guests that wrote out their disks before a sleep: done, failed.
    flushes: IntCounterVec,
    /// `rouse_waker_parked_total`: apps that were parked.
    parked: IntCounter,
    /// `rouse_waker_hooks_total{end}`: on_park hooks that ran: done, failed.
    hooks: IntCounterVec,
    /// `rouse_waker_disk_stalls_total`: times that a guest stood still since the host's disk was full.
    stalls: IntCounter,
    /// `rouse_waker_memory_mib{kind}`: what VMs may have (budget) and have (in-use).
    memory: IntGaugeVec,
    /// `rouse_waker_queue`: wakes that wait for room.
    queue: IntGauge,
    store: StoreMetrics,
    cache: CacheMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let counter = |name, help, label| {
            let counter = IntCounterVec::new(Opts::new(name, help), &[label]);
            registered(&registry, counter.expect("a valid name"))
        };
        let phases = HistogramOpts::new("rouse_waker_wake_phase_seconds", "Phases of a wake")
            .buckets(BUCKETS.to_vec());
        let phases = HistogramVec::new(phases, &["phase"]).expect("a valid name");
        let apps = IntGaugeVec::new(Opts::new("rouse_waker_apps", "Apps by state"), &["state"]);
        let exits = IntCounter::new("rouse_waker_vm_exits_total", "VMs that ended by themselves");
        let single =
            |name, help| registered(&registry, IntCounter::new(name, help).expect("a valid name"));
        let patches = HistogramOpts::new("rouse_waker_patch_seconds", "Patches after a wake")
            .buckets(BUCKETS.to_vec());
        let patches = HistogramVec::new(patches, &["patch", "end"]).expect("a valid name");
        let memory = IntGaugeVec::new(
            Opts::new("rouse_waker_memory_mib", "Memory of VMs: budget and in use"),
            &["kind"],
        );
        let queue = IntGauge::new("rouse_waker_queue", "Wakes that wait for room");
        Self {
            patches: registered(&registry, patches),
            flushes: counter("rouse_waker_flushes_total", "Guests' disks written out", "end"),
            parked: single("rouse_waker_parked_total", "Apps that were parked"),
            hooks: counter("rouse_waker_hooks_total", "on_park hooks by how they ended", "end"),
            stalls: single("rouse_waker_disk_stalls_total", "Guests stopped by a full disk"),
            memory: registered(&registry, memory.expect("a valid name")),
            queue: registered(&registry, queue.expect("a valid name")),
            wakes: counter("rouse_waker_wakes_total", "Wakes by how they ended", "outcome"),
            refused: counter("rouse_waker_images_refused_total", "Images not used", "reason"),
            sleeps: counter("rouse_waker_sleeps_total", "Sleeps by how they ended", "end"),
            exits: registered(&registry, exits.expect("a valid name")),
            phases: registered(&registry, phases),
            store: StoreMetrics::new(&registry),
            cache: CacheMetrics::new(&registry),
            apps: registered(&registry, apps.expect("a valid name")),
            registry,
        }
    }
}

fn registered<C: prometheus::core::Collector + Clone + 'static>(registry: &Registry, c: C) -> C {
    registry.register(Box::new(c.clone())).expect("each name is registered once");
    c
}

impl Metrics {
    pub(crate) fn woken(&self, outcome: Outcome, phases: &[PhaseTime]) {
        self.wakes.with_label_values(&[outcome.as_str()]).inc();
        for time in phases {
            let seconds = time.took().as_secs_f64();
            self.phases.with_label_values(&[time.phase.as_str()]).observe(seconds);
        }
    }

    pub(crate) fn not_woken(&self, why: &str) {
        self.wakes.with_label_values(&[why]).inc();
    }

    pub(crate) fn sent(&self, sent: Result<Option<&Freed>, &UploadError>) {
        self.store.sent(sent);
    }

    pub(crate) fn fetched(&self, fetched: Result<&Fetched, &FetchError>) {
        self.store.fetched(fetched);
    }

    pub(crate) fn demanded(&self, landed: Result<&Cost, &FetchError>) {
        self.store.demanded(landed);
    }

    pub(crate) fn refused(&self, reason: &str) {
        self.refused.with_label_values(&[reason]).inc();
    }

    pub(crate) fn slept(&self, end: &str) {
        self.sleeps.with_label_values(&[end]).inc();
    }

    pub(crate) fn patched(&self, trace: &PatchTrace) {
        let end = end(trace.error.is_none());
        let seconds = Duration::from_micros(trace.us).as_secs_f64();
        self.patches.with_label_values(&[&*trace.patch, end]).observe(seconds);
    }

    pub(crate) fn flushed(&self, well: bool) {
        self.flushes.with_label_values(&[end(well)]).inc();
    }

    pub(crate) fn parked(&self) {
        self.parked.inc();
    }

    pub(crate) fn hook(&self, well: bool) {
        self.hooks.with_label_values(&[end(well)]).inc();
    }

    pub(crate) fn stalled(&self) {
        self.stalls.inc();
    }

    pub(crate) fn exited(&self) {
        self.exits.inc();
    }

    /// Everything, in Prometheus's text format; `states` are the apps' states now, `room` is what is
    /// taken of the node, `cache` its images.
    pub(crate) fn text(
        &self,
        states: impl Iterator<Item = &'static str>,
        room: Figures,
        cache: Option<&Cache>,
    ) -> Vec<u8> {
        if let Some(cache) = cache {
            self.cache.update(cache);
        }
        let gauge = |kind, mib: u64| {
            let mib = i64::try_from(mib).unwrap_or(i64::MAX);
            self.memory.with_label_values(&[kind]).set(mib);
        };
        gauge("budget", room.budget_mib);
        gauge("in-use", room.in_use_mib);
        self.queue.set(i64::try_from(room.waiting).unwrap_or(i64::MAX));
        self.apps.reset();
        for state in states {
            self.apps.with_label_values(&[state]).inc();
        }
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&self.registry.gather(), &mut text)
            .expect("writing to memory does not fail");
        text
    }
}

fn end(well: bool) -> &'static str {
    if well { "done" } else { "failed" }
}
