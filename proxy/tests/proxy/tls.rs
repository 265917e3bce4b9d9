//! TLS at the real proxy: who is served by which certificate, and when its app begins to wake.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use rouse_tls::rustls::pki_types::ServerName;
use rouse_tls::rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::*;

/// A certificate for `names` in a directory, as PEM files `cert.pem` and `key.pem`.
fn certify(directory: &Path, names: &[&str]) {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    std::fs::write(directory.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(directory.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
}

struct Secure {
    world: World,
    https: std::net::SocketAddr,
    files: tempfile::TempDir,
}

impl Secure {
    async fn new(more: &str) -> Self {
        let files = tempfile::tempdir().unwrap();
        certify(files.path(), &["hello.test", "*.wild.test"]);
        let https = proxy::free();
        let (cert, key) = (files.path().join("cert.pem"), files.path().join("key.pem"));
        let tls = format!(
            "[tls]\ncertificates = [{{ cert = {cert:?}, key = {key:?} }}]\nhandshake_seconds = 2\n{more}"
        );
        let world = World::listening(&format!("https = [\"{https}\"]\n"), &tls).await;
        Self { world, https, files }
    }

    /// What curl prints of a request to `host`, with these arguments besides.
    async fn curl(&self, host: &str, more: &[&str]) -> (bool, String) {
        let port = self.https.port();
        let output = Command::new("curl")
            .args(["-sS", "--max-time", "30", "--resolve", &format!("{host}:{port}:127.0.0.1")])
            .arg("--cacert")
            .arg(self.files.path().join("cert.pem"))
            .args(more)
            .arg(format!("https://{host}:{port}/"))
            .output()
            .await
            .expect("curl is installed");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), text + &String::from_utf8_lossy(&output.stderr))
    }

    /// The first bytes of a handshake that asks for `host`.
    fn hello(&self, host: &str) -> Vec<u8> {
        let mut config = ClientConfig::builder()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Cursor::new(Vec::new());
        client.write_tls(&mut bytes).unwrap();
        bytes.into_inner()
    }
}

#[tokio::test]
async fn both_versions_of_http_are_held_and_forwarded() {
    for version in ["--http1.1", "--http2"] {
        let secure = Secure::new("").await;
        let (ok, text) = secure.curl("hello.test", &[version, "-i"]).await;
        assert!(ok && text.contains(" 200") && text.ends_with("page"), "{version}: {text}");
        let seen = &secure.world.guest.seen()[0];
        assert_eq!(seen.header("x-forwarded-proto"), Some("https"), "{version}");
        assert_eq!(seen.header("host").or(seen.header("Host")), seen.header("host"));
        assert_eq!(secure.world.waker.wakes(), 1, "{version}");
    }
}

#[tokio::test]
async fn an_unknown_name_has_no_handshake_and_wakes_nobody() {
    let secure = Secure::new("").await;
    let (ok, text) = secure.curl("other.test", &[]).await;
    assert!(!ok && text.contains("curl: (35)"), "{text}");
    assert_eq!(secure.world.waker.wakes(), 0);
    assert_eq!(
        secure
            .world
            .proxy
            .metric("rouse_connections_refused_total{reason=\"no_certificate\"}")
            .await,
        1.0
    );
}

#[tokio::test]
async fn an_app_begins_to_wake_at_the_hello() {
    let secure = Secure::new("").await;
    let mut stream = client::connect(secure.https).await;
    stream.write_all(&secure.hello("hello.test")).await.unwrap();
    eventually("it is woken", async || secure.world.waker.wakes() == 1).await;
    assert_eq!(secure.world.proxy.metric("rouse_early_wakes_total").await, 1.0);
    assert_eq!(secure.world.proxy.holds().await, 0, "nobody is held yet");
    drop(stream);
    let (ok, text) = secure.curl("hello.test", &["-i"]).await;
    assert!(ok && text.contains(" 200"), "{text}");
    assert_eq!(secure.world.waker.wakes(), 1, "the visitor joins it, or finds it awake");
}

#[tokio::test]
async fn a_certificate_is_renewed_under_open_connections() {
    let secure = Secure::new("").await;
    let expiry = async || {
        let metrics = secure.world.proxy.metrics().await;
        let line = metrics.lines().find(|l| l.starts_with("rouse_certificate_expiry_seconds{"));
        line.expect("there is a certificate").to_owned()
    };
    expiry().await;
    // A bad file changes nothing.
    let cert = secure.files.path().join("cert.pem");
    let good = std::fs::read(&cert).unwrap();
    std::fs::write(&cert, b"no certificate").unwrap();
    secure.world.proxy.signal("-HUP").await;
    std::fs::write(&cert, &good).unwrap();
    let (ok, text) = secure.curl("hello.test", &["-i"]).await;
    assert!(ok && text.contains(" 200"), "{text}");
    // Another is served once it is read.
    certify(secure.files.path(), &["hello.test", "new.test"]);
    secure.world.proxy.signal("-HUP").await;
    eventually("the new one is served", async || {
        secure.curl("new.test", &["-i"]).await.1.contains(" 404")
    })
    .await;
}

#[tokio::test]
async fn plain_http_on_the_port_for_tls_is_told_so() {
    let secure = Secure::new("").await;
    let reply = client::request(secure.https, "GET / HTTP/1.1\r\nHost: hello.test\r\n", &[]).await;
    assert_eq!((reply.status, reply.error()), (400, Some("https-only")));
}

#[tokio::test]
async fn an_app_is_told_the_certificate_that_its_client_has_shown_and_no_other() {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let files = tempfile::tempdir().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(files.path().join("ca.pem"), ca.pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["client.test".to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "the client");
    let shown = params.signed_by(&key, &ca).unwrap();
    std::fs::write(files.path().join("client.pem"), shown.pem()).unwrap();
    std::fs::write(files.path().join("client.key"), key.serialize_pem()).unwrap();

    let log = files.path().join("access.log");
    let secure = Secure::new(&format!(
        "client_auth = \"optional\"\nclient_ca = {:?}\n[log]\naccess = {log:?}\n",
        files.path().join("ca.pem")
    ))
    .await;
    let forged = ["-H", "Client-Cert: :AAAA:", "-H", "Client-Cert-Chain: :AAAA:"];
    let (ok, text) = secure.curl("hello.test", &forged).await;
    assert!(ok, "{text}");
    let path = |name: &str| files.path().join(name).display().to_string();
    let (cert, key) = (path("client.pem"), path("client.key"));
    let own = [&forged[..], &["--cert", &cert, "--key", &key]].concat();
    let (ok, text) = secure.curl("hello.test", &own).await;
    assert!(ok, "{text}");

    let seen = secure.world.guest.seen();
    assert!(!seen[0].head.to_ascii_lowercase().contains("client-cert"), "{}", seen[0].head);
    use base64::Engine as _;
    let field = format!(":{}:", base64::prelude::BASE64_STANDARD.encode(shown.der()));
    assert_eq!(seen[1].header("client-cert"), Some(&*field));
    assert!(!seen[1].head.contains("AAAA:"), "{}", seen[1].head);
    eventually("it is in the log", async || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.contains("\"client_certificate\":\"CN=the client\"")
    })
    .await;
}
