//! `rouse.toml`: parsed whole or refused whole, with every mistake at once.

#[cfg(test)]
mod examples;
mod seen;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rouse_conf::check::{base, between, millis, seconds, socket};
use rouse_conf::{Refused, Table};
use rouse_downstream::Downstream;
use rouse_downstream::config::proxy_protocol;
use rouse_downstream::proxy_protocol::ProxyProtocol;
use rouse_downstream::trusted::Source;
use rouse_protocol::app::AppId;
use rouse_protocol::route;
use rouse_proxy::{Limits, Options, Origin};

pub(crate) use self::seen::AdminAt;
use crate::listen::{Listener, Speaks};
/// What a file that says nothing means, for operators to see. A test holds it against the code.
const DEFAULTS: &str = include_str!("config/defaults.toml");

/// A configuration that was found good.
#[derive(Debug)]
pub(crate) struct Config {
    /// Where visitors come in.
    pub(crate) listeners: Vec<Listener>,
    /// Certificates, and how they are served; none: nowhere.
    pub(crate) tls: Option<rouse_tls::Config>,
    /// Whose word is taken, and how many may come.
    pub(crate) downstream: Downstream,
    /// Where operators look.
    pub(crate) admin: Option<AdminAt>,
    /// All of it as operators may see it, TOML.
    pub(crate) shown: String,
    /// Worker threads of each service.
    pub(crate) threads: usize,
    /// How long requests may go on after a SIGTERM.
    pub(crate) grace: Duration,
    /// And when another process has taken over: holds, streams and WebSockets too.
    pub(crate) drain: Duration,
    /// The rest is the plugin's.
    pub(crate) rouse: Options,
}

/// Reads and parses `file`. Relative paths in it are relative to its directory.
pub(crate) fn load(file: &Path) -> Result<Config, Refused> {
    let base = base(file);
    rouse_conf::read(file, |table| parse(table, &base))
}

fn parse(file: &mut Table<'_>, base: &Path) -> Option<Config> {
    let defaults = Options::default();
    let (listeners, admin) = file.table("listen", listeners);
    let tls = file.has("tls").then(|| file.table("tls", |t| rouse_tls::read(t, base)));
    if tls.is_none() && listeners.iter().any(|listener| listener.speaks == Speaks::Https) {
        file.mistake("`listen.https` needs certificates: give `[tls]`");
    }
    let downstream = file.table("downstream", |t| rouse_downstream::config::read(t, base));
    if downstream.trusted == Source::default()
        && listeners.iter().any(|listener| listener.proxy_protocol == ProxyProtocol::On)
    {
        file.mistake(
            "`listen.proxy_protocol` is taken from trusted proxies only, and there are none; give \
             `downstream.trusted_proxies`",
        );
    }
    let waker =
        file.table("waker", |t| t.optional_as("socket", None, |p| socket(base)(p).map(Some)));
    let limits = file.table("hold", |t| {
        let Limits { holds_per_app, holds_total, release_at_once, gate } = defaults.limits;
        let mut count = |key, default| t.optional_as(key, default, between(1, 1_000_000));
        Limits {
            holds_per_app: count("per_app", holds_per_app),
            holds_total: count("total", holds_total),
            release_at_once: count("release_at_once", release_at_once),
            gate,
        }
    });
    let connecting = file.table("upstream", |t| {
        let mut connecting = defaults.connecting;
        connecting.connect = t.optional_as("connect_ms", connecting.connect, millis(1, 60_000));
        connecting.idle = t.optional_as("idle_ms", connecting.idle, millis(1, 600_000));
        connecting
    });
    let (threads, grace, drain, name) = file.table("server", |t| {
        let threads = t.optional_as("threads", 2, between(1, 1024));
        let grace = t.optional_as("grace_seconds", Duration::from_secs(30), seconds(0, 86_400));
        let hour = Duration::from_secs(3600);
        let drain = t.optional_as("drain_seconds", hour, seconds(0, 7 * 86_400));
        let named = |name: String| {
            if is_name(&name) {
                Ok(name)
            } else {
                Err("has 1 to 128 letters, digits, '-', '_' or '.', and no others")
            }
        };
        (threads, grace, drain, t.optional_as("name", default_name(), named))
    });
    let (mut ids, mut claimed) = (HashSet::new(), HashSet::new());
    let origins = file.tables("origin", |t| {
        let id = t.required_as("id", |id: AppId| {
            if ids.insert(id.clone()) { Ok(id) } else { Err(format!("{id} is there twice")) }
        });
        let rules = route::read(t);
        for rule in rules.iter().flatten().filter(|rule| !claimed.insert((*rule).clone())) {
            t.mistake(&format!("{rule} is another origin's already"));
        }
        let address = t.required("address");
        Some(Origin { id: id?, rules: rules?, address: address? })
    });
    if waker.is_none() && origins.is_empty() {
        file.mistake("nothing to serve: give `[waker] socket`, or at least one `[[origin]]`");
    }
    let seen = seen::seen(file, base);
    let shown = rouse_conf::shown(file.text(), DEFAULTS).unwrap_or_default();
    let rouse = Options { name, waker, limits, connecting, origins, edge: None, seen };
    Some(Config { listeners, tls, downstream, admin, shown, threads, grace, drain, rouse })
}

