use http::{Request, Uri};

use super::*;
use crate::client::client;
use crate::trusted::Trusted;

const TRUSTED: &str = "10.0.0.1:5";
const STRANGER: &str = "192.0.2.9:5";

fn parts(fields: &[(&str, &str)]) -> Parts {
    let mut request = Request::new(());
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        request.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
    }
    request.into_parts().0
}

fn decided(peer: &str, tls: bool, rules: &Rules, parts: &Parts) -> Rewrite {
    let trusted: Trusted = ["10.0.0.0/8".parse().unwrap()].into_iter().collect();
    let peer = Peer::new(peer.parse().unwrap(), tls, &trusted);
    rewrite(&peer, &client(&peer, rules, &trusted, &parts.headers), rules, parts)
}

/// What an app gets, in order of names.
fn got(peer: &str, tls: bool, rules: &Rules, fields: &[(&str, &str)]) -> Vec<String> {
    let mut parts = parts(fields);
    decided(peer, tls, rules, &parts).apply(&mut parts.headers);
    let lines = parts.headers.iter().map(|(n, v)| format!("{n}: {}", v.to_str().unwrap()));
    let mut lines: Vec<_> = lines.collect();
    lines.sort_unstable();
    lines
}

#[test]
fn a_fresh_request_gets_two() {
    assert_eq!(
        got(STRANGER, true, &Rules::default(), &[("host", "a.example")]),
        ["host: a.example", "x-forwarded-for: 192.0.2.9", "x-forwarded-proto: https",]
    );
    let v6 = got("[2001:db8::9]:5", false, &Rules::default(), &[]);
    assert_eq!(v6[0], "x-forwarded-for: 2001:db8::9");
}

#[test]
fn an_authority_stands_for_a_host() {
    let mut parts = parts(&[]);
    parts.uri = Uri::from_static("https://a.example:8443/");
    let rules = Rules { forwarded: true, ..Rules::default() };
    decided(STRANGER, true, &rules, &parts).apply(&mut parts.headers);
    let forwarded = parts.headers["forwarded"].to_str().unwrap();
    assert!(forwarded.contains("a.example:8443"), "{forwarded}");
}

