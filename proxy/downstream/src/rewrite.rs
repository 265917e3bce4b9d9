//! What an app is told of its client, and what is taken off because nobody vouches for it.
//!
//! The decision is apart from the header that it changes, since a proxy's own type may have to keep
//! more than a map in step.

use http::header::{FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use http::request::Parts;

use crate::authority::Authority;
use crate::client::{
    Client, FORWARDED_FOR, FORWARDED_HOST, FORWARDED_PORT, FORWARDED_PROTO, Peer, Proto, Rules,
};
use crate::forwarded;
use crate::text::{address_value, has_token, push_address, value};

const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const HTTP2_SETTINGS: &str = "http2-settings";

/// What every header that tells of the client starts with, by custom.
pub(crate) const PREFIX: &str = "x-forwarded-";

/// Headers that apps and frameworks take a client's address, host, scheme or certificate from, next to [`PREFIX`].
pub(crate) const VOUCHED: [&str; 11] = [
    "forwarded",
    "x-real-ip",
    "x-client-ip",
    "client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "fastly-client-ip",
    "x-cluster-client-ip",
    "x-original-forwarded-for",
    // RFC 9440: who ends TLS tells of a client's certificate.
    "client-cert",
    "client-cert-chain",
];

/// A header that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Every address on the way, the client's first.
    ForwardedFor,
    /// The scheme the client came by.
    ForwardedProto,
    /// The host it asked for.
    ForwardedHost,
    /// The port it connected to.
    ForwardedPort,
    /// All of that by RFC 7239.
    Forwarded,
    /// The client's address.
    RealIp,
}

impl Field {
    const ALL: [Self; 6] = [
        Self::ForwardedFor,
        Self::ForwardedProto,
        Self::ForwardedHost,
        Self::ForwardedPort,
        Self::Forwarded,
        Self::RealIp,
    ];

    /// The name in its usual case, which HTTP/1 headers may keep.
    pub fn title(self) -> &'static str {
        match self {
            Self::ForwardedFor => "X-Forwarded-For",
            Self::ForwardedProto => "X-Forwarded-Proto",
            Self::ForwardedHost => "X-Forwarded-Host",
            Self::ForwardedPort => "X-Forwarded-Port",
            Self::Forwarded => "Forwarded",
            Self::RealIp => "X-Real-IP",
        }
    }

    /// The name as a map has it, as text.
    fn lower(self) -> &'static str {
        match self {
            Self::ForwardedFor => "x-forwarded-for",
            Self::ForwardedProto => "x-forwarded-proto",
            Self::ForwardedHost => "x-forwarded-host",
            Self::ForwardedPort => "x-forwarded-port",
            Self::Forwarded => "forwarded",
            Self::RealIp => "x-real-ip",
        }
    }

    /// The name as a map has it.
    pub fn name(self) -> HeaderName {
        match self {
            Self::ForwardedFor => FORWARDED_FOR,
            Self::ForwardedProto => FORWARDED_PROTO,
            Self::ForwardedHost => FORWARDED_HOST,
            Self::ForwardedPort => FORWARDED_PORT,
            Self::Forwarded => FORWARDED,
            Self::RealIp => REAL_IP,
        }
    }
}

/// One thing to do to a request's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Take every value of it off.
    Remove(HeaderName),
    /// Give it this value alone.
    Set(Field, HeaderValue),
}

/// What to do to a request's header before an app gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Nearly always empty, and then not allocated.
    remove: Vec<HeaderName>,
    set: [Option<HeaderValue>; Field::ALL.len()],
}

impl Rewrite {
    /// What to do, in this order.
    pub fn changes(self) -> impl Iterator<Item = Change> {
        let set = Field::ALL.into_iter().zip(self.set);
        let set = set.filter_map(|(field, value)| Some(Change::Set(field, value?)));
        self.remove.into_iter().map(Change::Remove).chain(set)
    }

    /// Does it to a map.
    pub fn apply(self, headers: &mut HeaderMap) {
        for change in self.changes() {
            match change {
                Change::Remove(name) => {
                    headers.remove(name);
                }
                Change::Set(field, value) => {
                    headers.insert(field.name(), value);
                }
            }
        }
    }
}

