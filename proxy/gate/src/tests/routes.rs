//! Which app a request is for, while apps come and go.

use http::{HeaderName, HeaderValue};

use super::outside::Sim;
use super::*;

/// A gate whose waker tells `hello` at [`HOST`], and what `change` adds.
async fn world(change: impl FnOnce(&Sim)) -> World {
    World::with(Limits::default(), change).await
}

impl World {
    /// Whose a request is; `-`: nobody's.
    fn whose(&self, host: &str, path: &str, headers: &[(&'static str, &'static str)]) -> String {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let headers: HeaderMap = headers.iter().map(pair).collect();
        let visitor = self.gate.enter(host, path, &headers, Instant::now());
        visitor.map_or("-".to_owned(), |visitor| visitor.app().id().to_string())
    }

    async fn becomes(&self, host: &str, whose: &str) {
        eventually(|| self.whose(host, "/", &[]) == whose).await;
    }

    /// Who claims something in vain.
    fn unserved(&self) -> Vec<String> {
        let mut apps: Vec<_> = self.gate.unserved().iter().map(|u| u.app.to_string()).collect();
        apps.sort();
        apps
    }
}

#[tokio::test(start_paused = true)]
async fn the_most_specific_rule_holds() {
    let world = world(|sim| {
        sim.other("wild", &[r#""*.test""#]);
        sim.other("rest", &[r#""*""#]);
        sim.other("api", &[r#"{"host":"hello.test","path":"/api"}"#]);
        sim.other("beta", &[r#"{"host":"hello.test","headers":{"x-beta":"1"}}"#]);
    })
    .await;
    for (host, path, app) in [
        ("hello.test", "/", "hello"),
        ("HELLO.test.:80", "/apix?/api", "hello"),
        ("a.test", "/", "wild"),
        ("a.hello.test", "/", "rest"),
        ("[::1]:80", "/", "rest"),
        ("a b", "/", "-"),
        ("hello.test", "/api?x", "api"),
        ("hello.test", "//x/%2e%2e/%61pi/x", "api"),
        ("a.test", "/api", "wild"),
    ] {
        assert_eq!(world.whose(host, path, &[]), app, "{host}{path}");
    }
    assert_eq!(world.whose(HOST, "/", &[("x-beta", "1")]), "beta");
    assert_eq!(world.whose(HOST, "/", &[("x-beta", "2")]), "hello");
    assert_eq!(world.whose(HOST, "/api", &[("x-beta", "1")]), "api");
    assert_eq!(world.unserved(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_apps_rules_change_and_it_stays_the_same_app() {
    let world = world(|sim| sim.other("one", &[r#""one.test""#])).await;
    let before = world.find("one.test").unwrap();
    world.sim.other("one", &[r#""uno.test""#]);
    world.becomes("uno.test", "one").await;
    assert!(world.find("one.test").is_none());
    let after = world.find("uno.test").unwrap();
    assert!(Arc::ptr_eq(before.app(), after.app()));
    // Word of its state alone changes nothing.
    world.sim.other("one", &[r#""uno.test""#]);
    tokio::time::sleep(ms(10)).await;
    assert!(Arc::ptr_eq(before.app(), world.find("uno.test").unwrap().app()));
}

#[tokio::test(start_paused = true)]
async fn an_app_under_another_id_is_another_app() {
    let world = world(|sim| sim.other("old", &[r#""a.test""#])).await;
    // While the waker is away it is renamed: nobody finds the host without an app.
    world.sim.die();
    eventually(|| !world.gate.connected()).await;
    world.sim.remove_other("old");
    world.sim.other("new", &[r#""a.test""#]);
    assert_eq!(world.whose("a.test", "/", &[]), "old");
    world.sim.come_back();
    eventually(|| world.gate.connected()).await;
    assert_eq!(world.whose("a.test", "/", &[]), "new");
    assert_eq!(world.unserved(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn the_older_claim_keeps_it_and_passes_it_on() {
    let world = world(|_| {}).await;
    // In the order of their claims, whatever their ids.
    world.sim.other("zoe", &[r#""a.test""#]);
    world.becomes("a.test", "zoe").await;
    world.sim.other("abe", &[r#""a.test""#, r#""abe.test""#]);
    world.becomes("abe.test", "abe").await;
    assert_eq!(world.whose("a.test", "/", &[]), "zoe");
    assert_eq!(world.unserved(), ["abe"]);
    let why = &world.gate.unserved()[0].why;
    assert!(why.starts_with("abe claims a.test, which zoe has claimed before it"), "{why}");

    world.sim.remove_other("zoe");
    world.becomes("a.test", "abe").await;
    assert_eq!(world.unserved(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn of_those_who_come_together_the_first_by_id_has_it() {
    let world = world(|sim| {
        sim.other("zoe", &[r#""a.test""#]);
        sim.other("abe", &[r#""a.test""#]);
    })
    .await;
    assert_eq!(world.whose("a.test", "/", &[]), "abe");
    assert_eq!(world.unserved(), ["zoe"]);
}

#[tokio::test(start_paused = true)]
async fn origins_come_first() {
    let sim = Sim::new();
    // One claims the origin's host, one has its id.
    sim.other("app", &[r#""o.test""#, r#""app.test""#]);
    sim.other("origin", &[r#""origin.test""#]);
    let at = ([127, 0, 0, 1], 80).into();
    let origin = ("origin".parse().unwrap(), vec![rule("o.test"), rule("*.o.test")], at);
    let world = World::at(sim, Limits::default(), vec![origin]).await;
    for (host, app) in [
        ("o.test", "origin"),
        ("a.o.test", "origin"),
        ("app.test", "app"),
        ("origin.test", "-"),
        (HOST, "hello"),
    ] {
        assert_eq!(world.whose(host, "/", &[]), app, "{host}");
    }
    assert_eq!(world.unserved(), ["app", "origin"]);
    assert!(world.find("o.test").unwrap().enter_open().is_some());

    world.sim.remove_other("origin");
    world.sim.remove_other("app");
    eventually(|| world.unserved().is_empty()).await;
    assert_eq!(world.whose("o.test", "/", &[]), "origin", "an origin's rules are not the waker's");
}
