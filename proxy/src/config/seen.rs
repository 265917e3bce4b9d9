//! What is seen from outside: `[log]`, `[health]`, and who may ask the operators' listener.

use std::net::SocketAddr;
use std::path::Path;

use rouse_conf::Table;
use rouse_conf::check::{between, word};
use rouse_proxy::{AccessOptions, HealthOptions, SeenOptions, Target, Tracing};

/// The path of our own health, unless another is given.
const HEALTH: &str = "/.well-known/rouse-health";

/// Where operators ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdminAt {
    pub(crate) address: SocketAddr,
    /// It takes no orders.
    pub(crate) read_only: bool,
}

/// `[listen] admin`, `admin_public` and `admin_read_only`.
pub(super) fn admin(t: &mut Table<'_>) -> Option<AdminAt> {
    let public = t.optional("admin_public", false);
    let read_only = t.optional("admin_read_only", false);
    let address = t.optional_as("admin", None, |address: SocketAddr| {
        if public || address.ip().to_canonical().is_loopback() {
            Ok(Some(address))
        } else {
            Err("anybody could read and stop this server there; give a loopback address, or \
                 `admin_public = true` if the network sees to it that nobody does")
        }
    });
    address.map(|address| AdminAt { address, read_only })
}

/// `[log]` and `[health]`.
pub(super) fn seen(file: &mut Table<'_>, base: &Path) -> SeenOptions {
    let (access, tracing) = file.table("log", |t| {
        let target = t.optional_as("access", None, |text: String| target(base, &text));
        let sample = t.optional_as("sample", 1.0, between(0.0, 1.0));
        let query = t.optional("query", false);
        let words = [("pass", Tracing::Pass), ("always", Tracing::Always)];
        let tracing = t.optional_as("trace", Tracing::Pass, word(&words));
        (target.map(|target| AccessOptions { target, sample, query }), tracing)
    });
    let health = file.table("health", |t| {
        let path = t.optional_as("path", HEALTH.to_owned(), health_path);
        let log = t.optional("log", false);
        (!path.is_empty()).then_some(HealthOptions { path, log })
    });
    SeenOptions {
        access,
        tracing,
        health,
        #[cfg(feature = "otel")]
        otel: otel(file),
    }
}

/// `[otel]`.
#[cfg(feature = "otel")]
fn otel(file: &mut Table<'_>) -> Option<rouse_proxy::OtelOptions> {
    file.table("otel", |t| {
        let endpoint = t.optional_as("endpoint", None, |text: String| endpoint(&text).map(Some));
        let name = |name: String| {
            if (1..=128).contains(&name.len()) { Ok(name) } else { Err("has 1 to 128 bytes") }
        };
        let service_name = t.optional_as("service_name", "rouse-proxy".to_owned(), name);
        let sample = t.optional_as("sample", 0.0, between(0.0, 1.0));
        endpoint.map(|endpoint| rouse_proxy::OtelOptions { endpoint, service_name, sample })
    })
}

/// A URL; one without a path is the collector's as a whole.
#[cfg(feature = "otel")]
fn endpoint(text: &str) -> Result<String, &'static str> {
    const WHAT: &str = "is the URL of a collector, http://HOST:PORT[/v1/traces]";
    let uri: http::Uri = text.parse().map_err(|_| WHAT)?;
    let good = uri.scheme_str() == Some("http") && uri.host().is_some_and(|host| !host.is_empty());
    match uri.path() {
        _ if !good => Err(WHAT),
        "" | "/" => Ok(format!("{}/v1/traces", text.trim_end_matches('/'))),
        _ => Ok(text.to_owned()),
    }
}

fn target(base: &Path, text: &str) -> Result<Option<Target>, &'static str> {
    match text {
        "off" => Ok(None),
        "stdout" => Ok(Some(Target::Stdout)),
        // A word that was misspelt is no file's name.
        path if path.contains('/') && !path.ends_with('/') => {
            Ok(Some(Target::File(base.join(path))))
        }
        _ => Err("is \"off\", \"stdout\", or a file's path with a '/' in it"),
    }
}

fn health_path(path: String) -> Result<String, &'static str> {
    let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'?' | b'#');
    let good = path.is_empty() || (path.starts_with('/') && path.len() <= 256);
    if good && path.bytes().all(plain) {
        Ok(path)
    } else {
        Err("is empty, or a path from '/' on without query, of at most 256 plain characters")
    }
}

