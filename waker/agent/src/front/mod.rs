//! The HTTP front before the app's port.
//!
//! Whatever is not ours passes: the app's answers, errors among them, its streams, trailers and
//! upgrades. What comes by HTTP/2, with prior knowledge, goes on to the app by HTTP/2. Ours are the gate's probe, the signed word that the app does not listen, and the
//! error for an exchange that the app broke off.

mod answer;
mod body;
mod busy;
mod dial;
mod exchange;
mod headers;
mod probe;
mod streams;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use nix::sys::socket::{setsockopt, sockopt};
use rouse_protocol::signature::AgentState;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use self::streams::{CONNECTION_WINDOW, MAX_STREAMS, STREAM_WINDOW, Tasks};
use crate::busy::{self as word, Busy};
use crate::life::{Life, Lives};
use crate::state::{self, Dial};

/// How many connections are served at once. Above it new ones wait in the kernel's backlog.
const MAX_CONNECTIONS: usize = 4096;

/// How many connections wait to be accepted: as many as a proxy may release while the app's first
/// answer is on its way.
const BACKLOG: u32 = 4096;

/// How long a visitor's connection may take over one request's header. The same clock runs
/// between two requests, and hanging up there races with the proxy's next request: so it is
/// longer than any proxy keeps an idle connection.
const HEADER_READ: Duration = Duration::from_secs(600);

/// A connection on which nothing was heard for this long is probed by the kernel. After a sleep
/// all of them are dead without a word, and would be kept for ever.
const PROBE_IDLE_SECONDS: u32 = 60;

/// Where the front stands.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The app's own port.
    pub app: SocketAddr,
    /// The path at which the gate probes.
    pub gate_path: String,
    /// What the app says of its work.
    pub busy: Busy,
}

/// What all connections share.
#[derive(Debug)]
struct Shared {
    settings: Settings,
    lives: Lives,
    /// The app has listened at least once since the agent started.
    listened: AtomicBool,
    /// How often nobody listened. The process that did is gone by then, and so is what it had
    /// accepted, though the end of those connections may not have been seen yet.
    refusals: AtomicU64,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Shared {
    /// The word to sign after a dial that showed `dial`.
    fn observe(&self, dial: Dial) -> AgentState {
        let (word, listened) = state::observe(self.listened.load(Ordering::Relaxed), dial);
        if dial == Dial::Refused {
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
        // Only ever set: a concurrent dial that found nobody must not take it back.
        if listened {
            self.listened.store(true, Ordering::Relaxed);
        }
        word
    }

    fn life(&self) -> Option<Arc<Life>> {
        self.lives.borrow().clone()
    }
}

/// Waits for the first life, then serves `address` until `stop`. Returns when every connection
/// has ended, or with what binding said.
///
/// Before the first life the port is not even bound, since an agent that can't sign has nothing
/// to say to a gate: a refused connection is understood.
pub async fn run(
    address: SocketAddr,
    settings: Settings,
    mut lives: Lives,
    stop: CancellationToken,
) -> io::Result<()> {
    let born = async { lives.wait_for(Option::is_some).await.is_ok() };
    if stop.run_until_cancelled(born).await != Some(true) {
        // Stopped, or nobody is left who could tell.
        return Ok(());
    }
    let listener = bind(address)?;
    serve(listener, settings, lives, stop).await;
    Ok(())
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn serve(listener: TcpListener, settings: Settings, lives: Lives, stop: CancellationToken) {
    let tasks = TaskTracker::new();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let shared = Arc::new(Shared {
        settings,
        lives,
        listened: AtomicBool::new(false),
        refusals: AtomicU64::new(0),
        tasks: tasks.clone(),
        stop: stop.clone(),
    });
    let accept_all = async {
        loop {
            let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let shared = shared.clone();
                    tasks.spawn(async move {
                        connection(shared, stream, word::is_inside(peer.ip())).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    // Out of descriptors, most likely: they come back as connections end.
                    warn!(%error, "a connection can't be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    stop.run_until_cancelled(accept_all).await;
    tasks.close();
    tasks.wait().await;
}

async fn connection(shared: Arc<Shared>, stream: TcpStream, inside: bool) {
    // A connection without these options still works.
    let _ = stream.set_nodelay(true);
    let _ = setsockopt(&stream, sockopt::KeepAlive, &true);
    let _ = setsockopt(&stream, sockopt::TcpKeepIdle, &PROBE_IDLE_SECONDS);
    let _ = setsockopt(&stream, sockopt::TcpKeepInterval, &10);
    let _ = setsockopt(&stream, sockopt::TcpKeepCount, &3);

    let (stop, tasks) = (shared.stop.clone(), shared.tasks.clone());
    let visitor = Arc::new(exchange::Connection::new(shared, inside));
    let service = service_fn(move |request| {
        let visitor = visitor.clone();
        async move { visitor.answer(request).await }
    });
    let mut builder = auto::Builder::new(Tasks(tasks));
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ)
        .preserve_header_case(true)
        .auto_date_header(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(STREAM_WINDOW as usize)
        .auto_date_header(false);
    let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    if let Some(Err(error)) = stop.run_until_cancelled(serving).await {
        // A visitor who leaves ends here too.
        debug!(%error, "a connection broke");
    }
}
