//! The programs that are measured, and the origin behind them. Each has one worker.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;

use crate::hold::waker::{App, Waker};
use crate::machine;
use crate::server::{Server, free_address};

/// The host of an app that never sleeps.
pub(super) const HOST: &str = "static.localhost";
/// The host of an app that is awake.
pub(super) const AWAKE_HOST: &str = "awake.localhost";

/// A program under test, in front of the origin.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: &'static str,
    /// As a reader knows it.
    pub(super) title: &'static str,
    /// The host that it is asked for.
    pub(super) host: &'static str,
    pub(super) address: SocketAddr,
    pub(super) server: Server,
}

impl Peer {
    pub(super) async fn ready(&mut self) -> anyhow::Result<()> {
        self.server.ready(self.address, self.host).await
    }
}

/// Where all peers are started.
#[derive(Debug)]
pub(super) struct Lab<'a> {
    pub(super) origin: SocketAddr,
    pub(super) dir: &'a Path,
    pub(super) core: Option<usize>,
}

impl Lab<'_> {
    /// A waker with so many apps, of which one is awake: at the origin.
    pub(super) fn waker(&self, name: &str, apps: usize) -> anyhow::Result<Waker> {
        let app = |n: usize| App {
            id: format!("app-{n}"),
            host: if n == 0 { AWAKE_HOST.to_owned() } else { format!("app-{n}.example") },
            awake_at: (n == 0).then_some(self.origin),
        };
        let apps: Vec<_> = (0..apps).map(app).collect();
        let waker = Waker::start(self.dir.join(format!("{name}.sock")), &apps, self.origin)?;
        waker.release(true);
        Ok(waker)
    }

    /// `rouse-proxy`, which knows the apps of `waker`, and the origin as an app that never sleeps.
    pub(super) fn rouse(
        &self,
        (name, title): (&'static str, &'static str),
        waker: &Waker,
        host: &'static str,
        log: bool,
    ) -> anyhow::Result<Peer> {
        let address = free_address()?;
        let access = if log {
            format!("[log]\naccess = {:?}\n", self.dir.join(format!("{name}.access")))
        } else {
            String::new()
        };
        let config = format!(
            "[listen]
            http = [\"{address}\"]
            admin = \"{}\"
            [server]
            threads = 1
            grace_seconds = 1
            name = \"{name}\"
            [waker]
            socket = {:?}
            {access}
            [[origin]]
            id = \"static\"
            hosts = [\"{HOST}\"]
            address = \"{}\"",
            free_address()?,
            waker.socket,
            self.origin
        );
        let file = write(self.dir, &format!("{name}.toml"), &config)?;
        let program = machine::beside("rouse-proxy")?;
        let arguments = ["--config".into(), file];
        let server = Server::start(name, &program, &arguments, self.core, self.dir)?;
        Ok(Peer { name, title, host, address, server })
    }

    /// Pingora with nothing added, built as Rouse is.
    pub(super) fn bare(&self) -> anyhow::Result<Peer> {
        self.passthrough(
            "bare",
            "bare Pingora, built alike",
            &machine::beside("rouse-passthrough")?,
        )
    }

    /// The same built as Pingora's user guide has it: cargo's own release profile, and the system's
    /// allocator. None: it is not built.
    pub(super) fn guide(&self) -> anyhow::Result<Option<Peer>> {
        let ours = machine::beside("rouse-passthrough")?;
        let built = |dir: &Path| dir.parent().map(|up| up.join("plain").join("rouse-passthrough"));
        match ours.parent().and_then(built).filter(|program| program.is_file()) {
            Some(program) => {
                self.passthrough("guide", "bare Pingora, by its guide", &program).map(Some)
            }
            None => Ok(None),
        }
    }

    fn passthrough(
        &self,
        name: &'static str,
        title: &'static str,
        program: &Path,
    ) -> anyhow::Result<Peer> {
        let address = free_address()?;
        let (listen, upstream) = (address.to_string(), self.origin.to_string());
        let args = ["--listen", &listen, "--upstream", &upstream, "--threads", "1"];
        let server = Server::start(name, program, &args.map(str::to_owned), self.core, self.dir)?;
        Ok(Peer { name, title, host: HOST, address, server })
    }

    /// nginx as a reverse proxy.
    pub(super) fn nginx(&self, program: &Path) -> anyhow::Result<Peer> {
        let address = free_address()?;
        let http = format!(
            "upstream origin {{
                server {};
                keepalive 128;
                keepalive_requests 1000000000;
            }}
            server {{
                listen {address};
                location / {{
                    proxy_pass http://origin;
                    proxy_http_version 1.1;
                    proxy_set_header Connection \"\";
                    proxy_set_header Host $host;
                }}
            }}",
            self.origin
        );
        let server = start_nginx("nginx", program, &http, self.dir, self.core)?;
        Ok(Peer { name: "nginx", title: "nginx", host: HOST, address, server })
    }
}

/// What answers behind all of them: nginx with one small answer, which is several times as fast as
/// any of the proxies.
pub(crate) fn nginx_origin(
    program: &Path,
    address: SocketAddr,
    dir: &Path,
    core: Option<usize>,
) -> anyhow::Result<Server> {
    let body = "A small page, as an API's answer may be.".repeat(4);
    let http = format!(
        "server {{
            listen {address};
            default_type text/plain;
            location / {{ return 200 \"{body}\"; }}
        }}"
    );
    start_nginx("origin", program, &http, dir, core)
}

fn start_nginx(
    name: &'static str,
    program: &Path,
    http: &str,
    dir: &Path,
    core: Option<usize>,
) -> anyhow::Result<Server> {
    let own = dir.join(name);
    fs::create_dir(&own).with_context(|| own.display().to_string())?;
    let own = own.display();
    let config = format!(
        "daemon off;
        worker_processes 1;
        pid {own}/pid;
        error_log stderr warn;
        events {{ worker_connections 2048; }}
        http {{
            access_log off;
            keepalive_timeout 1h;
            keepalive_requests 1000000000;
            client_body_temp_path {own}/body;
            proxy_temp_path {own}/proxy;
            fastcgi_temp_path {own}/fastcgi;
            uwsgi_temp_path {own}/uwsgi;
            scgi_temp_path {own}/scgi;
            {http}
        }}"
    );
    let file = write(dir, &format!("{name}.conf"), &config)?;
    let args = ["-e", "stderr", "-p", &own.to_string(), "-c", &file].map(str::to_owned);
    Server::start(name, program, &args, core, dir)
}

fn write(dir: &Path, name: &str, text: &str) -> anyhow::Result<String> {
    let file = dir.join(name);
    fs::write(&file, text).with_context(|| file.display().to_string())?;
    Ok(file.display().to_string())
}
