//! A proxy of one's own, with every kind of port, in front of origins and beside a node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::certificates::Certificate;
use crate::metrics::Metrics;
use crate::visit::Visit;
use crate::wait::{TICK, eventually};
use crate::{Binaries, DEFAULT_HOST, Daemon, Node, free_port};

/// Where an [`RawOrigin`](crate::RawOrigin) behind a [`Front`] is reached.
pub const ORIGIN_HOST: &str = "origin.localhost";

/// What a [`Front`] is made of. [`Self::start`] starts it.
#[derive(Debug)]
pub struct FrontBuilder {
    directory: TempDir,
    origin: SocketAddr,
    waker: Option<PathBuf>,
    listen: String,
    tls: String,
    more: String,
    env: Vec<(String, String)>,
}

impl FrontBuilder {
    /// Where its files will be: `front.toml`, and `cert.pem` with `cert.key`. Relative paths of its
    /// configuration are relative to it.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// That also serves what the node's waker wakes.
    pub fn beside(mut self, node: &Node) -> Self {
        self.waker = Some(node.socket().to_owned());
        self
    }

    /// With these lines in `[listen]`.
    pub fn listen(mut self, lines: &str) -> Self {
        self.listen.push_str(lines);
        self
    }

    /// With these lines in `[tls]`.
    pub fn tls(mut self, lines: &str) -> Self {
        self.tls.push_str(lines);
        self
    }

    /// With these other tables.
    pub fn more(mut self, tables: &str) -> Self {
        self.more.push_str(tables);
        self
    }

    /// With a variable in its environment.
    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }

    /// Starts it, and returns when it serves and knows the node's app.
    pub async fn start(self) -> Front {
        let waits = self.waker.is_some();
        let mut front = self.unstarted();
        front.proxy.start();
        front.ready().await;
        if waits {
            eventually("the proxy knows the test app", async || {
                let reply = Visit::get("/holds").send(front.admin).await.ok()?;
                reply.text().contains("\"hello\"").then_some(())
            })
            .await;
        }
        front
    }

    /// With its files written, for a test that starts it in a way of its own.
    pub fn unstarted(self) -> Front {
        let [http, h2c, https, admin] =
            std::array::from_fn(|_| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let Self { directory, origin, waker, listen, tls, more, env } = self;
        let Certificate { cert, key } =
            Certificate::of(directory.path(), "cert", &[ORIGIN_HOST, DEFAULT_HOST]);
        let waker = waker.map(|socket| format!("[waker]\nsocket = {socket:?}\n"));
        let waker = waker.unwrap_or_default();
        let text = format!(
            "[listen]\nhttp = [\"{http}\"]\nh2c = [\"{h2c}\"]\nhttps = [\"{https}\"]\n\
             admin = \"{admin}\"\n{listen}\
             [tls]\ncertificates = [{{ cert = {cert:?}, key = {key:?} }}]\n{tls}\
             [[origin]]\nid = \"origin\"\nhosts = [\"{ORIGIN_HOST}\"]\naddress = \"{origin}\"\n\
             {waker}{more}"
        );
        let file = directory.path().join("front.toml");
        std::fs::write(&file, text).expect("a file of ours can be written");
        let args = vec!["--config".into(), file.to_string_lossy().into_owned()];
        let log = directory.path().join("front.log");
        let mut proxy = Daemon::new(Binaries::find().proxy(), args, log);
        for (name, value) in env {
            proxy.set_env(&name, value);
        }
        Front { proxy, http, h2c, https, admin, directory }
    }
}

/// A proxy that serves [`ORIGIN_HOST`] from an origin, and a node's apps if there is one. It speaks
/// HTTP/1 and HTTP/2, with TLS and without. Dropped, it is killed, and what took its place.
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
    /// What it is made of: it serves `origin` only.
    pub fn build(origin: SocketAddr) -> FrontBuilder {
        FrontBuilder {
            directory: tempfile::tempdir().expect("a directory can be made"),
            origin,
            waker: None,
            listen: String::new(),
            tls: String::new(),
            more: String::new(),
            env: Vec::new(),
        }
    }

    /// One that serves `origin` only; `more` is more of its file.
    pub async fn of(origin: SocketAddr, more: &str) -> Self {
        Self::build(origin).more(more).start().await
    }

    /// One that also serves what the node's waker wakes.
    pub async fn beside(node: &Node, origin: SocketAddr, more: &str) -> Self {
        Self::build(origin).beside(node).more(more).start().await
    }

    /// Returns when it serves.
    pub async fn ready(&mut self) {
        eventually("the proxy serves on every port", async || {
            self.proxy.assert_runs();
            for port in [self.http, self.h2c, self.https] {
                tokio::net::TcpStream::connect(port).await.ok()?;
            }
            let health = Visit::get("/healthz").send(self.admin).await.ok()?;
            health.status.is_success().then_some(())
        })
        .await;
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

    /// For operators.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Its configuration.
    pub fn file(&self) -> PathBuf {
        self.directory.path().join("front.toml")
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

    /// How many connections it has refused for that reason.
    pub async fn refused(&self, reason: &str) -> f64 {
        self.metrics().await.sum("rouse_connections_refused_total", &[("reason", reason)])
    }

    /// How many visitors it holds.
    pub async fn held(&self) -> f64 {
        self.metrics().await.sum("rouse_holds", &[])
    }

    /// All processes of its configuration: one that takes another's place is nobody's child.
    pub fn processes(&self) -> Vec<u32> {
        let file = self.file();
        let name = file.as_os_str().as_encoded_bytes();
        let all = std::fs::read_dir("/proc").expect("there is /proc").flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            // None that has ended: its parent has only not taken notice.
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == name)
        })
        .collect()
    }

    fn kill_all(&mut self) {
        self.proxy.kill();
        // Again until none is found: one may just have started another.
        for _ in 0..100 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            for pid in left.into_iter().filter_map(|pid| i32::try_from(pid).ok()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            std::thread::sleep(TICK);
        }
    }
}

impl Drop for Front {
    #[allow(clippy::print_stderr, reason = "the test runner shows it with the failed test")]
    fn drop(&mut self) {
        self.kill_all();
        if std::thread::panicking() {
            eprintln!("{}", self.proxy.tail());
        }
    }
}
