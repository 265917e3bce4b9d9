//! The header fields: framing, host, and what belongs to the connection.

use http::Version;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
    UPGRADE,
};

use super::{Insane, MAX_BYTES, MAX_FIELDS, Request};
use crate::authority;
use crate::rewrite::{is_like, tells_of_client};
use crate::text::{has_token, is_token, trim};

/// The most names in `Connection`. A request has three at the most.
const MAX_NOMINATED: usize = 10;

/// Fields that are for the app: to drop one on a client's word would change what is asked.
const END_TO_END: [&str; 10] = [
    "host",
    "content-length",
    "content-type",
    "content-encoding",
    "transfer-encoding",
    "authorization",
    "cookie",
    "expect",
    "origin",
    "via",
];

/// What is known once every field was seen.
#[derive(Default)]
struct Seen<'r> {
    length: Option<u64>,
    chunked: bool,
    host: Option<&'r [u8]>,
    websocket: bool,
}

/// Checks them. `in_target` is the authority that the target has, if it has one.
pub(super) fn check(request: &Request<'_>, in_target: Option<&[u8]>) -> Result<(), Insane> {
    let headers = request.headers;
    if headers.len() > MAX_FIELDS {
        return Err(Insane::FieldCount);
    }
    let mut bytes = 0usize;
    let mut seen = Seen::default();
    for (name, value) in headers {
        bytes = bytes.saturating_add(name.as_str().len()).saturating_add(value.len());
        if bytes > MAX_BYTES {
            return Err(Insane::FieldBytes);
        }
        if has_control(value.as_bytes()) {
            return Err(Insane::FieldCharacter);
        }
        field(request.version, name, value, &mut seen)?;
    }
    if seen.chunked && seen.length.is_some() {
        return Err(Insane::LengthAndEncoding);
    }
    if seen.websocket && (seen.chunked || seen.length.is_some_and(|length| length > 0)) {
        return Err(Insane::UpgradeBody);
    }
    host(request, in_target, seen.host)
}

/// CR, LF, NUL and their like, but not HTAB. `HeaderValue` refuses them too, where it is made by its
/// checked ways.
pub(super) fn has_control(value: &[u8]) -> bool {
    // Without a way out in the middle, so that it goes by many bytes at once.
    let control = |found, b: &u8| found | ((*b < b' ') & (*b != b'\t')) | (*b == 0x7f);
    value.iter().fold(false, control)
}

fn field<'r>(
    version: Version,
    name: &HeaderName,
    value: &'r HeaderValue,
    seen: &mut Seen<'r>,
) -> Result<(), Insane> {
    let http2 = version == Version::HTTP_2;
    let value = value.as_bytes();
    match *name {
        CONTENT_LENGTH => {
            // The same twice, too: what is forwarded would still be a list.
            if seen.length.replace(length(value).ok_or(Insane::Length)?).is_some() {
                return Err(Insane::LengthTwice);
            }
        }
        HOST => {
            if seen.host.replace(value).is_some() {
                return Err(Insane::HostTwice);
            }
        }
        TRANSFER_ENCODING | CONNECTION | UPGRADE if http2 => {
            return Err(Insane::ConnectionSpecific);
        }
        TRANSFER_ENCODING => {
            if version == Version::HTTP_10 {
                return Err(Insane::EncodingVersion);
            }
            // Blanks around a value are no part of it, but a vertical tab or a second coding is.
            if seen.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Insane::Encoding);
            }
            seen.chunked = true;
        }
        CONNECTION => nominated(value)?,
        UPGRADE => seen.websocket |= has_token(value, "websocket"),
        TE if http2 && !value.eq_ignore_ascii_case(b"trailers") => {
            return Err(Insane::ConnectionSpecific);
        }
        // HTTP/1.0 has none, and what it sends is ignored.
        EXPECT if version != Version::HTTP_10 && !value.eq_ignore_ascii_case(b"100-continue") => {
            return Err(Insane::Expectation);
        }
        _ => match name.as_str() {
            "keep-alive" | "proxy-connection" if http2 => return Err(Insane::ConnectionSpecific),
            name if is_like(name, "content-length") || is_like(name, "transfer-encoding") => {
                return Err(Insane::Shadow);
            }
            _ => {}
        },
    }
    Ok(())
}

/// Digits alone, and a number that fits.
fn length(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(value).ok()?.parse().ok()).flatten()
}

/// Checks what `Connection` names (RFC 9110, section 7.6.1): a proxy takes those fields off.
fn nominated(value: &[u8]) -> Result<(), Insane> {
    let mut count = 0;
    for name in value.split(|b| *b == b',').map(trim).filter(|name| !name.is_empty()) {
        count += 1;
        let text = std::str::from_utf8(name).map_err(|_| Insane::Nominated)?;
        let ours = text.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("rouse-"));
        if count > MAX_NOMINATED
            || !name.iter().copied().all(is_token)
            || ours
            || tells_of_client(text)
            || END_TO_END.iter().any(|known| is_like(text, known))
        {
            return Err(Insane::Nominated);
        }
    }
    Ok(())
}

fn host(
    request: &Request<'_>,
    in_target: Option<&[u8]>,
    host: Option<&[u8]>,
) -> Result<(), Insane> {
    // A target's authority is known twice where the parser gave it too; then both must agree.
    let named = [in_target, request.authority, host];
    for name in named.into_iter().flatten() {
        if name.contains(&b'@') {
            return Err(Insane::UserInfo);
        }
        if authority::split(name).is_none() {
            return Err(Insane::Host);
        }
    }
    let needed = match request.version {
        Version::HTTP_10 => false,
        Version::HTTP_2 => host.is_none() && request.authority.is_none(),
        _ => host.is_none(),
    };
    if needed {
        return Err(Insane::HostMissing);
    }
    let mut names = named.into_iter().flatten();
    let first = names.next();
    match first {
        Some(first) if !names.all(|name| authority::same(first, name) == Some(true)) => {
            Err(Insane::HostDiffers)
        }
        _ => Ok(()),
    }
}
