//! Rules in a TOML file: `hosts = ["a.example", "*.example"]`, and where more than the host counts
//! `[[routes]]` with `host = "a.example"` and `path = "/api"`.

use std::collections::HashSet;
use std::fmt;

use rouse_conf::Table;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::Rule;
use crate::MAX_LINE;

/// The most rules that one app has in a file.
pub const MAX_RULES: usize = 64;

/// The most that an app's rules in a file have together, in bytes as they are shown. As JSON they are less
/// than three times that, so that they fit in one line to a proxy ([`MAX_LINE`]).
pub const MAX_WRITTEN: usize = 16 * 1024;

// What is left of the line is for the rest of the app's record.
const _: () = assert!(3 * MAX_WRITTEN < MAX_LINE);

/// Reads an app's rules: under `hosts`, under `routes`, or under both; there must be at least one. None
/// after a mistake; all that are in a list are told at once.
///
/// Either takes either, but a list of hosts reads best under `hosts`, and tables under `[[routes]]`.
pub fn read(table: &mut Table<'_>) -> Option<Vec<Rule>> {
    // Where neither is there, it is the usual one that is missing.
    let hosts = if table.has("hosts") || !table.has("routes") {
        table.required_as("hosts", |items| check(Vec::new(), items))
    } else {
        Some(Vec::new())
    };
    let known = hosts.clone().unwrap_or_default();
    let all = table.optional_as("routes", known.clone(), |items| check(known, items));
    hosts.map(|_| all)
}

/// The rules that there are `already` and those of `items`.
fn check(already: Vec<Rule>, items: Vec<Item>) -> Result<Vec<Rule>, String> {
    match already.len() + items.len() {
        _ if items.is_empty() => return Err("needs at least one host".to_owned()),
        n if n > MAX_RULES => return Err(format!("an app has at most {MAX_RULES} rules, not {n}")),
        _ => {}
    }
    let mut seen: HashSet<_> = already.iter().cloned().collect();
    let (mut rules, mut wrong) = (already, Vec::new());
    for (i, item) in items.into_iter().enumerate() {
        match item.0 {
            Ok(rule) if !seen.insert(rule.clone()) => wrong.push(format!("{rule} is there twice")),
            Ok(rule) => rules.push(rule),
            Err(error) => wrong.push(format!("rule {}: {error}", i + 1)),
        }
    }
    let written: usize = rules.iter().map(|rule| rule.to_string().len()).sum();
    if written > MAX_WRITTEN {
        wrong.push(format!("the rules have at most {MAX_WRITTEN} bytes together, not {written}"));
    }
    if wrong.is_empty() { Ok(rules) } else { Err(wrong.join("; ")) }
}

/// A rule, or what is wrong with it: so that the rest of the list is read all the same.
struct Item(Result<Rule, String>);

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Each)
    }
}

struct Each;

