//! One rule, as a value, a JSON message and a table in a file.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{HeaderMatches, HostPattern, PathPrefix};

/// Which requests are an app's.
///
/// In a file and in a message it is a table, `{ host = "a.example", path = "/api", headers = {
/// "x-beta" = "1" } }`, or, where only the host counts, that host as a string.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Which hosts.
    pub host: HostPattern,
    /// Which paths of them; `/` is all.
    pub path: PathPrefix,
    /// What headers the request must have besides.
    pub headers: HeaderMatches,
}

impl From<HostPattern> for Rule {
    fn from(host: HostPattern) -> Self {
        Self { host, path: PathPrefix::default(), headers: HeaderMatches::default() }
    }
}

impl fmt::Display for Rule {
    /// As `a.example/api with x-beta: 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(f)?;
        if !self.path.is_root() {
            self.path.fmt(f)?;
        }
        if !self.headers.as_slice().is_empty() {
            write!(f, " with {}", self.headers)?;
        }
        Ok(())
    }
}

/// A [`Rule`] as a table.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Whole {
    host: HostPattern,
    #[serde(default, skip_serializing_if = "PathPrefix::is_root")]
    path: PathPrefix,
    #[serde(default, skip_serializing_if = "is_empty")]
    headers: HeaderMatches,
}

fn is_empty(headers: &HeaderMatches) -> bool {
    headers.as_slice().is_empty()
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.path.is_root() && is_empty(&self.headers) {
            return serializer.collect_str(&self.host);
        }
        let Self { host, path, headers } = self.clone();
        Whole { host, path, headers }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either)
    }
}

struct Either;

impl<'de> Visitor<'de> for Either {
    type Value = Rule;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a host, or a table with `host` and perhaps `path` and `headers`")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Rule, E> {
        HostPattern::deserialize(StrDeserializer::new(text)).map(Rule::from)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Rule, A::Error> {
        let Whole { host, path, headers } = Whole::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Rule { host, path, headers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_there_and_back() {
        for (json, shown) in [
            (r#""a.example""#, "a.example"),
            (r#""*.example""#, "*.example"),
            (r#"{"host":"*","path":"/api"}"#, "*/api"),
            (r#"{"host":"a.example","headers":{"x-beta":"1"}}"#, "a.example with x-beta: 1"),
            (
                r#"{"host":"a.example","path":"/api","headers":{"x-beta":"1","x-z":true}}"#,
                "a.example/api with x-beta: 1, x-z",
            ),
        ] {
            let rule: Rule = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&rule).unwrap(), json);
            assert_eq!(rule.to_string(), shown);
        }
        let long: Rule =
            serde_json::from_str(r#"{"host":"A.example","path":"/","headers":{}}"#).unwrap();
        assert_eq!(serde_json::to_string(&long).unwrap(), r#""a.example""#);
    }

    #[test]
    fn refusals() {
        for (json, why) in [
            (r#""a:80""#, "without a port"),
            ("{}", "missing field `host`"),
            (r#"{"path":"/"}"#, "missing field `host`"),
            (r#"{"host":"a","path":"api"}"#, "a path starts with `/`"),
            (r#"{"host":"a","paht":"/api"}"#, "unknown field `paht`"),
            (r#"{"host":"a","host":"b"}"#, "duplicate field `host`"),
            ("1", "a host, or a table with `host`"),
            ("null", "a host, or a table with `host`"),
        ] {
            let got = serde_json::from_str::<Rule>(json).unwrap_err().to_string();
            assert!(got.contains(why), "{json}: {got}");
        }
    }
}