#[cfg(test)]
mod tests {
    use rouse_conf::Refused;

    use super::super::{Config, DEFAULTS, parse};
    use super::*;

    const LISTEN: &str = "[listen]\nhttp = ['127.0.0.1:1']\n";

    fn read(text: &str) -> Result<Config, Refused> {
        rouse_conf::parse_text(Path::new("p.toml"), text, |t| parse(t, Path::new("/etc/rouse")))
    }

    fn good(more: &str) -> Config {
        read(&format!("{LISTEN}{more}\n[waker]\nsocket = '/s'\n[server]\nname = 'n'\n")).unwrap()
    }

    fn refused(more: &str) -> String {
        read(&format!("{LISTEN}{more}\n[waker]\nsocket = '/s'\n")).unwrap_err().to_string()
    }

    #[test]
    fn where_lines_go() {
        let file = |path: &str| Some(Target::File(path.into()));
        for (word, target) in [
            ("off", None),
            ("stdout", Some(Target::Stdout)),
            ("/var/log/a.log", file("/var/log/a.log")),
            ("./a.log", file("/etc/rouse/./a.log")),
        ] {
            let config = good(&format!("[log]\naccess = '{word}'\nsample = 0.5\nquery = true"));
            let access = config.rouse.seen.access;
            assert_eq!(access.as_ref().map(|a| a.target.clone()), target);
            assert!(access.is_none_or(|a| a.query && a.sample.to_bits() == 0.5f64.to_bits()));
        }
        for word in ["of", "", "dir/"] {
            assert!(
                refused(&format!("[log]\naccess = '{word}'")).contains("`log.access`: is \"off\"")
            );
        }
    }

    #[test]
    fn what_is_out_of_bounds() {
        for sample in ["-0.1", "1.5", "nan"] {
            let got = refused(&format!("[log]\nsample = {sample}"));
            assert!(got.contains("p.toml:4: `log.sample`: is between 0 and 1"), "{got}");
        }
        assert!(refused("[log]\ntrace = 'never'").contains("`log.trace`"));
        for path in ["health", "/a?b", "/a b", "/ä"] {
            let got = refused(&format!("[health]\npath = '{path}'"));
            assert!(got.contains("p.toml:4: `health.path`: is empty, or a path"), "{got}");
        }
    }

    #[test]
    fn health_is_there_unless_it_is_switched_off() {
        let health = |more: &str| good(more).rouse.seen.health;
        assert_eq!(health(""), Some(HealthOptions { path: HEALTH.to_owned(), log: false }));
        assert_eq!(health("[health]\npath = ''"), None);
        assert_eq!(health("[health]\nlog = true").map(|health| health.log), Some(true));
        assert_eq!(good("[log]\ntrace = 'always'").rouse.seen.tracing, Tracing::Always);
    }

    #[cfg(feature = "otel")]
    #[test]
    fn where_spans_go() {
        let otel = |more: &str| good(&format!("[otel]\n{more}")).rouse.seen.otel;
        assert_eq!(otel("sample = 1"), None);
        for (given, taken) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("http://otel/x", "http://otel/x"),
        ] {
            let otel = otel(&format!("endpoint = '{given}'")).unwrap();
            assert_eq!((&*otel.endpoint, &*otel.service_name), (taken, "rouse-proxy"));
        }
        for wrong in ["https://h:1", "h:4318", "", "/v1/traces"] {
            let got = refused(&format!("[otel]\nendpoint = '{wrong}'"));
            assert!(got.contains("p.toml:4: `otel.endpoint`: is the URL"), "{got}");
        }
    }

    #[test]
    fn operators_are_asked_on_loopback_unless_it_is_said_otherwise() {
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(good(&format!("admin = '{address}'")).admin.is_some());
        }
        for address in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            let got = refused(&format!("admin = '{address}'"));
            assert!(got.contains("p.toml:3: `listen.admin`: anybody could read"), "{got}");
            assert!(good(&format!("admin = '{address}'\nadmin_public = true")).admin.is_some());
        }
    }

    #[test]
    fn the_defaults_that_are_shown_are_those_that_are_meant() {
        let config = good("");
        let shown = read(&config.shown).unwrap();
        assert_eq!(format!("{shown:?}"), format!("{config:?}"));
        for line in DEFAULTS.lines().filter(|line| !line.is_empty()) {
            assert!(config.shown.contains(line), "{line} is not in {}", config.shown);
        }
    }
}
