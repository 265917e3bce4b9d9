//! What is counted. Names and labels are an interface: dashboards and rules read them.
//!
//! | metric | labels | meaning |
//! | --- | --- | --- |
//! | `rouse_wake_seconds` | `outcome`: `resumed`, `cold`, `unpaused`, `awake`, `failed` | from the first visitor to an open gate, or to the failure |
//! | `rouse_wake_phase_seconds` | `phase` | one wake's phases, as its first served visitor met them |
//! | `rouse_wake_own_seconds` | | the part of it that is not VMM, guest or app |
//! | `rouse_visitor_wake_seconds` | | a held visitor's time from arrival to response header |
//! | `rouse_served_total` | `end`: `told`, `refused`, `unreachable` | first bytes of a life, by what became of telling the waker |
//! | `rouse_holds` | | visitors held now |
//! | `rouse_holds_total` | `end` | holds that ended; `denied`: may not wake, `waiting`: was shown the waiting page |
//! | `rouse_apps` | `state` | apps, by what the waker said last (origins are `awake`) |
//! | `rouse_in_flight` | | visitors now, held or served |
//! | `rouse_route_conflicts` | | rules that an app claims in vain, since another has them (`/holds` says which) |
//! | `rouse_waker_connected` | | 1 while the watch on the waker stands |
//! | `rouse_early_wakes_total` | | wakes that began at a TLS handshake |
//! | `rouse_connections`, `rouse_connections_total` | `speaks`: `http`, `https`, `h2c` | connections now, and in all |
//! | `rouse_connections_refused_total` | `reason` | connections that came to nothing: limits, PROXY protocol, handshakes |
//! | `rouse_requests_refused_total` | `reason` | requests that have no meaning, or two |
//! | `rouse_certificate_expiry_seconds` | `file` | when a certificate ends, in Unix time |
//! | `rouse_holds_oldest_seconds` | | for how long the first of those held now has been there; 0: nobody is |
//! | `rouse_log_dropped_total` | | lines of the access log that were not written |
//! | `rouse_spans_dropped_total` | | spans that did not get to the collector |
//! | `rouse_requests_total` | `class`: `1xx`…`5xx`, `ours`, `none` | answers; `ours`: an error of ours, `none`: the client left without one |

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};
use rouse_gate::times::Shares;
use rouse_gate::{Gate, HoldEnd, Observer, TellEnd, WakeEnd};
use rouse_protocol::wake::Phase;

use crate::door::Doors;

/// 1 ms to 300 s, dense where a wake is felt.
const SECONDS: [f64; 28] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65,
    0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0,
];
/// Our own share is looked at closer: from 100 µs.
const OWN: [f64; 12] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.025, 0.1];
/// The states that an app can be in, so that each is there when it is 0.
const STATES: [&str; 8] =
    ["asleep", "waking", "awake", "draining", "paused", "snapshotting", "failed", "parked"];
const CLASSES: [&str; 7] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx", "ours"];

