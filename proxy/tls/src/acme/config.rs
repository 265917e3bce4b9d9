//! `[tls.acme]` of the proxy's configuration.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::Uri;
use http::uri::Scheme;
use instant_acme::ExternalAccountKey;
use rouse_conf::Table;
use rouse_conf::check::word;
use rustls::RootCertStore;

use crate::certificate::{LoadError, LoadFault, at, certificates, read_file};
use crate::names::CertificateName;

/// How many certificates a file of CAs may have.
const MAX_CAS: usize = 1024;

/// Which certificates are ordered, where and how. Nothing in it is read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeConfig {
    /// The URL of the CA's directory (RFC 8555, section 7.1.1), with `https`.
    pub directory: String,
    /// Whom the CA writes to, as a URL such as `mailto:ops@example.com`.
    pub contact: Option<String>,
    /// The hosts, each of which gets a certificate of its own. No wildcards; never empty.
    pub names: Vec<CertificateName>,
    /// The directory where account and certificates are kept.
    pub kept: PathBuf,
    /// How the CA is shown that the hosts are served here.
    pub proof: Proof,
    /// Who signs the certificate of the CA's own server; by default whom the system trusts.
    pub ca_file: Option<PathBuf>,
    /// The account with the CA that ours is bound to (RFC 8555, section 7.3.4).
    pub binding: Option<Binding>,
}

/// How a CA is shown that a host is served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// By an answer on port 80 (RFC 8555, section 8.3): see [`Tokens`](super::Tokens).
    Http01,
    /// By a certificate on port 443 (RFC 8737).
    TlsAlpn01,
}

/// An account with a CA, which it has given a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The key's name.
    pub key_id: String,
    /// The file with the key, in base64url as CAs hand it out.
    pub key_file: PathBuf,
}

/// Reads `[tls.acme]`. Relative paths in it are relative to `base`.
pub(crate) fn read(t: &mut Table<'_>, base: &Path) -> Option<AcmeConfig> {
    let path = |path: PathBuf| Ok::<_, String>(Some(base.join(path)));
    let proofs = [("http-01", Proof::Http01), ("tls-alpn-01", Proof::TlsAlpn01)];
    let url = t.required_as("directory", directory);
    let contact = t.optional_as("contact", None, |text| contact(text).map(Some));
    let names = t.required_as("names", names);
    let kept = t.required::<PathBuf>("kept");
    let proof = t.required_as("proof", word(&proofs));
    let ca_file = t.optional_as("ca_file", None, path);
    let agreed = t.required_as("terms_agreed", |agreed: bool| {
        let why = "must be `true`: the CA signs for those only who agree to its terms; read them";
        if agreed { Ok(()) } else { Err(why) }
    });
    let key_id = t.optional::<Option<String>>("eab_key_id", None);
    let key_file = t.optional_as("eab_key_file", None, path);
    let binding = match (key_id, key_file) {
        (Some(key_id), Some(key_file)) => Some(Binding { key_id, key_file }),
        (None, None) => None,
        _ => {
            t.mistake("`eab_key_id` and `eab_key_file` go together; give both, or neither");
            None
        }
    };
    agreed?;
    Some(AcmeConfig {
        directory: url?,
        contact,
        names: names?,
        kept: base.join(kept?),
        proof: proof?,
        ca_file,
        binding,
    })
}

fn directory(text: String) -> Result<String, &'static str> {
    match text.parse::<Uri>() {
        Ok(uri) if uri.scheme() == Some(&Scheme::HTTPS) => Ok(text),
        _ => Err("is the `https://` URL of a CA's directory"),
    }
}

fn contact(text: String) -> Result<String, &'static str> {
    let address = text.strip_prefix("mailto:").unwrap_or(&text);
    let fits = |c: char| c.is_ascii_graphic() && !",?".contains(c);
    match address.split_once('@') {
        // More than one address, and header fields, are not allowed (RFC 8555, section 7.3).
        Some((name, host)) if !name.is_empty() && !host.is_empty() && address.chars().all(fits) => {
            Ok(format!("mailto:{address}"))
        }
        _ => Err("is one mail address"),
    }
}

