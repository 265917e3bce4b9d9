//! Whether two parsers could see two different requests in this one.
//!
//! A proxy and an app that disagree on where a request ends, or whom it is for, let a client speak
//! in another's name (RFC 9112, section 11.2). So what is open to more than one reading is refused,
//! also where a lenient reading is allowed. Whatever is refused here, its connection is closed:
//! what comes next on it may be anything.

mod fields;
mod insane;
mod target;

use http::request::Parts;
use http::{HeaderMap, Version};

pub use insane::Insane;

/// The longest method, in bytes. The longest that is registered has 17 (IANA, HTTP Method Registry).
pub const MAX_METHOD: usize = 32;
/// The longest target, in bytes (RFC 9110, section 4.1, asks for 8000 at the least).
pub const MAX_TARGET: usize = 8 * 1024;
/// The most header fields.
pub const MAX_FIELDS: usize = 128;
/// The most bytes of names and values in all.
pub const MAX_BYTES: usize = 64 * 1024;

/// A request's head as it was parsed.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// The method.
    pub method: &'r [u8],
    /// The version on the connection.
    pub version: Version,
    /// The target as it came, or its path and query.
    pub target: &'r [u8],
    /// The authority of the target, or `:authority`.
    pub authority: Option<&'r [u8]>,
    /// The fields.
    pub headers: &'r HeaderMap,
}

impl<'r> Request<'r> {
    /// The head in `parts`, whose target came as `target` before it was made a URI of.
    pub fn of(parts: &'r Parts, target: &'r [u8]) -> Self {
        Self {
            method: parts.method.as_str().as_bytes(),
            version: parts.version,
            target,
            authority: parts.uri.authority().map(|authority| authority.as_str().as_bytes()),
            headers: &parts.headers,
        }
    }
}

/// Checks a request's head. Pure, and allocates nothing.
pub fn check(request: &Request<'_>) -> Result<(), Insane> {
    if !matches!(request.version, Version::HTTP_10 | Version::HTTP_11 | Version::HTTP_2) {
        return Err(Insane::Version);
    }
    let in_target = target::check(request)?;
    fields::check(request, in_target)
}

#[cfg(test)]
mod tests;