/// The counters of one proxy, in a registry of their own.
pub struct Metrics {
    registry: Registry,
    wake: HistogramVec,
    phase: HistogramVec,
    own: Histogram,
    visitor: Histogram,
    served: IntCounterVec,
    holds_ended: IntCounterVec,
    holds: IntGauge,
    in_flight: IntGauge,
    apps: IntGaugeVec,
    conflicts: IntGauge,
    connected: IntGauge,
    requests: [IntCounter; CLASSES.len()],
    early: IntCounter,
    pub(crate) doors: Doors,
    oldest: Gauge,
    log_dropped: IntCounter,
    spans_dropped: IntCounter,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let histogram = |name, help, buckets: &[f64], labels: &[&str]| {
            HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)
        };
        let gauge = |name, help| IntGauge::new(name, help);
        let requests = IntCounterVec::new(
            Opts::new("rouse_requests_total", "Answers to visitors, by class."),
            &["class"],
        )?;
        let metrics = Self {
            wake: histogram(
                "rouse_wake_seconds",
                "From the first visitor to an open gate, or to the failure.",
                &SECONDS,
                &["outcome"],
            )?,
            phase: histogram(
                "rouse_wake_phase_seconds",
                "Phases of a wake, as its first served visitor met them.",
                &SECONDS,
                &["phase"],
            )?,
            own: Histogram::with_opts(
                HistogramOpts::new(
                    "rouse_wake_own_seconds",
                    "The part of a wake that is not VMM, guest or app.",
                )
                .buckets(OWN.to_vec()),
            )?,
            visitor: Histogram::with_opts(
                HistogramOpts::new(
                    "rouse_visitor_wake_seconds",
                    "A held visitor's time from arrival to response header.",
                )
                .buckets(SECONDS.to_vec()),
            )?,
            served: IntCounterVec::new(
                Opts::new(
                    "rouse_served_total",
                    "First bytes of a life, by what became of telling the waker.",
                ),
                &["end"],
            )?,
            holds_ended: IntCounterVec::new(
                Opts::new("rouse_holds_total", "Holds that ended, by how."),
                &["end"],
            )?,
            holds: gauge("rouse_holds", "Visitors held now.")?,
            in_flight: gauge("rouse_in_flight", "Visitors now, held or served.")?,
            apps: IntGaugeVec::new(
                Opts::new("rouse_apps", "Apps, by what the waker said last."),
                &["state"],
            )?,
            conflicts: gauge(
                "rouse_route_conflicts",
                "Rules that an app claims in vain, since another has them.",
            )?,
            connected: gauge("rouse_waker_connected", "1 while the watch on the waker stands.")?,
            requests: CLASSES.map(|class| requests.with_label_values(&[class])),
            early: IntCounter::new(
                "rouse_early_wakes_total",
                "Wakes that began at a TLS handshake.",
            )?,
            doors: Doors::new(&registry)?,
            oldest: Gauge::new(
                "rouse_holds_oldest_seconds",
                "For how long the first of those held now has been there.",
            )?,
            log_dropped: IntCounter::new(
                "rouse_log_dropped_total",
                "Lines of the access log that were not written.",
            )?,
            spans_dropped: IntCounter::new(
                "rouse_spans_dropped_total",
                "Spans that did not get to the collector.",
            )?,
            registry,
        };
        let all: [Box<dyn Collector>; 16] = [
            Box::new(metrics.early.clone()),
            Box::new(metrics.spans_dropped.clone()),
            Box::new(metrics.oldest.clone()),
            Box::new(metrics.log_dropped.clone()),
            Box::new(metrics.wake.clone()),
            Box::new(metrics.phase.clone()),
            Box::new(metrics.own.clone()),
            Box::new(metrics.visitor.clone()),
            Box::new(metrics.served.clone()),
            Box::new(metrics.holds_ended.clone()),
            Box::new(metrics.holds.clone()),
            Box::new(metrics.in_flight.clone()),
            Box::new(metrics.apps.clone()),
            Box::new(metrics.conflicts.clone()),
            Box::new(metrics.connected.clone()),
            Box::new(requests),
        ];
        for collector in all {
            metrics.registry.register(collector)?;
        }
        #[cfg(target_os = "linux")]
        metrics
            .registry
            .register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        // Each label is there from the start: a rule on a counter that is not there yet is blind.
        for end in HoldEnd::ALL {
            metrics.holds_ended.with_label_values(&[end.as_str()]);
        }
        for end in TellEnd::ALL {
            metrics.served.with_label_values(&[end.as_str()]);
        }
        for outcome in ["resumed", "cold", "unpaused", "awake", "failed"] {
            metrics.wake.with_label_values(&[outcome]);
        }
        for phase in Phase::ALL {
            metrics.phase.with_label_values(&[phase.as_str()]);
        }
        for state in STATES {
            metrics.apps.with_label_values(&[state]);
        }
        Ok(metrics)
    }

    /// Everything in Prometheus' text format.
    pub(crate) fn text(&self, gate: &Gate) -> String {
        let mut states: BTreeMap<&str, i64> = STATES.map(|state| (state, 0)).into();
        let mut in_flight = 0;
        let mut oldest = Duration::ZERO;
        for app in gate.status() {
            *states.entry(app.state).or_default() += 1;
            in_flight += app.in_flight;
            oldest = oldest.max(app.oldest.unwrap_or_default());
        }
        for (state, count) in states {
            self.apps.with_label_values(&[state]).set(count);
        }
        let gauge = |n| i64::try_from(n).unwrap_or(i64::MAX);
        self.in_flight.set(gauge(in_flight));
        self.oldest.set(oldest.as_secs_f64());
        self.holds.set(gauge(gate.held() as u64));
        self.conflicts.set(gauge(gate.unserved().len() as u64));
        self.connected.set(i64::from(gate.connected()));
        let mut text = Vec::new();
        match TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            Ok(()) => String::from_utf8(text).unwrap_or_default(),
            Err(error) => {
                tracing::error!("metrics can't be encoded: {error}");
                String::new()
            }
        }
    }

    /// A request is through: with this status, or without an answer; `ours`: an error of ours.
    pub(crate) fn request(&self, status: Option<u16>, ours: bool) {
        let class = match status {
            Some(_) if ours => CLASSES.len() - 1,
            Some(status) => usize::from(status / 100).min(5),
            None => 0,
        };
        self.requests[class].inc();
    }

    pub(crate) fn log_dropped(&self) -> IntCounter {
        self.log_dropped.clone()
    }

    #[cfg(feature = "otel")]
    pub(crate) fn spans_dropped(&self) -> IntCounter {
        self.spans_dropped.clone()
    }
}

