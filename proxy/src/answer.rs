//! Errors of ours, as answers: the only place where they become responses.

mod grpc;
mod whole;

use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response, StatusCode, header};
use pingora_core::Result;
use pingora_core::protocols::http::ServerSession;
use pingora_http::ResponseHeader;
use rouse_downstream::Insane;
use rouse_gate::Refusal;
use rouse_policy::grpc::{Code, content_type};
use rouse_policy::{Denied, Request};
use rouse_protocol::problem::{PROBLEM_JSON, Problem};
use rouse_protocol::signature::ERROR_HEADER;
use rouse_protocol::wake::FailureCode;

pub(crate) use whole::reply;

/// How much of a request body is read and thrown away after an answer that did not need it, so
/// that closing the connection does not tear the answer out of the client's hands.
const MAX_DRAIN: usize = 16 * 1024 * 1024;
/// And for how long.
const MAX_DRAIN_TIME: Duration = Duration::from_secs(2);

/// An error of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// The word in `Rouse-Error`.
    pub code: &'static str,
    title: &'static str,
    detail: String,
    retry_after: Option<Duration>,
    grpc: Code,
    /// What a browser is shown in place of the error's own page.
    page: Option<whole::Page>,
}

impl Answer {
    fn new(status: StatusCode, code: &'static str, title: &'static str, detail: &str) -> Self {
        let (detail, grpc) = (detail.to_owned(), grpc::code_of(status));
        Self { status, code, title, detail, retry_after: None, grpc, page: None }
    }

    fn after(mut self, retry_after: Duration) -> Self {
        self.retry_after = Some(retry_after);
        self
    }

