//! What the cache of images has, and did.

use std::sync::{Mutex, PoisonError};

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use rouse_cache::{AGE_BOUNDS_SECONDS, Cache, Stats};

use super::registered;

/// The metrics of a node's cache: the cache counts, and they are brought up to it when they are asked for.
#[derive(Debug)]
pub(super) struct CacheMetrics {
    /// `rouse_waker_cache_entries`.
    entries: IntGauge,
    /// `rouse_waker_cache_bytes{kind}`: allocated, reserved, and the high and low marks.
    bytes: IntGaugeVec,
    /// `rouse_waker_cache_lookups_total{found}`: an image was looked for: yes, no.
    lookups: IntCounterVec,
    /// `rouse_waker_cache_entries_total{event}`: published, taken, evicted, discarded, refused.
    events: IntCounterVec,
    /// `rouse_waker_cache_evicted_bytes_total`.
    evicted_bytes: IntCounter,
    /// `rouse_waker_cache_evictions_total{unused_seconds}`: by how long they had not been used: up to so long.
    ages: IntCounterVec,
    last: Mutex<Stats>,
}

impl CacheMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let counter = |name, help, label| {
            let counter = IntCounterVec::new(Opts::new(name, help), &[label]);
            registered(registry, counter.expect("a valid name"))
        };
        let entries = IntGauge::new("rouse_waker_cache_entries", "Images in the cache");
        let bytes =
            IntGaugeVec::new(Opts::new("rouse_waker_cache_bytes", "Bytes on disk"), &["kind"]);
        let evicted =
            IntCounter::new("rouse_waker_cache_evicted_bytes_total", "Bytes that evictions freed");
        Self {
            entries: registered(registry, entries.expect("a valid name")),
            bytes: registered(registry, bytes.expect("a valid name")),
            lookups: counter("rouse_waker_cache_lookups_total", "Images looked for", "found"),
            events: counter("rouse_waker_cache_entries_total", "What became of images", "event"),
            evicted_bytes: registered(registry, evicted.expect("a valid name")),
            ages: counter(
                "rouse_waker_cache_evictions_total",
                "Evictions by how long the image had not been used, up to so many seconds",
                "unused_seconds",
            ),
            last: Mutex::default(),
        }
    }

    pub(super) fn update(&self, cache: &Cache) {
        let now = cache.stats();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.entries.set(gauge(now.entries));
        let budget = cache.budget();
        for (kind, value) in [
            ("allocated", now.allocated_bytes),
            ("reserved", now.reserved_bytes),
            ("high", budget.high()),
            ("low", budget.low()),
        ] {
            self.bytes.with_label_values(&[kind]).set(gauge(value));
        }
        for (found, now, last) in [("yes", now.hits, last.hits), ("no", now.misses, last.misses)] {
            self.lookups.with_label_values(&[found]).inc_by(now.saturating_sub(last));
        }
        for (event, now, last) in [
            ("published", now.published, last.published),
            ("taken", now.taken, last.taken),
            ("evicted", now.evictions, last.evictions),
            ("discarded", now.discarded, last.discarded),
            ("refused", now.refused, last.refused),
        ] {
            self.events.with_label_values(&[event]).inc_by(now.saturating_sub(last));
        }
        self.evicted_bytes.inc_by(now.evicted_bytes.saturating_sub(last.evicted_bytes));
        for (at, (now, last)) in now.ages.counts.iter().zip(last.ages.counts).enumerate() {
            let bound = AGE_BOUNDS_SECONDS.get(at).map_or("more".to_owned(), u64::to_string);
            self.ages.with_label_values(&[&*bound]).inc_by(now.saturating_sub(last));
        }
        *last = now;
    }
}
