//! Names that certificates are for, and a table of them.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// The longest host name, in bytes (RFC 1035, section 2.3.4, without the final dot).
const MAX_NAME: usize = 253;
/// The longest label of one, in bytes (there too).
const MAX_LABEL: usize = 63;

/// A name that a certificate is for: a host, or `*.` and a domain, which stands for each host one
/// label below that domain (RFC 6125, section 6.4.3). In lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CertificateName {
    wildcard: bool,
    host: Box<str>,
}

/// A text is no name of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no name for a certificate; it is a host name, or `*.` and a domain")]
pub struct NameError(String);

impl CertificateName {
    /// Whether it stands for all hosts one label below a domain.
    pub fn is_wildcard(&self) -> bool {
        self.wildcard
    }

    /// The host; none where it stands for many.
    pub fn host(&self) -> Option<&str> {
        (!self.wildcard).then_some(&self.host)
    }
}

impl FromStr for CertificateName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (wildcard, host) = match text.strip_prefix("*.") {
            Some(domain) => (true, domain),
            None => (false, text),
        };
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        let label = |l: &str| (1..=MAX_LABEL).contains(&l.len()) && l.bytes().all(allowed);
        if text.len() <= MAX_NAME && host.split('.').all(label) {
            Ok(Self { wildcard, host: host.to_ascii_lowercase().into() })
        } else {
            Err(NameError(text.chars().take(MAX_NAME).collect()))
        }
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.wildcard { "*." } else { "" }, self.host)
    }
}

/// Something by name.
#[derive(Clone, Debug)]
pub(crate) struct Names<V> {
    exact: HashMap<Box<str>, V>,
    /// By the domain behind `*.`.
    wildcard: HashMap<Box<str>, V>,
}

impl<V> Default for Names<V> {
    fn default() -> Self {
        Self { exact: HashMap::new(), wildcard: HashMap::new() }
    }
}

impl<V> Names<V> {
    fn side(&mut self, name: &CertificateName) -> &mut HashMap<Box<str>, V> {
        if name.wildcard { &mut self.wildcard } else { &mut self.exact }
    }

    /// Puts `value` in the place of what `name` had.
    pub(crate) fn insert(&mut self, name: &CertificateName, value: V) {
        self.side(name).insert(name.host.clone(), value);
    }

    /// Takes out what `name` has.
    pub(crate) fn remove(&mut self, name: &CertificateName) -> Option<V> {
        self.side(name).remove(&name.host)
    }

    /// What `name` itself has.
    pub(crate) fn get(&self, name: &CertificateName) -> Option<&V> {
        let side = if name.wildcard { &self.wildcard } else { &self.exact };
        side.get(&name.host)
    }

    /// What this very host has. `host` is in lower case, without a final dot.
    pub(crate) fn exact(&self, host: &str) -> Option<&V> {
        self.exact.get(host)
    }

    /// What the domain that `host` is one label below has.
    pub(crate) fn wildcard(&self, host: &str) -> Option<&V> {
        let (label, domain) = host.split_once('.')?;
        if label.is_empty() { None } else { self.wildcard.get(domain) }
    }

    /// Every value.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.exact.values().chain(self.wildcard.values())
    }
}

impl<V> Names<Vec<V>> {
    /// Adds `value` behind what `name` has.
    pub(crate) fn push(&mut self, name: &CertificateName, value: V) {
        self.side(name).entry(name.host.clone()).or_default().push(value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> CertificateName {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_a_name() {
        for (text, shown) in
            [("A.Example", "a.example"), ("*.B.example", "*.b.example"), ("x_y", "x_y")]
        {
            assert_eq!(name(text).to_string(), shown);
        }
        let long = "a.".repeat(127) + "a";
        let label = "a".repeat(64);
        for text in
            ["", "*", "*.", "a..b", ".a", "a.", "a.*.b", "*.*.b", "f*.b", "a b", "ä", &label, &long]
        {
            assert!(text.parse::<CertificateName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_wildcard_stands_for_one_label() {
        let mut names = Names::default();
        names.insert(&name("*.a.example"), 1);
        names.insert(&name("b.a.example"), 2);
        assert_eq!(names.wildcard("x.a.example"), Some(&1));
        assert_eq!(names.exact("b.a.example"), Some(&2));
        assert_eq!(names.exact("x.a.example"), None);
        for host in ["a.example", "x.y.a.example", ".a.example", "", "example", "*"] {
            assert_eq!(names.wildcard(host), None, "{host}");
        }
        assert_eq!(names.remove(&name("*.a.example")), Some(1));
        assert_eq!(names.wildcard("x.a.example"), None);
        assert_eq!(names.exact("b.a.example"), Some(&2));
    }

    /// Few labels, so that names meet.
    fn host() -> impl Strategy<Value = String> {
        proptest::collection::vec("[ab]", 1..4).prop_map(|labels| labels.join("."))
    }

    proptest! {
        #[test]
        fn any_text_is_a_name_or_not(text in "\\PC*") {
            if let Ok(name) = text.parse::<CertificateName>() {
                prop_assert_eq!(name.to_string().parse::<CertificateName>().unwrap(), name.clone());
                prop_assert_eq!(name.to_string(), text.to_ascii_lowercase());
            }
        }

        #[test]
        fn a_host_finds_what_a_walk_over_all_names_finds(
            names in proptest::collection::vec((any::<bool>(), host()), 0..12),
            asked in host(),
        ) {
            let mut table = Names::default();
            for (i, (wildcard, host)) in names.iter().enumerate() {
                let text = format!("{}{host}", if *wildcard { "*." } else { "" });
                table.push(&name(&text), i);
            }
            let all = |hit: &dyn Fn(&(bool, String)) -> bool| {
                let found: Vec<_> = (0..names.len()).filter(|i| hit(&names[*i])).collect();
                (!found.is_empty()).then_some(found)
            };
            let exact = all(&|(wildcard, host)| !wildcard && *host == asked);
            prop_assert_eq!(table.exact(&asked).cloned(), exact);
            let below = |host: &str| {
                let (_, domain) = asked.split_once('.').unwrap_or((&asked, ""));
                domain == host
            };
            let wildcard = all(&|(wildcard, host)| *wildcard && below(host));
            prop_assert_eq!(table.wildcard(&asked).cloned(), wildcard);
        }
    }
}