impl Observer for Metrics {
    fn hold_ended(&self, end: HoldEnd) {
        self.holds_ended.with_label_values(&[end.as_str()]).inc();
    }

    fn wake_ended(&self, end: WakeEnd<'_>, took: Duration) {
        let outcome = match end {
            WakeEnd::Serving(times) => times.outcome.as_str(),
            WakeEnd::Refused(_) => "failed",
        };
        self.wake.with_label_values(&[outcome]).observe(took.as_secs_f64());
    }

    fn visitor_served(&self, shares: &Shares, first: bool) {
        self.visitor.observe(shares.total.as_secs_f64());
        if first {
            self.own.observe(shares.own.as_secs_f64());
            for phase in Phase::ALL {
                let took = shares.get(phase).as_secs_f64();
                self.phase.with_label_values(&[phase.as_str()]).observe(took);
            }
        }
    }

    fn woken_early(&self) {
        self.early.inc();
    }

    fn served_told(&self, end: TellEnd) {
        self.served.with_label_values(&[end.as_str()]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(metrics: &Metrics) -> String {
        let mut text = Vec::new();
        TextEncoder::new().encode(&metrics.registry.gather(), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn connections_count_while_they_are_open() {
        let metrics = Metrics::new().unwrap();
        metrics.doors.opened("http");
        metrics.doors.opened("http");
        metrics.doors.closed("http");
        metrics.doors.refused("timeout");
        metrics.doors.insane("host");
        metrics.doors.certificates([("a.pem", 1_800_000_000)].into_iter());
        metrics.doors.certificates([("b.pem", 1_900_000_000)].into_iter());
        let text = gathered(&metrics);
        for line in [
            "rouse_connections{speaks=\"http\"} 1",
            "rouse_connections_total{speaks=\"http\"} 2",
            "rouse_connections_refused_total{reason=\"timeout\"} 1",
            "rouse_requests_refused_total{reason=\"host\"} 1",
            "rouse_certificate_expiry_seconds{file=\"b.pem\"} 1900000000",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
        }
        assert!(!text.contains("a.pem"), "what is not served any more");
    }

    #[test]
    fn a_rule_names_only_metrics_that_there_are() {
        let rules = include_str!("../../conf/prometheus/rules.yml");
        let metrics = Metrics::new().unwrap();
        metrics.doors.certificates([("a.pem", 1)].into_iter());
        metrics.doors.opened("http");
        metrics.doors.refused("x");
        let there = metrics.registry.gather();
        let names: Vec<_> = there.iter().map(|family| family.name()).collect();
        let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let mut named = 0;
        for name in rules.split(|c| !word(c)).filter(|name| name.starts_with("rouse_")) {
            let plain = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let known = names.contains(&name) || plain.is_some_and(|plain| names.contains(&plain));
            assert!(known, "{name} is none of {names:?}");
            named += 1;
        }
        assert!(named >= 8);
    }
}
