//! The plugin: one method for each `ProxyHttp` hook that takes part in holding.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http::header::{HOST, HeaderName, TRANSFER_ENCODING};
use http::request::Parts;
use pingora_core::protocols::http::ServerSession;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorSource, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, Session};
use rouse_downstream::Insane;
use rouse_gate::verdict::signed;
use rouse_gate::{Gate, Limits, Observer, Refusal, Settings, Visitor, Waker};
use rouse_policy::Request;
use rouse_protocol::app::AppId;
use rouse_protocol::client::Client;
use rouse_protocol::route::Rule;
use rouse_protocol::signature::{self, AGENT_HEADER, AgentState, NONCE_HEADER, WAKE_HEADER};
use tokio::runtime::{Builder, Runtime};

use crate::answer::{self, Answer};
use crate::connected::{Connected, departure};
use crate::edge::{Edge, Sender};
use crate::headers;
use crate::metrics::Metrics;
use crate::peer::{self, Connecting, PingoraDialer};
use crate::prober::TcpProber;
use crate::seen::{Seen, SeenOptions};
use crate::visit::Visit;

/// An error of ours; which one is in the [`Visit`].
const REFUSED: ErrorType = ErrorType::new("RouseRefused");
/// The agent's signed word that the app is down.
const SIGNED_DOWN: ErrorType = ErrorType::new("RouseSignedDown");
/// How often a client that is held is looked after where its socket is not known: it must be missed
/// within 300 ms.
const LOOK_AFTER: Duration = Duration::from_millis(100);
/// How long a client may take none of its answer.
const WRITE: Duration = Duration::from_secs(60);
/// For how long what is left of a body is read away after an early answer, as nginx has it
/// (`lingering_time`).
const DRAIN: Duration = Duration::from_secs(30);
const TCP_ESTABLISHED: u8 = 1;

const AGENT: HeaderName = HeaderName::from_static(AGENT_HEADER);
const NONCE: HeaderName = HeaderName::from_static(NONCE_HEADER);
const WAKE: HeaderName = HeaderName::from_static(WAKE_HEADER);
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// What a [`Rouse`] is made of. The defaults are those of the design.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The name under which this proxy answers the waker: letters, digits, `-`, `_`, `.`.
    pub name: String,
    /// The waker's socket; none when there are only origins.
    pub waker: Option<PathBuf>,
    /// How much may wait.
    pub limits: Limits,
    /// How apps are connected to.
    pub connecting: Connecting,
    /// Apps that never sleep.
    pub origins: Vec<Origin>,
    /// What is believed of visitors; none: the connection's address is the client, and
    /// [`Rouse::request_filter`] does nothing.
    pub edge: Option<Edge>,
    /// What is seen of requests from outside.
    pub seen: SeenOptions,
}

/// An app that never sleeps: no wake, no gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its id.
    pub id: AppId,
    /// Which requests are its own.
    pub rules: Vec<Rule>,
    /// Where it listens.
    pub address: SocketAddr,
}

/// Why a [`Rouse`] could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No threads for its own tasks.
    #[error("the gate's threads can't be started: {0}")]
    Threads(#[from] io::Error),
    /// A metric is wrong or twice there.
    #[error("the metrics can't be registered: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The access log has no place to go.
    #[error("the access log can't be opened: {0}")]
    AccessLog(io::Error),
    /// Spans have no place to go.
    #[cfg(feature = "otel")]
    #[error("spans can't be sent: {0}")]
    Otel(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// Holding for a Pingora server. Cheap to clone; ends with its last clone.
#[derive(Clone)]
pub struct Rouse {
    inner: Arc<Inner>,
}

struct Inner {
    gate: Arc<Gate>,
    metrics: Arc<Metrics>,
    edge: Option<Edge>,
    seen: Seen,
    draining: AtomicBool,
    /// The gate's own threads. They outlive every service of the server, whose drain needs them.
    runtime: Option<Runtime>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The last clone may be dropped where blocking is forbidden.
            runtime.shutdown_background();
        }
    }
}

