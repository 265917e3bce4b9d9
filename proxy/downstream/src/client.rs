//! Who the client is, and by what scheme and host it came: from the connection, and from what a
//! trusted front says.

use std::net::{IpAddr, SocketAddr};

use http::header::{FORWARDED, HeaderMap, HeaderName};

use crate::authority::Authority;
use crate::forwarded;
use crate::proxy_protocol::Addresses;
use crate::text::{from_right, parse_address, parse_port};
use crate::trusted::Trusted;

/// How many elements of a list are walked. Nobody has so many fronts; whoever sends more wants work done.
pub const MAX_ELEMENTS: usize = 64;

pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(crate) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(crate) const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");

/// Which headers tell of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The one header that has the client's address, in place of `X-Forwarded-For`.
    pub client_ip_header: Option<HeaderName>,
    /// `Forwarded` (RFC 7239) is read from a trusted front that sends it, before `X-Forwarded-*`,
    /// and sent on. Without this it is taken off: many fronts pass on what a client put there.
    pub forwarded: bool,
    /// `X-Real-IP` is sent on.
    pub real_ip: bool,
}

/// The other end of a connection: what its PROXY protocol header says, else what its socket says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address; a v4-mapped one as v4.
    pub address: SocketAddr,
    /// It came over TLS.
    pub tls: bool,
    /// Its word is taken.
    pub trusted: bool,
}

impl Peer {
    /// The peer at `address`. Once a connection.
    pub fn new(address: SocketAddr, tls: bool, trusted: &Trusted) -> Self {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        Self { address, tls, trusted: trusted.contains(address.ip()) }
    }

    /// The peer of a connection from `socket` whose PROXY protocol header says `addresses`.
    ///
    /// Where it tells of no client, the socket's address holds but is not trusted: what a front on
    /// the level of connections passes on are its client's words, not its own.
    pub fn proxied(socket: SocketAddr, addresses: Addresses, tls: bool, trusted: &Trusted) -> Self {
        match addresses {
            Addresses::Proxied { source, tls: before, .. } => {
                Self::new(source, tls || before, trusted)
            }
            Addresses::Socket => Self { trusted: false, ..Self::new(socket, tls, trusted) },
        }
    }

    fn proto(&self) -> Proto {
        if self.tls { Proto::Https } else { Proto::Http }
    }
}

/// The scheme that a client came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proto {
    /// In the clear.
    Http,
    /// Over TLS.
    Https,
}

impl Proto {
    /// `http` or `https`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port that the scheme implies.
    pub fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    /// Fronts say `wss` of a WebSocket, too.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let is = |word: &str| text.eq_ignore_ascii_case(word.as_bytes());
        if is("https") || is("wss") {
            Some(Self::Https)
        } else if is("http") || is("ws") {
            Some(Self::Http)
        } else {
            None
        }
    }
}

/// Who asks, as far as anybody trusted knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its address; a v4-mapped one as v4.
    pub address: IpAddr,
    /// The port it came from, where that is known.
    pub port: Option<u16>,
    /// The scheme it came by.
    pub proto: Proto,
    /// The host it asked for, where a trusted front says that it was another than `Host`.
    pub host: Option<Authority>,
    /// The port it connected to, where a trusted front says so.
    pub to_port: Option<u16>,
    /// The peer is trusted, so that the other fields are its word.
    pub trusted: bool,
}

/// The client behind `peer`.
///
/// A list is walked from the right, which the nearest front wrote, past trusted addresses, to the
/// first that is not. What is no address (`unknown`, a name of RFC 7239 section 6.3, garbage) ends
/// the walk at the one before. Scheme, host and port are taken from the element that is as far from
/// the right as the client's, or the first where there are fewer: what a client put before it is
/// never looked at.
pub fn client(peer: &Peer, rules: &Rules, trusted: &Trusted, headers: &HeaderMap) -> Client {
    let mut client = Client {
        address: peer.address.ip(),
        port: Some(peer.address.port()),
        proto: peer.proto(),
        host: None,
        to_port: None,
        trusted: peer.trusted,
    };
    if !peer.trusted {
        return client;
    }
    if rules.forwarded && headers.contains_key(FORWARDED) {
        forwarded::read(&mut client, trusted, headers);
        single(&mut client, rules, headers);
        return client;
    }
    let depth = if rules.client_ip_header.is_none() {
        let elements = from_right(headers.get_all(FORWARDED_FOR).iter());
        walk(&mut client, trusted, elements.map(parse_address))
    } else {
        single(&mut client, rules, headers);
        0
    };
    let said = |name: HeaderName| {
        from_right(headers.get_all(name).iter()).take(depth.min(MAX_ELEMENTS) + 1).last()
    };
    if let Some(proto) = said(FORWARDED_PROTO).and_then(Proto::parse) {
        client.proto = proto;
    }
    client.to_port = said(FORWARDED_PORT).and_then(parse_port);
    let mut hosts = headers.get_all(FORWARDED_HOST).iter();
    client.host = match (hosts.next(), hosts.next()) {
        (None, _) => None,
        // Nearly always one, which needs no copy.
        (Some(value), None) if !value.as_bytes().contains(&b',') => Authority::of(value),
        _ => said(FORWARDED_HOST).and_then(Authority::parse),
    };
    client
}

