//! Spans for an OpenTelemetry collector: of every wake, and of a share of the other requests.
//!
//! ```text
//! GET            the request; its parent is the client's span, and it is the app's parent
//! └─ wake        the visitor's hold, from its arrival to its response header
//!    ├─ hold … app   the phases, one after the other
//! ```
//!
//! What a request's spans are is decided without I/O; a task of the gate's sends them in batches,
//! and nobody waits for it.

use std::borrow::Cow;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use prometheus::IntCounter;
use rouse_gate::Gate;
use rouse_gate::times::Shares;
use rouse_protocol::wake::Phase;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::trace::{Context, Ids};

/// How many requests' spans may wait.
const QUEUE: usize = 1_024;
/// So many spans are sent at once.
const BATCH: usize = 512;
/// How long they are gathered after the first.
const GATHER: Duration = Duration::from_secs(1);
/// How long one sending may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where spans go.
#[derive(Clone, Debug, PartialEq)]
pub struct OtelOptions {
    /// The whole URL of the collector's traces, `http://` only: over the network it is a collector
    /// on this machine that should speak TLS for us.
    pub endpoint: String,
    /// The name of this service.
    pub service_name: String,
    /// The share of requests that have a span though they were not held, 0 to 1; besides those
    /// that their client already records.
    pub sample: f64,
}

enum Message {
    Spans(Vec<SpanData>),
    /// Everything before it is sent when this is answered.
    Flush(SyncSender<()>),
}

/// The way to the task that sends.
pub(crate) struct Otel {
    queue: mpsc::Sender<Message>,
    pub(crate) sample: f64,
    dropped: IntCounter,
}

impl Otel {
    pub(crate) fn start(
        options: OtelOptions,
        gate: &Gate,
        dropped: IntCounter,
    ) -> Result<Self, ExporterBuildError> {
        let OtelOptions { endpoint, service_name, sample } = options;
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(HyperClient::with_default_connector(PATIENCE, None))
            .with_endpoint(endpoint)
            .with_timeout(PATIENCE)
            .build()?;
        exporter.set_resource(&Resource::builder_empty().with_service_name(service_name).build());
        let (queue, messages) = mpsc::channel(QUEUE);
        gate.spawn(send(exporter, messages, dropped.clone()));
        Ok(Self { queue, sample, dropped })
    }

    /// Gives a request's spans on, or drops them.
    pub(crate) fn write(&self, spans: Vec<SpanData>) {
        let count = spans.len() as u64;
        if self.queue.try_send(Message::Spans(spans)).is_err() {
            self.dropped.inc_by(count);
        }
    }

    /// Waits until everything up to here is sent, at most this long. Blocks.
    pub(crate) fn flush(&self, patience: Duration) {
        let (done, wait) = sync_channel(1);
        if self.queue.try_send(Message::Flush(done)).is_ok() {
            // Too late is not sent; there is nothing else to do about it.
            let _ = wait.recv_timeout(patience);
        }
    }
}

async fn send(exporter: SpanExporter, mut messages: mpsc::Receiver<Message>, dropped: IntCounter) {
    let mut batch = Vec::new();
    let mut failing = false;
    while let Some(first) = messages.recv().await {
        let end = Instant::now() + GATHER;
        let mut next = Some(first);
        let mut flushed = None;
        while let Some(message) = next.take() {
            match message {
                Message::Spans(spans) => batch.extend(spans),
                Message::Flush(done) => {
                    flushed = Some(done);
                    break;
                }
            }
            if batch.len() < BATCH {
                next = timeout_at(end, messages.recv()).await.ok().flatten();
            }
        }
        let count = batch.len() as u64;
        if count > 0 {
            let sent = exporter.export(std::mem::take(&mut batch)).await;
            if let Err(error) = &sent {
                dropped.inc_by(count);
                // Once, not for each batch.
                if !failing {
                    tracing::warn!("spans can't be sent: {error}");
                }
            }
            failing = sent.is_err();
        }
        if let Some(Err(TrySendError::Full(()))) = flushed.map(|done| done.try_send(())) {
            tracing::debug!("a flush was answered twice");
        }
    }
}

/// What spans are made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told<'a> {
    pub(crate) context: Context,
    /// What the client sent.
    pub(crate) parent: Option<Context>,
    pub(crate) method: &'a str,
    pub(crate) app: Option<&'a str>,
    pub(crate) generation: Option<u64>,
    pub(crate) status: Option<u16>,
    pub(crate) error: Option<&'static str>,
    pub(crate) began: SystemTime,
    pub(crate) ended: SystemTime,
    pub(crate) held: Duration,
    /// What the visitor was told of its wake.
    pub(crate) wake: Option<(&'static str, &'a Shares)>,
}

