//! A proxy of one's own, with every kind of port, in front of origins and beside a node.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::metrics::Metrics;
use crate::visit::Visit;
use crate::wait::eventually;
use crate::{Binaries, DEFAULT_HOST, Daemon, Node, free_port};

/// Where an [`RawOrigin`](crate::RawOrigin) behind a [`Front`] is reached.
pub const ORIGIN_HOST: &str = "origin.localhost";

/// A proxy that serves [`ORIGIN_HOST`] from an origin, and a node's apps if there is one. It speaks
/// HTTP/1 and HTTP/2, with TLS and without. Dropped, it is killed.
#[derive(Debug)]
pub struct Front {
    /// The process.
    pub proxy: Daemon,
    http: SocketAddr,
    h2c: SocketAddr,
    https: SocketAddr,
    admin: SocketAddr,
    directory: TempDir,
}

impl Front {
    /// One that serves `origin` only; `more` is more of its file.
    pub async fn of(origin: SocketAddr, more: &str) -> Self {
        Self::start(None, origin, more).await
    }

    /// One that also serves what the node's waker wakes.
    pub async fn beside(node: &Node, origin: SocketAddr, more: &str) -> Self {
        let front = Self::start(Some(node.socket()), origin, more).await;
        eventually("the proxy knows the test app", async || {
            let reply = Visit::get("/holds").send(front.admin).await.ok()?;
            reply.text().contains("\"hello\"").then_some(())
        })
        .await;
        front
    }

    async fn start(waker: Option<&Path>, origin: SocketAddr, more: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let [http, h2c, https, admin] =
            std::array::from_fn(|_| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let (cert, key) = certify(directory.path());
        let mut text = format!(
            "[listen]\nhttp = [\"{http}\"]\nh2c = [\"{h2c}\"]\nhttps = [\"{https}\"]\n\
             admin = \"{admin}\"\n\
             [tls]\ncertificates = [{{ cert = {cert:?}, key = {key:?} }}]\n\
             [[origin]]\nid = \"origin\"\nhosts = [\"{ORIGIN_HOST}\"]\naddress = \"{origin}\"\n"
        );
        if let Some(socket) = waker {
            write!(text, "[waker]\nsocket = {socket:?}\n").expect("a text takes more");
        }
        text.push_str(more);
        let file = directory.path().join("front.toml");
        std::fs::write(&file, text).expect("a file of ours can be written");
        let args = vec!["--config".into(), file.to_string_lossy().into_owned()];
        let log = directory.path().join("front.log");
        let mut front = Self {
            proxy: Daemon::new(Binaries::find().proxy(), args, log),
            http,
            h2c,
            https,
            admin,
            directory,
        };
        front.proxy.start();
        eventually("the proxy serves on every port", async || {
            front.proxy.assert_runs();
            for port in [front.http, front.h2c, front.https] {
                tokio::net::TcpStream::connect(port).await.ok()?;
            }
            let health = Visit::get("/healthz").send(front.admin).await.ok()?;
            health.status.is_success().then_some(())
        })
        .await;
        front
    }

    /// For HTTP/1.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// For HTTP/2 without TLS.
    pub fn h2c(&self) -> SocketAddr {
        self.h2c
    }

    /// For both, with TLS.
    pub fn https(&self) -> SocketAddr {
        self.https
    }

    /// Its certificate, good for [`ORIGIN_HOST`] and [`DEFAULT_HOST`], which signs itself.
    pub fn certificate(&self) -> PathBuf {
        self.directory.path().join("cert.pem")
    }

    /// What it counts.
    pub async fn metrics(&self) -> Metrics {
        let reply = Visit::get("/metrics").send(self.admin).await;
        Metrics::parse(reply.expect("the proxy tells its metrics").expect_status(200).text())
    }

    /// How many visitors it holds.
    pub async fn held(&self) -> f64 {
        self.metrics().await.sum("rouse_holds", &[])
    }
}

impl Drop for Front {
    #[allow(clippy::print_stderr, reason = "the test runner shows it with the failed test")]
    fn drop(&mut self) {
        self.proxy.kill();
        if std::thread::panicking() {
            eprintln!("{}", self.proxy.tail());
        }
    }
}

/// A certificate and its key, as files in `directory`.
fn certify(directory: &Path) -> (PathBuf, PathBuf) {
    let [cert, key, about] = ["cert.pem", "key.pem", "cert.cnf"].map(|name| directory.join(name));
    // Not an authority's: clients refuse those at a server.
    let text = format!(
        "[req]\ndistinguished_name = dn\nx509_extensions = ext\nprompt = no\n\
         [dn]\nCN = {ORIGIN_HOST}\n\
         [ext]\nbasicConstraints = CA:FALSE\n\
         subjectAltName = DNS:{ORIGIN_HOST}, DNS:{DEFAULT_HOST}\n"
    );
    std::fs::write(&about, text).expect("a file of ours can be written");
    let status = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-days", "30", "-config"])
        .arg(&about)
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .stderr(Stdio::null())
        .status()
        .expect("openssl is installed: ./dev setup");
    assert!(status.success(), "openssl makes a certificate");
    (cert, key)
}
