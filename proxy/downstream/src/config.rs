//! The `[downstream]` table, and a listener's `proxy_protocol`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderName;
use rouse_conf::Table;
use rouse_conf::check::{between, seconds, word};

use crate::client::Rules;
use crate::proxy_protocol::ProxyProtocol;
use crate::rewrite::PREFIX;
use crate::trusted::{Cidr, CidrError, Source};

/// The `[downstream]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Downstream {
    /// Whose word on the client is taken.
    pub trusted: Source,
    /// Which headers tell of the client.
    pub rules: Rules,
    /// Connections there may be.
    pub connections: usize,
    /// Connections that one client may have.
    pub connections_per_address: usize,
    /// How long a connection has for its PROXY protocol header, and then for the header of a request
    /// once its first byte is there.
    pub header: Duration,
}

impl Default for Downstream {
    fn default() -> Self {
        Self {
            trusted: Source::default(),
            rules: Rules::default(),
            // As many as there are holds in all by default.
            connections: 20_000,
            // An office behind one address has hundreds.
            connections_per_address: 1_000,
            header: Duration::from_secs(10),
        }
    }
}

/// Reads the `[downstream]` table. Relative paths in it are relative to `base`. Files are not opened.
pub fn read(table: &mut Table<'_>, base: &Path) -> Downstream {
    let defaults = Downstream::default();
    let networks = table.optional_as("trusted_proxies", Vec::new(), |texts: Vec<String>| {
        texts.iter().map(|text| text.parse()).collect::<Result<Vec<Cidr>, CidrError>>()
    });
    let files = table.optional("trusted_proxies_files", Vec::<PathBuf>::new());
    let files: Vec<_> = files.into_iter().map(|file| base.join(file)).collect();
    let trusted = Source { networks, files };
    let rules = Rules {
        client_ip_header: table.optional_as("client_ip_header", None, header),
        forwarded: table.optional("forwarded", defaults.rules.forwarded),
        real_ip: table.optional("real_ip", defaults.rules.real_ip),
    };
    if rules.client_ip_header.is_some() && trusted == Source::default() {
        table.mistake(
            "`downstream.client_ip_header` is taken from trusted proxies only, and there are none; \
             give `trusted_proxies` or `trusted_proxies_files`",
        );
    }
    let mut count = |key, default| table.optional_as(key, default, between(1, 10_000_000));
    Downstream {
        trusted,
        rules,
        connections: count("connections", defaults.connections),
        connections_per_address: count("connections_per_address", defaults.connections_per_address),
        header: table.optional_as("header_seconds", defaults.header, seconds(1, 600)),
    }
}

/// Reads `proxy_protocol` of a listener's table.
pub fn proxy_protocol(table: &mut Table<'_>) -> ProxyProtocol {
    let words = [("off", ProxyProtocol::Off), ("on", ProxyProtocol::On)];
    table.optional_as("proxy_protocol", ProxyProtocol::Off, word(&words))
}

/// A header with one address in it.
fn header(text: String) -> Result<Option<HeaderName>, String> {
    let name = HeaderName::from_bytes(text.as_bytes())
        .map_err(|_| format!("{text:?} is no name of a header"))?;
    match name.as_str() {
        "x-forwarded-for" => Err("X-Forwarded-For is read without it; leave it out".to_owned()),
        "forwarded" => Err("Forwarded is read with `forwarded = true`".to_owned()),
        other if other.starts_with(PREFIX) || matches!(other, "host" | "connection" | "via") => {
            Err(format!("{other} has no client's address"))
        }
        _ => Ok(Some(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(Downstream, ProxyProtocol), rouse_conf::Refused> {
        rouse_conf::parse_text(Path::new("p.toml"), text, |table| {
            let protocol = table.table("listener", |t| proxy_protocol(t));
            Some((table.table("downstream", |t| read(t, Path::new("/etc/rouse"))), protocol))
        })
    }

    #[test]
    fn nothing_is_needed() {
        assert_eq!(parse("").unwrap(), (Downstream::default(), ProxyProtocol::Off));
    }

    #[test]
    fn the_whole_of_it() {
        let (got, protocol) = parse(
            "[listener]\nproxy_protocol = 'on'\n[downstream]\n\
             trusted_proxies = ['10.0.0.0/8', '::1']\n\
             trusted_proxies_files = ['cloudflare-v4.txt', '/srv/v6.txt']\n\
             client_ip_header = 'CF-Connecting-IP'\nforwarded = true\nreal_ip = true\n\
             connections = 7\nconnections_per_address = 3\nheader_seconds = 5\n",
        )
        .unwrap();
        let expected = Downstream {
            trusted: Source {
                networks: vec!["10.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()],
                files: vec!["/etc/rouse/cloudflare-v4.txt".into(), "/srv/v6.txt".into()],
            },
            rules: Rules {
                client_ip_header: Some(HeaderName::from_static("cf-connecting-ip")),
                forwarded: true,
                real_ip: true,
            },
            connections: 7,
            connections_per_address: 3,
            header: Duration::from_secs(5),
        };
        assert_eq!((got, protocol), (expected, ProxyProtocol::On));
    }

    #[test]
    fn every_mistake_at_once() {
        let refused = parse(
            "[listener]\nproxy_protocol = 'v3'\n[downstream]\ntrusted_proxies = ['10.0.0.1/8']\n\
             client_ip_header = 'X-Forwarded-For'\nconnections = 0\nheader_seconds = 0\nreel_ip = true\n",
        );
        let lines: Vec<_> = refused.unwrap_err().to_string().lines().map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "p.toml:2: `listener.proxy_protocol`: is one of `off`, `on`",
                "p.toml:4: `downstream.trusted_proxies`: 10.0.0.1/8 has bits after its prefix; write 10.0.0.0/8, or the address alone",
                "p.toml:5: `downstream.client_ip_header`: X-Forwarded-For is read without it; leave it out",
                "p.toml:6: `downstream.connections`: is between 1 and 10000000",
                "p.toml:7: `downstream.header_seconds`: is between 1 and 600",
                "p.toml:8: unknown key `downstream.reel_ip`; did you mean `real_ip`?",
            ]
        );
        let refused = parse("[downstream]\nclient_ip_header = 'CF-Connecting-IP'\n").unwrap_err();
        assert!(
            refused.to_string().starts_with("p.toml:1: `downstream.client_ip_header` is taken")
        );
        for bad in ["a b", "", "Forwarded", "X-Forwarded-Host", "Host"] {
            let text =
                format!("[downstream]\ntrusted_proxies = ['::1']\nclient_ip_header = '{bad}'\n");
            parse(&text).unwrap_err();
        }
    }
}
