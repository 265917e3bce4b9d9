//! `[tls]` of the proxy's configuration.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rouse_conf::Table;
use rouse_conf::check::{seconds, word};

use crate::names::CertificateName;

/// What is served, and how. Nothing in it is read yet: see [`load`](crate::load).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Certificates by file. Where two are for one name, the first that suits a client is served.
    pub certificates: Vec<CertificateFiles>,
    /// A directory of certificates: `NAME/fullchain.pem` and `NAME/privkey.pem`.
    pub directory: Option<PathBuf>,
    /// Whose certificate is served to who asks for an unknown name, or for none. Without it such a
    /// handshake is refused.
    pub default: Option<CertificateName>,
    /// The oldest version of TLS that is spoken.
    pub min_version: Version,
    /// The CAs that sign clients' certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether clients have to show a certificate.
    pub client_auth: ClientAuth,
    /// How long a handshake may take, from its first byte to its last.
    pub handshake: Duration,
    /// What is spoken within, the most wanted first. Never empty.
    pub alpn: Vec<Alpn>,
    /// Certificates that are ordered.
    #[cfg(feature = "acme")]
    pub acme: Option<crate::acme::AcmeConfig>,
}

impl Config {
    /// Whether the certificate for `name` is ordered, so that it may not be there yet.
    pub(crate) fn is_ordered(&self, name: &CertificateName) -> bool {
        #[cfg(feature = "acme")]
        return self.acme.as_ref().is_some_and(|acme| acme.names.contains(name));
        #[cfg(not(feature = "acme"))]
        return {
            let _ = name;
            false
        };
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            certificates: Vec::new(),
            directory: None,
            default: None,
            min_version: Version::Tls12,
            client_ca: None,
            client_auth: ClientAuth::Off,
            handshake: Duration::from_secs(10),
            alpn: vec![Alpn::H2, Alpn::Http11],
            #[cfg(feature = "acme")]
            acme: None,
        }
    }
}

/// Where one certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// PEM: the server's certificate, and the intermediate ones behind it.
    pub cert: PathBuf,
    /// PEM: its private key.
    pub key: PathBuf,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 1.2 (RFC 5246).
    Tls12,
    /// 1.3 (RFC 8446).
    Tls13,
}

/// Whether clients have to show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// They are not asked for one.
    Off,
    /// They may; a bad one is refused.
    Optional,
    /// They must.
    Required,
}

/// What is spoken within (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alpn {
    /// HTTP/2.
    H2,
    /// HTTP/1.1.
    Http11,
}

impl Alpn {
    /// Its name in a handshake.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::H2 => "h2",
            Self::Http11 => "http/1.1",
        }
    }
}

/// Reads `[tls]`. Relative paths in it are relative to `base`.
pub fn read(table: &mut Table<'_>, base: &Path) -> Config {
    let d = Config::default();
    let path = |path: PathBuf| Ok::<_, String>(Some(base.join(path)));
    let certificates = table.tables("certificates", |t| {
        let (cert, key) = (t.required::<PathBuf>("cert"), t.required::<PathBuf>("key"));
        Some(CertificateFiles { cert: base.join(cert?), key: base.join(key?) })
    });
    let name = |name: String| name.parse().map(Some);
    let versions = [("1.2", Version::Tls12), ("1.3", Version::Tls13)];
    let modes = [
        ("off", ClientAuth::Off),
        ("optional", ClientAuth::Optional),
        ("required", ClientAuth::Required),
    ];
    let config = Config {
        certificates,
        directory: table.optional_as("directory", d.directory, path),
        default: table.optional_as("default", d.default, name),
        min_version: table.optional_as("min_version", d.min_version, word(&versions)),
        client_ca: table.optional_as("client_ca", d.client_ca, path),
        client_auth: table.optional_as("client_auth", d.client_auth, word(&modes)),
        handshake: table.optional_as("handshake_seconds", d.handshake, seconds(1, 300)),
        alpn: table.optional_as("alpn", d.alpn, alpn),
        #[cfg(feature = "acme")]
        acme: table.optional_table("acme", |t| crate::acme::read(t, base)),
    };
    #[cfg(not(feature = "acme"))]
    table.optional_as("acme", (), |_: serde::de::IgnoredAny| {
        Err("this build can't order certificates; build it with the feature `acme`")
    });
    match (config.client_auth, &config.client_ca) {
        (ClientAuth::Off, Some(_)) => table.mistake(
            "`client_ca` is not used while `client_auth` is `off`; set that to `optional` or \
             `required`, or remove it",
        ),
        (ClientAuth::Optional | ClientAuth::Required, None) => {
            table.mistake("`client_auth` needs `client_ca`: the file with the clients' CAs");
        }
        _ => {}
    }
    config
}

