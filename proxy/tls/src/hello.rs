//! What a client says first.

use std::borrow::Cow;
use std::fmt;

use rustls::SignatureScheme;
use rustls::server::ClientHello;

/// The protocol of a TLS-ALPN-01 challenge (RFC 8737, section 6.2).
pub(crate) const ACME: &[u8] = b"acme-tls/1";

/// What a client says first: nothing in it is proven.
pub struct Hello<'a> {
    inner: &'a ClientHello<'a>,
    name: Option<Cow<'a, str>>,
}

impl<'a> Hello<'a> {
    pub(crate) fn new(inner: &'a ClientHello<'a>) -> Hello<'a> {
        Hello { name: inner.server_name().map(fold), inner }
    }

    /// The host that is asked for, in lower case and without a final dot.
    pub fn server_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What the client would speak, the most wanted first, as RFC 7301 has it.
    pub fn alpn(&self) -> impl Iterator<Item = &'a [u8]> {
        self.inner.alpn().into_iter().flatten()
    }

    /// Whether this is an ACME server's challenge and no visitor: it offers nothing else.
    pub(crate) fn is_challenge(&self) -> bool {
        let mut offered = self.alpn();
        offered.next() == Some(ACME) && offered.next().is_none()
    }

    pub(crate) fn schemes(&self) -> &[SignatureScheme] {
        self.inner.signature_schemes()
    }
}

impl fmt::Debug for Hello<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello").field("server_name", &self.name).finish_non_exhaustive()
    }
}

/// A host name as certificates are kept by. It is nearly always so already.
pub(crate) fn fold(name: &str) -> Cow<'_, str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_folded() {
        for (name, folded) in [("a.b", "a.b"), ("A.b.", "a.b"), ("a.b.", "a.b"), ("", "")] {
            assert_eq!(fold(name), folded);
        }
        assert!(matches!(fold("a.b."), Cow::Borrowed(_)));
    }
}
