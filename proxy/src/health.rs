//! Our own health, told to whoever looks from outside (a load balancer): before any routing, so
//! that it wakes nothing and counts as nobody's visit.

use bytes::Bytes;
use http::{Method, StatusCode, header};
use pingora_core::Result;
use pingora_http::ResponseHeader;
use pingora_proxy::Session;

/// The path that is asked, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthOptions {
    /// At every host.
    pub path: String,
    /// Write it into the access log.
    pub log: bool,
}

/// What is answered to `method`.
fn answer(method: &Method, stopping: bool) -> (StatusCode, &'static str) {
    match *method {
        Method::GET | Method::HEAD if stopping => (StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        Method::GET | Method::HEAD => (StatusCode::OK, "ok\n"),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "GET or HEAD\n"),
    }
}

/// Answers a request that asks for our health.
pub(crate) async fn send(session: &mut Session, stopping: bool) -> Result<()> {
    let method = &session.req_header().method;
    let head = *method == Method::HEAD;
    let (status, text) = answer(method, stopping);
    let mut response = ResponseHeader::build(status, Some(4))?;
    response.insert_header(header::CONTENT_TYPE, "text/plain")?;
    response.insert_header(header::CONTENT_LENGTH, text.len())?;
    response.insert_header(header::CACHE_CONTROL, "no-store")?;
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.insert_header(header::ALLOW, "GET, HEAD")?;
        // Its body is not read.
        session.set_keepalive(None);
    }
    session.write_response_header(Box::new(response), head).await?;
    if !head {
        session.write_response_body(Some(Bytes::from_static(text.as_bytes())), true).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_answered() {
        for (method, stopping, status) in [
            (Method::GET, false, 200),
            (Method::HEAD, false, 200),
            (Method::GET, true, 503),
            (Method::HEAD, true, 503),
            (Method::POST, false, 405),
            (Method::POST, true, 405),
        ] {
            assert_eq!(answer(&method, stopping).0.as_u16(), status, "{method} {stopping}");
        }
    }
}