#[test]
fn what_a_stranger_says_is_replaced_or_gone() {
    let fields = [
        ("host", "a.example"),
        ("x-forwarded-for", "1.1.1.1"),
        ("x-forwarded-for", "2.2.2.2"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-port", "1"),
        ("x-forwarded-prefix", "/x"),
        ("X-Forwarded-Anything", "x"),
        ("x-real-ip", "1.1.1.1"),
        ("cf-connecting-ip", "1.1.1.1"),
        ("true-client-ip", "1.1.1.1"),
        ("x-own", "1.1.1.1"),
        ("forwarded", "for=1.1.1.1"),
        ("x-forwarded", "stays"),
    ];
    let name = Some(HeaderName::from_static("x-own"));
    let rules = Rules { client_ip_header: name, ..Rules::default() };
    assert_eq!(
        got(STRANGER, false, &rules, &fields),
        [
            "host: a.example",
            "x-forwarded-for: 192.0.2.9",
            "x-forwarded-proto: http",
            "x-forwarded: stays",
        ]
    );
}

#[test]
fn what_a_trusted_front_says_is_kept() {
    let fields = [
        ("host", "inside"),
        ("x-forwarded-for", "1.1.1.1"),
        ("x-forwarded-for", "198.51.100.1, 10.0.0.2"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "a.example"),
        ("x-forwarded-prefix", "/x"),
        ("x-real-ip", "198.51.100.1"),
    ];
    assert_eq!(
        got(TRUSTED, false, &Rules::default(), &fields),
        [
            "host: inside",
            "x-forwarded-for: 1.1.1.1, 198.51.100.1, 10.0.0.2, 10.0.0.1",
            "x-forwarded-host: a.example",
            "x-forwarded-prefix: /x",
            "x-forwarded-proto: https",
            "x-real-ip: 198.51.100.1",
        ]
    );
}

#[test]
fn a_value_that_is_right_is_left_alone() {
    let parts = parts(&[("x-forwarded-proto", "https"), ("x-forwarded-port", "443")]);
    let changes: Vec<_> = decided(TRUSTED, false, &Rules::default(), &parts).changes().collect();
    let value = HeaderValue::from_static("10.0.0.1");
    assert_eq!(changes, [Change::Set(Field::ForwardedFor, value)]);
}

#[test]
fn a_client_told_in_one_header_is_in_the_list_too() {
    let name = Some(HeaderName::from_static("cf-connecting-ip"));
    let rules = Rules { client_ip_header: name, forwarded: true, real_ip: true };
    let fields = [("cf-connecting-ip", "198.51.100.1"), ("x-forwarded-proto", "https")];
    assert_eq!(
        got(TRUSTED, false, &rules, &fields),
        [
            "cf-connecting-ip: 198.51.100.1",
            "forwarded: for=198.51.100.1;proto=https, for=10.0.0.1;proto=http",
            "x-forwarded-for: 198.51.100.1, 10.0.0.1",
            "x-forwarded-proto: https",
            "x-real-ip: 198.51.100.1",
        ]
    );
}

#[test]
fn a_configured_name_may_have_underscores() {
    let rules =
        Rules { client_ip_header: Some(HeaderName::from_static("x_own")), ..Rules::default() };
    let has = |peer| got(peer, false, &rules, &[("x_own", "198.51.100.1")]).len() == 3;
    assert!(has(TRUSTED) && !has(STRANGER));
}

#[test]
fn forwarded_is_appended_replaced_or_gone() {
    let on = Rules { forwarded: true, ..Rules::default() };
    let fields = [("host", "a.example"), ("forwarded", "for=198.51.100.1;proto=https")];
    let find = |peer, rules: &Rules| {
        let lines = got(peer, true, rules, &fields);
        lines.into_iter().find(|line| line.starts_with("forwarded:"))
    };
    let appended = "forwarded: for=198.51.100.1;proto=https, for=10.0.0.1;proto=https";
    assert_eq!(find(TRUSTED, &on).as_deref(), Some(appended));
    let replaced = "forwarded: for=192.0.2.9;host=\"a.example\";proto=https";
    assert_eq!(find(STRANGER, &on).as_deref(), Some(replaced));
    assert_eq!(find(TRUSTED, &Rules::default()), None);
    assert_eq!(find(STRANGER, &Rules::default()), None);
}

#[test]
fn shadows_and_h2c_are_taken_off_whoever_sends_them() {
    let fields = [
        ("host", "a.example"),
        ("x_forwarded_for", "1.1.1.1"),
        ("X-Forwarded_Proto", "https"),
        ("x_real_ip", "1.1.1.1"),
        ("my_header", "stays"),
        ("upgrade", "H2C, websocket"),
        ("http2-settings", "AAMAAABkAAQAAP__"),
    ];
    for peer in [TRUSTED, STRANGER] {
        let lines = got(peer, false, &Rules::default(), &fields);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines.contains(&"my_header: stays".to_owned()));
    }
    let lines = got(STRANGER, false, &Rules::default(), &[("upgrade", "websocket")]);
    assert!(lines.contains(&"upgrade: websocket".to_owned()));
}

#[test]
fn a_field_has_one_name() {
    for field in Field::ALL {
        assert_eq!(field.name().as_str(), field.lower());
        assert_eq!(field.title().to_ascii_lowercase(), field.lower());
    }
}

proptest::proptest! {
    #[test]
    fn what_was_sane_stays_sane(
        names in proptest::collection::vec("x-forwarded-(for|proto|host|port)|forwarded|cf-connecting-ip", 0..8),
        value in "[ -~]{0,30}|a\\.example(:[0-9]{1,5})?",
    ) {
        let mut fields: Vec<_> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
        fields.push(("host", "a.example"));
        let rules = Rules { forwarded: true, real_ip: true, client_ip_header: None };
        for peer in [TRUSTED, STRANGER] {
            let mut parts = parts(&fields);
            decided(peer, true, &rules, &parts).apply(&mut parts.headers);
            let sane = crate::sanity::check(&crate::Request::of(&parts, b"/"));
            proptest::prop_assert_eq!(sane, Ok(()));
            proptest::prop_assert_eq!(&parts.headers["host"], "a.example");
        }
    }

    #[test]
    fn for_a_stranger_twice_is_as_once(
        names in proptest::collection::vec("x[-_]forwarded[-_](for|proto|host|x)|forwarded|upgrade|host", 0..8),
        value in "[ -~]{0,30}",
    ) {
        let fields: Vec<_> = names.iter().map(|name| (name.as_str(), value.as_str())).collect();
        let mut parts = parts(&fields);
        let rules = Rules { forwarded: true, real_ip: true, client_ip_header: None };
        decided(STRANGER, true, &rules, &parts).apply(&mut parts.headers);
        proptest::prop_assert_eq!(decided(STRANGER, true, &rules, &parts).changes().count(), 0);
    }
}
