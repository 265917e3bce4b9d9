//! Any changes in any order leave what a plain list of all rules says.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::cmp::Reverse;
use std::collections::BTreeSet;

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use rouse_protocol::app::{AppId, Host};
use rouse_route::{HeaderMatch, HeaderMatches, HostPattern, Routes, Rule, Want};

/// One claim of the list, the oldest first.
struct Claim {
    app: AppId,
    rule: Rule,
    target: usize,
}

#[derive(Default)]
struct Reference {
    claims: Vec<Claim>,
}

impl Reference {
    fn set(&mut self, app: &AppId, rules: &[Rule], target: usize) {
        self.claims.retain(|claim| claim.app != *app || rules.contains(&claim.rule));
        for rule in rules {
            match self.claims.iter_mut().find(|claim| claim.app == *app && claim.rule == *rule) {
                Some(claim) => claim.target = target,
                None => self.claims.push(Claim { app: app.clone(), rule: rule.clone(), target }),
            }
        }
    }

    fn holder(&self, rule: &Rule) -> Option<&AppId> {
        self.claims.iter().find(|claim| claim.rule == *rule).map(|claim| &claim.app)
    }

    /// Each rule claimed, with who has it.
    fn holders(&self) -> Vec<(Rule, AppId)> {
        let held = self.claims.iter().filter(|c| self.holder(&c.rule) == Some(&c.app));
        held.map(|c| (c.rule.clone(), c.app.clone())).collect()
    }

    /// App, rule, holder.
    fn conflicts(&self) -> BTreeSet<(String, String, String)> {
        let waiting = self.claims.iter().filter_map(|claim| {
            let holder = self.holder(&claim.rule).filter(|holder| **holder != claim.app)?;
            Some((claim.app.to_string(), claim.rule.to_string(), holder.to_string()))
        });
        waiting.collect()
    }

    fn lookup(&self, host: &str, path: &str, headers: &HeaderMap) -> Option<usize> {
        let host = Host::parse(host).ok()?;
        let path = segments(path);
        let matching = self.claims.iter().filter(|claim| {
            host_rank(&claim.rule.host, host.as_str()).is_some()
                && path_of(&claim.rule).is_none_or(|prefix| path.starts_with(&prefix))
                && claim.rule.headers.as_slice().iter().all(|one| has(headers, one))
                && self.holder(&claim.rule) == Some(&claim.app)
        });
        let best = matching.min_by_key(|claim| {
            (
                host_rank(&claim.rule.host, host.as_str()),
                Reverse(path_of(&claim.rule).map_or(0, |prefix| prefix.len())),
                Reverse(claim.rule.headers.as_slice().len()),
                claim.app.clone(),
            )
        });
        best.map(|claim| claim.target)
    }
}

fn host_rank(pattern: &HostPattern, host: &str) -> Option<u8> {
    let labels: Vec<_> = host.split('.').collect();
    match pattern {
        HostPattern::Exact(wanted) => (wanted.as_str() == host).then_some(0),
        HostPattern::Wildcard(parent) => {
            let parent: Vec<_> = parent.as_str().split('.').collect();
            (labels[1..] == parent).then_some(1)
        }
        HostPattern::Any => Some(2),
    }
}

fn path_of(rule: &Rule) -> Option<Vec<String>> {
    (!rule.path.is_root()).then(|| segments(&rule.path.to_string()))
}

/// The segments that a path names, by way of strings: this alphabet encodes three characters only.
fn segments(path: &str) -> Vec<String> {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    if !path.starts_with('/') {
        return Vec::new();
    }
    let decoded = path.to_lowercase().replace("%2f", "/").replace("%2e", ".").replace("%61", "a");
    let mut segments: Vec<String> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other.to_owned()),
        }
    }
    segments
}