fn alpn(names: Vec<String>) -> Result<Vec<Alpn>, String> {
    let mut list = Vec::new();
    for name in names {
        let alpn = word(&[("h2", Alpn::H2), ("http/1.1", Alpn::Http11)])(name)?;
        if list.contains(&alpn) {
            return Err(format!("has `{}` twice", alpn.as_str()));
        }
        list.push(alpn);
    }
    if list.is_empty() { Err("needs `h2`, `http/1.1`, or both".to_owned()) } else { Ok(list) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        rouse_conf::parse_text(Path::new("p.toml"), text, |file| {
            Some(file.table("tls", |t| read(t, Path::new("/etc/rouse"))))
        })
        .map_err(|refused| refused.to_string())
    }

    #[test]
    fn the_whole_of_it() {
        let config = parse(
            r#"
            [tls]
            certificates = [{ cert = "a.pem", key = "/k/a.pem" }]
            directory = "certs.d"
            default = "A.example"
            min_version = "1.3"
            client_ca = "ca.pem"
            client_auth = "required"
            handshake_seconds = 3
            alpn = ["http/1.1"]
            "#,
        );
        let expected = Config {
            certificates: vec![CertificateFiles {
                cert: "/etc/rouse/a.pem".into(),
                key: "/k/a.pem".into(),
            }],
            directory: Some("/etc/rouse/certs.d".into()),
            default: Some("a.example".parse().unwrap()),
            min_version: Version::Tls13,
            client_ca: Some("/etc/rouse/ca.pem".into()),
            client_auth: ClientAuth::Required,
            handshake: Duration::from_secs(3),
            alpn: vec![Alpn::Http11],
            #[cfg(feature = "acme")]
            acme: None,
        };
        assert_eq!(config, Ok(expected));
        assert_eq!(parse(""), Ok(Config::default()));
    }

    #[test]
    fn every_mistake_with_line_and_hint() {
        let got = parse(
            "[tls]\ncertificates = [{ cert = 'a' }]\ndefault = 'a b'\nmin_version = '1.1'\n\
             client_auth = 'on'\nhandshake_seconds = 0\nalpn = ['h3']\ncerts = 1\n",
        );
        assert_eq!(
            got.unwrap_err(),
            "p.toml:2: `tls.certificates.key` is missing\n\
             p.toml:3: `tls.default`: 'a b' is no name for a certificate; it is a host name, or `*.` and a domain\n\
             p.toml:4: `tls.min_version`: is one of `1.2`, `1.3`\n\
             p.toml:5: `tls.client_auth`: is one of `off`, `optional`, `required`\n\
             p.toml:6: `tls.handshake_seconds`: is between 1 and 300\n\
             p.toml:7: `tls.alpn`: is one of `h2`, `http/1.1`\n\
             p.toml:8: unknown key `tls.certs`; known here: certificates, directory, default, \
             min_version, client_ca, client_auth, handshake_seconds, alpn, acme"
        );
        for (text, part) in [
            ("alpn = []", "needs `h2`"),
            ("alpn = ['h2', 'h2']", "has `h2` twice"),
            ("client_auth = 'optional'", "needs `client_ca`"),
            ("client_ca = 'x'", "is not used while"),
        ] {
            let got = parse(&format!("[tls]\n{text}")).unwrap_err();
            assert!(got.contains(part), "{text}: {got}");
        }
    }
}
