//! What is seen of a request from outside: access log, trace, our own health. The hooks that have
//! to do with nothing else are here, too.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{HOST, USER_AGENT};
use pingora_core::Result;
use pingora_http::RequestHeader;
use pingora_proxy::Session;
use tokio::time::Instant;

use crate::access::{AccessLog, AccessOptions, Record};
use crate::connected::Connected;
use crate::health::{self, HealthOptions};
use crate::metrics::Metrics;
#[cfg(feature = "otel")]
use crate::otel::{self, Otel, Told};
use crate::plugin::{self, Rouse};
use crate::trace::{self, Context, Ids, Tracing};
use crate::visit::Visit;

/// How long a flush may take: whoever reads the log may have stopped reading.
const FLUSH: Duration = Duration::from_secs(2);

/// What is seen. By default there is no access log, traces pass, and nobody is told our health.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenOptions {
    /// The access log.
    pub access: Option<AccessOptions>,
    /// What becomes of traces.
    pub tracing: Tracing,
    /// Where visitors' listeners tell our own health.
    pub health: Option<HealthOptions>,
    /// Spans for a collector. With it every request has a trace.
    #[cfg(feature = "otel")]
    pub otel: Option<crate::OtelOptions>,
}

/// [`SeenOptions`], at work.
pub(crate) struct Seen {
    access: Option<AccessLog>,
    tracing: Tracing,
    health: Option<HealthOptions>,
    #[cfg(feature = "otel")]
    exporting: Option<crate::OtelOptions>,
    #[cfg(feature = "otel")]
    otel: Option<Otel>,
}

impl Seen {
    pub(crate) fn open(options: SeenOptions, metrics: &Metrics) -> io::Result<Self> {
        let access =
            options.access.map(|a| AccessLog::open(a, metrics.log_dropped())).transpose()?;
        Ok(Self {
            access,
            #[cfg(feature = "otel")]
            tracing: if options.otel.is_some() { Tracing::Always } else { options.tracing },
            #[cfg(not(feature = "otel"))]
            tracing: options.tracing,
            health: options.health,
            #[cfg(feature = "otel")]
            exporting: options.otel,
            #[cfg(feature = "otel")]
            otel: None,
        })
    }

    /// Begins to send spans, by a task of the gate's.
    #[cfg(feature = "otel")]
    pub(crate) fn export(
        mut self,
        gate: &rouse_gate::Gate,
        metrics: &Metrics,
    ) -> Result<Self, opentelemetry_otlp::ExporterBuildError> {
        let options = self.exporting.take();
        let start = |options| Otel::start(options, gate, metrics.spans_dropped());
        self.otel = options.map(start).transpose()?;
        Ok(self)
    }

    /// Whether the request's spans are sent; none when nobody's are.
    fn record(&self, visit: &Visit) -> Option<bool> {
        #[cfg(feature = "otel")]
        return self
            .otel
            .as_ref()
            .map(|otel| held(visit).is_some() || Ids::ours().share(otel.sample));
        #[cfg(not(feature = "otel"))]
        {
            let _ = visit;
            None
        }
    }

    /// Sees to it that the app gets a trace that is in order, or none.
    pub(crate) fn pass_on(&self, request: &mut RequestHeader, visit: &mut Visit) {
        let names = [trace::TRACEPARENT, trace::TRACESTATE];
        let there = names.iter().any(|name| request.headers.contains_key(name));
        if !there && self.tracing == Tracing::Pass {
            return;
        }
        if let Some(context) = trace::untouched(&request.headers, self.tracing) {
            visit.trace = Some(context);
            return;
        }
        // Pingora keeps the names' letters beside the fields, so that both change only through it.
        let mut fields = http::HeaderMap::with_capacity(names.len());
        for name in &names {
            for value in request.headers.get_all(name) {
                fields.append(name.clone(), value.clone());
            }
        }
        let record = self.record(visit);
        visit.trace = trace::pass_on(&mut fields, self.tracing, Ids::ours(), visit.trace, record);
        for name in &names {
            request.remove_header(name);
            for value in fields.get_all(name) {
                // A field's value that was one before is one.
                let _ = request.append_header(name.clone(), value.clone());
            }
        }
    }