fn has(headers: &HeaderMap, wanted: &HeaderMatch) -> bool {
    let mut lines = headers.iter().filter(|(name, _)| **name == wanted.name);
    match &wanted.want {
        Want::Present => lines.next().is_some(),
        Want::Value(value) => lines.any(|(_, line)| line == value),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Set(AppId, Vec<Rule>),
    Remove(AppId),
}

fn app() -> impl Strategy<Value = AppId> {
    select(vec!["a", "b", "c", "d"]).prop_map(|id| id.parse().unwrap())
}

fn rule() -> impl Strategy<Value = Rule> {
    let host = select(vec!["h", "a.h", "b.a.h", "*.h", "*.a.h", "*"]);
    let path = select(vec!["/", "/", "/a", "/a/b", "/a/b/c", "/ab", "/%61/", "/c"]);
    let headers = subsequence(vec![("x-1", Some("1")), ("x-2", None), ("x-3", Some("1"))], 0..=3);
    (host, path, headers, any::<bool>()).prop_map(|(host, path, headers, plain)| {
        let headers = if plain { Vec::new() } else { headers };
        let headers = headers.into_iter().map(|(n, v)| HeaderMatch::new(n, v).unwrap()).collect();
        Rule {
            host: host.parse().unwrap(),
            path: path.parse().unwrap(),
            headers: HeaderMatches::new(headers).unwrap(),
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (app(), prop::collection::vec(rule(), 0..6)).prop_map(|(app, rules)| Step::Set(app, rules)),
        1 => app().prop_map(Step::Remove),
    ]
}

fn request() -> impl Strategy<Value = (String, String, HeaderMap)> {
    let host =
        select(vec!["h", "a.h", "A.H.:80", "b.a.h", "x.h", "x.a.h", "x.x.h", "z", "", "a..h"]);
    let piece =
        select(vec!["/", "/a", "/b", "/c", "/ab", "/.", "/..", "%2f", "/%2e%2E", "/%61", "?/a"]);
    let path = prop::collection::vec(piece, 0..7).prop_map(|pieces| pieces.concat());
    let line = (select(vec!["x-1", "x-2", "x-3"]), select(vec!["1", "2"]));
    let headers = prop::collection::vec(line, 0..4).prop_map(|lines| {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    });
    (host.prop_map(str::to_owned), path, headers)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn the_table_is_what_the_list_says(
        steps in prop::collection::vec(step(), 1..12),
        requests in prop::collection::vec(request(), 1..24),
    ) {
        let (mut routes, mut reference) = (Routes::default(), Reference::default());
        for (target, step) in steps.into_iter().enumerate() {
            let (before, held) = (routes.table(), reference.holders());
            let told = requests.iter().map(|(h, p, headers)| before.lookup(h, p, headers).copied());
            let told: Vec<_> = told.collect();
            let (app, changed) = match step {
                Step::Set(app, rules) => {
                    reference.set(&app, &rules, target);
                    let changed = routes.set(&app, rules, target);
                    (app, changed)
                }
                Step::Remove(app) => {
                    reference.set(&app, &[], target);
                    let changed = routes.remove(&app);
                    prop_assert_eq!(routes.rules(&app), None);
                    (app, changed)
                }
            };
            let table = routes.table();
            for ((host, path, headers), told) in requests.iter().zip(told) {
                let expected = reference.lookup(host, path, headers);
                prop_assert_eq!(table.lookup(host, path, headers).copied(), expected, "{} {}", host, path);
                prop_assert_eq!(before.lookup(host, path, headers).copied(), told);
            }

            let text = |c: &rouse_route::Conflict| {
                (c.app.to_string(), c.rule.to_string(), c.holder.to_string())
            };
            let expected = reference.conflicts();
            prop_assert_eq!(routes.conflicts().map(|c| text(&c)).collect::<BTreeSet<_>>(), expected.clone());
            let its: BTreeSet<_> = changed.conflicts.iter().map(text).collect();
            let expected = expected.into_iter().filter(|(a, ..)| *a == app.to_string()).collect();
            prop_assert_eq!(its, expected);

            let passed: BTreeSet<_> = changed.passed.iter()
                .map(|p| (p.rule.to_string(), p.from.to_string(), p.to.to_string())).collect();
            let expected = held.iter().filter_map(|(rule, from)| {
                let to = reference.holder(rule).filter(|to| *to != from)?;
                Some((rule.to_string(), from.to_string(), to.to_string()))
            }).collect();
            prop_assert_eq!(passed, expected);
        }
    }

    #[test]
    fn a_rule_travels(rule in rule()) {
        let json = serde_json::to_string(&rule).unwrap();
        prop_assert_eq!(serde_json::from_str::<Rule>(&json).unwrap(), rule);
    }
}
