//! Which app a request is for: hosts, paths, headers.

use crate::guest::Guest;
use crate::{World, client, eventually};

/// Apps beside `hello`, each with its page; the world that has them as origins.
struct Town {
    world: World,
    _others: Vec<Guest>,
}

impl Town {
    /// `others`: id and rules, as in `proxy.toml`.
    async fn new(others: &[(&'static str, &str)]) -> Self {
        let (mut guests, mut extra) = (Vec::new(), String::new());
        for (id, rules) in others {
            let guest = Guest::start().await;
            guest.page(id);
            let at = guest.endpoint;
            extra.push_str(&format!("[[origin]]\nid = '{id}'\naddress = '{at}'\n{rules}\n"));
            guests.push(guest);
        }
        let world = World::new(&extra).await;
        world.guest.page("hello");
        Self { world, _others: guests }
    }

    /// Who answers; `-`: nobody, it is an unknown host.
    async fn whose(&self, target: &str, host: &str, more: &str) -> String {
        let head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{more}");
        let reply = self.world.request(&head).await;
        match reply.status {
            200 => reply.body,
            404 => "-".to_owned(),
            status => format!("{status}: {}", reply.body),
        }
    }
}

#[tokio::test]
async fn by_host() {
    let town = Town::new(&[("wild", "hosts = ['*.hello.test']")]).await;
    for (host, app) in [
        ("hello.test", "hello"),
        ("hello.test:8080", "hello"),
        ("HELLO.Test", "hello"),
        ("hello.test.", "hello"),
        ("Hello.test.:1", "hello"),
        ("a.hello.test", "wild"),
        ("A.Hello.test.:80", "wild"),
        ("a.b.hello.test", "-"),
        ("other.test", "-"),
    ] {
        assert_eq!(town.whose("/", host, "").await, app, "{host}");
    }
    let absolute = "http://a.hello.test:80/x";
    assert_eq!(town.whose(absolute, "a.hello.test:80", "").await, "wild");
}

#[tokio::test]
async fn the_rest_goes_to_the_default() {
    let town = Town::new(&[("rest", "hosts = ['*']"), ("wild", "hosts = ['*.test']")]).await;
    for (host, app) in [
        ("hello.test", "hello"),
        ("other.test", "wild"),
        ("a.other.test", "rest"),
        ("127.0.0.1:80", "rest"),
        ("[::1]", "rest"),
    ] {
        assert_eq!(town.whose("/", host, "").await, app, "{host}");
    }
}

#[tokio::test]
async fn by_path_whatever_the_spelling() {
    let api = "routes = [{ host = 'hello.test', path = '/api' }, { host = 'hello.test', path = '/caf%E9' }]";
    let town = Town::new(&[("api", api)]).await;
    for (path, app) in [
        ("/", "hello"),
        ("/apix", "hello"),
        ("/?/api", "hello"),
        ("/API", "hello"),
        ("/api/../x", "hello"),
        ("/api", "api"),
        ("/api/", "api"),
        ("/api/x?y", "api"),
        ("/%61pi", "api"),
        ("//api", "api"),
        ("/x/../api", "api"),
        ("/x/%2e%2E/api", "api"),
        ("/x%2f..%2Fapi%2fx", "api"),
        ("/caf%e9", "api"),
        ("http://hello.test/%61pi", "api"),
        ("http://hello.test", "hello"),
    ] {
        assert_eq!(town.whose(path, "hello.test", "").await, app, "{path}");
    }
    // The app sees what was sent, not what it was matched as.
    let seen = town.world.guest.seen();
    assert!(seen.iter().any(|seen| seen.head.starts_with("GET /api/../x HTTP/1.1\r\n")));
}

#[tokio::test]
async fn a_path_beyond_ascii() {
    let cafe = "routes = [{ host = 'hello.test', path = '/café' }]";
    let town = Town::new(&[("cafe", cafe)]).await;
    assert_eq!(town.whose("/café/x", "hello.test", "").await, "cafe");
    assert_eq!(town.whose("/caf%c3%A9", "hello.test", "").await, "cafe");
    // What is no UTF-8 is nobody's: it could not be told from what it is rendered as.
    let mut stream = client::connect(town.world.proxy.http).await;
    let request = b"/caf\xe9 HTTP/1.1\r\nHost: hello.test\r\nConnection: close\r\n\r\n";
    client::send(&mut stream, "GET ", request).await;
    assert_eq!(client::read(&mut stream).await.status, 400);
}

#[tokio::test]
async fn by_header() {
    let rules = "routes = [{ host = 'hello.test', headers = { x-beta = '1', x-debug = true } }]";
    let town = Town::new(&[("beta", rules)]).await;
    for (headers, app) in [
        ("", "hello"),
        ("X-Beta: 1\r\n", "hello"),
        ("X-Beta: 2\r\nX-Debug: 1\r\n", "hello"),
        ("x-DEBUG: \r\nX-Beta: 1\r\n", "beta"),
        ("X-Beta: 0\r\nX-Beta: 1\r\nX-Debug: y\r\n", "beta"),
    ] {
        assert_eq!(town.whose("/", "hello.test", headers).await, app, "{headers}");
    }
}

#[tokio::test]
async fn rules_change_while_it_runs_and_who_claims_in_vain_is_told() {
    let town = Town::new(&[("first", "hosts = ['first.test']")]).await;
    let world = &town.world;
    assert_eq!(town.whose("/", "hello.test", "").await, "hello");
    assert_eq!(world.proxy.metric("rouse_route_conflicts").await, 0.0);
    assert!(world.proxy.app().await.get("unserved").is_none());

    world.waker.reroute(&[r#""first.test""#, r#"{"host":"*.test","path":"/new"}"#]);
    eventually("the app is at its new place", async || {
        town.whose("/new", "a.test", "").await == "hello"
    })
    .await;
    assert_eq!(town.whose("/", "hello.test", "").await, "-");
    assert_eq!(town.whose("/", "first.test", "").await, "first");
    assert_eq!(world.proxy.metric("rouse_route_conflicts").await, 1.0);
    let why = world.proxy.app().await["unserved"][0].as_str().unwrap().to_owned();
    assert!(why.starts_with("hello claims first.test, which first has claimed before it"), "{why}");
}