/// `[listen]`: addresses by what is spoken there, and the admin's.
fn listeners(t: &mut Table<'_>) -> (Vec<Listener>, Option<AdminAt>) {
    let proxy_protocol = proxy_protocol(t);
    let redirect = t.optional("redirect_https", false);
    let mut all: Vec<Listener> = Vec::new();
    for (key, speaks) in [("http", Speaks::Http), ("https", Speaks::Https), ("h2c", Speaks::H2c)] {
        let redirect = redirect && speaks == Speaks::Http;
        let known: Vec<_> = all.iter().map(|listener| listener.address).collect();
        let once = |addresses: Vec<SocketAddr>| {
            let twice = addresses.iter().enumerate().find(|(at, address)| {
                address.port() != 0
                    && (known.contains(address) || addresses[..*at].contains(address))
            });
            match twice {
                Some((_, address)) => Err(format!("{address} is there twice")),
                None => Ok(addresses),
            }
        };
        let addresses = t.optional_as(key, Vec::new(), once);
        let of = |address| Listener { address, speaks, proxy_protocol, redirect };
        all.extend(addresses.into_iter().map(of));
    }
    if all.is_empty() {
        t.mistake("nobody can come in: give at least one address in `http`, `https` or `h2c`");
    }
    (all, seen::admin(t))
}

fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=128).contains(&name.len()) && name.chars().all(allowed)
}

