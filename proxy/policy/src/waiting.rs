//! How a visitor waits for its app, by what it is.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use serde::{Deserialize, Serialize};

use crate::is_default;
use crate::page::Template;
use crate::{Request, grpc};

/// What kind of visitor waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A browser that opens a page by GET: it can be shown the waiting page, and comes again.
    Navigation,
    /// A program, or a form: held to the deadline, then told in JSON or a page, by `Accept`.
    Api,
    /// gRPC, told as [`grpc::trailers_only`].
    Grpc,
    /// An upgrade to WebSocket (RFC 6455, 4.1), held.
    WebSocket,
    /// An event stream, held. Clients of these do not come again after an error status.
    EventStream,
}

const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const SEC_PURPOSE: HeaderName = HeaderName::from_static("sec-purpose");

impl Kind {
    /// What `request` is. Only a GET is a navigation: to refresh after a POST would lose the form.
    pub fn of(request: &Request<'_>) -> Self {
        let upgrade = request.list(header::UPGRADE).any(|p| p.eq_ignore_ascii_case("websocket"));
        if upgrade {
            return Self::WebSocket;
        }
        if grpc::content_type(request).is_some() {
            return Self::Grpc;
        }
        if *request.method != Method::GET {
            return Self::Api;
        }
        let accept = Accept::of(request);
        if accept.events > 0 && accept.html == 0 {
            return Self::EventStream;
        }
        // A page that is fetched ahead of its use is shown to nobody.
        if request.list(SEC_PURPOSE).any(|purpose| purpose.starts_with("prefetch")) {
            return Self::Api;
        }
        // A browser's own word (Fetch Metadata, 2) beats what it accepts.
        let navigation = match (request.text(SEC_FETCH_MODE), request.text(SEC_FETCH_DEST)) {
            (None, None) => accept.prefers_html(),
            (mode, dest) => mode == Some("navigate") && dest == Some("document"),
        };
        if navigation { Self::Navigation } else { Self::Api }
    }

    /// The word in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Navigation => "navigation",
            Self::Api => "api",
            Self::Grpc => "grpc",
            Self::WebSocket => "websocket",
            Self::EventStream => "event-stream",
        }
    }
}

/// How much a request wants what, in thousandths; 0: not, or not named.
#[derive(Debug, Default, PartialEq, Eq)]
struct Accept {
    html: u16,
    json: Option<u16>,
    any: u16,
    events: u16,
}

impl Accept {
    fn of(request: &Request<'_>) -> Self {
        let mut accept = Self::default();
        for range in request.list(header::ACCEPT) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let weight = parts.find_map(|p| p.strip_prefix("q=").or_else(|| p.strip_prefix("Q=")));
            let weight = weight.map_or(1000, thousandths);
            let is = |names: &[&str]| names.iter().any(|name| kind.eq_ignore_ascii_case(name));
            if is(&["text/html", "application/xhtml+xml"]) {
                accept.html = accept.html.max(weight);
            } else if is(&["application/json", "application/problem+json", "application/*"]) {
                accept.json = Some(accept.json.unwrap_or(0).max(weight));
            } else if is(&["*/*"]) {
                accept.any = accept.any.max(weight);
            } else if is(&["text/event-stream"]) {
                accept.events = accept.events.max(weight);
            }
        }
        accept
    }

    /// Whoever would as well have JSON, or anything, is a program.
    fn prefers_html(&self) -> bool {
        self.html > self.json.unwrap_or(self.any)
    }
}

/// A weight (RFC 9110, 12.4.2): `0` or `1` and up to three decimals. What is none is 0.
fn thousandths(text: &str) -> u16 {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if decimals.len() > 3 || !decimals.bytes().all(|b| b.is_ascii_digit()) {
        return 0;
    }
    let decimals = decimals.bytes().chain(*b"000").take(3);
    let decimals = decimals.fold(0, |n, digit| n * 10 + u16::from(digit - b'0'));
    match whole {
        "0" => decimals,
        "1" if decimals == 0 => 1000,
        _ => 0,
    }
}

/// How an app's visitors wait. By default all are held to the deadline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// A navigation that has been held for so long, in seconds, is shown the waiting page; none:
    /// never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_after_seconds: Option<u32>,
    /// When the page comes again, in seconds.
    pub retry_seconds: u32,
    /// The operator's page; none: ours.
    #[serde(skip_serializing_if = "is_default")]
    pub page: Option<Template>,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { page_after_seconds: None, retry_seconds: 3, page: None }
    }
}

impl Waiting {
    /// After how long in the hold a visitor is shown the page; none: it is held to the deadline.
    /// The wake goes on, and the page's refresh joins it.
    pub fn page_after(&self, kind: Kind) -> Option<Duration> {
        let after = self.page_after_seconds.filter(|_| kind == Kind::Navigation)?;
        Some(Duration::from_secs(after.into()))
    }

    /// The waiting page of `app`, which was asked for as `host`: 503, never stored, and it comes
    /// again by itself. Its policy lets it do nothing but look as it does.
    pub fn page(&self, app: &str, host: &str) -> Response<Bytes> {
        let retry = self.retry_seconds.max(1);
        let template = self.page.as_ref().unwrap_or_else(|| Template::ours());
        let body = Bytes::from(template.render(app, host, retry));
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let headers = response.headers_mut();
        let html = HeaderValue::from_static("text/html; charset=utf-8");
        headers.insert(header::CONTENT_TYPE, html);
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::RETRY_AFTER, retry.into());
        headers.insert(header::CONTENT_SECURITY_POLICY, template.security_policy());
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        let vary = HeaderValue::from_static("accept, sec-fetch-mode, sec-fetch-dest");
        headers.insert(header::VARY, vary);
        *response.body_mut() = body;
        response
    }
}

