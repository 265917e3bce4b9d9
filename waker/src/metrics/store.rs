//! What goes to the store and comes from it.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

use super::registered;
use crate::store::{Cost, FetchError, Fetched, Freed, UploadError};

/// Requests of a fetch: one for each 8 MiB of archives, a handful besides.
const REQUESTS: [f64; 12] =
    [4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// The metrics of a node's store.
#[derive(Debug)]
pub(super) struct StoreMetrics {
    /// `rouse_waker_store_sent_total{end}`: generations sent: done, failed, cancelled, taken.
    sent: IntCounterVec,
    /// `rouse_waker_store_sent_bytes_total`.
    sent_bytes: IntCounter,
    /// `rouse_waker_store_fetched_total{end}`: generations fetched for a wake: done, demanded (the rest came while it
    /// ran), cached, spoilt, failed.
    fetched: IntCounterVec,
    /// `rouse_waker_store_fetched_bytes`: what came for each wake until its VM could run.
    fetched_bytes: Histogram,
    /// `rouse_waker_store_fetch_requests`: requests for each wake.
    fetch_requests: Histogram,
    /// `rouse_waker_store_requests_total{for}`: sending, fetching.
    requests: IntCounterVec,
    /// `rouse_waker_store_retries_total{for}`: sending, fetching.
    retries: IntCounterVec,
}

impl StoreMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let counter = |name, help, label| {
            let counter = IntCounterVec::new(Opts::new(name, help), &[label]);
            registered(registry, counter.expect("a valid name"))
        };
        let sent_bytes =
            IntCounter::new("rouse_waker_store_sent_bytes_total", "Bytes sent to the store");
        let bytes = prometheus::exponential_buckets(1_048_576.0, 2.0, 16).expect("valid buckets");
        let histogram = |name, help, buckets| {
            let options = HistogramOpts::new(name, help).buckets(buckets);
            registered(registry, Histogram::with_opts(options).expect("a valid name"))
        };
        Self {
            sent: counter("rouse_waker_store_sent_total", "Generations sent to the store", "end"),
            sent_bytes: registered(registry, sent_bytes.expect("a valid name")),
            fetched: counter("rouse_waker_store_fetched_total", "Generations fetched", "end"),
            fetched_bytes: histogram(
                "rouse_waker_store_fetched_bytes",
                "Bytes that came from the store for a wake",
                bytes,
            ),
            fetch_requests: histogram(
                "rouse_waker_store_fetch_requests",
                "Requests to the store for a wake",
                REQUESTS.to_vec(),
            ),
            requests: counter("rouse_waker_store_requests_total", "Requests to the store", "for"),
            retries: counter("rouse_waker_store_retries_total", "Requests made again", "for"),
        }
    }

    pub(super) fn sent(&self, sent: Result<Option<&Freed>, &UploadError>) {
        let end = match sent {
            Ok(None) | Ok(Some(Freed { was_there: true, .. })) => return,
            Ok(Some(freed)) => {
                self.sent_bytes.inc_by(freed.bytes);
                self.requests.with_label_values(&["sending"]).inc_by(freed.requests);
                self.retries.with_label_values(&["sending"]).inc_by(freed.retries);
                "done"
            }
            Err(UploadError::Cancelled) => "cancelled",
            Err(UploadError::Taken { .. }) => "taken",
            Err(_) => "failed",
        };
        self.sent.with_label_values(&[end]).inc();
    }

    pub(super) fn fetched(&self, fetched: Result<&Fetched, &FetchError>) {
        let end = match fetched {
            Ok(Fetched { cost: None, .. }) => "cached",
            Ok(Fetched { cost: Some(cost), .. }) => {
                self.cost(cost);
                "done"
            }
            Err(error) if error.is_spoilt() => "spoilt",
            Err(_) => "failed",
        };
        self.fetched.with_label_values(&[end]).inc();
    }

    /// The VM runs, and the rest comes behind: that is not counted here.
    pub(super) fn demanded(&self, landed: Result<&Cost, &FetchError>) {
        let end = match landed {
            Ok(cost) => {
                self.cost(cost);
                "demanded"
            }
            Err(_) => "failed",
        };
        self.fetched.with_label_values(&[end]).inc();
    }

    fn cost(&self, cost: &Cost) {
        self.fetched_bytes.observe(cost.bytes as f64);
        self.fetch_requests.observe(cost.requests as f64);
        self.requests.with_label_values(&["fetching"]).inc_by(cost.requests);
        self.retries.with_label_values(&["fetching"]).inc_by(cost.retries);
    }
}