fn names(list: Vec<String>) -> Result<Vec<CertificateName>, String> {
    let mut seen = BTreeSet::new();
    for text in list {
        let name = text.parse::<CertificateName>().map_err(|error| error.to_string())?;
        if name.is_wildcard() {
            return Err(format!(
                "`{name}`: a wildcard can be proven by DNS only; give its certificate by file"
            ));
        }
        if text.parse::<IpAddr>().is_ok() {
            return Err(format!("`{name}` is an address; host names are signed"));
        }
        if !seen.insert(name.clone()) {
            return Err(format!("has `{name}` twice"));
        }
    }
    if seen.is_empty() {
        Err("needs a host name".to_owned())
    } else {
        Ok(seen.into_iter().collect())
    }
}

impl AcmeConfig {
    /// What is wrong with the files that are named here.
    pub(crate) fn check(&self) -> Vec<LoadError> {
        self.roots().err().into_iter().chain(self.external().err()).collect()
    }

    /// Who signs for the CA's server; none if whom the system trusts.
    pub(crate) fn roots(&self) -> Result<Option<RootCertStore>, LoadError> {
        let Some(file) = &self.ca_file else { return Ok(None) };
        let at = at(file);
        let found = certificates(&read_file(file)?, MAX_CAS).map_err(&at)?;
        if found.is_empty() {
            return Err(at(LoadFault::NoCertificate));
        }
        let mut roots = RootCertStore::empty();
        for certificate in found {
            roots.add(certificate).map_err(|e| at(LoadFault::BadCertificate(e.to_string())))?;
        }
        Ok(Some(roots))
    }

