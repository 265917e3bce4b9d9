//! What makes a request the gate's, and the nonce that asks for a signature.

use http::{HeaderMap, Method, Uri};
use rouse_protocol::signature::NONCE_HEADER;

/// The longest nonce that is signed, in bytes. Ours have 32.
const MAX_NONCE: usize = 64;

/// The nonce that the answer's signature must cover; none when there is not exactly one of at
/// most [`MAX_NONCE`] visible ASCII characters.
pub(super) fn nonce(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(NONCE_HEADER).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let sound =
        (1..=MAX_NONCE).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic);
    sound.then(|| value.to_str().ok().map(str::to_owned)).flatten()
}

/// Whether this is the gate's probe, given that it has a nonce.
pub(super) fn is_probe(method: &Method, uri: &Uri, gate_path: &str) -> bool {
    method == Method::GET && uri.path() == gate_path && uri.query().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces() {
        let long = "n".repeat(65);
        for (values, nonce_) in [
            (&[][..], None),
            (&["n1"][..], Some("n1")),
            (&["n1", "n2"], None),
            (&[""], None),
            (&["a b"], None),
            (&["a\tb"], None),
            (&[&long[..]], None),
            (&[&long[..64]], Some(&long[..64])),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(NONCE_HEADER, value.parse().unwrap());
            }
            assert_eq!(nonce(&headers).as_deref(), nonce_, "{values:?}");
        }
    }

    #[test]
    fn probes() {
        for (method, uri, probe) in [
            (Method::GET, "/gate", true),
            (Method::GET, "http://app.example/gate", true),
            (Method::HEAD, "/gate", false),
            (Method::POST, "/gate", false),
            (Method::GET, "/gate?", false),
            (Method::GET, "/gate?x", false),
            (Method::GET, "/gate/", false),
            (Method::GET, "/%67ate", false),
        ] {
            assert_eq!(is_probe(&method, &uri.parse().unwrap(), "/gate"), probe, "{method} {uri}");
        }
    }
}