    /// Nobody serves the host.
    pub(crate) fn unknown_host() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "unknown-host",
            "No such site",
            "Nothing is served here under this host name.",
        )
    }

    /// It is not known yet who serves what.
    pub(crate) fn not_synced() -> Self {
        Self::of(&Refusal::WakerUnreachable(String::new()))
    }

    /// The app turned out not to be there, and the request can't be sent twice.
    pub(crate) fn not_replayable() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "not-replayable",
            "The site is starting",
            "The site was not there when this request came, and the request is too long to be sent \
             again. It has not been carried out. Please send it again.",
        )
        .after(Duration::from_secs(1))
    }

    /// The app is starting, and the visitor is shown this page until it has.
    pub(crate) fn waiting(page: Response<Bytes>) -> Self {
        Self { page: Some(page.into()), ..Self::of(&Refusal::Waiting) }
    }

    /// The app broke off, or what it said was no HTTP.
    pub(crate) fn app_broke() -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            "app-broke",
            "The site broke off",
            "The site ended the connection before its answer, or gave none that could be read.",
        )
    }

    /// An app that never sleeps can't be connected to.
    pub(crate) fn app_unreachable() -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            "app-unreachable",
            "The site can't be reached",
            "The server behind this site does not accept connections.",
        )
        .after(Duration::from_secs(5))
    }

    /// This server has no descriptor, port or memory for one more connection to an app.
    pub(crate) fn overloaded() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "overloaded",
            "This server is at its limits",
            "The site may be well, but this server can't open another connection to it just now.",
        )
        .after(Duration::from_secs(1))
    }

    /// A request's body stopped coming.
    pub(crate) fn too_slow() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "request-timeout",
            "The request took too long",
            "Nothing more of the request's body came for too long.",
        )
    }

    /// The request itself can't be passed on.
    pub(crate) fn bad_request() -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "bad-request",
            "Bad request",
            "The request can't be read or passed on.",
        )
    }

    /// What came has no meaning, or two.
    pub(crate) fn insane(insane: Insane) -> Self {
        let status = insane.status();
        Self { detail: insane.to_string(), ..Self::new(status, "bad-request", "Bad request", "") }
    }

    /// A fault of this proxy.
    pub(crate) fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "A fault of this server",
            "The request could not be passed on.",
        )
    }

    /// Why a visitor is not let through; what it may know of it.
    pub(crate) fn of(refusal: &Refusal) -> Self {
        const UNAVAILABLE: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
        let mut answer = match refusal {
            Refusal::Removed => return Self::unknown_host(),
            Refusal::Deadline | Refusal::Gone => Self::new(
                UNAVAILABLE,
                "deadline",
                "The site takes long to start",
                "The site is starting and was not ready in time. It may well be the next time.",
            ),
            Refusal::Denied(denied) => {
                let detail = denied_detail(denied);
                let answer = Self::new(denied.status(), denied.code(), denied.title(), detail);
                Self { grpc: denied.grpc(), ..answer }
            }
            Refusal::Waiting => Self::new(
                UNAVAILABLE,
                "waiting",
                "The site is starting",
                "The site was asleep and takes a moment. It may well be ready the next time.",
            ),
            Refusal::Full => Self::new(
                UNAVAILABLE,
                "full",
                "Too many are waiting",
                "The site is starting, and as many requests as may wait for it already do.",
            ),
            Refusal::Stopping => Self::new(
                UNAVAILABLE,
                "stopping",
                "This server is going down",
                "Another takes over in a moment.",
            ),
            Refusal::WakerUnreachable(_) | Refusal::WakerRefused(_) => Self::new(
                UNAVAILABLE,
                "waker-unreachable",
                "The site can't be started now",
                "The part that starts sites is not there. It usually is back in a moment.",
            ),
            Refusal::Parked(_) => Self::new(
                UNAVAILABLE,
                "parked",
                "The site is out of order",
                "The site failed to start too often, or a check of it failed. It needs its operator.",
            ),
            Refusal::WakeFailed(failure) => match failure.code {
                FailureCode::Backoff => Self::new(
                    UNAVAILABLE,
                    "backoff",
                    "The site could not be started",
                    "The last attempts to start the site failed. The next is not due yet.",
                ),
                FailureCode::Full => Self::new(
                    UNAVAILABLE,
                    "node-full",
                    "This server is full",
                    "There is no room on this server to start the site now. Others may go to sleep.",
                ),
                FailureCode::Elsewhere => Self::new(
                    UNAVAILABLE,
                    "elsewhere",
                    "The site is on another server",
                    "This server does not have the site now. The one that does may give it back.",
                ),
                _ => Self::new(
                    UNAVAILABLE,
                    "wake-failed",
                    "The site could not be started",
                    "The last attempt to start the site failed. There will be another.",
                ),
            },
            Refusal::NotServing => Self::new(
                UNAVAILABLE,
                "not-serving",
                "The site does not answer",
                "The site's machine runs, but the site on it does not answer.",
            ),
        };
        answer.retry_after = refusal.retry_after();
        answer
    }

    fn body(&self, accept: &[u8]) -> (&'static str, Vec<u8>) {
        if prefers_html(accept) {
            return ("text/html; charset=utf-8", self.page().into_bytes());
        }
        let problem = Problem::new(self.status.as_u16(), self.code, self.title, &*self.detail);
        (PROBLEM_JSON, serde_json::to_vec(&problem).expect("a problem is plain JSON"))
    }

    fn page(&self) -> String {
        let (title, detail, status) =
            (escape(self.title), escape(&self.detail), self.status.as_u16());
        let code = escape(self.code);
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n\
             :root {{ color-scheme: light dark }}\n\
             body {{ font: 1.1rem/1.5 system-ui, sans-serif; max-width: 34rem; margin: 18vh auto 0; \
             padding: 0 1.5rem; color: #222; background: #fff }}\n\
             h1 {{ font-size: 1.5rem }}\nsmall {{ color: #666 }}\n\
             @media (prefers-color-scheme: dark) {{ body {{ color: #ddd; background: #161616 }} \
             small {{ color: #999 }} }}\n</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p>{detail}</p>\n\
             <p><small>{status} {code}</small></p>\n</body>\n</html>\n"
        )
    }

    /// Writes it as the response, unless one has begun, and gets rid of what is left of the
    /// request. The connection is closed after it.
    pub(crate) async fn send(&self, session: &mut ServerSession) -> Result<()> {
        let parts: &Parts = session.req_header();
        if let Some(kind) = content_type(&Request::from(parts)) {
            self.send_grpc(session, kind).await?;
            drain(session).await;
            return Ok(());
        }
        let head = session.req_header().method == Method::HEAD;
        let mut response = ResponseHeader::build(self.status, Some(8))?;
        response.insert_header(ERROR_HEADER, self.code)?;
        let body = match &self.page {
            Some(page) => {
                for (name, value) in &page.headers {
                    response.append_header(name, value)?;
                }
                page.body.clone()
            }
            None => self.write_head(&mut response, session.get_header_bytes(header::ACCEPT))?,
        };
        let body = if head { Bytes::new() } else { body };
        session.write_error_response(response, body).await?;
        drain(session).await;
        Ok(())
    }

    /// The headers of a body for who accepts `accept`, and that body.
    fn write_head(&self, response: &mut ResponseHeader, accept: &[u8]) -> Result<Bytes> {
        let (kind, body) = self.body(accept);
        response.insert_header(header::CONTENT_TYPE, kind)?;
        response.insert_header(header::CONTENT_LENGTH, body.len())?;
        response.insert_header(header::CACHE_CONTROL, "no-store")?;
        response.insert_header(header::VARY, "accept")?;
        if let Some(after) = self.retry_after {
            // Whole seconds, never "at once".
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            response.insert_header(header::RETRY_AFTER, seconds.max(1))?;
        }
        Ok(body.into())
    }
}

fn denied_detail(denied: &Denied) -> &'static str {
    match denied {
        Denied::Method => "The site is asleep, and a request with this method does not wake it.",
        Denied::Path => "The site is asleep, and a request for this address does not wake it.",
        Denied::UserAgent => "The site is asleep, and requests of this program do not wake it.",
        Denied::Unauthenticated => {
            "The site is asleep, and a request without credentials does not wake it."
        }
        Denied::AppBudget { .. } => {
            "The site is asleep, and has been started as often as it may be for now."
        }
        Denied::AddressBudget { .. } => {
            "The site is asleep, and has been started from your address as often as it may be for now."
        }
    }
}

async fn drain(session: &mut ServerSession) {
    // A client that waits for `100 Continue` has nothing under way.
    if session.is_body_done() || session.get_header(header::EXPECT).is_some() {
        return;
    }
    let read = async {
        let mut left = MAX_DRAIN;
        while let Ok(Some(piece)) = session.read_request_body().await {
            left = match left.checked_sub(piece.len()) {
                Some(left) => left,
                None => return,
            };
        }
    };
    // Whatever comes of it, the connection is closed.
    let _ = tokio::time::timeout(MAX_DRAIN_TIME, read).await;
}

/// Whether `accept` asks for HTML rather than for JSON. A client that names neither, or does not
/// care, is a program.
fn prefers_html(accept: &[u8]) -> bool {
    let Ok(accept) = std::str::from_utf8(accept) else { return false };
    let (mut html, mut json, mut any) = (None::<f32>, None::<f32>, 0f32);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts
            .find_map(|p| p.strip_prefix("q=").or_else(|| p.strip_prefix("Q=")))
            .map_or(1.0, |q| q.parse::<f32>().unwrap_or(0.0));
        match &*kind {
            "text/html" | "application/xhtml+xml" | "text/*" => {
                html = Some(html.unwrap_or(0.0).max(quality));
            }
            "application/json" | "application/problem+json" | "application/*" => {
                json = Some(json.unwrap_or(0.0).max(quality));
            }
            "*/*" => any = any.max(quality),
            _ => {}
        }
    }
    html.unwrap_or(0.0) > json.unwrap_or(any)
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use rouse_protocol::wake::WakeFailure;

    use super::*;

    #[test]
    fn accept_is_negotiated() {
        for (accept, html) in [
            ("", false),
            ("*/*", false),
            ("application/json", false),
            ("text/html", true),
            ("TEXT/HTML", true),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true),
            ("text/html;q=0.5, application/json", false),
            ("text/html, application/json;q=0.9", true),
            ("text/html;q=0.5, */*", false),
            ("text/html;q=0", false),
            ("text/html;q=x", false),
            ("image/png", false),
        ] {
            assert_eq!(prefers_html(accept.as_bytes()), html, "{accept}");
        }
        assert!(!prefers_html(b"text/html\xff"));
    }

    #[test]
    fn refusals_are_told_apart() {
        let failure = |code| WakeFailure { code, detail: "x".into(), retry_after_ms: Some(1_500) };
        let text = String::new;
        let retry_after = Duration::from_secs(7);
        let table = [
            (Refusal::Deadline, 503, "deadline", Some(5)),
            (Refusal::Full, 503, "full", Some(5)),
            (Refusal::Waiting, 503, "waiting", Some(1)),
            (Refusal::Denied(Denied::Method), 403, "wake-method", None),
            (Refusal::Denied(Denied::Path), 403, "wake-path", None),
            (Refusal::Denied(Denied::UserAgent), 503, "wake-user-agent", None),
            (Refusal::Denied(Denied::Unauthenticated), 403, "wake-unauthenticated", None),
            (Refusal::Denied(Denied::AppBudget { retry_after }), 503, "wake-budget", Some(7)),
            (
                Refusal::Denied(Denied::AddressBudget { retry_after }),
                429,
                "wake-address-budget",
                Some(7),
            ),
            (Refusal::Stopping, 503, "stopping", Some(1)),
            (Refusal::WakerUnreachable(text()), 503, "waker-unreachable", Some(1)),
            (Refusal::Parked(text()), 503, "parked", None),
            (Refusal::from_failure(failure(FailureCode::Parked)), 503, "parked", None),
            (Refusal::from_failure(failure(FailureCode::Backoff)), 503, "backoff", Some(1)),
            (Refusal::from_failure(failure(FailureCode::Full)), 503, "node-full", Some(1)),
            (Refusal::from_failure(failure(FailureCode::Vmm)), 503, "wake-failed", Some(1)),
            (Refusal::from_failure(failure(FailureCode::Storage)), 503, "wake-failed", Some(1)),
            (Refusal::from_failure(failure(FailureCode::Locked)), 503, "wake-failed", Some(1)),
            (Refusal::from_failure(failure(FailureCode::Store)), 503, "wake-failed", Some(1)),
            (Refusal::from_failure(failure(FailureCode::Elsewhere)), 503, "elsewhere", Some(1)),
            (
                Refusal::from_failure(failure(FailureCode::Stopping)),
                503,
                "waker-unreachable",
                Some(1),
            ),
            (Refusal::from_failure(failure(FailureCode::Removed)), 404, "unknown-host", None),
            (Refusal::NotServing, 503, "not-serving", Some(5)),
            (Refusal::Removed, 404, "unknown-host", None),
        ];
        for (refusal, status, code, after) in table {
            let answer = Answer::of(&refusal);
            let got =
                (answer.status.as_u16(), answer.code, answer.retry_after.map(|d| d.as_secs()));
            assert_eq!(got, (status, code, after));
        }
    }

    #[test]
    fn the_page_is_whole_escaped_and_asks_for_nothing() {
        let mut answer = Answer::of(&Refusal::Deadline);
        answer.detail = "<script>'&\"".to_owned();
        let page = answer.page();
        assert!(page.contains("&lt;script&gt;&#39;&amp;&quot;"));
        for outside in ["<script", "http://", "https://", "src=", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn no_detail_of_the_inside_is_told_to_a_visitor() {
        let refusal = Refusal::Parked("/var/lib/rouse: disk sda1 failed".to_owned());
        let (_, body) = Answer::of(&refusal).body(b"");
        assert!(!String::from_utf8(body).unwrap().contains("sda1"));
    }
}
