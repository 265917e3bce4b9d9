//! What passes between visitor and app, and what is each connection's own.

use http::Version;
use http::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts as Request;
use http::response::Parts as Response;
use rouse_protocol::signature::HEADER_PREFIX;

/// Turns a visitor's request into the app's: nothing of ours, nothing that belongs to the visitor's
/// connection, and in HTTP/1 the origin form. Returns whether it asks for an upgrade.
pub(super) fn upward(request: &mut Request) -> bool {
    let upgrade = request.version == Version::HTTP_11 && asks_upgrade(&request.headers);
    let trailers = has_token(&request.headers, &TE, "trailers");
    pass(&mut request.headers, upgrade);
    if trailers {
        // What the app is told of the next connection; without it, it may not send trailers.
        request.headers.insert(TE, HeaderValue::from_static("trailers"));
    } else {
        request.headers.remove(TE);
    }
    if request.version == Version::HTTP_2 {
        // Scheme and authority are in the target.
        return false;
    }
    if let Some(path) = request.uri.path_and_query().cloned() {
        request.uri = path.into();
    }
    if request.version != Version::HTTP_10 {
        request.version = Version::HTTP_11;
    }
    upgrade
}

/// Turns the app's answer into the visitor's.
pub(super) fn downward(response: &mut Response, front: Version) {
    let upgrade = front == Version::HTTP_11 && has_token(&response.headers, &CONNECTION, "upgrade");
    pass(&mut response.headers, upgrade);
    response.version = Version::HTTP_11;
}

/// Takes ours out of `trailers`.
pub(super) fn strip_ours(headers: &mut HeaderMap) {
    retain(headers, |name| !is_ours(name));
}

fn is_ours(name: &HeaderName) -> bool {
    name.as_str().starts_with(HEADER_PREFIX)
}

fn asks_upgrade(headers: &HeaderMap) -> bool {
    // A later protocol of HTTP itself is not for us to tunnel (RFC 9113 withdrew "h2c").
    has_token(headers, &CONNECTION, "upgrade")
        && headers.contains_key(UPGRADE)
        && !has_token(headers, &UPGRADE, "h2c")
}

/// Takes out what is ours and what is one connection's (RFC 9110, 7.6.1). Body framing is left to
/// whoever writes the message, except for `Content-Length`.
fn pass(headers: &mut HeaderMap, upgrade: bool) {
    let named: Vec<String> = tokens(headers, &CONNECTION).map(str::to_ascii_lowercase).collect();
    retain(headers, |name| {
        if name == CONNECTION || name == UPGRADE {
            return upgrade;
        }
        let hop = name == TRANSFER_ENCODING
            || matches!(name.as_str(), "keep-alive" | "proxy-connection")
            || (name != TE && named.iter().any(|n| n == name.as_str()));
        !hop && !is_ours(name)
    });
    if upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
}

/// Removes the headers that `keep` does not want, and leaves the others in their order (removing
/// from a [`HeaderMap`] swaps the last one into the gap).
fn retain(headers: &mut HeaderMap, keep: impl Fn(&HeaderName) -> bool) {
    if headers.keys().all(&keep) {
        return;
    }
    let mut kept = None;
    for (name, value) in std::mem::take(headers) {
        // A further value of the same name comes without it.
        if let Some(name) = name {
            kept = keep(&name).then_some(name);
        }
        if let Some(name) = &kept {
            headers.append(name, value);
        }
    }
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|t| t.eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn request(version: Version, uri: &str, lines: &[(&str, &str)]) -> http::request::Parts {
        let mut builder = Request::builder().version(version).uri(uri);
        for (name, value) in lines {
            builder = builder.header(*name, *value);
        }
        builder.body(()).unwrap().into_parts().0
    }

    fn lines(headers: &HeaderMap) -> Vec<(&str, &str)> {
        headers.iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap())).collect()
    }

    #[test]
    fn the_rest_keeps_its_order() {
        let mut parts = request(
            Version::HTTP_11,
            "/a?b=%20",
            &[
                ("host", "a.example"),
                ("rouse-nonce", "n"),
                ("connection", "keep-alive, X-Hop"),
                ("accept", "1"),
                ("accept", "2"),
                ("x-hop", "x"),
                ("keep-alive", "5"),
                ("te", "trailers, gzip"),
                ("rouse-anything", "x"),
                ("transfer-encoding", "chunked"),
                ("z", "1"),
                ("a", "1"),
            ],
        );
        assert!(!upward(&mut parts));
        let kept = [
            ("host", "a.example"),
            ("accept", "1"),
            ("accept", "2"),
            ("te", "trailers"),
            ("z", "1"),
            ("a", "1"),
        ];
        assert_eq!(lines(&parts.headers), kept);
        assert_eq!(parts.uri.to_string(), "/a?b=%20");
    }

    #[test]
    fn upgrades_pass_but_not_to_another_http() {
        let websocket = [("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")];
        let mut parts = request(Version::HTTP_11, "/ws", &websocket);
        assert!(upward(&mut parts));
        assert_eq!(lines(&parts.headers), [("connection", "Upgrade"), ("upgrade", "websocket")]);

        let h2c = [
            ("connection", "upgrade, http2-settings"),
            ("upgrade", "h2c"),
            ("http2-settings", "x"),
        ];
        for (version, lines_) in [(Version::HTTP_11, &h2c[..]), (Version::HTTP_10, &websocket)] {
            let mut parts = request(version, "/", lines_);
            assert!(!upward(&mut parts));
            assert_eq!(lines(&parts.headers), []);
        }
    }

    #[test]
    fn http_2_stays_http_2() {
        let sent = [
            ("te", "trailers"),
            ("cookie", "a=1"),
            ("rouse-nonce", "n"),
            ("cookie", "b=2"),
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
        ];
        let mut parts = request(Version::HTTP_2, "http://a.example:81/p?q", &sent);
        assert!(!upward(&mut parts));
        let kept = [("te", "trailers"), ("cookie", "a=1"), ("cookie", "b=2")];
        assert_eq!(lines(&parts.headers), kept);
        let uri = "http://a.example:81/p?q".to_owned();
        assert_eq!((parts.uri.to_string(), parts.version), (uri, Version::HTTP_2));
    }

    #[test]
    fn answers_lose_ours_and_the_connections() {
        let response = http::Response::builder()
            .header("rouse-agent", "v=1")
            .header("connection", "close")
            .header("set-cookie", "a")
            .header("set-cookie", "b")
            .header("trailer", "x");
        let mut parts = response.body(()).unwrap().into_parts().0;
        downward(&mut parts, Version::HTTP_11);
        let kept = [("set-cookie", "a"), ("set-cookie", "b"), ("trailer", "x")];
        assert_eq!(lines(&parts.headers), kept);
    }
}