    /// The key of the account that ours is bound to.
    pub(crate) fn external(&self) -> Result<Option<ExternalAccountKey>, LoadError> {
        let Some(Binding { key_id, key_file }) = &self.binding else { return Ok(None) };
        let text = read_file(key_file)?;
        let text = text.trim_ascii();
        let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
        match BASE64_URL_SAFE_NO_PAD.decode(&text[..end]) {
            Ok(key) if !key.is_empty() => Ok(Some(ExternalAccountKey::new(key_id.clone(), &key))),
            // What is wrong would show what is in the file.
            _ => Err(at(key_file)(LoadFault::NotBase64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn parse(text: &str) -> Result<Config, String> {
        rouse_conf::parse_text(Path::new("p.toml"), text, |file| {
            Some(file.table("tls", |t| crate::config::read(t, Path::new("/etc/rouse"))))
        })
        .map_err(|refused| refused.to_string())
    }

    const LEAST: &str = "[tls.acme]\ndirectory = 'https://ca.example/dir'\nnames = ['a.example']\n\
        kept = 'k'\nproof = 'http-01'\nterms_agreed = true\n";

    #[test]
    fn the_whole_of_it() {
        let least = AcmeConfig {
            directory: "https://ca.example/dir".to_owned(),
            contact: None,
            names: vec!["a.example".parse().unwrap()],
            kept: "/etc/rouse/k".into(),
            proof: Proof::Http01,
            ca_file: None,
            binding: None,
        };
        assert_eq!(parse(LEAST).unwrap().acme, Some(least.clone()));
        let whole = format!(
            "{}contact = 'ops@a.example'\nca_file = 'ca.pem'\neab_key_id = 'k'\n\
             eab_key_file = '/e/key'\n",
            LEAST
                .replace("['a.example']", "['B.example', 'a.example']")
                .replace("http-", "tls-alpn-")
        );
        let expected = AcmeConfig {
            contact: Some("mailto:ops@a.example".to_owned()),
            names: vec!["a.example".parse().unwrap(), "b.example".parse().unwrap()],
            proof: Proof::TlsAlpn01,
            ca_file: Some("/etc/rouse/ca.pem".into()),
            binding: Some(Binding { key_id: "k".to_owned(), key_file: "/e/key".into() }),
            ..least
        };
        assert_eq!(parse(&whole).unwrap().acme, Some(expected));
        assert_eq!(parse("[tls]").unwrap().acme, None);
    }

    #[test]
    fn every_mistake_with_line_and_hint() {
        let got = parse(
            "[tls.acme]\ndirectory = 'http://ca.example'\ncontact = 'a, b@c'\nnames = []\n\
             proof = 'dns-01'\nterms_agreed = false\neab_key_id = 'x'\n",
        );
        assert_eq!(
            got.unwrap_err(),
            "p.toml:1: `tls.acme.kept` is missing\n\
             p.toml:1: `eab_key_id` and `eab_key_file` go together; give both, or neither\n\
             p.toml:2: `tls.acme.directory`: is the `https://` URL of a CA's directory\n\
             p.toml:3: `tls.acme.contact`: is one mail address\n\
             p.toml:4: `tls.acme.names`: needs a host name\n\
             p.toml:5: `tls.acme.proof`: is one of `http-01`, `tls-alpn-01`\n\
             p.toml:6: `tls.acme.terms_agreed`: must be `true`: the CA signs for those only who \
             agree to its terms; read them"
        );
        for (names, part) in [
            ("['*.a.example']", "by DNS only"),
            ("['a.example', 'A.example']", "has `a.example` twice"),
            ("['192.0.2.1']", "is an address"),
            ("['a b']", "is no name"),
        ] {
            let got = parse(&LEAST.replace("['a.example']", names)).unwrap_err();
            assert!(got.contains(part), "{names}: {got}");
        }
        let got = parse("[tls.acme]").unwrap_err();
        for key in ["directory", "names", "kept", "proof", "terms_agreed"] {
            assert!(got.contains(&format!("`tls.acme.{key}` is missing")), "{got}");
        }
    }

    #[test]
    fn its_files_are_checked_all_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (ca, key) = (dir.path().join("ca.pem"), dir.path().join("key"));
        let mut acme = parse(LEAST).unwrap().acme.unwrap();
        acme.ca_file = Some(ca.clone());
        acme.binding = Some(Binding { key_id: "k".to_owned(), key_file: key.clone() });
        let config = Config { acme: Some(acme), ..Config::default() };
        let errors = || crate::load(&config).map(drop).unwrap_err();
        assert_eq!(errors().len(), 2);
        std::fs::write(&ca, "x").unwrap();
        for text in ["", "=", "a b", "zWND+"] {
            std::fs::write(&key, text).unwrap();
            let errors = errors();
            assert_eq!(errors[0].file, ca);
            assert!(matches!(errors[1].fault, LoadFault::NotBase64), "{text}: {errors:?}");
        }
        let made = rcgen::generate_simple_self_signed(["ca.example".to_owned()]).unwrap();
        std::fs::write(&ca, made.cert.pem()).unwrap();
        for text in ["zWNDZM6eQGHWpSRTPal5eA", "zWNDZM6eQGHWpSRTPal5eA==\n"] {
            std::fs::write(&key, text).unwrap();
            crate::load(&config).unwrap_or_else(|errors| panic!("{text}: {errors:?}"));
        }
    }

    #[test]
    fn a_default_may_be_ordered() {
        let text = format!("[tls]\ndefault = 'a.example'\n{LEAST}");
        crate::load(&parse(&text).unwrap()).unwrap();
        let text = text.replace("default = 'a", "default = 'b");
        let errors = crate::load(&parse(&text).unwrap()).unwrap_err();
        assert!(matches!(errors[0].fault, LoadFault::NoDefault(_)), "{errors:?}");
    }
}