impl Rouse {
    /// Starts following the waker, on threads of its own.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let Options { name, waker, limits, connecting, origins, edge, seen } = options;
        let metrics = Arc::new(Metrics::new()?);
        // Before there are threads: they may not be waited for where this is called.
        let seen = Seen::open(seen, &metrics).map_err(StartError::AccessLog)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("gate")
            .enable_all()
            .build()?;
        let settings = Settings {
            name,
            limits,
            waker: waker.map(|socket| Arc::new(Client::new(socket)) as Arc<dyn Waker>),
            prober: Arc::new(TcpProber),
            dialer: Arc::new(PingoraDialer { connecting }),
            observer: metrics.clone(),
            runtime: runtime.handle().clone(),
        };
        let origins = origins.into_iter().map(|o| (o.id, o.rules, o.address));
        let gate = Gate::start(settings, origins);
        #[cfg(feature = "otel")]
        let seen = match seen.export(&gate, &metrics) {
            Ok(seen) => seen,
            Err(error) => {
                runtime.shutdown_background();
                return Err(error.into());
            }
        };
        let inner = Inner {
            gate,
            metrics,
            edge,
            seen,
            draining: AtomicBool::new(false),
            runtime: Some(runtime),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The gate behind it.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.inner.gate
    }

    /// From now on our own health says that this server drains. Held visitors are held on.
    pub fn drain(&self) {
        self.inner.draining.store(true, Ordering::Relaxed);
    }

    /// Whether this server goes down, one way or another.
    pub fn draining(&self) -> bool {
        self.inner.draining.load(Ordering::Relaxed) || self.inner.gate.stopping()
    }

    /// Everything counted, in Prometheus' text format.
    pub fn metrics(&self) -> String {
        self.inner.metrics.text(&self.inner.gate)
    }

    /// What is believed of visitors.
    pub(crate) fn edge(&self) -> Option<&Edge> {
        self.inner.edge.as_ref()
    }

    pub(crate) fn insane(&self, insane: Insane) {
        self.inner.metrics.doors.insane(insane.word());
    }

    /// A client shakes hands and has said that it wants `host`: its app may as well begin to wake.
    pub fn early(&self, host: &str, client: IpAddr) {
        self.inner.gate.early(host, Some(client));
    }

    /// A connection has come to speak HTTP: `http`, `https` or `h2c`.
    pub fn connection_opened(&self, speaks: &'static str) {
        self.inner.metrics.doors.opened(speaks);
    }

    /// One of [`Self::connection_opened`] has ended.
    pub fn connection_closed(&self, speaks: &'static str) {
        self.inner.metrics.doors.closed(speaks);
    }

    /// A connection came to nothing, for one of a few reasons.
    pub fn connection_refused(&self, reason: &'static str) {
        self.inner.metrics.doors.refused(reason);
    }