impl<'de> Visitor<'de> for Each {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a host, or a table with `host` and perhaps `path` and `headers`")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Item, E> {
        let rule = Rule::deserialize(StrDeserializer::<E>::new(text));
        Ok(Item(rule.map_err(|error| error.to_string().trim_end().to_owned())))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Item, A::Error> {
        let rule = Rule::deserialize(MapAccessDeserializer::new(map));
        Ok(Item(rule.map_err(|error| error.to_string().trim_end().to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(text: &str) -> Result<Vec<String>, String> {
        let rules = rouse_conf::parse_text(Path::new("a.toml"), text, read);
        let rules = rules.map_err(|refused| refused.to_string())?;
        Ok(rules.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn hosts_and_tables() {
        let text = r#"
            routes = [
                "A.example.",
                "*.example",
                { host = "a.example", path = "/api/", headers = { x-beta = "1", x-b = true } },
            ]
        "#;
        let expected = ["a.example", "*.example", "a.example/api with x-b: true, x-beta: 1"];
        let expected = expected.map(|text| text.replace(": true", ""));
        assert_eq!(parse(text).unwrap(), expected);
        assert_eq!(parse("[[routes]]\nhost = '*'\n").unwrap(), ["*"]);
        let both = "hosts = ['a', '*.a']\n[[routes]]\nhost = 'b'\npath = '/x'\n";
        assert_eq!(parse(both).unwrap(), ["a", "*.a", "b/x"]);
    }

    #[test]
    fn both_lists_are_one() {
        let got = parse("hosts = ['a']\nroutes = [{ host = 'A', path = '/' }]").unwrap_err();
        assert_eq!(got, "a.toml:2: `routes`: a is there twice");
        // What is wrong in one does not hide what is wrong in the other.
        let got = parse("hosts = ['a:1']\nroutes = ['b:1']").unwrap_err();
        assert_eq!(got.lines().count(), 2, "{got}");
        let hosts = |n: usize, c| (0..n).map(|i| format!("'{c}{i}'")).collect::<Vec<_>>().join(",");
        let text = format!("hosts = [{}]\nroutes = [{}]", hosts(60, 'a'), hosts(5, 'b'));
        assert!(parse(&text).unwrap_err().contains("at most 64 rules, not 65"));
    }

    #[test]
    fn all_that_is_wrong_at_once() {
        let text = "\nroutes = ['a', 'b:1', { host = 'c', path = 'x' }, { hots = 'd', path = 1 },\n\
                    { host = 'e', headers = { host = 'f' } }, 'A']";
        let got = parse(text).unwrap_err();
        assert!(got.starts_with("a.toml:2: `routes`: "), "{got}");
        for part in [
            "rule 2: a host is configured without a port",
            "rule 3: a path starts with `/`",
            "rule 4: unknown field `hots`, expected one of `host`, `path`, `headers`",
            "rule 5: `host` is no header to match; use the rule's host",
            "a is there twice",
        ] {
            assert!(got.contains(part), "{part} is not in {got}");
        }
    }

    #[test]
    fn wrong_shapes() {
        for (text, why) in [
            ("", "a.toml: `hosts` is missing"),
            ("routes = []", "a.toml:1: `routes`: needs at least one host"),
            ("routes = 'a'", "a.toml:1: `routes`: invalid type: string \"a\", expected a sequence"),
            ("routes = [1]", "a.toml:1: `routes`: invalid type: integer `1`, expected a host, or"),
        ] {
            let got = parse(text).unwrap_err();
            assert!(got.starts_with(why), "{text}: {got}");
        }
        let many: Vec<_> = (0..=MAX_RULES).map(|i| format!("'h{i}'")).collect();
        let got = parse(&format!("routes = [{}]", many.join(","))).unwrap_err();
        assert!(got.contains("an app has at most 64 rules, not 65"), "{got}");
    }

    #[test]
    fn what_is_read_fits_in_a_line() {
        // The hosts that are longest, and as many headers with as much to escape as there may be.
        let label = |i: usize| format!("{i:02}{}", "x".repeat(61));
        let hosts: Vec<_> = (0..MAX_RULES)
            .map(|i| format!("'*.{}.{}.{}.{}'", label(i), label(i), label(i), "x".repeat(61)))
            .collect();
        assert_eq!(parse(&format!("routes = [{}]", hosts.join(","))).unwrap().len(), MAX_RULES);

        let header = |i: usize| format!("h{i} = '{}'", "\"".repeat(24));
        let headers: Vec<_> = (0..super::super::MAX_HEADERS).map(header).collect();
        let rule = |i: usize| format!("{{host = '{i}', headers = {{ {} }} }}", headers.join(","));
        let text = |n| format!("routes = [{}]", (0..n).map(rule).collect::<Vec<_>>().join(","));
        let rules = rouse_conf::parse_text(Path::new("a.toml"), &text(MAX_RULES), read).unwrap();
        let json = serde_json::to_string(&rules).unwrap();
        assert!(json.len() < 3 * MAX_WRITTEN, "{}", json.len());

        let long = |i: usize| format!("{{host = 'a', path = '/{i}/{}'}}", "x".repeat(500));
        let text = format!("routes = [{}]", (0..40).map(long).collect::<Vec<_>>().join(","));
        let got = parse(&text).unwrap_err();
        assert!(got.contains("the rules have at most 16384 bytes together"), "{got}");
    }
}
