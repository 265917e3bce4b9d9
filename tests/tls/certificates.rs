//! Whose certificate is shown, and when is another?

use std::path::Path;

use nix::sys::signal::Signal;
use rouse_tests::{Certificate, Front, ORIGIN_HOST, RawOrigin, assert_eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{self, Secure};

/// Puts a certificate for `hosts` where a directory of certificates has it.
fn place(certs: &Path, name: &str, hosts: &[&str]) -> Certificate {
    let directory = certs.join(name);
    std::fs::create_dir_all(&directory).expect("a directory of ours can be made");
    let made = Certificate::of(&directory, "new", hosts);
    let [cert, key] = ["fullchain.pem", "privkey.pem"].map(|file| directory.join(file));
    std::fs::rename(&made.key, &key).expect("a file of ours can be moved");
    std::fs::rename(&made.cert, &cert).expect("a file of ours can be moved");
    Certificate { cert, key }
}

async fn page(stream: &mut Secure) {
    let head = format!("GET /page HTTP/1.1\r\nHost: {ORIGIN_HOST}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("it is open");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\npage") {
        let read = stream.read_buf(&mut answer).await.expect("it is open");
        assert!(read > 0, "it ended: {}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_name_has_its_certificate() {
    let origin = RawOrigin::start().await;
    let builder = Front::build(origin.address()).tls("directory = \"certs.d\"\n");
    let certs = builder.directory().join("certs.d");
    let exact = place(&certs, "exact", &["exact.wild.localhost"]).cert;
    let wild = place(&certs, "wild", &["*.wild.localhost"]).cert;
    let front = builder.start().await;
    let believed = [front.certificate(), exact.clone(), wild.clone()];
    for (host, cert) in [
        (ORIGIN_HOST, &believed[0]),
        ("exact.wild.localhost", &exact),
        ("EXACT.wild.localhost", &exact),
        ("any.wild.localhost", &wild),
    ] {
        let stream = client::to(front.https(), host, &believed).await;
        let stream = stream.unwrap_or_else(|e| panic!("{host}: {e}"));
        assert!(client::shown(&stream) == client::certificate(cert), "{host} has another's");
    }
    for host in ["wild.localhost", "two.labels.wild.localhost", "nobody.localhost"] {
        let refused = client::to(front.https(), host, &believed).await;
        refused.expect_err(host);
    }
    assert_eventually!(front.refused("no_certificate").await == 3.0, "they are counted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_is_shown_to_who_comes_and_cuts_nobody_off() {
    let origin = RawOrigin::start().await;
    let front = Front::of(origin.address(), "").await;
    let old = client::certificate(&front.certificate());
    let connect = async || {
        let believed = [front.certificate()];
        client::to(front.https(), ORIGIN_HOST, &believed).await
    };
    let mut kept = connect().await.expect("a handshake");
    page(&mut kept).await;

    // A bad one changes nothing, and is told.
    let good = std::fs::read(front.certificate()).expect("a file of ours");
    std::fs::write(front.certificate(), "nonsense").expect("a file of ours can be written");
    front.proxy.signal(Signal::SIGHUP);
    assert_eventually!(
        front.proxy.log().contains("the certificate before it is served still"),
        "the proxy says that it is bad"
    );
    std::fs::write(front.directory().join("old.pem"), &good).expect("a file of ours");
    let believed = [front.directory().join("old.pem")];
    let stream = client::to(front.https(), ORIGIN_HOST, &believed).await.expect("as before");
    assert!(client::shown(&stream) == old, "the one before is shown");
    let metrics = front.metrics().await;
    assert!(metrics.sum("rouse_certificate_expiry_seconds", &[]) > 0.0, "and counted");

    Certificate::of(front.directory(), "cert", &[ORIGIN_HOST]);
    let new = client::certificate(&front.certificate());
    assert!(new != old, "it is another");
    front.proxy.signal(Signal::SIGHUP);
    assert_eventually!(
        connect().await.is_ok_and(|stream| client::shown(&stream) == new),
        "the new one is shown"
    );
    page(&mut kept).await;
    assert!(client::shown(&kept) == old, "that is the connection from before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_is_seen_without_a_signal() {
    let origin = RawOrigin::start().await;
    let builder = Front::build(origin.address()).tls("directory = \"certs.d\"\n");
    let certs = builder.directory().join("certs.d");
    place(&certs, "one", &["one.localhost"]);
    let front = builder.start().await;
    let cert = place(&certs, "one", &["one.localhost", "two.localhost"]).cert;
    assert_eventually!(
        client::to(front.https(), "two.localhost", std::slice::from_ref(&cert)).await.is_ok(),
        "the new one is shown"
    );
}
