//! `/`, a small real page, and `/agent-copy`, a forgery.

use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Response, StatusCode};

use crate::answer::{self, Body};

/// The page.
pub(crate) fn html() -> Response<Body> {
    let mut response =
        answer::of("text/html; charset=utf-8", &include_bytes!("page/index.html")[..]);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Its style sheet.
pub(crate) fn style() -> Response<Body> {
    kept(answer::of("text/css; charset=utf-8", &include_bytes!("page/style.css")[..]))
}

/// Its image.
pub(crate) fn logo() -> Response<Body> {
    kept(answer::of("image/png", &include_bytes!("page/logo.png")[..]))
}

fn kept(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("max-age=3600"));
    response
}

/// Byte for byte what the agent says of an app that is down, headers included, but for the one
/// thing that an app can't know: the mac.
pub(crate) fn agent_copy() -> Response<Body> {
    let mut response =
        answer::of("application/problem+json", &include_bytes!("page/agent-down.json")[..]);
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(HeaderName::from_static("rouse-error"), HeaderValue::from_static("down"));
    headers.insert(http::header::CONNECTION, HeaderValue::from_static("close"));
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    let word = "v=1; app=hello; gen=1; state=down; \
         mac=5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";
    headers.insert(HeaderName::from_static("rouse-agent"), HeaderValue::from_static(word));
    response
}
