//! The programs that are measured, and the origin behind them. Each has one worker.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;

use crate::machine;
use crate::server::{Server, free_address};

/// The host that all requests are for.
pub(super) const HOST: &str = "static.localhost";

/// A program under test, in front of the origin.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) address: SocketAddr,
    pub(super) server: Server,
}

impl Peer {
    pub(super) async fn ready(&mut self) -> anyhow::Result<()> {
        self.server.ready(self.address, HOST).await
    }
}

/// `rouse-proxy`, for which the origin is an app that never sleeps.
pub(super) fn rouse(origin: SocketAddr, dir: &Path, core: Option<usize>) -> anyhow::Result<Peer> {
    let address = free_address()?;
    let config = format!(
        "[listen]
        http = [\"{address}\"]
        admin = \"{}\"
        [server]
        threads = 1
        grace_seconds = 1
        name = \"bench\"
        [[origin]]
        id = \"static\"
        hosts = [\"{HOST}\"]
        address = \"{origin}\"",
        free_address()?
    );
    let file = write(dir, "proxy.toml", &config)?;
    let program = machine::beside("rouse-proxy")?;
    let server = Server::start("rouse-proxy", &program, &["--config".into(), file], core, dir)?;
    Ok(Peer { name: "rouse", address, server })
}

/// Pingora with nothing added.
pub(super) fn bare(origin: SocketAddr, dir: &Path, core: Option<usize>) -> anyhow::Result<Peer> {
    let address = free_address()?;
    let args =
        ["--listen", &address.to_string(), "--upstream", &origin.to_string(), "--threads", "1"];
    let program = machine::beside("rouse-passthrough")?;
    let server = Server::start("rouse-passthrough", &program, &args.map(str::to_owned), core, dir)?;
    Ok(Peer { name: "bare", address, server })
}

/// nginx as a reverse proxy.
pub(super) fn nginx(
    program: &Path,
    origin: SocketAddr,
    dir: &Path,
    core: Option<usize>,
) -> anyhow::Result<Peer> {
    let address = free_address()?;
    let http = format!(
        "upstream origin {{
            server {origin};
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
        }}"
    );
    let server = start_nginx("nginx", program, &http, dir, core)?;
    Ok(Peer { name: "nginx", address, server })
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