    /// The certificates that are served: the file, and when it ends in Unix time.
    pub fn certificates<'a>(&self, all: impl Iterator<Item = (&'a str, i64)>) {
        self.inner.metrics.doors.certificates(all);
    }

    pub(crate) fn seen(&self) -> &Seen {
        &self.inner.seen
    }

    /// Lets every held visitor go with an answer of ours, and holds no more. For a server that is
    /// going down.
    pub fn stop(&self) {
        self.inner.gate.stop();
    }

    /// In `request_filter`: refuses what two servers could read in two ways, finds out who asks, and
    /// answers in the app's place what its policy has for that, a health check of a sleeping app say.
    /// True: it is answered. Where this is not called, such requests wake.
    pub async fn request_filter(&self, session: &mut Session, visit: &mut Visit) -> Result<bool> {
        let http = session.as_downstream_mut();
        http.set_write_timeout(Some(WRITE));
        http.set_total_drain_timeout(Some(DRAIN));
        if http.is_upgrade_req() {
            // What follows may be silent for hours.
            http.set_read_timeout(None);
        }
        if self.tell_health(session, visit).await? || self.examine(session, visit).await? {
            return Ok(true);
        }
        if visit.visitor.is_none() {
            visit.visitor = self.route(session, visit);
        }
        let Some(visitor) = &mut visit.visitor else { return Ok(false) };
        let Some(policy) = visitor.wake_policy() else { return Ok(false) };
        let (request, serving) = (request_of(session), visitor.serving());
        let reply = policy.reply(&request, serving);
        if (reply.is_some() && !serving) || !policy.counts(&request) {
            visitor.passes_by();
        }
        let Some(reply) = reply else { return Ok(false) };
        // As in [`Self::upstream_peer`], for the connection is good for the next request.
        session.set_pipelining_enabled(true);
        visit.replied = true;
        answer::reply(session.as_mut(), reply).await?;
        Ok(true)
    }

    /// In `upstream_peer`: the app that this request is for, held until it serves.
    pub async fn upstream_peer(
        &self,
        session: &mut Session,
        visit: &mut Visit,
    ) -> Result<Box<HttpPeer>> {
        // Without this a client that sends its next request while it waits is cut off.
        session.set_pipelining_enabled(true);
        visit.tries = visit.tries.saturating_add(1);
        if visit.visitor.is_none() {
            visit.visitor = self.route(session, visit);
        }
        let Some(visitor) = &mut visit.visitor else {
            let gate = &self.inner.gate;
            let answer = if gate.synced() { Answer::unknown_host() } else { Answer::not_synced() };
            return refuse(&mut visit.answer, answer);
        };
        if visitor.enter_open().is_none() {
            // Boxed, so that those who are not held do not carry its size.
            match Box::pin(self.hold(session, visitor, visit.sender.as_ref())).await {
                Ok(()) => {}
                // Nobody is left to answer, and it is no fault.
                Err(Refusal::Gone) => {
                    let why = "the client left while it was held";
                    return Err(Error::explain(ErrorType::ConnectionClosed, why).into_down());
                }
                Err(Refusal::Waiting) => {
                    let host = asked_host(session).unwrap_or(visitor.app().id().as_str());
                    let page = visitor.waiting().page(visitor.app().id().as_str(), host);
                    return refuse(&mut visit.answer, Answer::waiting(page));
                }
                Err(refusal) => return refuse(&mut visit.answer, Answer::of(&refusal)),
            }
        }
        let open = visitor.open().map(|open| (&open.upstream, open.key.is_some()));
        let Some((upstream, signs)) = open else {
            return refuse(&mut visit.answer, Answer::internal());
        };
        visit.nonce = signs.then(signature::nonce);
        match peer::peer(&**upstream, peer::is_grpc(session.req_header())) {
            Some(peer) => Ok(peer),
            None => refuse(&mut visit.answer, Answer::internal()),
        }
    }

    fn route(&self, session: &Session, visit: &Visit) -> Option<Visitor> {
        let headers = &session.req_header().headers;
        let (host, path) = (asked_host(session)?, session.req_header().uri.path());
        self.inner.gate.enter(host, path, headers, visit.arrived)
    }

    async fn hold(
        &self,
        session: &mut Session,
        visitor: &mut Visitor,
        sender: Option<&Sender>,
    ) -> Result<(), Refusal> {
        let gate = &self.inner.gate;
        let asker = visitor.asker(&request_of(session), client_ip(session, sender));
        let socket = session.digest().and_then(|digest| digest.socket_digest.clone());
        if let Some(closed) = session.watch_h2_stream_close() {
            let gone = async { drop(closed.await) };
            return gate.hold(visitor, asker, gone).await;
        }
        let known = Connected::of(session).and_then(|connected| connected.socket.upgrade());
        // Looking at the socket's state takes nothing from it: neither a body nor a next request.
        let gone = async {
            if let Some(known) = &known {
                return departure(known).await;
            }
            let Some(socket) = socket else { return std::future::pending().await };
            loop {
                tokio::time::sleep(LOOK_AFTER).await;
                if socket.tcp_info().is_some_and(|info| info.tcpi_state != TCP_ESTABLISHED) {
                    return;
                }
            }
        };
        gate.hold(visitor, asker, gone).await
    }

    /// In `upstream_request_filter`: takes our headers off what the client sent, and puts on what
    /// the app should know.
    pub fn upstream_request_filter(
        &self,
        session: &Session,
        request: &mut RequestHeader,
        visit: &mut Visit,
    ) -> Result<()> {
        headers::strip_request(request);
        if session.is_http2() {
            headers::whole_cookie(request)?;
        }
        match &visit.sender {
            Some(sender) => self.introduce(sender, request)?,
            None => {
                let client = session.client_addr().and_then(|addr| addr.as_inet());
                headers::forward(request, client.map(|addr| addr.ip()))?;
            }
        }
        self.certify(session, request)?;
        self.inner.seen.pass_on(request, visit);
        if let Some(nonce) = &visit.nonce {
            request.insert_header(NONCE, &**nonce)?;
        }
        Ok(())
    }

    /// In `request_body_filter`: an end of a body that is an empty frame (HTTP/2) is no chunk. Pingora would
    /// write it as the last chunk and then the last once more, before the connection's next request.
    pub fn request_body_filter(&self, body: &mut Option<Bytes>, end_of_stream: bool) {
        if end_of_stream && body.as_ref().is_some_and(Bytes::is_empty) {
            *body = None;
        }
    }

    /// In `upstream_response_filter`: an agent's signed *down* sends the visitor back to the hold;
    /// the first response after a wake tells of it.
    pub fn upstream_response_filter(
        &self,
        response: &mut ResponseHeader,
        visit: &mut Visit,
    ) -> Result<()> {
        let Some(visitor) = &mut visit.visitor else { return Ok(()) };
        if let Some(nonce) = &visit.nonce
            && is_signed_down(response, visitor, nonce)
        {
            visit.down = true;
            visitor.down();
            let mut error = Error::explain(SIGNED_DOWN, "the agent says that the app is down");
            error.set_retry(true);
            return Err(error.into_up());
        }
        headers::strip_response(response);
        if response.status.is_informational() && response.status.as_u16() != 101 {
            return Ok(());
        }
        visit.answered = true;
        if response.status.as_u16() == 101 {
            visitor.upgraded();
        }
        if let Some(woken) = self.inner.gate.answered(visitor) {
            self.inner.metrics.visitor_served(&woken.shares, woken.first);
            response.insert_header(WAKE, woken.word)?;
            response.append_header(SERVER_TIMING, woken.shares.server_timing())?;
            visit.woken = Some(Box::new(woken));
        }
        Ok(())
    }

    /// In `response_filter`: HTTP/1.0 knows no chunks (RFC 9112, section 6.1), so that there an answer of
    /// unknown length ends with its connection. Pingora would chunk it for everybody.
    pub fn response_filter(&self, session: &mut Session, response: &mut ResponseHeader) {
        if session.req_header().version == Version::HTTP_10
            && response.remove_header(&TRANSFER_ENCODING).is_some()
        {
            session.set_keepalive(None);
        }
    }

    /// In `fail_to_connect`: nothing was sent, so a visitor of an app that can be woken is held
    /// again, whatever its method and body.
    pub fn fail_to_connect(&self, visit: &mut Visit, mut error: Box<Error>) -> Box<Error> {
        let ours = matches!(
            error.etype(),
            ErrorType::ConnectRefused
                | ErrorType::ConnectTimedout
                | ErrorType::ConnectNoRoute
                | ErrorType::ConnectError
        );
        match visit.visitor.as_mut().filter(|visitor| sleeps(visitor)) {
            Some(visitor) if ours => {
                visitor.down();
                error.set_retry(true);
            }
            _ => {
                error.set_retry(false);
                let answer = if peer::for_want_of_ours(&error) {
                    Answer::overloaded()
                } else {
                    Answer::app_unreachable()
                };
                visit.answer = Some(answer);
            }
        }
        error
    }

    /// In `error_while_proxy`: whether the request may be sent again.
    ///
    /// After a signed *down* it may, since the app never saw it, if its body is still here. After
    /// anything else only if the method is idempotent, no answer has begun, and it did not happen often:
    /// three times on an old connection, which the app may just have closed, and twice on a fresh one.
    pub fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &Session,
        error: Box<Error>,
        visit: &mut Visit,
        client_reused: bool,
    ) -> Box<Error> {
        let mut error = error.more_context(format!("Peer: {peer}"));
        let truncated = session.as_ref().retry_buffer_truncated();
        if std::mem::take(&mut visit.down) {
            error.set_retry(!truncated);
            if truncated {
                visit.answer = Some(Answer::not_replayable());
            }
            return error;
        }
        let broke = matches!(
            error.etype(),
            ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::WriteError
        );
        let again = broke
            && *error.esource() == ErrorSource::Upstream
            && session.req_header().method.is_idempotent()
            && !truncated
            && !visit.answered
            && visit.may_resend(client_reused);
        // Whoever accepts and hangs up twice may be a VM that has just ended: the gate finds out.
        if again
            && visit.is_doubtful()
            && let Some(visitor) = &mut visit.visitor
            && sleeps(visitor)
        {
            visitor.down();
        }
        error.set_retry(again);
        error
    }

    /// In `fail_to_proxy`: answers with an error of ours, unless an answer has begun or nobody is
    /// there to read it.
    pub async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        visit: &mut Visit,
    ) -> FailToProxy {
        let done = |error_code| FailToProxy { error_code, can_reuse_downstream: false };
        if session
            .response_written()
            .is_some_and(|r| !r.status.is_informational() || r.status == 101)
        {
            visit.answer = None;
            return done(0);
        }
        let gone = *error.esource() == ErrorSource::Downstream
            && matches!(
                error.etype(),
                ErrorType::WriteError | ErrorType::ReadError | ErrorType::ConnectionClosed
            );
        if gone {
            visit.answer = None;
            return done(0);
        }
        if let ErrorType::HTTPStatus(code) = error.etype() {
            // Not one of ours: another filter of this server wants it so.
            let sent = session.respond_error(*code).await;
            log_unsent(sent);
            return done(*code);
        }
        let answer = visit.answer.get_or_insert_with(|| match error.esource() {
            ErrorSource::Downstream if *error.etype() == ErrorType::ReadTimedout => {
                Answer::too_slow()
            }
            ErrorSource::Downstream => Answer::bad_request(),
            ErrorSource::Upstream => Answer::app_broke(),
            ErrorSource::Internal | ErrorSource::Unset => Answer::internal(),
        });
        let http: &mut ServerSession = session.as_mut();
        log_unsent(answer.send(http).await);
        done(answer.status.as_u16())
    }

    /// In `suppress_error_log`: errors of ours are counted, and no faults of this server.
    pub fn suppress_error_log(&self, visit: &Visit, error: &Error) -> bool {
        visit.answer.is_some() || *error.esource() == ErrorSource::Downstream
    }

    /// In `logging`: counts the request, and writes it into the access log.
    pub fn logging(&self, session: &Session, visit: &Visit) {
        // Over HTTP/2 there may be others on the connection.
        if !session.is_http2()
            && let Some(connected) = Connected::of(session)
        {
            connected.request_over();
        }
        let status = session.response_written().map(|response| response.status.as_u16());
        if !visit.health {
            self.inner.metrics.request(status, visit.answer.is_some());
        }
        self.inner.seen.log(session, visit, status);
    }
}

