//! Building answers.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::error::Refusal;

/// Any body.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A body that is there as a whole.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// `bytes` as `kind`.
pub(crate) fn of(kind: &'static str, bytes: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(bytes));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// `value`, not to be kept by any cache.
pub(crate) fn json(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = of("application/json", format!("{value}\n"));
    *response.status_mut() = status;
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The app's own error. Nothing in it is Rouse's.
pub(crate) fn refused(refusal: &Refusal) -> Response<Body> {
    let error = json!({ "error": refusal.to_string(), "from": "the test app" });
    let mut response = json(refusal.status(), &error);
    if let Refusal::Method(allow) = refusal {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    }
    response
}