    /// Writes the request into the access log, and sends its spans.
    pub(crate) fn log(&self, session: &Session, visit: &Visit, status: Option<u16>) {
        #[cfg(feature = "otel")]
        self.send(session, visit, status);
        let Some(access) = &self.access else { return };
        if visit.health && !self.health.as_ref().is_some_and(|health| health.log) {
            return;
        }
        let request = session.req_header();
        let uri = &request.uri;
        let path = match uri.path_and_query() {
            Some(both) if access.query => both.as_str().as_bytes(),
            _ => uri.path().as_bytes(),
        };
        let header = |name| request.headers.get(name).map(http::HeaderValue::as_bytes);
        let visitor = visit.visitor.as_ref();
        let generation = visitor.and_then(|v| v.open()).map(|open| open.generation.0);
        let tls = session.digest().and_then(|digest| digest.ssl_digest.as_deref());
        let trace = visit.trace.or_else(|| trace::incoming(&request.headers));
        access.write(&Record {
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            app: visit.app(),
            generation: generation.filter(|generation| *generation > 0),
            host: uri.authority().map(|a| a.as_str().as_bytes()).or_else(|| header(HOST)),
            method: request.method.as_str(),
            path,
            protocol: request.version,
            tls: tls.map(|tls| &*tls.version),
            certificate: Connected::of(session)
                .and_then(|connected| connected.certificate.as_deref())
                .map(|certificate| &*certificate.subject),
            client: plugin::client(session, visit),
            status,
            bytes_out: session.body_bytes_sent() as u64,
            bytes_in: session.body_bytes_read() as u64,
            duration: Instant::now().saturating_duration_since(visit.arrived),
            held: held(visit),
            wake: visit.woken.as_ref().map(|woken| woken.word),
            phases: visit.woken.as_ref().map(|woken| &woken.shares),
            error: visit.answer.as_ref().map(|answer| answer.code),
            user_agent: header(USER_AGENT),
            trace_id: trace.map(Context::id),
            upstream_reused: visit.reused,
            retries: visit.tries.saturating_sub(1),
        });
    }
}

#[cfg(feature = "otel")]
impl Seen {
    fn send(&self, session: &Session, visit: &Visit, status: Option<u16>) {
        let Some(otel) = &self.otel else { return };
        let (ids, held) = (Ids::ours(), held(visit));
        if visit.health || !(held.is_some() || visit.trace.is_some_and(Context::is_sampled)) {
            return;
        }
        let request = session.req_header();
        let parent = trace::incoming(&request.headers);
        // One that was held in vain never got to be sent, and has no span yet.
        let context = visit.trace.unwrap_or_else(|| match parent {
            Some(parent) => parent.child(ids, Some(true)),
            None => Context::fresh(ids, Some(true)),
        });
        let took = Instant::now().saturating_duration_since(visit.arrived);
        let ended = SystemTime::now();
        let open = visit.visitor.as_ref().and_then(|visitor| visitor.open());
        let told = Told {
            context,
            parent,
            method: request.method.as_str(),
            app: visit.app(),
            generation: open.map(|open| open.generation.0).filter(|number| *number > 0),
            status,
            error: visit.answer.as_ref().map(|answer| answer.code),
            began: ended.checked_sub(took).unwrap_or(ended),
            ended,
            held: held.unwrap_or_default(),
            wake: visit.woken.as_ref().map(|woken| (woken.word, &woken.shares)),
        };
        otel.write(otel::spans(&told, ids));
    }
}

/// For how long the visitor was held, if it was.
fn held(visit: &Visit) -> Option<Duration> {
    visit.visitor.as_ref().map(rouse_gate::Visitor::held).filter(|held| !held.is_zero())
}

impl Rouse {
    /// Answers those who ask for our own health. True: it has. [`Self::request_filter`] does it too; this is
    /// for who has an answer of its own before that.
    pub async fn tell_health(&self, session: &mut Session, visit: &mut Visit) -> Result<bool> {
        if let Some(connected) = Connected::of(session) {
            connected.header_whole();
        }
        let Some(health) = &self.seen().health else { return Ok(false) };
        if session.req_header().uri.path() != health.path {
            return Ok(false);
        }
        visit.health = true;
        health::send(session, self.draining()).await?;
        Ok(true)
    }

    /// In `connected_to_upstream`: notes whether the connection was there already.
    pub fn connected_to_upstream(&self, reused: bool, visit: &mut Visit) {
        visit.reused = Some(reused);
    }

    /// Opens the access log anew, after it was moved away.
    pub fn reopen(&self) {
        if let Some(access) = &self.seen().access {
            access.reopen();
        }
    }

    /// Waits until all that was logged is written, or 2 s, and as long for spans. Blocks.
    pub fn flush(&self) {
        if let Some(access) = &self.seen().access {
            access.flush(FLUSH);
        }
        #[cfg(feature = "otel")]
        if let Some(otel) = &self.seen().otel {
            otel.flush(FLUSH);
        }
    }
}
