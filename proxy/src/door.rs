//! What is counted of connections, before there is a request.

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

/// Counters of connections.
pub(crate) struct Doors {
    open: IntGaugeVec,
    opened: IntCounterVec,
    refused: IntCounterVec,
    insane: IntCounterVec,
    expiry: IntGaugeVec,
}

impl Doors {
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name, help, label| IntCounterVec::new(Opts::new(name, help), &[label]);
        let gauge = |name, help, label| IntGaugeVec::new(Opts::new(name, help), &[label]);
        let doors = Self {
            open: gauge("rouse_connections", "Connections now, by what they speak.", "speaks")?,
            opened: counter(
                "rouse_connections_total",
                "Connections that came to speak HTTP.",
                "speaks",
            )?,
            refused: counter(
                "rouse_connections_refused_total",
                "Connections that came to nothing: limits, PROXY protocol, handshakes.",
                "reason",
            )?,
            insane: counter(
                "rouse_requests_refused_total",
                "Requests that have no meaning, or two.",
                "reason",
            )?,
            expiry: gauge(
                "rouse_certificate_expiry_seconds",
                "When a certificate ends, in Unix time, by its file.",
                "file",
            )?,
        };
        registry.register(Box::new(doors.open.clone()))?;
        registry.register(Box::new(doors.opened.clone()))?;
        registry.register(Box::new(doors.refused.clone()))?;
        registry.register(Box::new(doors.insane.clone()))?;
        registry.register(Box::new(doors.expiry.clone()))?;
        Ok(doors)
    }

    pub(crate) fn opened(&self, speaks: &str) {
        self.open.with_label_values(&[speaks]).inc();
        self.opened.with_label_values(&[speaks]).inc();
    }

    pub(crate) fn closed(&self, speaks: &str) {
        self.open.with_label_values(&[speaks]).dec();
    }

    pub(crate) fn refused(&self, reason: &str) {
        self.refused.with_label_values(&[reason]).inc();
    }

    pub(crate) fn insane(&self, reason: &str) {
        self.insane.with_label_values(&[reason]).inc();
    }

    /// These are the certificates, and no others.
    pub(crate) fn certificates<'a>(&self, all: impl Iterator<Item = (&'a str, i64)>) {
        self.expiry.reset();
        for (file, ends) in all {
            self.expiry.with_label_values(&[file]).set(ends);
        }
    }
}
