//! Who claims what. All changes go through here; what requests see is the [`RouteTable`].

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use rouse_protocol::app::AppId;

use crate::slot::Claim;
use crate::{RouteTable, Rule};

/// The rules of all apps, and the table that they make.
///
/// `T` is what a look-up finds, and is kept once for each rule: something cheap to clone, such as an `Arc`.
pub struct Routes<T> {
    table: Arc<RouteTable<T>>,
    apps: HashMap<Arc<AppId>, Box<[Rule]>>,
    /// The age of the next claim.
    next: u64,
}

/// A rule that an app claims in vain, for now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{app} claims {rule}, which {holder} has claimed before it, and gets it when {holder} lets go of it; to have both served, give one of them another host, path or header"
)]
pub struct Conflict {
    /// Who waits.
    pub app: AppId,
    /// For what.
    pub rule: Rule,
    /// Who has it.
    pub holder: AppId,
}

/// A rule that has passed from an app that let go of it to the one that had waited longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// What.
    pub rule: Rule,
    /// From whom.
    pub from: AppId,
    /// To whom.
    pub to: AppId,
}

/// What a change of one app's rules has led to, besides itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "a conflict is worth a line in the log"]
pub struct Changed {
    /// All rules of this app that another one has, also those that it had before.
    pub conflicts: Vec<Conflict>,
    /// What others have got.
    pub passed: Vec<Passed>,
}

impl<T> Default for Routes<T> {
    fn default() -> Self {
        Self { table: Arc::default(), apps: HashMap::new(), next: 0 }
    }
}

impl<T> fmt::Debug for Routes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").field("apps", &self.apps.len()).finish_non_exhaustive()
    }
}

impl<T> Routes<T> {
    /// The table as it is now. It stays so; what is changed later is in later ones.
    pub fn table(&self) -> Arc<RouteTable<T>> {
        self.table.clone()
    }

    /// How many apps there are.
    pub fn len(&self) -> usize {
        self.apps.len()
    }

    /// Whether there are no apps.
    pub fn is_empty(&self) -> bool {
        self.apps.is_empty()
    }

    /// The apps, in no order, each with its rules.
    pub fn apps(&self) -> impl Iterator<Item = (&AppId, &[Rule])> {
        self.apps.iter().map(|(app, rules)| (&**app, &**rules))
    }

    /// The rules of an app; none where there is no such app.
    pub fn rules(&self, app: &AppId) -> Option<&[Rule]> {
        self.apps.get(app).map(|rules| &**rules)
    }

    /// All conflicts there are, in no order. Goes through all rules.
    pub fn conflicts(&self) -> impl Iterator<Item = Conflict> {
        self.apps.iter().flat_map(|(app, rules)| self.conflicts_of(app, rules))
    }

    fn conflicts_of(&self, app: &AppId, rules: &[Rule]) -> impl Iterator<Item = Conflict> {
        rules.iter().filter_map(|rule| {
            let holder = self.table.slot_of(rule)?.holder(&rule.headers)?;
            (**holder != *app).then(|| Conflict {
                app: app.clone(),
                rule: rule.clone(),
                holder: AppId::clone(holder),
            })
        })
    }
}

impl<T: Clone> Routes<T> {
    /// Gives `app` these rules instead of those it had, and `target` to be found by them. It is no
    /// younger than it was in what it goes on to claim. A rule that is there twice counts once.
    pub fn set(
        &mut self,
        app: &AppId,
        rules: impl IntoIterator<Item = Rule>,
        target: T,
    ) -> Changed {
        let (id, old) = match self.apps.remove_entry(app) {
            Some(known) => known,
            None => (Arc::new(app.clone()), Box::default()),
        };
        let mut wanted = HashSet::new();
        let mut kept = Vec::new();
        for rule in rules {
            if wanted.insert(rule.clone()) {
                kept.push(rule);
            }
        }
        let gone = old.iter().filter(|rule| !wanted.contains(*rule));
        let passed = self.release(app, gone);
        let rules = kept.into_boxed_slice();
        let table = Arc::make_mut(&mut self.table);
        for rule in &rules {
            let (target, app, headers) = (target.clone(), id.clone(), rule.headers.clone());
            let claim = Claim { target, headers, app, age: self.next };
            self.next += 1;
            table.change(rule, |slot| slot.claim(claim));
        }
        let conflicts = self.conflicts_of(app, &rules).collect();
        self.apps.insert(id, rules);
        Changed { conflicts, passed }
    }

    /// Takes all rules of `app` back. Nothing happens where there is no such app.
    pub fn remove(&mut self, app: &AppId) -> Changed {
        match self.apps.remove(app) {
            Some(rules) => {
                Changed { passed: self.release(app, rules.iter()), conflicts: Vec::new() }
            }
            None => Changed::default(),
        }
    }

