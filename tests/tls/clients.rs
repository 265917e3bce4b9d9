//! What do curl and openssl find?

use nix::sys::signal::Signal;
use rouse_tests::{Certificate, Front, ORIGIN_HOST, Ran, RawOrigin, assert_eventually};

use crate::{curl, s_client};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_versions_of_http_are_agreed_on() {
    let origin = RawOrigin::start().await;
    let front = Front::of(origin.address(), "").await;
    for (arg, version) in [("--http2", "page2"), ("--http1.1", "page1.1")] {
        let ran = curl(&front, ORIGIN_HOST, &[arg, "-w", "%{http_version}"]).await;
        assert!(ran.ok && ran.text == version, "{arg}: {ran:?}");
    }
    let ran = s_client(&front, ORIGIN_HOST, &["-alpn", "http/1.1"]).await;
    assert!(ran.text.contains("ALPN protocol: http/1.1"), "{ran:?}");
    assert!(ran.text.contains("HTTP/1.1 200 OK"), "{ran:?}");
    let ran = s_client(&front, ORIGIN_HOST, &["-alpn", "h2"]).await;
    assert!(ran.text.contains("ALPN protocol: h2"), "{ran:?}");
    // The most wanted of the server's, whatever the client names first; HTTP/1.1 for who names none.
    let ran = s_client(&front, ORIGIN_HOST, &["-alpn", "http/1.1,h2"]).await;
    assert!(ran.text.contains("ALPN protocol: h2"), "{ran:?}");
    let ran = s_client(&front, ORIGIN_HOST, &[]).await;
    assert!(ran.text.contains("No ALPN negotiated"), "{ran:?}");
    assert!(ran.text.contains("HTTP/1.1 200 OK"), "{ran:?}");
}

/// The handshake was refused, and the client was told so.
fn refused(ran: &Ran) {
    assert!(!ran.ok && ran.text.contains("Cipher is (NONE)"), "{ran:?}");
    assert!(ran.text.contains("SSL alert number"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_begins_at_1_2() {
    let origin = RawOrigin::start().await;
    let front = Front::of(origin.address(), "").await;
    for (arg, version) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let ran = s_client(&front, ORIGIN_HOST, &[arg]).await;
        assert!(ran.text.contains(&format!("New, {version}, Cipher is")), "{arg}: {ran:?}");
        assert!(ran.text.contains("HTTP/1.1 200 OK"), "{arg}: {ran:?}");
    }
    // Its own security level would keep openssl from trying.
    let args = ["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"];
    let ran = s_client(&front, ORIGIN_HOST, &args).await;
    refused(&ran);

    let front = Front::build(origin.address()).tls("min_version = \"1.3\"\n").start().await;
    let ran = s_client(&front, ORIGIN_HOST, &["-tls1_2"]).await;
    refused(&ran);
    let ran = s_client(&front, ORIGIN_HOST, &["-tls1_3"]).await;
    assert!(ran.text.contains("HTTP/1.1 200 OK"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_resumed_by_its_ticket_after_a_reload_too() {
    let origin = RawOrigin::start().await;
    let front = Front::of(origin.address(), "").await;
    let resumed = async |version: &str, session: &str| {
        let ran = s_client(&front, ORIGIN_HOST, &[version, "-sess_in", session]).await;
        assert!(ran.text.contains("HTTP/1.1 200 OK"), "{version}: {ran:?}");
        assert!(ran.text.contains("Reused, TLSv1."), "{version}: {ran:?}");
    };
    let mut sessions = Vec::new();
    for version in ["-tls1_2", "-tls1_3"] {
        let file = front.directory().join(format!("session{version}"));
        let file = file.to_str().expect("a path in UTF-8").to_owned();
        let ran = s_client(&front, ORIGIN_HOST, &[version, "-sess_out", &file]).await;
        assert!(ran.text.contains("New, TLSv1."), "{version}: {ran:?}");
        resumed(version, &file).await;
        sessions.push((version, file));
    }
    Certificate::of(front.directory(), "cert", &[ORIGIN_HOST]);
    front.proxy.signal(Signal::SIGHUP);
    assert_eventually!(
        front.proxy.log().contains("certificates are read again"),
        "another certificate is served"
    );
    for (version, file) in &sessions {
        resumed(version, file).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_show_certificates_of_the_right_authority() {
    let origin = RawOrigin::start().await;
    let asked = "client_auth = \"required\"\nclient_ca = \"ca.pem\"\n";
    let builder = Front::build(origin.address()).tls(asked);
    let directory = builder.directory().to_owned();
    let ours = Certificate::authority(&directory, "ca").sign(&directory, "ours");
    let theirs = Certificate::authority(&directory, "other-ca").sign(&directory, "theirs");
    let front = builder.start().await;
    let path = |file: &std::path::Path| file.to_str().expect("a path in UTF-8").to_owned();
    for version in ["--tls-max=1.2", "--tlsv1.3"] {
        let with = async |certificate: &Certificate| {
            let [cert, key] = [path(&certificate.cert), path(&certificate.key)];
            let version: Vec<_> = version.split('=').collect();
            curl(&front, ORIGIN_HOST, &[&version[..], &["--cert", &cert, "--key", &key]].concat())
                .await
        };
        let ran = with(&ours).await;
        assert!(ran.ok && ran.text == "page", "{version}: {ran:?}");
        let before = front.refused("client_certificate").await;
        let ran = with(&theirs).await;
        assert!(!ran.ok && !ran.text.contains("page"), "{version}: {ran:?}");
        let version: Vec<_> = version.split('=').collect();
        let ran = curl(&front, ORIGIN_HOST, &version).await;
        assert!(!ran.ok && !ran.text.contains("page"), "{version:?}: {ran:?}");
        assert_eventually!(
            front.refused("client_certificate").await == before + 2.0,
            "both are counted"
        );
    }
    assert_eq!(origin.requests().len(), 2, "nobody else's request came through");

    let may = "client_auth = \"optional\"\nclient_ca = \"ca.pem\"\n";
    let builder = Front::build(origin.address()).tls(may);
    let there = builder.directory().join("ca.pem");
    std::fs::copy(directory.join("ca.pem"), there).expect("a file of ours can be copied");
    let front = builder.start().await;
    let ran = curl(&front, ORIGIN_HOST, &[]).await;
    assert!(ran.ok && ran.text == "page", "who has none may come: {ran:?}");
}