/// What to do to the header of `request`, which is from `client` behind `peer`.
///
/// - From a trusted peer `X-Forwarded-For` and `Forwarded` are kept with the peer appended, and
///   scheme, host and port are what it says; from anybody else all of it is replaced, or taken off:
///   `Host` tells host and port.
/// - What else apps take for a client's address (`X-Real-IP`, `CF-Connecting-IP`, every
///   `X-Forwarded-*`, the configured header) is taken off unless the peer is trusted.
/// - Any of these spelt with underscores is taken off always: to a CGI-like app it is the same name.
/// - `Upgrade: h2c` is taken off: behind it an app would be spoken to past this proxy.
pub fn rewrite(peer: &Peer, client: &Client, rules: &Rules, request: &Parts) -> Rewrite {
    let headers = &request.headers;
    let mut rewrite = Rewrite::default();
    // One walk over all names costs less than a look-up of each of ours, and mostly none is there.
    let mut there = [false; Field::ALL.len()];
    for name in headers.keys() {
        match Field::ALL.iter().position(|field| name.as_str() == field.lower()) {
            Some(at) => there[at] = true,
            None if is_removed(name, peer.trusted, rules, headers) => {
                rewrite.remove.push(name.clone());
            }
            None => {}
        }
    }
    let own = || match request.uri.authority() {
        Some(authority) => Authority::parse(authority.as_str().as_bytes()),
        None => headers.get(HOST).and_then(Authority::of),
    };
    let host = || client.host.clone().or_else(own);
    for ((field, slot), there) in Field::ALL.into_iter().zip(&mut rewrite.set).zip(there) {
        let value = match field {
            Field::ForwardedFor => chain(peer, client, headers),
            Field::ForwardedProto => Some(HeaderValue::from_static(client.proto.as_str())),
            // `Host` is passed on as it is: these only where a front says that it was another.
            Field::ForwardedHost => client.host.as_ref().map(Authority::to_value),
            Field::ForwardedPort => client.to_port.map(HeaderValue::from),
            Field::Forwarded if rules.forwarded => elements(peer, client, host().as_ref(), headers),
            Field::RealIp if rules.real_ip => address_value(client.address),
            Field::Forwarded | Field::RealIp => None,
        };
        match value {
            // As it should be.
            Some(value) if there && is_only(headers, field, &value) => {}
            Some(value) => *slot = Some(value),
            // Another's `X-Real-IP` is its own affair; `Forwarded` is not vouched for when it is off.
            None if there && !(peer.trusted && field == Field::RealIp) => {
                rewrite.remove.push(field.name());
            }
            None => {}
        }
    }
    rewrite
}

fn is_only(headers: &HeaderMap, field: Field, value: &HeaderValue) -> bool {
    let mut values = headers.get_all(field.name()).iter();
    values.next() == Some(value) && values.next().is_none()
}

fn is_removed(name: &HeaderName, trusted: bool, rules: &Rules, headers: &HeaderMap) -> bool {
    let text = name.as_str();
    if *name == UPGRADE {
        return headers.get_all(UPGRADE).iter().any(|value| has_token(value.as_bytes(), "h2c"));
    }
    if text == HTTP2_SETTINGS {
        return true;
    }
    if trusted && !text.contains('_') {
        return false;
    }
    let configured = rules.client_ip_header.as_ref();
    // A configured name may have underscores of its own.
    if trusted && configured == Some(name) {
        return false;
    }
    tells_of_client(text) || configured.is_some_and(|name| is_like(text, name.as_str()))
}

/// Whether `name` is, but for underscores, one that apps take a client's address, host or scheme from.
pub(crate) fn tells_of_client(name: &str) -> bool {
    name.get(..PREFIX.len()).is_some_and(|start| is_like(start, PREFIX))
        || VOUCHED.iter().any(|known| is_like(name, known))
}

/// Whether two names are one to whoever takes `_` for `-`, in any case.
pub(crate) fn is_like(a: &str, b: &str) -> bool {
    let fold = |b: u8| if b == b'_' { b'-' } else { b.to_ascii_lowercase() };
    a.len() == b.len() && a.bytes().zip(b.bytes()).all(|(a, b)| fold(a) == fold(b))
}

/// `values` joined, with room for one more element, and its comma.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Vec<u8> {
    let mut list = Vec::with_capacity(64);
    for part in headers.get_all(name) {
        if !part.is_empty() {
            list.extend_from_slice(part.as_bytes());
            list.extend_from_slice(b", ");
        }
    }
    list
}

fn chain(peer: &Peer, client: &Client, headers: &HeaderMap) -> Option<HeaderValue> {
    if !peer.trusted {
        return address_value(client.address);
    }
    let mut list = joined(headers, &FORWARDED_FOR);
    if list.is_empty() && client.address != peer.address.ip() {
        // The front tells of its client in another header only.
        push_address(&mut list, client.address);
        list.extend_from_slice(b", ");
    }
    push_address(&mut list, peer.address.ip());
    value(list)
}

fn elements(
    peer: &Peer,
    client: &Client,
    host: Option<&Authority>,
    headers: &HeaderMap,
) -> Option<HeaderValue> {
    if !peer.trusted {
        let mut list = Vec::with_capacity(96);
        forwarded::push(&mut list, client.address, client.proto, host);
        return value(list);
    }
    let mut list = joined(headers, &FORWARDED);
    if list.is_empty() && client.address != peer.address.ip() {
        forwarded::push(&mut list, client.address, client.proto, host);
        list.extend_from_slice(b", ");
    }
    // The peer's own element tells how the peer came, not its client.
    let proto = if peer.tls { Proto::Https } else { Proto::Http };
    forwarded::push(&mut list, peer.address.ip(), proto, None);
    value(list)
}

#[cfg(test)]
#[path = "rewrite_tests.rs"]
mod tests;
