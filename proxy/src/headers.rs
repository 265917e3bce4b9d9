//! What is taken off and put on between a visitor and an app.

use std::net::IpAddr;

use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};
use pingora_core::{ErrorType, OrErr, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use rouse_protocol::signature::HEADER_PREFIX;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Our headers among `headers`, also as CGI would spell them. Nearly always none, and then nothing is
/// allocated.
fn ours(headers: &HeaderMap) -> Vec<HeaderName> {
    let (word, _) = HEADER_PREFIX.split_at(HEADER_PREFIX.len() - 1);
    let is_ours = |name: &&HeaderName| {
        name.as_str().strip_prefix(word).is_some_and(|rest| rest.starts_with(['-', '_']))
    };
    headers.keys().filter(is_ours).cloned().collect()
}

/// Puts the crumbs that HTTP/2 may break a cookie into together again, as HTTP/1 wants it (RFC 9113,
/// section 8.2.3).
pub(crate) fn whole_cookie(request: &mut RequestHeader) -> Result<()> {
    let crumbs: Vec<_> = request.headers.get_all(COOKIE).iter().map(|v| v.as_bytes()).collect();
    if crumbs.len() < 2 {
        return Ok(());
    }
    let whole = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]));
    let whole = whole.or_err(ErrorType::InternalError, "joining a cookie")?;
    request.insert_header("Cookie", whole)
}

/// Takes every `Rouse-*` off a request.
pub(crate) fn strip_request(request: &mut RequestHeader) {
    for name in ours(&request.headers) {
        request.remove_header(&name);
    }
}

/// Takes every `Rouse-*` off a response.
pub(crate) fn strip_response(response: &mut ResponseHeader) {
    for name in ours(&response.headers) {
        response.remove_header(&name);
    }
}

/// Tells the app who asks. `Host` is passed on as it is, so there is no need to tell it twice.
pub(crate) fn forward(request: &mut RequestHeader, client: Option<IpAddr>) -> Result<()> {
    let Some(client) = client else { return Ok(()) };
    let value = match request.headers.get(FORWARDED_FOR) {
        None => HeaderValue::try_from(text(client)),
        Some(_) => {
            let mut list = Vec::new();
            for part in request.headers.get_all(FORWARDED_FOR) {
                list.extend_from_slice(part.as_bytes());
                list.extend_from_slice(b", ");
            }
            list.extend_from_slice(text(client).as_bytes());
            HeaderValue::from_bytes(&list)
        }
    };
    // What came as header values and an address are one again when joined.
    let value = value.or_err(ErrorType::InternalError, "joining addresses")?;
    // As a text, since Pingora copies other names.
    request.insert_header("X-Forwarded-For", value)
}

/// An address as text. Every request needs one, and the formatting machinery takes twenty times as
/// long for the common kind.
fn text(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else { return address.to_string() };
    let mut text = String::with_capacity("255.255.255.255".len());
    for (i, octet) in address.octets().into_iter().enumerate() {
        if i > 0 {
            text.push('.');
        }
        let digit = |n: u8| char::from(b'0' + n % 10);
        if octet >= 100 {
            text.push(digit(octet / 100));
        }
        if octet >= 10 {
            text.push(digit(octet / 10));
        }
        text.push(digit(octet));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&'static str, &str)]) -> RequestHeader {
        let mut request = RequestHeader::build("GET", b"/", None).unwrap();
        for (name, value) in headers {
            request.append_header(*name, *value).unwrap();
        }
        request
    }

    fn value(request: &RequestHeader, name: HeaderName) -> &str {
        request.headers.get(name).unwrap().to_str().unwrap()
    }

    #[test]
    fn ours_are_stripped_in_any_case_and_number() {
        let mut request = request(&[
            ("Rouse-Nonce", "a"),
            ("rouse-agent", "b"),
            ("ROUSE-AGENT", "c"),
            ("Rouse_Nonce", "d"),
            ("Rousette", "stays"),
            ("x-rouse-agent", "stays"),
        ]);
        strip_request(&mut request);
        let mut left: Vec<_> = request.headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["rousette", "x-rouse-agent"]);
    }

    #[test]
    fn a_cookie_is_one_again() {
        let mut crumbs = request(&[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2; c=3")]);
        whole_cookie(&mut crumbs).unwrap();
        assert_eq!(value(&crumbs, COOKIE), "a=1; b=2; c=3");
        assert_eq!(crumbs.headers.get_all(COOKIE).iter().count(), 1);
        let mut none = request(&[]);
        whole_cookie(&mut none).unwrap();
        assert_eq!(none.headers.get(COOKIE), None);
    }

    #[test]
    fn the_client_is_appended() {
        let client = Some("192.0.2.7".parse().unwrap());
        let mut fresh = request(&[("host", "a.example")]);
        forward(&mut fresh, client).unwrap();
        assert_eq!(value(&fresh, FORWARDED_FOR), "192.0.2.7");

        let mut behind =
            request(&[("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "2.2.2.2, 3.3.3.3")]);
        forward(&mut behind, client).unwrap();
        assert_eq!(value(&behind, FORWARDED_FOR), "1.1.1.1, 2.2.2.2, 3.3.3.3, 192.0.2.7");
        assert_eq!(behind.headers.get_all(FORWARDED_FOR).iter().count(), 1);
    }

    #[test]
    fn addresses_are_written_as_ever() {
        for octet in 0..=255u8 {
            let address = IpAddr::from([octet, 255 - octet, 0, octet / 2]);
            assert_eq!(text(address), address.to_string());
        }
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(text(v6), "2001:db8::1");
    }
}
