//! The program under test.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::Value;
use tokio::process::{Child, Command};

use crate::client::Reply;
use crate::waker::StandIn;
use crate::{client, eventually};

pub(crate) struct Proxy {
    pub(crate) http: SocketAddr,
    /// For HTTP/2 without TLS.
    pub(crate) h2c: SocketAddr,
    admin: SocketAddr,
    file: PathBuf,
    child: Child,
}

/// An address that nobody has, and that nobody else of this process is given: below the ports that the system gives to
/// outgoing connections (ip_local_port_range), so that it is still free when the proxy binds it.
pub(crate) fn free() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test processes side by side begin at different places.
    let start = std::process::id() % 4_000;
    loop {
        let number = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (start + number) % 5_000;
        let address = SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap()));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

impl Proxy {
    /// Starts it, and returns when it knows what the waker knows.
    pub(crate) async fn start(waker: &StandIn, extra: &str) -> Self {
        Self::listening(waker, "", extra).await
    }

    /// [`Self::start`] with more of `[listen]`.
    pub(crate) async fn listening(waker: &StandIn, listen: &str, extra: &str) -> Self {
        let (http, h2c, admin) = (free(), free(), free());
        let file = waker.directory().join("proxy.toml");
        let socket = waker.socket.display();
        let text = format!(
            "[listen]\nhttp = [\"{http}\"]\nh2c = [\"{h2c}\"]\nadmin = \"{admin}\"\n{listen}[waker]\nsocket = \"{socket}\"\n{extra}"
        );
        std::fs::write(&file, text).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_rouse-proxy"))
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let proxy = Self { http, h2c, admin, file, child };
        eventually("the proxy is synced", async || {
            tokio::net::TcpStream::connect(proxy.http).await.is_ok()
                && tokio::net::TcpStream::connect(proxy.h2c).await.is_ok()
                && tokio::net::TcpStream::connect(proxy.admin).await.is_ok()
                && proxy.metric("rouse_waker_connected").await == 1.0
        })
        .await;
        proxy
    }

    /// Asks the operators' listener.
    pub(crate) async fn ask(&self, method: &str, path: &str) -> Reply {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: admin\r\n");
        client::request(self.admin, &head, &[]).await
    }

    async fn admin(&self, path: &str) -> String {
        let reply = self.ask("GET", path).await;
        assert_eq!(reply.status, 200);
        reply.body
    }

    pub(crate) async fn metrics(&self) -> String {
        self.admin("/metrics").await
    }

    /// One sample, by its name with its labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.metrics().await;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
        let value = lines.find_map(|rest| rest.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// What `/holds` says of the app.
    pub(crate) async fn app(&self) -> Value {
        let rows: Value = serde_json::from_str(&self.admin("/holds").await).unwrap();
        rows.as_array().unwrap().iter().find(|row| row["id"] == "hello").unwrap().clone()
    }

    pub(crate) async fn holds(&self) -> u64 {
        self.app().await["holds"].as_u64().unwrap()
    }

    /// Sends it a TERM.
    pub(crate) async fn terminate(&self) {
        self.signal("-TERM").await;
    }

    pub(crate) async fn signal(&self, signal: &str) {
        let pid = self.child.id().unwrap().to_string();
        let status = Command::new("kill").args([signal, &pid]).status().await.unwrap();
        assert!(status.success());
    }

    /// Whether the process that was started still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) async fn ended(&mut self) -> bool {
        tokio::time::timeout(crate::PATIENCE, self.child.wait()).await.unwrap().unwrap().success()
    }
}

impl Proxy {
    /// All processes of this very configuration: a successor is nobody's child.
    pub(crate) fn processes(&self) -> Vec<String> {
        let file = self.file.to_string_lossy().into_owned();
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let ours = entries.filter(|entry| {
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == file.as_bytes())
        });
        ours.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        for pid in self.processes() {
            let _ = std::process::Command::new("kill").args(["-KILL", &pid]).status();
        }
    }
}
