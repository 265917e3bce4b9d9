use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;

const V10: Version = Version::HTTP_10;
const V11: Version = Version::HTTP_11;
const V2: Version = Version::HTTP_2;

fn map(fields: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, text) in fields {
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_bytes(text.as_bytes()).unwrap(),
        );
    }
    headers
}

fn line(
    version: Version,
    method: &str,
    target: &str,
    fields: &[(&str, &str)],
) -> Result<(), Insane> {
    let headers = map(fields);
    let request = Request {
        method: method.as_bytes(),
        version,
        target: target.as_bytes(),
        authority: None,
        headers: &headers,
    };
    check(&request)
}

/// A POST with a good host and these fields.
fn post(version: Version, fields: &[(&str, &str)]) -> Result<(), Insane> {
    line(version, "POST", "/", &[&[("host", "a.example")], fields].concat())
}

#[test]
fn usual_requests_are_sane() {
    let browser = [
        ("host", "a.example"),
        ("connection", "keep-alive"),
        ("cookie", "a=b; c=\"d\""),
        ("accept-language", "de;q=0.9"),
        ("x-name", "M\u{fc}ller\tx"),
    ];
    assert_eq!(line(V11, "GET", "/a?b=%20c&d[]=\u{e4}", &browser), Ok(()));
    assert_eq!(line(V10, "GET", "/", &[]), Ok(()));
    assert_eq!(line(V11, "OPTIONS", "*", &[("host", "a.example")]), Ok(()));
    assert_eq!(line(V11, "GET", "http://a.example/x", &[("host", "A.example:80")]), Ok(()));
    assert_eq!(line(V11, "M-SEARCH", "/", &[("host", "[::1]:80")]), Ok(()));
    for fields in [
        &[("content-length", "0")][..],
        &[("content-length", "0010")],
        &[("content-length", "18446744073709551615")],
        &[("transfer-encoding", "chunked")],
        &[("Transfer-Encoding", "Chunked"), ("expect", "100-Continue")],
        &[("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("content-length", "3")],
        &[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket"), ("content-length", "0")],
        &[("connection", "TE, close, x-hop"), ("te", "trailers, deflate;q=0.5")],
        &[("content_type", "x"), ("my_content_length", "1")],
    ] {
        assert_eq!(post(V11, fields), Ok(()), "{fields:?}");
    }
    assert_eq!(post(V2, &[("content-length", "3"), ("te", "trailers")]), Ok(()));
    assert_eq!(post(V10, &[("expect", "x"), ("content-length", "1")]), Ok(()));
}

/// The known families: CL.TE, TE.CL, TE.TE, CL.0, H2.CL, H2.TE, and RFC 9112, sections 6 and 11.
#[test]
fn smuggling_is_refused() {
    for (version, fields, expected) in [
        (
            V11,
            &[("content-length", "6"), ("transfer-encoding", "chunked")][..],
            Insane::LengthAndEncoding,
        ),
        (
            V11,
            &[("transfer-encoding", "chunked"), ("content-length", "4")],
            Insane::LengthAndEncoding,
        ),
        (V11, &[("content-length", "6"), ("content-length", "5")], Insane::LengthTwice),
        (V11, &[("content-length", "5"), ("content-length", "5")], Insane::LengthTwice),
        (V11, &[("content-length", "5, 5")], Insane::Length),
        (V11, &[("content-length", "5,6")], Insane::Length),
        (V11, &[("content-length", "+5")], Insane::Length),
        (V11, &[("content-length", "-5")], Insane::Length),
        (V11, &[("content-length", "0x5")], Insane::Length),
        (V11, &[("content-length", "5 5")], Insane::Length),
        (V11, &[("content-length", "5\t")], Insane::Length),
        (V11, &[("content-length", "5.0")], Insane::Length),
        (V11, &[("content-length", "1e1")], Insane::Length),
        (V11, &[("content-length", "1_0")], Insane::Length),
        (V11, &[("content-length", "")], Insane::Length),
        (V11, &[("content-length", "18446744073709551616")], Insane::Length),
        (V11, &[("content-length", "\u{0665}")], Insane::Length),
        (V11, &[("transfer-encoding", "xchunked")], Insane::Encoding),
        (V11, &[("transfer-encoding", "chunked, chunked")], Insane::Encoding),
        (
            V11,
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
            Insane::Encoding,
        ),
        (V11, &[("transfer-encoding", "chunked"), ("transfer-encoding", "x")], Insane::Encoding),
        (
            V11,
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "identity")],
            Insane::Encoding,
        ),
        (V11, &[("transfer-encoding", "identity")], Insane::Encoding),
        (V11, &[("transfer-encoding", "gzip, chunked")], Insane::Encoding),
        (V11, &[("transfer-encoding", "chunked, identity")], Insane::Encoding),
        (V11, &[("transfer-encoding", "chunked;q=1")], Insane::Encoding),
        (V11, &[("transfer-encoding", "\"chunked\"")], Insane::Encoding),
        (V11, &[("transfer-encoding", "'chunked'")], Insane::Encoding),
        (V11, &[("transfer-encoding", "chunked,")], Insane::Encoding),
        (V11, &[("transfer-encoding", "chunk")], Insane::Encoding),
        (V11, &[("transfer-encoding", "\tchunked")], Insane::Encoding),
        (V11, &[("transfer-encoding", " chunked")], Insane::Encoding),
        (V11, &[("transfer-encoding", "chunked ")], Insane::Encoding),
        (V11, &[("transfer-encoding", "chun\u{212a}ed")], Insane::Encoding),
        (V11, &[("transfer-encoding", "")], Insane::Encoding),
        (V10, &[("transfer-encoding", "chunked")], Insane::EncodingVersion),
        (V2, &[("transfer-encoding", "chunked")], Insane::ConnectionSpecific),
        (V2, &[("connection", "close")], Insane::ConnectionSpecific),
        (V2, &[("keep-alive", "1")], Insane::ConnectionSpecific),
        (V2, &[("proxy-connection", "close")], Insane::ConnectionSpecific),
        (V2, &[("upgrade", "websocket")], Insane::ConnectionSpecific),
        (V2, &[("te", "gzip")], Insane::ConnectionSpecific),
        (V2, &[("content-length", "5"), ("content-length", "6")], Insane::LengthTwice),
        (V11, &[("content_length", "5")], Insane::Shadow),
        (V11, &[("Transfer_Encoding", "chunked")], Insane::Shadow),
        (V2, &[("transfer_encoding", "chunked")], Insane::Shadow),
        (V11, &[("host", "b.example")], Insane::HostTwice),
        (V11, &[("host", "a.example")], Insane::HostTwice),
        (V11, &[("expect", "200-ok")], Insane::Expectation),
        (V11, &[("expect", "100-continue, x")], Insane::Expectation),
        (V11, &[("upgrade", "websocket"), ("content-length", "9")], Insane::UpgradeBody),
        (V11, &[("transfer-encoding", "chunked"), ("upgrade", "WebSocket")], Insane::UpgradeBody),
        (V11, &[("connection", "close, X-Forwarded-For")], Insane::Nominated),
        (V11, &[("connection", "x_forwarded_for")], Insane::Nominated),
        (V11, &[("connection", "Content-Length")], Insane::Nominated),
        (V11, &[("connection", "transfer-encoding")], Insane::Nominated),
        (V11, &[("connection", "Host")], Insane::Nominated),
        (V11, &[("connection", "cookie")], Insane::Nominated),
        (V11, &[("connection", "close"), ("connection", "Rouse-Nonce")], Insane::Nominated),
        (V11, &[("connection", "a b")], Insane::Nominated),
        (V11, &[("connection", "\u{fc}")], Insane::Nominated),
        (V11, &[("connection", "a,b,c,d,e,f,g,h,i,j,k")], Insane::Nominated),
    ] {
        assert_eq!(post(version, fields), Err(expected), "{version:?} {fields:?}");
    }
}

/// What a parser that lets them through would put into a value: bare CR and LF, NUL, folded lines.
#[test]
fn control_characters_are_found() {
    for text in [&b"a\rb"[..], b"a\nb", b"a\0b", b"a\r\n b", b"\x0bchunked", b"a\x7f", b"\x1f"] {
        assert!(fields::has_control(text), "{text:?}");
    }
    for text in [&b""[..], b"a\tb", b"a b~", b"\xff\x80"] {
        assert!(!fields::has_control(text), "{text:?}");
    }
}

#[test]
fn methods_targets_and_versions() {
    let host = [("host", "a.example")];
    let long = format!("/{}", "a".repeat(MAX_TARGET));
    for (method, target, expected) in [
        ("", "/", Insane::Method),
        ("GE T", "/", Insane::Method),
        ("GET\r", "/", Insane::Method),
        ("GET:", "/", Insane::Method),
        (&*"A".repeat(MAX_METHOD + 1), "/", Insane::Method),
        ("CONNECT", "a.example:443", Insane::Connect),
        ("GET", &long, Insane::TargetLength),
        ("GET", "/a b", Insane::TargetCharacter),
        ("GET", "/a\rb", Insane::TargetCharacter),
        ("GET", "/a\nb", Insane::TargetCharacter),
        ("GET", "/a\0b", Insane::TargetCharacter),
        ("GET", "/a\tb", Insane::TargetCharacter),
        ("GET", "/a#b", Insane::TargetCharacter),
        ("GET", "", Insane::TargetForm),
        ("GET", "*", Insane::TargetForm),
        ("GET", "a.example", Insane::TargetForm),
        ("GET", "ftp://a.example/", Insane::TargetForm),
        ("GET", "file:///etc", Insane::TargetForm),
        ("GET", "@a.example/", Insane::TargetForm),
        ("GET", "http:/a.example/", Insane::TargetForm),
        ("GET", "http://u@a.example/", Insane::UserInfo),
        ("GET", "http://u:p@a.example/", Insane::UserInfo),
        ("GET", "http:///x", Insane::Host),
        ("GET", "http://a.example\\@b/", Insane::UserInfo),
        ("GET", "http://b.example/", Insane::HostDiffers),
        ("GET", "http://a.example:8080/", Insane::HostDiffers),
        ("GET", "HTTPS://b.example?x", Insane::HostDiffers),
    ] {
        assert_eq!(line(V11, method, target, &host), Err(expected), "{method} {target}");
    }
    for version in [Version::HTTP_09, Version::HTTP_3] {
        assert_eq!(line(version, "GET", "/", &host), Err(Insane::Version));
    }
}

#[test]
fn hosts() {
    for (version, fields, expected) in [
        (V11, &[][..], Err(Insane::HostMissing)),
        (V2, &[], Err(Insane::HostMissing)),
        (V10, &[], Ok(())),
        (V11, &[("host", "")], Err(Insane::Host)),
        (V11, &[("host", "u@a.example")], Err(Insane::UserInfo)),
        (V11, &[("host", "a.example/x")], Err(Insane::Host)),
        (V11, &[("host", "a.example, b.example")], Err(Insane::Host)),
        (V11, &[("host", "a.example:x")], Err(Insane::Host)),
        (V11, &[("host", "a b")], Err(Insane::Host)),
        (V10, &[("host", "a?b")], Err(Insane::Host)),
    ] {
        assert_eq!(line(version, "GET", "/", fields), expected, "{version:?} {fields:?}");
    }
    let with_authority = |authority: &str, fields: &[(&str, &str)]| {
        let headers = map(fields);
        let authority = Some(authority.as_bytes());
        check(&Request { method: b"GET", version: V2, target: b"/", authority, headers: &headers })
    };
    assert_eq!(with_authority("a.example", &[]), Ok(()));
    assert_eq!(with_authority("a.example", &[("host", "A.EXAMPLE:443")]), Ok(()));
    assert_eq!(with_authority("a.example", &[("host", "b.example")]), Err(Insane::HostDiffers));
    assert_eq!(with_authority("u:p@a.example", &[]), Err(Insane::UserInfo));
}

#[test]
fn fields_are_bounded() {
    let fields = |count: usize| {
        let names: Vec<_> = (0..count).map(|i| format!("x-{i}")).collect();
        let mut fields: Vec<_> = names.iter().map(|name| (name.as_str(), "v")).collect();
        fields.push(("host", "a.example"));
        line(V11, "GET", "/", &fields)
    };
    assert_eq!(fields(MAX_FIELDS - 1), Ok(()));
    assert_eq!(fields(MAX_FIELDS), Err(Insane::FieldCount));
    let room = MAX_BYTES - "hosta.examplex".len();
    let sized = |size| line(V11, "GET", "/", &[("host", "a.example"), ("x", &"v".repeat(size))]);
    assert_eq!(sized(room), Ok(()));
    assert_eq!(sized(room + 1), Err(Insane::FieldBytes));
}

#[test]
fn statuses() {
    let status = |insane: Insane| insane.status().as_u16();
    assert_eq!(status(Insane::TargetLength), 414);
    assert_eq!(status(Insane::FieldBytes), 431);
    assert_eq!(status(Insane::Expectation), 417);
    assert_eq!(status(Insane::Version), 505);
    assert_eq!(status(Insane::Connect), 405);
    assert_eq!(status(Insane::LengthAndEncoding), 400);
}

#[test]
fn a_head_is_taken_from_its_parts() {
    let request = http::Request::get("https://a.example/x?y").header("host", "b.example");
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let head = Request::of(&parts, b"/x?y");
    assert_eq!(head.authority, Some(&b"a.example"[..]));
    assert_eq!(check(&head), Err(Insane::HostDiffers));
}

proptest! {
    #[test]
    fn nothing_panics_and_the_same_is_said_twice(
        version in prop::sample::select(vec![V10, V11, V2, Version::HTTP_3]),
        method in prop::collection::vec(any::<u8>(), 0..40),
        target in prop::collection::vec(any::<u8>(), 0..60),
        authority in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
        fields in prop::collection::vec(
            (
                prop::sample::select(vec![
                    "host", "content-length", "transfer-encoding", "connection", "upgrade",
                    "expect", "te", "content_length", "x-a",
                ]),
                prop::collection::vec(any::<u8>(), 0..20),
            ),
            0..8,
        ),
    ) {
        let mut headers = HeaderMap::new();
        for (name, text) in &fields {
            if let Ok(value) = HeaderValue::from_bytes(text) {
                headers.append(*name, value);
            }
        }
        let request =
            Request { method: &method, version, target: &target, authority: authority.as_deref(), headers: &headers };
        let once = check(&request);
        prop_assert_eq!(once, check(&request));
        if let Err(insane) = once {
            prop_assert!(insane.status().is_client_error() || insane == Insane::Version);
            prop_assert!(!insane.word().is_empty());
        }
    }

    /// What matters, said once more without the code above: whatever is let through has one length.
    #[test]
    fn what_is_sane_has_one_length(
        lengths in prop::collection::vec("[0-9]{1,3}|[+0-9, x]{0,4}", 0..3),
        codings in prop::collection::vec("chunked|CHUNKED|x|chunked, x|identity", 0..3),
        version in prop::sample::select(vec![V10, V11, V2]),
    ) {
        let mut fields: Vec<_> = lengths.iter().map(|text| ("content-length", text.as_str())).collect();
        fields.extend(codings.iter().map(|text| ("transfer-encoding", text.as_str())));
        if post(version, &fields) == Ok(()) {
            prop_assert!(lengths.len() + codings.len() <= 1);
            prop_assert!(codings.is_empty() || version == V11);
            prop_assert!(lengths.iter().all(|text| text.parse::<u64>().is_ok() && !text.starts_with('+')));
        }
    }
}
