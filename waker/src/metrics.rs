//! What the waker counts. Names and labels are an interface: see README.md.

use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use rouse_protocol::wake::{Outcome, PhaseTime};

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
        Self {
            wakes: counter("rouse_waker_wakes_total", "Wakes by how they ended", "outcome"),
            refused: counter("rouse_waker_images_refused_total", "Images not used", "reason"),
            sleeps: counter("rouse_waker_sleeps_total", "Sleeps by how they ended", "end"),
            exits: registered(&registry, exits.expect("a valid name")),
            phases: registered(&registry, phases),
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

    pub(crate) fn refused(&self, reason: &str) {
        self.refused.with_label_values(&[reason]).inc();
    }

    pub(crate) fn slept(&self, end: &str) {
        self.sleeps.with_label_values(&[end]).inc();
    }

    pub(crate) fn exited(&self) {
        self.exits.inc();
    }

    /// Everything, in Prometheus's text format; `states` are the apps' states now.
    pub(crate) fn text(&self, states: impl Iterator<Item = &'static str>) -> Vec<u8> {
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
