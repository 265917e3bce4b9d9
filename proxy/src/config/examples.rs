//! The files in `conf/` that people start from: whole, right, and true.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::*;

const EVERY_KEY: &str = include_str!("../../../conf/rouse.toml");
/// A key that is like none of ours, so that a mistake names all that are known.
const STRANGE: &str = "qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq";

fn conf() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf")
}

fn read(text: &str) -> Result<Config, Refused> {
    rouse_conf::parse_text(Path::new("p.toml"), text, |t| parse(t, Path::new("/etc/rouse")))
}

/// The key or the header of a table that is commented out in this line.
fn commented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("# ")?;
    let key = rest.split_once(" = ").is_some_and(|(key, _)| is_key(key));
    (key || rest.starts_with('[')).then_some(rest)
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b"_0123456789".contains(&b))
}

/// The file with everything in it that is commented out, but for what this build does not know.
fn uncommented() -> String {
    let mut text = String::new();
    let mut known = true;
    for line in EVERY_KEY.lines() {
        let line = commented(line).unwrap_or(line);
        if line.starts_with('[') {
            known = cfg!(feature = "otel") || !line.starts_with("[otel]");
        }
        if known {
            writeln!(text, "{line}").unwrap();
        }
    }
    // A header with the client's address is somebody's word.
    text.replace("trusted_proxies = []", "trusted_proxies = ['10.0.0.0/8']")
}

/// `[a.b]` and `[[a.b]]` are `a.b`.
fn table_of(line: &str) -> Option<&str> {
    line.strip_prefix('[')?.trim_start_matches('[').split(']').next()
}

/// The keys of a text, table by table; tables are keys of those that they are in.
fn keys(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::from([(String::new(), BTreeSet::new())]);
    let mut here = String::new();
    for line in text.lines() {
        let found = if let Some(table) = table_of(line) {
            here = table.to_owned();
            all.entry(here.clone()).or_default();
            let (under, key) = table.rsplit_once('.').unwrap_or(("", table));
            Some((under.to_owned(), key))
        } else {
            let key = line.split_once(" = ").map(|(key, _)| key).filter(|key| is_key(key));
            key.map(|key| (here.clone(), key))
        };
        if let Some((table, key)) = found {
            all.entry(table).or_default().insert(key.to_owned());
        }
    }
    all
}

/// The keys that are asked for, table by table: what is said of a strange one in each.
fn asked(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut strange = format!("{STRANGE} = 0\n");
    for line in text.lines() {
        writeln!(strange, "{line}").unwrap();
        if table_of(line).is_some() {
            writeln!(strange, "{STRANGE} = 0").unwrap();
        }
    }
    let refused = read(&strange).unwrap_err();
    let of = |message: &str| {
        let (key, known) = message.strip_prefix("unknown key `")?.split_once("`; known here: ")?;
        let table = key.strip_suffix(STRANGE)?.trim_end_matches('.').to_owned();
        Some((table, known.split(", ").map(str::to_owned).collect()))
    };
    refused.mistakes.iter().map(|mistake| of(&mistake.message).expect(&mistake.message)).collect()
}

#[test]
fn every_key_that_is_read_is_shown_and_no_other() {
    let text = uncommented();
    assert_eq!(keys(&text), asked(&text));
}

#[test]
fn what_is_commented_out_is_right() {
    let config = read(&uncommented()).unwrap();
    let tls = config.tls.unwrap();
    assert!(tls.acme.is_some() && tls.client_ca.is_some());
    assert_eq!(config.listeners.len(), 3);
    assert_eq!((config.rouse.origins.len(), config.rouse.origins[0].rules.len()), (1, 2));
}

#[test]
fn what_is_shown_is_what_is_meant_when_it_is_left_out() {
    let name = |text: &str| text.replace("[server]", "[server]\nname = 'n'");
    let mut whole = read(&name(EVERY_KEY)).unwrap();
    let least = "[listen]\nhttp = ['127.0.0.1:8080']\nadmin = '127.0.0.1:9901'\n\
                 [waker]\nsocket = '/run/rouse/waker.sock'\n[server]\n";
    let mut least = read(&name(least)).unwrap();
    assert_eq!(whole.shown, least.shown);
    (whole.shown, least.shown) = (String::new(), String::new());
    assert_eq!(format!("{whole:#?}"), format!("{least:#?}"));
}

#[test]
fn the_values_of_tls_that_are_shown_are_those_that_are_meant() {
    let defaults = rouse_tls::Config::default();
    for key in ["min_version", "handshake_seconds", "alpn"] {
        let at = |text: &str| text.lines().find(|line| line.starts_with(key)).map(str::to_owned);
        let line = at(&uncommented()).expect(key);
        let text =
            format!("{}\n[tls]\n{line}\n", "[[origin]]\nid='a'\nhosts=['a']\naddress='[::1]:1'");
        let config = read(&format!("[listen]\nhttp = ['[::1]:2']\n{text}")).unwrap();
        assert_eq!(config.tls.as_ref(), Some(&defaults), "{line}");
    }
}

#[test]
fn the_examples_are_right() {
    load(&conf().join("rouse.toml")).unwrap();
    let mut seen = BTreeMap::new();
    for entry in std::fs::read_dir(conf().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        let config = load(&path).unwrap_or_else(|refused| panic!("{refused}"));
        seen.insert(path.file_stem().unwrap().to_str().unwrap().to_owned(), config);
    }
    let cdn = &seen["behind-a-cdn"];
    assert!(cdn.listeners.iter().all(|l| l.proxy_protocol == ProxyProtocol::Off));
    assert!(cdn.listeners.iter().any(|l| l.redirect && l.speaks == Speaks::Http));
    assert!(cdn.tls.as_ref().unwrap().client_ca.is_some());
    assert_eq!(cdn.downstream.trusted.files.len(), 2);
    let end = &seen["tls-end"];
    assert!(end.tls.as_ref().unwrap().acme.is_some());
    assert_eq!(end.downstream.trusted, Source::default());
    let balanced = &seen["behind-a-load-balancer"];
    assert!(balanced.listeners.iter().all(|l| l.proxy_protocol == ProxyProtocol::On));
    assert_eq!(seen.len(), 3, "each is looked at");
    // A socket of systemd's is known by its address.
    let unit = include_str!("../../../conf/systemd/rouse-proxy.socket");
    let ports: Vec<SocketAddr> = unit
        .lines()
        .filter_map(|line| line.strip_prefix("ListenStream="))
        .map(|address| address.parse().unwrap())
        .collect();
    for listener in seen.values().flat_map(|config| &config.listeners) {
        assert!(ports.contains(&listener.address), "{} is none of {ports:?}", listener.address);
    }
}
