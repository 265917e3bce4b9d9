//! What a gRPC client is told: a *Trailers-Only* response with a status, and when to come again.
//! Sources: gRPC over HTTP/2 ("Responses", "Status-Message"), gRFC A6 (pushback),
//! google/rpc/status.proto and error_details.proto.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::{HeaderName, HeaderValue, Response, Version, header};

use crate::Request;

/// The statuses that are told, with their numbers (google/rpc/code.proto).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// May not.
    PermissionDenied = 7,
    /// A budget is used up.
    ResourceExhausted = 8,
    /// Nobody serves it.
    Unimplemented = 12,
    /// It can't be understood, or a fault of ours.
    Internal = 13,
    /// Not now; clients may retry.
    Unavailable = 14,
    /// Lacks credentials.
    Unauthenticated = 16,
}

/// The media types of gRPC, and of gRPC-Web, which also comes over HTTP/1.
const GRPC: &str = "application/grpc";
const GRPC_WEB: &str = "application/grpc-web";

/// The media type to answer in; none where `request` is no gRPC.
pub fn content_type(request: &Request<'_>) -> Option<&'static str> {
    let kind = request.text(header::CONTENT_TYPE)?;
    let is = |name: &str| {
        let start = kind.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        start && matches!(kind.as_bytes().get(name.len()), None | Some(b'+' | b';' | b' '))
    };
    if is(GRPC_WEB) || is("application/grpc-web-text") {
        Some(GRPC_WEB)
    } else if is(GRPC) && request.version == Version::HTTP_2 {
        Some(GRPC)
    } else {
        None
    }
}

/// The whole response, which has no body: `code`, why, and when to come again. `content_type` is
/// what [`content_type`] says; without it, plain gRPC.
pub fn trailers_only(
    code: Code,
    message: &str,
    retry_after: Option<Duration>,
    content_type: Option<&'static str>,
) -> Response<()> {
    let mut response = Response::new(());
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static(content_type.unwrap_or(GRPC));
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let name = HeaderName::from_static;
    headers.insert(name("grpc-status"), HeaderValue::from(code as u16));
    let mut add = |name, value: String| {
        // Percent-encoded, digits or base64: always a header's value.
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    };
    add(name("grpc-message"), percent(message));
    if let Some(after) = retry_after {
        add(name("grpc-retry-pushback-ms"), after.as_millis().to_string());
        let details = STANDARD_NO_PAD.encode(status(code, message, after));
        add(name("grpc-status-details-bin"), details);
    }
    response
}

/// "Percent-Byte-Unencoded" is 0x20 to 0x7E but `%`.
fn percent(text: &str) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            encoded.push(byte.into());
        } else {
            // Writing to a string does not fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// `google.rpc.Status { code = 1, message = 2, details = 3 }` with one
/// `google.protobuf.Any { type_url = 1, value = 2 }` of
/// `google.rpc.RetryInfo { retry_delay = 1 }`, a `google.protobuf.Duration { seconds = 1, nanos = 2
/// }`.
fn status(code: Code, message: &str, retry_after: Duration) -> Vec<u8> {
    let mut delay = Vec::new();
    number(&mut delay, 1, retry_after.as_secs());
    number(&mut delay, 2, retry_after.subsec_nanos().into());
    let mut info = Vec::new();
    bytes(&mut info, 1, &delay);
    let mut any = Vec::new();
    bytes(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
    bytes(&mut any, 2, &info);
    let mut status = Vec::new();
    number(&mut status, 1, code as u64);
    bytes(&mut status, 2, message.as_bytes());
    bytes(&mut status, 3, &any);
    status
}

fn varint(to: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        to.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    to.push(n as u8);
}

/// A number is wire type 0; zero is the default and left out.
fn number(to: &mut Vec<u8>, field: u64, n: u64) {
    if n > 0 {
        varint(to, field << 3);
        varint(to, n);
    }
}

/// Bytes, texts and messages are wire type 2.
fn bytes(to: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(to, field << 3 | 2);
    varint(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::head;

    #[test]
    fn the_bytes_of_a_status() {
        let mut expected = vec![0x08, 14, 0x12, 4];
        expected.extend(b"wait");
        expected.extend([0x1a, 54, 0x0a, 40]);
        expected.extend(b"type.googleapis.com/google.rpc.RetryInfo");
        // RetryInfo, Duration: 1 s and 500,000,000 ns, which is 0x1dcd6500, in groups of seven
        // bits.
        expected.extend([0x12, 10, 0x0a, 8]);
        expected.extend([0x08, 1, 0x10, 0x80, 0xca, 0xb5, 0xee, 0x01]);
        assert_eq!(status(Code::Unavailable, "wait", Duration::from_millis(1500)), expected);
    }

    #[test]
    fn varints() {
        let table: [(u64, &[u8]); 4] =
            [(0, &[0]), (127, &[127]), (128, &[0x80, 1]), (300, &[0xac, 2])];
        for (n, expected) in table {
            let mut got = Vec::new();
            varint(&mut got, n);
            assert_eq!(got, expected);
        }
        let mut most = Vec::new();
        varint(&mut most, u64::MAX);
        assert_eq!(most.len(), 10);
    }

    #[test]
    fn the_whole_answer() {
        let after = Duration::from_millis(2_500);
        let response = trailers_only(Code::Unavailable, "schläft\n100%", Some(after), None);
        let get = |name| response.headers().get(name).map(|v: &HeaderValue| v.to_str().unwrap());
        assert_eq!(response.status(), 200);
        assert_eq!(get("content-type"), Some("application/grpc"));
        assert_eq!(get("grpc-status"), Some("14"));
        assert_eq!(get("grpc-message"), Some("schl%C3%A4ft%0A100%25"));
        assert_eq!(get("grpc-retry-pushback-ms"), Some("2500"));
        let details = STANDARD_NO_PAD.decode(get("grpc-status-details-bin").unwrap()).unwrap();
        assert_eq!(details, status(Code::Unavailable, "schläft\n100%", after));
        let never = trailers_only(Code::PermissionDenied, "no", None, Some("application/grpc-web"));
        assert_eq!(never.headers()["content-type"], "application/grpc-web");
        assert!(!never.headers().contains_key("grpc-retry-pushback-ms"));
        assert!(!never.headers().contains_key("grpc-status-details-bin"));
    }

    #[test]
    fn what_is_grpc() {
        let table = [
            ("application/grpc", Some(GRPC), None),
            ("application/grpc+proto", Some(GRPC), None),
            ("Application/GRPC; x=y", Some(GRPC), None),
            ("application/grpc-web+proto", Some(GRPC_WEB), Some(GRPC_WEB)),
            ("application/grpc-web-text", Some(GRPC_WEB), Some(GRPC_WEB)),
            ("application/grpcfoo", None, None),
            ("application/json", None, None),
        ];
        for (kind, two, one) in table {
            let mut parts = head("POST", "/a.B/C", &[("content-type", kind)]);
            assert_eq!(content_type(&(&parts).into()), one, "{kind}");
            parts.version = Version::HTTP_2;
            assert_eq!(content_type(&(&parts).into()), two, "{kind}");
        }
    }
}
