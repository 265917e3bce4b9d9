//! The method and the target.

use super::{Insane, MAX_METHOD, MAX_TARGET, Request};
use crate::text::is_token;

/// Checks both, and gives the authority in a target of the absolute form.
pub(super) fn check<'r>(request: &Request<'r>) -> Result<Option<&'r [u8]>, Insane> {
    let method = request.method;
    if !(1..=MAX_METHOD).contains(&method.len()) || !method.iter().copied().all(is_token) {
        return Err(Insane::Method);
    }
    if method == b"CONNECT" {
        return Err(Insane::Connect);
    }
    let target = request.target;
    if target.len() > MAX_TARGET {
        return Err(Insane::TargetLength);
    }
    // Bytes above ASCII are no part of a URI either, but are sent, and end nothing.
    if target.iter().any(|b| *b <= b' ' || *b == 0x7f || *b == b'#') {
        return Err(Insane::TargetCharacter);
    }
    match target {
        [b'/', ..] => Ok(None),
        b"*" if method == b"OPTIONS" => Ok(None),
        _ => absolute(target).map(Some).ok_or(Insane::TargetForm),
    }
}

/// The authority of a URI of http or https.
fn absolute(target: &[u8]) -> Option<&[u8]> {
    let after = |scheme: &str| {
        let (start, rest) = target.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme.as_bytes()).then_some(rest)
    };
    let rest = after("http://").or_else(|| after("https://"))?;
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
    Some(&rest[..end])
}
