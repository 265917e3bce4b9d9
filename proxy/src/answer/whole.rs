//! Responses that come whole from a policy: the waiting page, and what is answered for a sleeping app.

use bytes::Bytes;
use http::{HeaderMap, Response};
use pingora_core::Result;
use pingora_core::protocols::http::ServerSession;
use pingora_http::ResponseHeader;

/// The headers and the body of the waiting page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl From<Response<Bytes>> for Page {
    fn from(response: Response<Bytes>) -> Self {
        let (parts, body) = response.into_parts();
        Self { headers: parts.headers, body }
    }
}

/// Writes the answer to a request that goes to no app. The connection is good for the next.
pub(crate) async fn reply(session: &mut ServerSession, response: Response<Bytes>) -> Result<()> {
    // A body that nobody wants is read away, so that the connection can be used again: not for ever.
    session.set_total_drain_timeout(Some(super::MAX_DRAIN_TIME));
    let (parts, body) = response.into_parts();
    session.write_response_header(Box::new(ResponseHeader::from(parts))).await?;
    session.write_response_body(body, true).await
}
