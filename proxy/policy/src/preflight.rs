//! CORS preflights: held as any other request, or answered for the app while it sleeps.
//! Source: Fetch, "CORS-preflight request".

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use serde::{Deserialize, Serialize};

use crate::Request;
use crate::who::methods;

/// The origin and the method that a preflight announces; none where `request` is no preflight.
pub(crate) fn announced<'a>(request: &Request<'a>) -> Option<(&'a str, &'a str)> {
    if *request.method != Method::OPTIONS {
        return None;
    }
    let origin = request.text(header::ORIGIN)?;
    Some((origin, request.text(header::ACCESS_CONTROL_REQUEST_METHOD)?))
}

/// Where a page comes from: `https://a.example`, as a browser writes it, or `*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Origin(String);

/// Why a text is no [`Origin`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an origin is `*` or `https://` and a host in lower case, with a port if it has one and no path; `{0}` is none"
)]
pub struct OriginError(String);

impl TryFrom<String> for Origin {
    type Error = OriginError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9') || b"-_.:[]".contains(&b);
        let host = text.split_once("://");
        let good = host.is_some_and(|(scheme, host)| {
            let scheme = !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_lowercase());
            scheme && (1..=260).contains(&host.len()) && host.bytes().all(allowed)
        });
        if good || text == "*" { Ok(Self(text)) } else { Err(OriginError(text)) }
    }
}

impl From<Origin> for String {
    fn from(origin: Origin) -> Self {
        origin.0
    }
}

impl Origin {
    /// Whether it stands for all.
    pub fn is_any(&self) -> bool {
        self.0 == "*"
    }
}

/// How preflights are answered while the app sleeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cors {
    /// Whose preflights; those of others are held.
    pub origins: Vec<Origin>,
    /// For which methods; empty: any. Preflights for others are held.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "methods")]
    pub methods: Vec<Method>,
    /// Whether the request itself may carry cookies and the like. Not with the origin `*`.
    #[serde(default)]
    pub credentials: bool,
    /// How long a browser may remember the answer, in seconds.
    pub max_age_seconds: u32,
}

impl Cors {
    /// The answer to `request`; none where it is no preflight, or one that the app must judge.
    /// The headers that it announces are allowed: it is the app that judges the request itself.
    pub fn answer(&self, request: &Request<'_>) -> Option<Response<Bytes>> {
        let (origin, method) = announced(request)?;
        let any = !self.credentials && self.origins.iter().any(Origin::is_any);
        let origin = if any {
            HeaderValue::from_static("*")
        } else {
            self.origins.iter().find(|allowed| !allowed.is_any() && allowed.0 == origin)?;
            request.headers.get(header::ORIGIN)?.clone()
        };
        if !self.methods.is_empty() && !self.methods.iter().any(|m| m.as_str() == method) {
            return None;
        }
        let asked = request.headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, asked.clone());
        let mut names = request.list(header::ACCESS_CONTROL_REQUEST_HEADERS).peekable();
        if names.peek().is_some() && names.all(|name| HeaderName::try_from(name).is_ok()) {
            let names = request.headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS)?;
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
        if self.credentials {
            let yes = HeaderValue::from_static("true");
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
        }
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, self.max_age_seconds.into());
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let vary = "origin, access-control-request-method, access-control-request-headers";
        headers.insert(header::VARY, HeaderValue::from_static(vary));
        Some(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::head;

    fn cors(origins: &[&str], credentials: bool) -> Cors {
        let origins = origins.iter().map(|o| Origin::try_from((*o).to_owned()).unwrap()).collect();
        Cors { origins, methods: vec![Method::GET, Method::PUT], credentials, max_age_seconds: 60 }
    }

    fn answer(cors: &Cors, method: &str, origin: &str, asked: &str) -> Option<Response<Bytes>> {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", asked),
            ("access-control-request-headers", "x-key, content-type"),
        ];
        cors.answer(&Request::from(&head(method, "/", &headers)))
    }

    #[test]
    fn preflights_of_known_origins_are_answered() {
        let some = cors(&["https://a.example"], true);
        let response = answer(&some, "OPTIONS", "https://a.example", "PUT").unwrap();
        assert_eq!(response.status(), 204);
        let expected = [
            ("access-control-allow-origin", "https://a.example"),
            ("access-control-allow-methods", "PUT"),
            ("access-control-allow-headers", "x-key, content-type"),
            ("access-control-allow-credentials", "true"),
            ("access-control-max-age", "60"),
            ("cache-control", "no-store"),
        ];
        for (name, value) in expected {
            assert_eq!(response.headers()[name], value);
        }
        assert!(response.headers()["vary"].to_str().unwrap().contains("origin"));
        assert!(answer(&some, "OPTIONS", "https://b.example", "PUT").is_none());
        assert!(answer(&some, "OPTIONS", "https://a.example:8443", "PUT").is_none());
        assert!(answer(&some, "OPTIONS", "https://a.example", "DELETE").is_none());
        assert!(answer(&some, "GET", "https://a.example", "PUT").is_none());
        let bare = head("OPTIONS", "/", &[("origin", "https://a.example")]);
        assert!(some.answer(&Request::from(&bare)).is_none());
    }

    #[test]
    fn any_origin_goes_without_credentials() {
        let any = answer(&cors(&["*"], false), "OPTIONS", "null", "GET").unwrap();
        assert_eq!(any.headers()["access-control-allow-origin"], "*");
        assert!(!any.headers().contains_key("access-control-allow-credentials"));
        assert!(answer(&cors(&["*"], true), "OPTIONS", "https://a.example", "GET").is_none());
        assert!(answer(&cors(&["*"], true), "OPTIONS", "*", "GET").is_none());
    }

    #[test]
    fn names_that_are_none_are_not_told_back() {
        let headers = [
            ("origin", "https://a.example"),
            ("access-control-request-method", "GET"),
            ("access-control-request-headers", "x-key, a b"),
        ];
        let response = cors(&["*"], false).answer(&Request::from(&head("OPTIONS", "/", &headers)));
        assert!(!response.unwrap().headers().contains_key("access-control-allow-headers"));
    }

    #[test]
    fn origins() {
        for good in ["*", "https://a.example", "http://localhost:3000", "https://[::1]:8443"] {
            assert!(Origin::try_from(good.to_owned()).is_ok(), "{good}");
        }
        for bad in ["", "a.example", "https://", "https://A.example", "https://a.example/", "null"]
        {
            assert!(Origin::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