/// Host name and process id: unlike any other proxy's.
fn default_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().filter(|c| is_name(&c.to_string())).take(64).collect();
    let host = if host.is_empty() { "proxy" } else { &host };
    format!("{host}-{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, Refused> {
        rouse_conf::parse_text(Path::new("p.toml"), text, |t| parse(t, Path::new("/etc/rouse")))
    }

    fn refused(text: &str) -> Vec<String> {
        read(text).unwrap_err().to_string().lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_whole_of_it() {
        let config = read(
            r#"
            [listen]
            http = ["127.0.0.1:8080", "[::1]:8080"]
            admin = "127.0.0.1:9901"
            [waker]
            socket = "waker.sock"
            [hold]
            per_app = 10
            total = 20
            release_at_once = 3
            [upstream]
            connect_ms = 500
            idle_ms = 1000
            [server]
            threads = 4
            grace_seconds = 5
            name = "edge-1"
            [[origin]]
            id = "static"
            hosts = ["Static.Localhost", "*.b.example."]
            routes = [{ host = "c.example", path = "/static" }]
            address = "127.0.0.1:9000"
            "#,
        )
        .unwrap();
        assert_eq!(config.listeners.len(), 2);
        let admin = AdminAt { address: ([127, 0, 0, 1], 9901).into(), read_only: false };
        assert_eq!(config.admin, Some(admin));
        assert_eq!((config.threads, config.grace), (4, Duration::from_secs(5)));
        let rouse = config.rouse;
        assert_eq!(rouse.name, "edge-1");
        assert_eq!(rouse.waker.as_deref(), Some(Path::new("/etc/rouse/waker.sock")));
        let limits = rouse.limits;
        assert_eq!((limits.holds_per_app, limits.holds_total, limits.release_at_once), (10, 20, 3));
        assert_eq!(rouse.connecting.connect, Duration::from_millis(500));
        let rules: Vec<_> = rouse.origins[0].rules.iter().map(ToString::to_string).collect();
        assert_eq!(rules, ["static.localhost", "*.b.example", "c.example/static"]);
    }

    #[test]
    fn little_is_needed() {
        let text = "[listen]\nhttp = ['127.0.0.1:0']\n[waker]\nsocket = '/run/rouse/s'\n";
        let config = read(text).unwrap();
        assert_eq!(
            (config.threads, config.grace, config.admin),
            (2, Duration::from_secs(30), None)
        );
        assert!(is_name(&config.rouse.name), "{}", config.rouse.name);
        assert_eq!(config.rouse.limits, Limits::default());
    }

    #[test]
    fn every_mistake_at_once_with_line_and_hint() {
        let got = refused(
            "[listen]\nhtpp = []\nadmin = 'localhost'\n[hold]\nper_app = 0\ntotal = 'x'\n\
             [sever]\n[server]\nname = 'a b'\nthreads = -1\n[[origin]]\nid = 'A'\n\
             hosts = ['a:80', 'ok']\n[[origin]]\nid = 'b'\nhosts = []\naddress = '::1'\n",
        );
        let expected = [
            "p.toml:1: nobody can come in: give at least one address in `http`, `https` or `h2c`",
            "p.toml:2: unknown key `listen.htpp`; did you mean `http`?",
            "p.toml:3: `listen.admin`: invalid socket address syntax",
            "p.toml:5: `hold.per_app`: is between 1 and 1000000",
            "p.toml:6: `hold.total`: invalid type: string \"x\", expected usize",
            "p.toml:7: unknown key `sever`; did you mean `server`?",
            "p.toml:9: `server.name`: has 1 to 128 letters, digits, '-', '_' or '.', and no others",
            "p.toml:10: `server.threads`: invalid value: integer `-1`, expected usize",
            "p.toml:11: `origin.address` is missing",
            "p.toml:12: `origin.id`: an app id starts with a-z or 0-9 and goes on with a-z, 0-9, '-' or '_'; 'A' is none",
            "p.toml:13: `origin.hosts`: rule 1: a host is configured without a port",
            "p.toml:16: `origin.hosts`: needs at least one host",
            "p.toml:17: `origin.address`: invalid socket address syntax",
        ];
        for line in expected {
            assert!(got.iter().any(|got| got == line), "{line} is not in {got:#?}");
        }
    }

    #[test]
    fn broken_toml_and_wrong_shapes() {
        assert!(refused("[listen\nhttp = 1\n")[0].starts_with("p.toml:1: "));
        assert!(refused("listen = 1\nwaker = []\norigin = {}\n").len() >= 3);
        let nothing = refused("[listen]\nhttp = ['127.0.0.1:1']\n");
        assert_eq!(
            nothing,
            ["p.toml: nothing to serve: give `[waker] socket`, or at least one `[[origin]]`"]
        );
    }

    #[test]
    fn two_origins_may_not_claim_the_same() {
        let origin = "[[origin]]\nid = 'a'\nhosts = ['h']\naddress = '127.0.0.1:1'\n";
        let got = refused(&format!("[listen]\nhttp = ['127.0.0.1:1']\n{origin}{origin}"));
        assert_eq!(
            got,
            ["p.toml:7: h is another origin's already", "p.toml:8: `origin.id`: a is there twice"]
        );
    }
}