/// Walks `addresses`, the last first, into `client`. Gives how far from the right the client's is.
pub(crate) fn walk(
    client: &mut Client,
    trusted: &Trusted,
    addresses: impl Iterator<Item = Option<(IpAddr, Option<u16>)>>,
) -> usize {
    let mut depth = 0;
    for (at, element) in addresses.take(MAX_ELEMENTS).enumerate() {
        let Some((address, port)) = element else { break };
        (client.address, client.port, depth) = (address, port, at);
        if !trusted.contains(address) {
            break;
        }
    }
    depth
}

/// The address in the one header that is configured for it. Where that is not there once and good,
/// the peer is the client: lists are not looked at, since the front may pass on a forged one.
fn single(client: &mut Client, rules: &Rules, headers: &HeaderMap) {
    let Some(name) = &rules.client_ip_header else { return };
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return };
    if let Some((address, port)) = parse_address(crate::text::trim(value.as_bytes())) {
        (client.address, client.port) = (address, port);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn trusted() -> Trusted {
        ["10.0.0.0/8", "2001:db8:f::/48"].iter().map(|text| text.parse().unwrap()).collect()
    }

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn of(peer: &str, rules: &Rules, fields: &[(&'static str, &str)]) -> Client {
        let trusted = trusted();
        let peer = Peer::new(peer.parse().unwrap(), false, &trusted);
        client(&peer, rules, &trusted, &headers(fields))
    }

    #[test]
    fn the_walk_from_the_right() {
        let rules = Rules::default();
        for (peer, list, address) in [
            // Nobody's word but a trusted peer's.
            ("192.0.2.1:5", &["198.51.100.1"][..], "192.0.2.1"),
            ("10.0.0.1:5", &[], "10.0.0.1"),
            ("10.0.0.1:5", &["198.51.100.1"], "198.51.100.1"),
            ("[::ffff:10.0.0.1]:5", &["198.51.100.1"], "198.51.100.1"),
            // What a client put before it.
            ("10.0.0.1:5", &["1.1.1.1, 198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1:5", &["1.1.1.1", "198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1:5", &["1.1.1.1", "198.51.100.1, 10.9.9.9", "2001:db8:f::1"], "198.51.100.1"),
            // All trusted: the first is the client.
            ("10.0.0.1:5", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            // Garbage ends it at the last good.
            ("10.0.0.1:5", &["198.51.100.1, garbage, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1:5", &["198.51.100.1, unknown"], "10.0.0.1"),
            ("10.0.0.1:5", &["198.51.100.1, _hidden, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1:5", &["198.51.100.1, ,, 10.0.0.2,"], "198.51.100.1"),
            ("10.0.0.1:5", &["::ffff:198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1:5", &["[2001:db8::1]:8080"], "2001:db8::1"),
        ] {
            let fields: Vec<_> = list.iter().map(|value| ("x-forwarded-for", *value)).collect();
            let got = of(peer, &rules, &fields);
            assert_eq!(got.address, address.parse::<IpAddr>().unwrap(), "{peer} {list:?}");
        }
        assert_eq!(of("10.0.0.1:5", &rules, &[("x-forwarded-for", "192.0.2.1:77")]).port, Some(77));
        assert_eq!(of("192.0.2.1:5", &rules, &[]).port, Some(5));
    }

    #[test]
    fn a_walk_is_bounded() {
        let list = format!("198.51.100.1{}", ", 10.0.0.2".repeat(MAX_ELEMENTS));
        let got = of("10.0.0.1:5", &Rules::default(), &[("x-forwarded-for", &list)]);
        assert_eq!(got.address, "10.0.0.2".parse::<IpAddr>().unwrap());
        let list = format!("198.51.100.1{}", ", 10.0.0.2".repeat(MAX_ELEMENTS - 1));
        let got = of("10.0.0.1:5", &Rules::default(), &[("x-forwarded-for", &list)]);
        assert_eq!(got.address, "198.51.100.1".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn scheme_host_and_port_from_the_front_that_saw_the_client() {
        let rules = Rules::default();
        let one = of(
            "10.0.0.1:5",
            &rules,
            &[
                ("x-forwarded-for", "192.0.2.1"),
                ("x-forwarded-proto", "HTTPS"),
                ("x-forwarded-host", "a.example:8443"),
                ("x-forwarded-port", "8443"),
            ],
        );
        assert_eq!((one.proto, one.to_port, one.trusted), (Proto::Https, Some(8443), true));
        assert_eq!(one.host.unwrap().to_string(), "a.example:8443");

        // A CDN by TLS, then a balancer in the clear that appends.
        let two =
            [("x-forwarded-for", "192.0.2.1, 10.0.0.2"), ("x-forwarded-proto", "https, http")];
        assert_eq!(of("10.0.0.1:5", &rules, &two).proto, Proto::Https);
        // A client's own word before the front's.
        let forged = [
            ("x-forwarded-for", "9.9.9.9, 192.0.2.1"),
            ("x-forwarded-proto", "https, http"),
            ("x-forwarded-host", "evil.example, a.example"),
        ];
        let got = of("10.0.0.1:5", &rules, &forged);
        assert_eq!((got.proto, got.host.unwrap().to_string()), (Proto::Http, "a.example".into()));
        // Garbage is as nothing.
        let garbage = [
            ("x-forwarded-proto", "gopher"),
            ("x-forwarded-host", "a b"),
            ("x-forwarded-port", "99999"),
        ];
        let got = of("10.0.0.1:5", &rules, &garbage);
        assert_eq!((got.proto, got.host, got.to_port), (Proto::Http, None, None));
        // Nobody's word.
        let got = of("192.0.2.1:5", &rules, &forged);
        assert_eq!(
            (got.proto, got.host, got.to_port, got.trusted),
            (Proto::Http, None, None, false)
        );
    }

    #[test]
    fn a_front_of_connections_lends_its_trust_to_nobody() {
        let (front, trusted) = ("10.0.0.1:5".parse().unwrap(), trusted());
        let peer = |addresses| Peer::proxied(front, addresses, false, &trusted);
        let said = |source: &str| Addresses::Proxied {
            source: source.parse().unwrap(),
            destination: front,
            tls: true,
        };
        let of =
            |address: &str, tls, trusted| Peer { address: address.parse().unwrap(), tls, trusted };
        assert_eq!(peer(Addresses::Socket), of("10.0.0.1:5", false, false));
        assert_eq!(peer(said("192.0.2.1:7")), of("192.0.2.1:7", true, false));
        // A CDN in front of it.
        assert_eq!(peer(said("10.0.0.9:7")), of("10.0.0.9:7", true, true));
    }

    #[test]
    fn one_header_of_the_front() {
        let name = Some(HeaderName::from_static("cf-connecting-ip"));
        let rules = Rules { client_ip_header: name, ..Rules::default() };
        let list = ("x-forwarded-for", "9.9.9.9");
        for (peer, fields, address) in [
            ("10.0.0.1:5", vec![list, ("cf-connecting-ip", "192.0.2.1")], "192.0.2.1"),
            ("192.0.2.9:5", vec![list, ("cf-connecting-ip", "192.0.2.1")], "192.0.2.9"),
            ("10.0.0.1:5", vec![list], "10.0.0.1"),
            ("10.0.0.1:5", vec![list, ("cf-connecting-ip", "x")], "10.0.0.1"),
            ("10.0.0.1:5", vec![("cf-connecting-ip", "192.0.2.1"); 2], "10.0.0.1"),
        ] {
            let got = of(peer, &rules, &fields);
            assert_eq!(got.address, address.parse::<IpAddr>().unwrap(), "{peer} {fields:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_put_before_changes_nothing(
            before in "[ -~]{0,80}", hops in prop::collection::vec(0..=255u8, 0..5)
        ) {
            let mut list = "198.51.100.1".to_owned();
            for hop in hops {
                list.push_str(&format!(", 10.0.0.{hop}"));
            }
            let alone = of("10.0.0.1:5", &Rules::default(), &[("x-forwarded-for", &list)]);
            let both = format!("{before}, {list}");
            let behind = of("10.0.0.1:5", &Rules::default(), &[("x-forwarded-for", &both)]);
            prop_assert_eq!(alone, behind);
        }
    }
}