#[cfg(test)]
mod tests {
    use http::Version;
    use proptest::prelude::*;

    use super::*;
    use crate::request::tests::head;

    const BROWSER: &str =
        "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8";

    #[test]
    fn kinds() {
        let (mode, dest) = ("sec-fetch-mode", "sec-fetch-dest");
        type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], Kind);
        let table: [Row<'_>; 21] = [
            ("GET", &[], Kind::Api),
            ("GET", &[("accept", "*/*")], Kind::Api),
            ("GET", &[("accept", BROWSER)], Kind::Navigation),
            ("HEAD", &[("accept", BROWSER)], Kind::Api),
            ("POST", &[("accept", BROWSER)], Kind::Api),
            ("POST", &[("accept", BROWSER), (mode, "navigate"), (dest, "document")], Kind::Api),
            ("GET", &[(mode, "navigate"), (dest, "document")], Kind::Navigation),
            ("GET", &[("accept", BROWSER), (mode, "navigate"), (dest, "iframe")], Kind::Api),
            ("GET", &[("accept", BROWSER), (mode, "cors"), (dest, "empty")], Kind::Api),
            ("GET", &[("accept", BROWSER), (mode, "navigate")], Kind::Api),
            ("GET", &[("accept", "text/html, application/json")], Kind::Api),
            ("GET", &[("accept", "text/html;q=0.4, application/json;q=0.5")], Kind::Api),
            ("GET", &[("accept", "TEXT/HTML;q=0.5, application/json;q=0.499")], Kind::Navigation),
            ("GET", &[("accept", "text/html;q=0")], Kind::Api),
            ("GET", &[("accept", "text/event-stream")], Kind::EventStream),
            ("POST", &[("accept", "text/event-stream")], Kind::Api),
            ("GET", &[("accept", "text/html, text/event-stream;q=0.1")], Kind::Navigation),
            ("GET", &[("upgrade", "h2c, WebSocket"), ("accept", BROWSER)], Kind::WebSocket),
            ("POST", &[("content-type", "application/grpc-web")], Kind::Grpc),
            ("POST", &[("content-type", "application/grpc")], Kind::Api),
            (
                "GET",
                &[("sec-purpose", "prefetch;prerender"), (mode, "navigate"), (dest, "document")],
                Kind::Api,
            ),
        ];
        for (method, headers, kind) in table {
            let parts = head(method, "/", headers);
            assert_eq!(Kind::of(&Request::from(&parts)), kind, "{method} {headers:?}");
        }
        let mut parts = head("POST", "/a.B/C", &[("content-type", "application/grpc+proto")]);
        parts.version = Version::HTTP_2;
        assert_eq!(Kind::of(&Request::from(&parts)), Kind::Grpc);
    }

    #[test]
    fn weights() {
        let table = [
            ("1", 1000),
            ("1.000", 1000),
            ("0", 0),
            ("0.5", 500),
            ("0.055", 55),
            ("0.", 0),
            ("1.001", 0),
            ("2", 0),
            ("0.1234", 0),
            ("x", 0),
            ("0.x", 0),
            ("", 0),
        ];
        for (text, expected) in table {
            assert_eq!(thousandths(text), expected, "{text}");
        }
    }

    #[test]
    fn only_a_navigation_is_shown_the_page() {
        let waiting = Waiting { page_after_seconds: Some(4), ..Waiting::default() };
        for kind in [Kind::Api, Kind::Grpc, Kind::WebSocket, Kind::EventStream] {
            assert_eq!(waiting.page_after(kind), None);
        }
        assert_eq!(waiting.page_after(Kind::Navigation), Some(Duration::from_secs(4)));
        assert_eq!(Waiting::default().page_after(Kind::Navigation), None);
    }

    #[test]
    fn the_page_is_never_stored_and_comes_again() {
        let response = Waiting::default().page("shop", "shop.example");
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["cache-control"], "no-store");
        assert_eq!(response.headers()["retry-after"], "3");
        assert_eq!(response.headers()["content-length"], response.body().len().to_string());
        let body = std::str::from_utf8(response.body()).unwrap();
        assert!(body.contains(r#"<meta http-equiv="refresh" content="3">"#));
    }

    #[test]
    fn it_survives_the_line() {
        assert_eq!(serde_json::from_str::<Waiting>("{}").unwrap(), Waiting::default());
        let page = Some(Template::try_from("<p>{{app}}</p>".to_owned()).unwrap());
        let waiting = Waiting { page_after_seconds: Some(1), retry_seconds: 2, page };
        let json = serde_json::to_string(&waiting).unwrap();
        assert_eq!(serde_json::from_str::<Waiting>(&json).unwrap(), waiting);
        assert!(serde_json::from_str::<Waiting>(r#"{"page":"{{x}}"}"#).is_err());
    }

    proptest! {
        #[test]
        fn no_header_breaks_it(accept in "[a-z*/;=q0-9., ]{0,40}", upgrade in "[a-zA-Z,]{0,20}") {
            let parts = head("GET", "/", &[("accept", &accept), ("upgrade", &upgrade)]);
            let _ = Kind::of(&Request::from(&parts));
        }
    }
}
