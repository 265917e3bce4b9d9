//! The agent between a stand-in for the waker and small apps, all in this process.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rouse_agent::busy::Busy;
use rouse_agent::control::{self, Patch};
use rouse_agent::disk::Disk;
use rouse_agent::front::{self, Settings};
use rouse_agent::lanes::Lanes;
use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::control::{FromAgent, ToAgent};
use rouse_protocol::signature::{AgentKey, Signed};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const GATE: &str = "/.well-known/rouse-gate";

/// What is due, or a panic after [`PATIENCE`].
pub async fn due<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it never came")
}

/// What one life brought: the clock in nanoseconds, and the fresh bytes.
pub type Patched = (u64, Vec<u8>);

/// Records what would have been done to the machine: the tests must not set its clock.
#[derive(Clone, Debug, Default)]
pub struct Patches(pub Arc<Mutex<Vec<Patched>>>);

impl Patch for Patches {
    fn clock(&self, unix_ns: u64) -> io::Result<i64> {
        self.0.lock().unwrap().push((unix_ns, Vec::new()));
        Ok(17)
    }

    fn entropy(&self, fresh: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().last_mut().unwrap().1 = fresh.to_vec();
        Ok(())
    }
}

/// The agent, and the waker's end of its control port.
pub struct Agent {
    pub front: SocketAddr,
    pub app: SocketAddr,
    pub key: AgentKey,
    pub patches: Patches,
    pub waker: UnixListener,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    dir: tempfile::TempDir,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A loopback address of this test's own. Nobody listens there, and as connections start from
/// 127.0.0.1, none of their ports is in the way.
fn own_address() -> IpAddr {
    static TAKEN: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | (high & 63), low, TAKEN.fetch_add(1, Ordering::Relaxed)).into()
}

impl Agent {
    /// An agent that has not been told of any life.
    pub async fn unborn() -> Self {
        Self::unborn_with(|_| None).await
    }

    /// As [`Self::unborn`], with the disk that `disk` makes in the agent's directory.
    pub async fn unborn_with(disk: impl FnOnce(&Path) -> Option<Disk>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control");
        let waker = UnixListener::bind(&path).unwrap();
        let address = own_address();
        let (front, app) = (SocketAddr::new(address, 8080), SocketAddr::new(address, 3000));
        let (told, lives) = watch::channel(None);
        let patches = Patches::default();
        let patch = patches.clone();
        let lanes = Lanes::start(disk(dir.path()), dir.path().join("env")).unwrap();
        // Ends when the front has, and the waker's end is closed.
        let busy = Busy::start().unwrap();
        let of_control = busy.clone();
        std::thread::spawn(move || control::run(&path, &patch, &lanes, &of_control, &told));
        let settings = Settings { app, gate_path: GATE.into(), busy };
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let run = front::run(front, settings, lives, stop.clone());
        tasks.spawn(async { run.await.unwrap() });
        let key = AgentKey::generate();
        Self { front, app, key, patches, waker, stop, tasks, dir }
    }

    /// An agent in its first life.
    pub async fn start() -> (Self, Port) {
        Self::unborn().await.born().await
    }

    /// In its first life.
    pub async fn born(self) -> (Self, Port) {
        let agent = self;
        let mut port = agent.port().await;
        assert!(matches!(port.heard().await, FromAgent::Hello { .. }));
        port.tell(&agent.life(1, 0)).await;
        let alive = FromAgent::Alive {
            generation: Generation(1),
            stepped_ms: 17,
            clock_error: None,
            entropy_error: None,
        };
        assert_eq!(port.heard().await, alive);
        agent.connect().await;
        (agent, port)
    }

    /// `name` in the directory that is this agent's own.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The next opening of the control port.
    pub async fn port(&self) -> Port {
        let (stream, _) = due(self.waker.accept()).await.unwrap();
        Port(BufReader::new(stream))
    }

    pub fn life(&self, generation: u64, unix_ns: u64) -> ToAgent {
        ToAgent::Life {
            app: app_id(),
            generation: Generation(generation),
            key: self.key.clone(),
            unix_ns,
            entropy: "00ff".into(),
        }
    }

    /// A connection to the front, as soon as it listens.
    pub async fn connect(&self) -> TcpStream {
        due(async {
            loop {
                if let Ok(stream) = TcpStream::connect(self.front).await {
                    return stream;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await
    }

    /// Sends `request` on a connection of its own, and reads until the agent hangs up.
    pub async fn raw(&self, request: impl AsRef<[u8]>) -> Raw {
        let mut stream = self.connect().await;
        stream.write_all(request.as_ref()).await.unwrap();
        let mut bytes = Vec::new();
        due(stream.read_to_end(&mut bytes)).await.unwrap();
        Raw(String::from_utf8(bytes).unwrap())
    }

    /// A `GET` of `path` with the nonce `n`.
    pub async fn get(&self, path: &str) -> Raw {
        self.raw(format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nRouse-Nonce: n\r\nConnection: close\r\n\r\n"
        ))
        .await
    }

    /// What `response` says under our key, in answer to the nonce `n`.
    pub fn verify(&self, response: &Raw) -> Signed {
        let header = response.header("rouse-agent").expect("a signature");
        self.key.verify(&app_id(), "n", header).unwrap()
    }

    /// Serves the app's port by `answer` until the returned set is dropped.
    pub async fn app<F, B>(
        &self,
        answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    ) -> JoinSet<()>
    where
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + 'static,
    {
        let listener = self.listen().await;
        let mut set = JoinSet::new();
        set.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let answer = answer.clone();
                let service = service_fn(move |request| {
                    let answered = answer(request);
                    async { Ok::<_, Infallible>(answered.await) }
                });
                connections.spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        set
    }

    /// The app's port, bound.
    pub async fn listen(&self) -> TcpListener {
        TcpListener::bind(self.app).await.unwrap()
    }
}

pub fn app_id() -> AppId {
    "hello".parse().unwrap()
}

/// The waker's end of the control port.
pub struct Port(BufReader<UnixStream>);

impl Port {
    pub async fn heard(&mut self) -> FromAgent {
        let mut line = String::new();
        due(self.0.read_line(&mut line)).await.unwrap();
        serde_json::from_str(&line).unwrap()
    }

    pub async fn tell(&mut self, message: &ToAgent) {
        self.write(&format!("{}\n", serde_json::to_string(message).unwrap())).await;
    }

    pub async fn write(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).await.unwrap();
    }
}

/// An answer as it came.
#[derive(Debug)]
pub struct Raw(pub String);

impl Raw {
    pub fn head(&self) -> &str {
        self.0.split_once("\r\n\r\n").expect("a whole header").0
    }

    pub fn body(&self) -> &str {
        self.0.split_once("\r\n\r\n").expect("a whole header").1
    }

    pub fn status(&self) -> u16 {
        self.0.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head().lines().skip(1).find_map(|line| {
            let (n, value) = line.split_once(": ")?;
            n.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// A short answer of an app.
pub fn text(status: u16, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(body.into())).unwrap()
}

/// Reads from `stream` until `end` has come.
pub async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    due(async {
        while !bytes.ends_with(end.as_bytes()) {
            assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "ended before {end:?}");
        }
    })
    .await;
    String::from_utf8(bytes).unwrap()
}