/// The spans of one request.
pub(crate) fn spans(told: &Told<'_>, ids: &Ids) -> Vec<SpanData> {
    let failed = told.error.is_some() || told.status.is_some_and(|status| status >= 500);
    let mut attributes = vec![KeyValue::new("http.request.method", told.method.to_owned())];
    attributes
        .extend(told.status.map(|s| KeyValue::new("http.response.status_code", i64::from(s))));
    attributes.extend(told.app.map(|app| KeyValue::new("rouse.app", app.to_owned())));
    attributes.extend(told.error.map(|code| KeyValue::new("error.type", code)));
    let generation = told.generation.and_then(|generation| i64::try_from(generation).ok());
    attributes.extend(generation.map(|number| KeyValue::new("rouse.generation", number)));
    let request = Span {
        id: told.context.span(),
        parent: told.parent.map(Context::span),
        kind: SpanKind::Server,
        name: name(told.method),
        from: told.began,
        to: told.ended,
        attributes,
        failed: failed.then(|| told.error.unwrap_or_default()),
    };
    let mut all = vec![request.data(told.context.id(), true)];
    let inner = |parent, name, from, to, attributes| Span {
        id: ids.next().max(1),
        parent: Some(parent),
        kind: SpanKind::Internal,
        name,
        from,
        to,
        attributes,
        failed: None,
    };
    let mut add = |span: Span| {
        let id = span.id;
        all.push(span.data(told.context.id(), false));
        id
    };
    if let Some((word, shares)) = told.wake {
        let attributes = vec![KeyValue::new("rouse.wake", word)];
        let to = told.began + shares.total;
        let wake = add(inner(told.context.span(), "wake", told.began, to, attributes));
        let mut from = told.began;
        for phase in Phase::ALL {
            let to = from + shares.get(phase);
            if to > from {
                add(inner(wake, phase.as_str(), from, to, Vec::new()));
            }
            from = to;
        }
    } else if !told.held.is_zero() {
        // Held in vain.
        let to = told.began + told.held;
        let mut span = inner(told.context.span(), "wake", told.began, to, Vec::new());
        span.failed = Some(told.error.unwrap_or("gone"));
        add(span);
    }
    all
}

/// A method that is no common one may be anything, and is no good name.
fn name(method: &str) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    known.into_iter().find(|known| *known == method).unwrap_or("HTTP")
}

struct Span {
    id: u64,
    parent: Option<u64>,
    kind: SpanKind,
    name: &'static str,
    from: SystemTime,
    to: SystemTime,
    attributes: Vec<KeyValue>,
    failed: Option<&'static str>,
}

impl Span {
    fn data(self, trace: u128, remote: bool) -> SpanData {
        let (trace, id) = (TraceId::from(trace), SpanId::from(self.id));
        SpanData {
            span_context: SpanContext::new(
                trace,
                id,
                TraceFlags::SAMPLED,
                false,
                TraceState::default(),
            ),
            parent_span_id: self.parent.map_or(SpanId::INVALID, SpanId::from),
            parent_span_is_remote: remote && self.parent.is_some(),
            span_kind: self.kind,
            name: Cow::Borrowed(self.name),
            start_time: self.from,
            end_time: self.to,
            attributes: self.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: match self.failed {
                Some(why) => Status::error(why),
                None => Status::Unset,
            },
            instrumentation_scope: InstrumentationScope::builder("rouse-proxy").build(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rouse_gate::times::WakeTimes;
    use rouse_protocol::wake::{Outcome, PhaseTime};

    use super::*;

    fn told(context: Context) -> Told<'static> {
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        Told {
            context,
            parent: None,
            method: "GET",
            app: Some("hello"),
            generation: Some(3),
            status: Some(200),
            error: None,
            began,
            ended: began + Duration::from_millis(100),
            held: Duration::ZERO,
            wake: None,
        }
    }

    #[test]
    fn a_wake_is_a_tree_whose_phases_fill_it() {
        let ids = Ids::new(1);
        let context = Context::fresh(&ids, Some(true));
        let (t, ms) = (Instant::now(), Duration::from_millis);
        let phases = [PhaseTime::new(Phase::Load, ms(7)), PhaseTime::new(Phase::Resume, ms(1))];
        let times =
            WakeTimes::new(Outcome::Cold, &phases, [t, t + ms(9), t + ms(30)], Duration::ZERO);
        let shares = times.shares(t, t + ms(31), t + ms(40));
        let told = Told { wake: Some(("cold", &shares)), held: ms(31), ..told(context) };
        let all = spans(&told, &ids);
        let names: Vec<_> = all.iter().map(|span| &*span.name).collect();
        assert_eq!(names, ["GET", "wake", "hold", "load", "resume", "gate", "release", "app"]);
        let (request, wake, phases) = (&all[0], &all[1], &all[2..]);
        assert_eq!(request.parent_span_id, SpanId::INVALID);
        assert_eq!(wake.parent_span_id, request.span_context.span_id());
        let mut from = told.began;
        for phase in phases {
            assert_eq!(phase.parent_span_id, wake.span_context.span_id());
            assert_eq!(phase.start_time, from, "{}", phase.name);
            from = phase.end_time;
        }
        assert_eq!((from, wake.end_time), (told.began + ms(40), told.began + ms(40)));
        assert!(all.iter().all(|s| s.span_context.trace_id() == TraceId::from(context.id())));
    }

    #[test]
    fn the_clients_span_is_the_parent_and_a_vain_hold_is_a_failed_wake() {
        let ids = Ids::new(1);
        let parent = Context::parse(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let plain = Told { parent, method: "odd", ..told(Context::fresh(&ids, None)) };
        let all = spans(&plain, &ids);
        assert_eq!((all.len(), &*all[0].name), (1, "HTTP"));
        assert_eq!(all[0].parent_span_id, SpanId::from(0x00f0_67aa_0ba9_02b7));
        assert!(all[0].parent_span_is_remote && all[0].status == Status::Unset);

        let held = Duration::from_millis(50);
        let vain = Told { held, error: Some("deadline"), status: Some(503), ..plain };
        let all = spans(&vain, &ids);
        assert_eq!(all.len(), 2);
        assert!(all.iter().all(|span| span.status == Status::error("deadline")));
        assert_eq!(all[1].end_time, vain.began + held);
    }
}
