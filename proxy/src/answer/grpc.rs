//! Errors of ours as gRPC clients understand them.

use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use pingora_core::Result;
use pingora_core::protocols::http::ServerSession;
use pingora_http::ResponseHeader;
use rouse_policy::grpc::{Code, trailers_only};
use rouse_protocol::signature::ERROR_HEADER;

use super::Answer;

/// As gRPC clients read a status of HTTP ("HTTP to gRPC Status Code Mapping").
pub(super) fn code_of(status: StatusCode) -> Code {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::INTERNAL_SERVER_ERROR => Code::Internal,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::Unimplemented,
        _ => Code::Unavailable,
    }
}

impl Answer {
    /// Writes it as a *Trailers-Only* response, unless one has begun.
    pub(super) async fn send_grpc(
        &self,
        session: &mut ServerSession,
        content_type: &'static str,
    ) -> Result<()> {
        let response = trailers_only(self.grpc, &self.detail, self.retry_after, Some(content_type));
        let mut header = ResponseHeader::from(response.into_parts().0);
        header.insert_header(ERROR_HEADER, self.code)?;
        match session {
            // The header ends the stream; else the client would go on waiting for trailers.
            ServerSession::H2(h2) => h2.write_response_header(Box::new(header), true),
            other => {
                header.insert_header(CONTENT_LENGTH, 0)?;
                other.write_error_response(header, Bytes::new()).await
            }
        }
    }
}