    fn release<'r>(&mut self, app: &AppId, rules: impl Iterator<Item = &'r Rule>) -> Vec<Passed> {
        let mut rules = rules.peekable();
        if rules.peek().is_none() {
            return Vec::new();
        }
        let table = Arc::make_mut(&mut self.table);
        let passed = rules.filter_map(|rule| {
            let next = table.change(rule, |slot| slot.release(app, &rule.headers))?;
            Some(Passed { rule: rule.clone(), from: app.clone(), to: AppId::clone(&next) })
        });
        passed.collect()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;

    fn app(id: &str) -> AppId {
        id.parse().unwrap()
    }

    fn rule(json: &str) -> Rule {
        serde_json::from_str(json).unwrap()
    }

    /// Each app with its rules, entered in this order; the target is the id.
    fn routes(apps: &[(&'static str, &[&str])]) -> Routes<&'static str> {
        let mut routes = Routes::default();
        for (id, rules) in apps {
            let rules: Vec<_> = rules.iter().map(|json| rule(json)).collect();
            assert_eq!(routes.set(&app(id), rules, *id), Changed::default());
        }
        routes
    }

    fn get(
        routes: &Routes<&'static str>,
        host: &str,
        path: &str,
        headers: &[&'static str],
    ) -> String {
        let with = |name: &&'static str| {
            (http::HeaderName::from_static(name), HeaderValue::from_static("1"))
        };
        let headers: HeaderMap = headers.iter().map(with).collect();
        let table = routes.table();
        (*table.lookup(host, path, &headers).unwrap_or(&"-")).to_owned()
    }

    #[test]
    fn the_most_specific_host_wins() {
        let routes = routes(&[
            ("any", &[r#""*""#]),
            ("wild", &[r#""*.b.example""#]),
            ("exact", &[r#""a.b.example""#, r#""[::1]""#]),
        ]);
        for (host, expected) in [
            ("a.b.example", "exact"),
            ("A.B.Example.:8443", "exact"),
            ("[::1]:80", "exact"),
            ("x.b.example", "wild"),
            ("X.b.example:1", "wild"),
            ("b.example", "any"),
            ("x.a.b.example", "any"),
            ("a.b.example:", "exact"),
            ("a.b.example:x", "-"),
            ("a.b.example:1:1", "-"),
            ("[::1", "-"),
            ("[::1]x", "-"),
            ("127.0.0.1", "any"),
            (&*"x.".repeat(200), "-"),
            (".b.example", "-"),
            ("", "-"),
            ("a b", "-"),
        ] {
            assert_eq!(get(&routes, host, "/x", &[]), expected, "{host}");
        }
    }

    #[test]
    fn the_longest_path_wins_whatever_the_spelling() {
        let routes = routes(&[
            ("root", &[r#""a""#]),
            ("api", &[r#"{"host":"a","path":"/api"}"#]),
            ("admin", &[r#"{"host":"a","path":"/api/v1/admin/"}"#]),
        ]);
        for (path, expected) in [
            ("/", "root"),
            ("", "root"),
            ("*", "root"),
            ("/apix", "root"),
            ("/API", "root"),
            ("/?/api", "root"),
            ("/api/..", "root"),
            ("/api", "api"),
            ("/api/", "api"),
            ("/api?x", "api"),
            ("/api/v1/adminx", "api"),
            ("/%61pi", "api"),
            ("//api", "api"),
            ("/./api", "api"),
            ("/x/../api", "api"),
            ("/x/%2e%2e/api", "api"),
            ("/x%2f..%2Fapi%2fx", "api"),
            ("/api%3fx", "root"),
            ("/api/v1/admin", "admin"),
            ("/api/v1//admin/x?", "admin"),
            ("/api/v1/public/..%2fadmin", "admin"),
        ] {
            assert_eq!(get(&routes, "a", path, &[]), expected, "{path}");
        }
    }

    #[test]
    fn what_does_not_match_falls_through() {
        let routes = routes(&[
            ("beta", &[r#"{"host":"a.b","path":"/x/y","headers":{"x-beta":"1"}}"#]),
            ("exact", &[r#"{"host":"a.b","path":"/x","headers":{"x-other":true}}"#]),
            ("wild", &[r#"{"host":"*.b","path":"/x"}"#]),
            ("any", &[r#"{"host":"*","path":"/"}"#]),
        ]);
        assert_eq!(get(&routes, "a.b", "/x/y", &["x-beta", "x-other"]), "beta");
        assert_eq!(get(&routes, "a.b", "/x/y", &["x-other"]), "exact");
        assert_eq!(get(&routes, "a.b", "/x/y", &[]), "wild");
        assert_eq!(get(&routes, "a.b", "/y", &["x-beta", "x-other"]), "any");
    }

    #[test]
    fn more_headers_win_and_then_the_id() {
        let routes = routes(&[
            ("plain", &[r#""a""#]),
            ("z", &[r#"{"host":"a","headers":{"x-1":true,"x-2":true}}"#]),
            ("c", &[r#"{"host":"a","headers":{"x-1":true}}"#]),
            ("b", &[r#"{"host":"a","headers":{"x-2":true}}"#]),
        ]);
        assert_eq!(get(&routes, "a", "/", &["x-1", "x-2"]), "z");
        assert_eq!(get(&routes, "a", "/", &["x-1"]), "c");
        assert_eq!(get(&routes, "a", "/", &["x-2"]), "b");
        assert_eq!(get(&routes, "a", "/", &[]), "plain");
        let mut routes = routes;
        let _ = routes.remove(&app("z"));
        assert_eq!(get(&routes, "a", "/", &["x-1", "x-2"]), "b");
    }

    #[test]
    fn the_older_claim_keeps_it_until_it_goes() {
        let mut routes = routes(&[("old", &[r#""a""#])]);
        let conflict = |id: &str, holder: &str| Conflict {
            app: app(id),
            rule: rule(r#""a""#),
            holder: app(holder),
        };
        let got = routes.set(&app("mid"), [rule(r#"{"host":"A.","path":"/"}"#)], "mid");
        assert_eq!(got.conflicts, [conflict("mid", "old")]);
        assert!(got.conflicts[0].to_string().starts_with("mid claims a, which old has claimed"));
        let got = routes.set(&app("apple"), [rule(r#""a""#), rule(r#""b""#)], "apple");
        assert_eq!(got.conflicts, [conflict("apple", "old")]);
        assert_eq!(routes.conflicts().count(), 2);

        // A new target and other rules do not make a claim younger.
        let got = routes.set(&app("mid"), [rule(r#""c""#), rule(r#""a""#)], "mid2");
        assert_eq!(got.conflicts, [conflict("mid", "old")]);
        let got = routes.set(&app("old"), [rule(r#""a""#), rule(r#""d""#)], "old2");
        assert_eq!(got, Changed::default());
        assert_eq!(get(&routes, "a", "/", &[]), "old2");

        let passed =
            |from: &str, to: &str| Passed { rule: rule(r#""a""#), from: app(from), to: app(to) };
        let got = routes.set(&app("old"), [rule(r#""d""#)], "old3");
        assert_eq!(got.passed, [passed("old", "mid")]);
        assert_eq!(get(&routes, "a", "/", &[]), "mid2");
        // Whoever waits and goes takes nothing along; who comes back is the youngest.
        assert_eq!(routes.remove(&app("apple")), Changed::default());
        let got = routes.set(&app("apple"), [rule(r#""a""#)], "apple");
        assert_eq!(got.conflicts, [conflict("apple", "mid")]);
        assert_eq!(routes.remove(&app("mid")).passed, [passed("mid", "apple")]);
        assert_eq!(get(&routes, "a", "/", &[]), "apple");
        assert_eq!(routes.conflicts().count(), 0);
    }

    #[test]
    fn a_table_stays_as_it_was_and_nothing_is_left_behind() {
        let rules = [r#""a""#, r#"{"host":"*.a","path":"/x/y"}"#, r#"{"host":"*","path":"/z"}"#];
        let mut routes = routes(&[("one", &rules)]);
        let before = routes.table();
        assert_eq!(routes.remove(&app("one")), Changed::default());
        assert_eq!(routes.remove(&app("one")), Changed::default());
        assert_eq!(before.lookup("b.a", "/x/y", &HeaderMap::new()), Some(&"one"));
        let after = routes.table();
        assert_eq!(after.lookup("b.a", "/x/y", &HeaderMap::new()), None);
        assert_eq!(after.size(), (0, 0));
        assert!(routes.is_empty());
    }

    #[test]
    fn the_deepest_path_there_is() {
        let deep = "/x".repeat(crate::MAX_DEPTH);
        let json = format!(r#"{{"host":"a","path":"{deep}"}}"#);
        let mut routes = routes(&[("root", &[r#""a""#]), ("deep", &[&json])]);
        assert_eq!(get(&routes, "a", &format!("{deep}/x/x"), &[]), "deep");
        assert_eq!(get(&routes, "a", &format!("{deep}x"), &[]), "root");
        assert_eq!(get(&routes, "a", &deep[2..], &[]), "root");
        let _ = routes.remove(&app("deep"));
        assert_eq!(get(&routes, "a", &deep, &[]), "root");
        assert_eq!(routes.table().size(), (1, 0));
    }

    #[test]
    fn a_rule_twice_counts_once() {
        let mut routes = Routes::default();
        let got = routes.set(&app("one"), [rule(r#""a""#), rule(r#""A""#)], "one");
        assert_eq!(got, Changed::default());
        assert_eq!(routes.rules(&app("one")).map(<[Rule]>::len), Some(1));
        let _ = routes.remove(&app("one"));
        assert_eq!(routes.table().size(), (0, 0));
    }
}