/// Whether the app that a visitor was let through to can be woken.
fn sleeps(visitor: &Visitor) -> bool {
    visitor.open().is_some_and(|open| open.wake.is_some())
}

/// Who asks.
pub(crate) fn client(session: &Session, visit: &Visit) -> Option<IpAddr> {
    client_ip(session, visit.sender.as_ref())
}

/// The same, where nothing is known of the visit but its sender.
fn client_ip(session: &Session, sender: Option<&Sender>) -> Option<IpAddr> {
    if let Some(sender) = sender {
        return Some(sender.client.address);
    }
    session.client_addr().and_then(|addr| addr.as_inet()).map(|addr| addr.ip())
}

fn refuse<T>(slot: &mut Option<Answer>, answer: Answer) -> Result<T> {
    let error = Error::explain(REFUSED, answer.code);
    *slot = Some(answer);
    Err(error.into_in())
}

/// The host that is asked for.
fn asked_host(session: &Session) -> Option<&str> {
    let request = session.req_header();
    // HTTP/2 has no Host, only an authority; an absolute target goes before Host.
    match request.uri.authority() {
        Some(authority) => Some(authority.host()),
        None => request.headers.get(HOST)?.to_str().ok(),
    }
}

/// What a policy looks at.
fn request_of(session: &Session) -> Request<'_> {
    let parts: &Parts = session.req_header();
    Request::from(parts)
}

fn is_signed_down(response: &ResponseHeader, visitor: &Visitor, nonce: &str) -> bool {
    let Some(key) = visitor.open().and_then(|open| open.key.as_ref()) else { return false };
    let values = response.headers.get_all(AGENT);
    let values = values.iter().filter_map(|value| value.to_str().ok());
    let state = signed(values, visitor.app().id(), key, nonce);
    matches!(state, Some(AgentState::Down | AgentState::Starting))
}

fn log_unsent(sent: Result<()>) {
    if let Err(error) = sent {
        tracing::debug!("an error of ours could not be sent: {error}");
    }
}
