//! The answers that are ours.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode, Version};
use http_body_util::{Either, Full};
use rouse_protocol::problem::{PROBLEM_JSON, Problem};
use rouse_protocol::signature::{AGENT_HEADER, AgentState, ERROR_HEADER};

use super::body::Answer;
use crate::life::Life;

/// A word that can be signed: by whom and over which nonce.
pub(super) type Seal = Option<(Arc<Life>, String)>;

fn sign(response: &mut Response<Answer>, seal: &Seal, state: AgentState) {
    let Some((life, nonce)) = seal else { return };
    let word = life.key.sign(&life.app, life.generation, state, nonce);
    let word = HeaderValue::try_from(word).expect("a signature is visible ASCII");
    response.headers_mut().insert(HeaderName::from_static(AGENT_HEADER), word);
}

/// The answer to the gate's probe.
pub(super) fn probe(seal: &Seal, state: AgentState) -> Response<Answer> {
    let mut response = Response::new(Either::Right(Full::new(Bytes::new())));
    if state != AgentState::Serving {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    sign(&mut response, seal, state);
    response
}

/// The app does not listen: nothing of the request has reached it.
pub(super) fn not_listening(seal: &Seal, state: AgentState, front: Version) -> Response<Answer> {
    let title = match state {
        AgentState::Starting => "the app has not started yet",
        AgentState::Down | AgentState::Serving => "the app is down",
    };
    let detail = "nothing listens on the app's port in its microVM; the request was not delivered";
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let mut response = problem(status, state.as_str(), title, detail, front);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    sign(&mut response, seal, state);
    response
}

/// The app failed in a way that says nothing about whether it is down, and so is never signed.
pub(super) fn failed(
    status: StatusCode,
    code: &'static str,
    title: &str,
    detail: &str,
    front: Version,
) -> Response<Answer> {
    if front == Version::HTTP_2 {
        return unavailable(code, title);
    }
    problem(status, code, title, detail, front)
}

/// *Trailers-Only*, "Responses" in gRPC's "PROTOCOL-HTTP2": what comes by HTTP/2 is gRPC, and its
/// clients take any other body for a message.
fn unavailable(code: &'static str, title: &str) -> Response<Answer> {
    let mut response = Response::new(Either::Right(Full::new(Bytes::new())));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from_static("14"));
    let title = HeaderValue::try_from(title).expect("a title is plain ASCII without a percent");
    headers.insert(HeaderName::from_static("grpc-message"), title);
    headers.insert(HeaderName::from_static(ERROR_HEADER), HeaderValue::from_static(code));
    response
}

/// An error that is not signed.
pub(super) fn problem(
    status: StatusCode,
    code: &'static str,
    title: &str,
    detail: &str,
    front: Version,
) -> Response<Answer> {
    let problem = Problem::new(status.as_u16(), code, title, detail);
    let body = serde_json::to_vec(&problem).expect("a problem is plain strings");
    let mut response = Response::new(Either::Right(Full::new(Bytes::from(body))));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(HeaderName::from_static(ERROR_HEADER), HeaderValue::from_static(code));
    if front < Version::HTTP_2 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
