//! A waker for benchmarks: it speaks the socket's protocol, and its VM is an origin that runs all along.
//! A wake is over when the benchmark says so.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use rouse_protocol::app::Generation;
use rouse_protocol::wake::{Outcome, Ready, WakeEvent};
use rouse_protocol::watch::{AppState, AppView, HEARTBEAT, Policy, WatchEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The longest request's header that is read, in bytes.
const MAX_HEADER: usize = 16 * 1024;

/// A waker with these apps. Dropped, it is gone.
#[derive(Debug)]
pub(crate) struct Waker {
    pub(crate) socket: PathBuf,
    released: watch::Sender<bool>,
    _server: JoinSet<()>,
}

/// An app that a waker tells.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) id: String,
    pub(crate) host: String,
    /// Where it is awake; none: it sleeps.
    pub(crate) awake_at: Option<SocketAddr>,
}

impl App {
    fn view(&self) -> anyhow::Result<AppView> {
        let generation = Generation(u64::from(self.awake_at.is_some()));
        let state = match self.awake_at {
            None => AppState::Asleep,
            Some(endpoint) => AppState::Awake(ready(endpoint)),
        };
        Ok(AppView {
            id: self.id.parse()?,
            rules: vec![serde_json::from_value(self.host.clone().into())?],
            policy: Policy {
                idle_ms: 0,
                hold_deadline_ms: 300_000,
                gate_path: "/gate".to_owned(),
                ..Policy::default()
            },
            generation,
            since_unix_ms: 0,
            state,
        })
    }
}

fn ready(endpoint: SocketAddr) -> Ready {
    Ready { endpoint, generation: Generation(1), outcome: Outcome::Resumed, key: None }
}

impl Waker {
    /// Listens at `socket`. Wakes lead to `endpoint`.
    pub(crate) fn start(
        socket: PathBuf,
        apps: &[App],
        endpoint: SocketAddr,
    ) -> anyhow::Result<Self> {
        let mut lines = String::new();
        for app in apps {
            writeln!(lines, "{}", serde_json::to_string(&WatchEvent::App(app.view()?))?)?;
        }
        writeln!(lines, "{}", serde_json::to_string(&WatchEvent::Synced)?)?;
        let woken = serde_json::to_string(&WakeEvent::Ready(ready(endpoint)))? + "\n";
        let listener = UnixListener::bind(&socket).with_context(|| socket.display().to_string())?;
        let (released, hears) = watch::channel(false);
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (lines, woken, hears) = (lines.clone(), woken.clone(), hears.clone());
                // Whoever hangs up ends its own.
                connections.spawn(async move { drop(serve(stream, &lines, &woken, hears).await) });
            }
        });
        Ok(Self { socket, released, _server: server })
    }

    /// Wakes end well from now on, or not at all.
    pub(crate) fn release(&self, released: bool) {
        self.released.send_replace(released);
    }
}

async fn serve(
    mut stream: UnixStream,
    lines: &str,
    woken: &str,
    mut released: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    loop {
        let Some(head) = request(&mut stream).await? else { return Ok(()) };
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        if path.starts_with("/v1/watch") {
            stream.write_all(STREAM).await?;
            // A piece at a time, as a waker would.
            chunk(&mut stream, lines).await?;
            let alive = serde_json::to_string(&WatchEvent::Alive)? + "\n";
            loop {
                tokio::time::sleep(HEARTBEAT).await;
                chunk(&mut stream, &alive).await?;
            }
        }
        if path.ends_with("/wake") {
            stream.write_all(STREAM).await?;
            released.wait_for(|released| *released).await?;
            chunk(&mut stream, woken).await?;
            stream.write_all(b"0\r\n\r\n").await?;
        } else {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await?;
        }
    }
}

const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n\
    Transfer-Encoding: chunked\r\n\r\n";

async fn chunk(stream: &mut UnixStream, text: &str) -> std::io::Result<()> {
    let chunk = format!("{:x}\r\n{text}\r\n", text.len());
    tokio::time::timeout(Duration::from_secs(60), stream.write_all(chunk.as_bytes()))
        .await
        .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}

/// The header of the next request, whose body is read and thrown away; none: it hung up.
async fn request(stream: &mut UnixStream) -> anyhow::Result<Option<String>> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
            });
            let mut left = length.unwrap_or(0usize).saturating_sub(bytes.len() - end - 4);
            let mut piece = [0; 4096];
            while left > 0 {
                let n = stream.read(&mut piece[..left.min(4096)]).await?;
                anyhow::ensure!(n > 0, "a body broke off");
                left -= n;
            }
            return Ok(Some(head));
        }
        anyhow::ensure!(bytes.len() <= MAX_HEADER, "a header is too long");
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
}
