//! Putting the server together, and taking it down without cutting anybody off.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use pingora_core::apps::{HttpServerOptions, ServerApp};
use pingora_core::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora_core::server::configuration::ServerConf;
use pingora_proxy::{HttpProxy, http_proxy};
use rouse_downstream::Connections;
use rouse_downstream::trusted::Live;
use rouse_proxy::{Edge, FreshCount, Rouse};
use rouse_tls::acme::{Acme, Tokens, Told};
use rouse_tls::{Store, Tls};
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin;
use crate::config::Config;
use crate::listen::Door;
use crate::listen::handover::{Origin, own_name, takes_over, tell_ready};
use crate::listen::sockets::{Bound, Inherited};
use crate::service::Proxy;

/// How often a drain looks whether everybody is through.
const LOOK: Duration = Duration::from_millis(20);
/// For how long nobody must be there before the process ends: a request that was just accepted is
/// not counted yet, and an answer that is through here may still have to leave the kernel's hands.
const QUIET: Duration = Duration::from_millis(250);
/// For how long an idle connection is kept when a drain begins: a request may be on its way.
const LINGER: Duration = Duration::from_millis(500);
/// How often it is looked whether the apps are known, and how long a start and a successor wait for them.
const KNOWN: Duration = Duration::from_millis(5);
const START: Duration = Duration::from_secs(5);
const SUCCESSOR: Duration = Duration::from_secs(20);
/// How many upstream connections may lie unused.
const POOL: usize = 1024;
/// What a visitor may send of one body over HTTP/2 before it is read, in bytes: a held upload.
const STREAM_WINDOW: u32 = 128 * 1024;
/// Streams of one connection. Each has its whole window in that of the connection, so that held uploads
/// never block another stream.
const STREAMS: u32 = 100;
/// For how long an HTTP/2 connection may have no stream.
const H2_IDLE: Duration = Duration::from_secs(180);

/// Serves until a signal. Then listeners are closed, and it returns when every visitor is through, or
/// after the grace time.
pub(crate) fn run(config: Config, file: &Path) -> anyhow::Result<()> {
    let origin = Origin::now().context("this program has no path")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.threads)
        .thread_name("visitors")
        .enable_all()
        .build()?;
    let served = runtime.block_on(serve(config, file, origin));
    // What is left is idle, or has had its time.
    runtime.shutdown_timeout(Duration::from_millis(100));
    tracing::info!("gone");
    served
}

/// Everything that goes on while this process serves.
struct Server {
    rouse: Rouse,
    app: Arc<HttpProxy<Proxy>>,
    store: Option<Arc<Store>>,
    trusted: Arc<Live>,
    /// Listening sockets, to be handed over.
    bound: Vec<Bound>,
    admin: Option<TcpListener>,
    /// The loops that accept visitors.
    accepting: TaskTracker,
    /// Connections.
    tracker: TaskTracker,
    closing: watch::Sender<bool>,
    /// Connections that have not sent their first request.
    fresh: FreshCount,
    /// For how long they may take over it, in a drain.
    patience: Duration,
    /// No more connections.
    stop: CancellationToken,
    /// Operators ask another process.
    admin_over: CancellationToken,
    /// Tasks of our own end.
    over: CancellationToken,
}

async fn serve(config: Config, file: &Path, origin: Origin) -> anyhow::Result<()> {
    let trusted = Arc::new(Live::new(config.downstream.trusted.clone())?);
    let Certificates { store, tls, acme } = certificates(&config)?;
    let mut inherited = Inherited::take();
    let mut bound = Vec::new();
    let v4: Vec<_> = config
        .listeners
        .iter()
        .map(|listener| listener.address)
        .chain(config.admin.map(|admin| admin.address))
        .filter(SocketAddr::is_ipv4)
        .map(|address| address.port())
        .collect();
    let v6_only = |address: SocketAddr| v4.contains(&address.port());
    for listener in &config.listeners {
        let socket = inherited.listen(listener.address, v6_only(listener.address))?;
        bound.push(Bound { listener: *listener, socket });
    }
    let admin_socket = config
        .admin
        .map(|admin| inherited.listen(admin.address, v6_only(admin.address)))
        .transpose()?;
    for address in inherited.unused() {
        tracing::warn!(%address, "a socket was handed over that is not in the configuration; it is closed");
    }
    drop(inherited);

    let mut options = config.rouse;
    options.name = own_name(&options.name);
    let rules = config.downstream.rules.clone();
    options.edge = Some(Edge { rules, trusted: Arc::clone(&trusted) });
    let rouse = Rouse::start(options)?;
    let challenges = acme.as_ref().map(Acme::tokens);
    know_apps(&rouse).await?;
    let app = proxy(&rouse, challenges, config.threads);
    let mut server = Server {
        rouse: rouse.clone(),
        app: Arc::clone(&app),
        store,
        trusted: Arc::clone(&trusted),
        bound,
        admin: admin_socket,
        accepting: TaskTracker::new(),
        tracker: TaskTracker::new(),
        closing: watch::Sender::new(false),
        fresh: FreshCount::default(),
        patience: config.downstream.header,
        stop: CancellationToken::new(),
        admin_over: CancellationToken::new(),
        over: CancellationToken::new(),
    };
    let door = Arc::new(Door {
        rouse: rouse.clone(),
        app,
        tls,
        trusted,
        connections: Connections::new(
            config.downstream.connections,
            config.downstream.connections_per_address,
        ),
        header: config.downstream.header,
        fresh: server.fresh.clone(),
        closing: server.closing.subscribe(),
        tracker: server.tracker.clone(),
    });
    let tasks = TaskTracker::new();
    // An operator's order to drain, as good as a signal.
    let asked = Arc::new(Notify::new());
    let mut addresses = Vec::new();
    for Bound { listener, socket } in &server.bound {
        let own = again(socket)?;
        addresses.push(own.local_addr()?);
        server.accepting.spawn(Arc::clone(&door).accept(*listener, own, server.stop.clone()));
    }
    if let Some(socket) = &server.admin {
        let ask = Arc::clone(&asked);
        let admin = admin::Admin {
            rouse: rouse.clone(),
            config: config.shown,
            read_only: config.admin.is_some_and(|admin| admin.read_only),
            drain: Arc::new(move || ask.notify_one()),
        };
        let over = server.admin_over.clone();
        tasks.spawn(admin::serve(again(socket)?, Arc::new(admin), over));
    }
    server.accepting.close();
    server.tell_certificates();
    server.watch_certificates(&tasks);
    server.order_certificates(acme, &tasks);

    let mut signals = Signals::new(asked)?;
    tracing::info!(listening = ?addresses, admin = ?config.admin.map(|admin| admin.address), config = %file.display(), "serving");
    let pid = std::process::id();
    tell_ready();
    // Nobody may be listening, which is no fault.
    let _ = sd_notify::notify(&[NotifyState::MainPid(pid), NotifyState::Ready]);
    loop {
        match signals.next().await {
            Asked::Reload => server.reload().await,
            Asked::HandOver => match server.hand_over(&origin).await {
                Ok(()) => {
                    server.drain(config.drain, &mut signals, config.grace).await;
                    break;
                }
                Err(error) => tracing::error!("goes on serving: {error:#}"),
            },
            Asked::Drain => {
                tracing::info!("drains");
                server.drain(config.drain, &mut signals, config.grace).await;
                break;
            }
            Asked::Stop => {
                let _ = sd_notify::notify(&[NotifyState::Stopping]);
                tracing::info!("going down");
                server.rouse.stop();
                server.drain(config.grace, &mut signals, Duration::ZERO).await;
                break;
            }
        }
    }
    server.over.cancel();
    server.admin_over.cancel();
    tasks.close();
    tasks.wait().await;
    rouse.flush();
    Ok(())
}

/// Waits until the waker has told its apps: before that, whoever comes would be nobody's visitor, and
/// meanwhile waits to be accepted. A process that is to take another's place does not without: the other
/// knows its apps.
async fn know_apps(rouse: &Rouse) -> anyhow::Result<()> {
    let known = async {
        while !rouse.gate().synced() {
            tokio::time::sleep(KNOWN).await;
        }
    };
    let patience = if takes_over() { SUCCESSOR } else { START };
    let known = tokio::time::timeout(patience, known).await.is_ok();
    anyhow::ensure!(known || !takes_over(), "the waker has not told its apps");
    Ok(())
}

/// The same socket once more.
fn again(socket: &TcpListener) -> std::io::Result<TcpListener> {
    TcpListener::from_std(socket.as_fd().try_clone_to_owned()?.into())
}

fn proxy(rouse: &Rouse, challenges: Option<Tokens>, threads: usize) -> Arc<HttpProxy<Proxy>> {
    let mut conf = ServerConf { threads, ..ServerConf::default() };
    conf.upstream_keepalive_pool_size = POOL;
    let mut app = http_proxy(&Arc::new(conf), Proxy { rouse: rouse.clone(), challenges });
    let mut options = HttpServerOptions::default();
    options.h2_idle_timeout = Some(H2_IDLE);
    app.server_options = Some(options);
    app.h2_options = Some(h2_options());
    Arc::new(app)
}

fn h2_options() -> H2Options {
    let mut options = default_h2_options();
    options
        .max_concurrent_streams(STREAMS)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * STREAMS);
    options
}

/// What TLS is served by.
#[derive(Default)]
struct Certificates {
    store: Option<Arc<Store>>,
    tls: Option<Arc<Tls>>,
    acme: Option<Acme>,
}

/// The certificates, if there are any, and TLS with them. What is bad is told; only where nothing is
/// good, and nothing can be ordered, nothing is served.
fn certificates(config: &Config) -> anyhow::Result<Certificates> {
    let Some(tls) = &config.tls else { return Ok(Certificates::default()) };
    let (store, errors) = Store::open(tls);
    for error in &errors {
        tracing::error!("a certificate is not served: {error}");
    }
    if store.certificates().is_empty() && tls.acme.is_none() {
        anyhow::bail!("there is no certificate to serve: see `[tls]`");
    }
    let store = Arc::new(store);
    let acme = match &tls.acme {
        Some(acme) => Some(Acme::open(acme, Arc::clone(&store)).context("`[tls.acme]`")?),
        None => None,
    };
    let tls = Tls::new(Arc::clone(&store), tls).context("TLS")?;
    Ok(Certificates { store: Some(store), tls: Some(Arc::new(tls)), acme })
}

impl Server {
    /// Reads again what can change while it serves.
    async fn reload(&self) {
        self.rouse.reopen();
        let _ = sd_notify::notify(&[NotifyState::Reloading]);
        let (store, trusted) = (self.store.clone(), Arc::clone(&self.trusted));
        let read = move || (store.map(|store| store.reload()), trusted.reload());
        match tokio::task::spawn_blocking(read).await {
            Ok((certificates, trusted)) => {
                if let Some(reload) = certificates {
                    told(&reload);
                }
                match trusted {
                    Ok(changed) => tracing::info!(changed, "trusted proxies are read again"),
                    Err(refused) => {
                        tracing::error!("trusted proxies stay as they were:\n{refused}")
                    }
                }
            }
            Err(error) => tracing::error!(%error, "nothing is read again"),
        }
        self.tell_certificates();
        let _ = sd_notify::notify(&[NotifyState::Ready]);
    }

    fn watch_certificates(&self, tasks: &TaskTracker) {
        let Some(store) = self.store.clone() else { return };
        let (rouse, over, seen) = (self.rouse.clone(), self.over.clone(), Arc::clone(&store));
        tasks.spawn(async move {
            let reloaded = |reload: rouse_tls::Reload| {
                told(&reload);
                tell(&rouse, &seen);
            };
            if let Err(error) = rouse_tls::watch(store, over, reloaded).await {
                tracing::error!(%error, "certificates are read again at a SIGHUP only");
            }
        });
    }

    fn order_certificates(&self, acme: Option<Acme>, tasks: &TaskTracker) {
        let (Some(acme), Some(store)) = (acme, self.store.clone()) else { return };
        let (rouse, over) = (self.rouse.clone(), self.over.clone());
        tasks.spawn(async move {
            let told = |told: Told<'_>| {
                match &told {
                    Told::Ordered { .. } => tracing::info!("{told}"),
                    _ => tracing::error!("{told}"),
                }
                tell(&rouse, &store);
            };
            acme.run(over, told).await;
        });
    }

    fn tell_certificates(&self) {
        if let Some(store) = &self.store {
            tell(&self.rouse, store);
        }
    }

    /// Starts the process that takes this one's place; when it serves, no more connections are accepted
    /// here.
    async fn hand_over(&self, origin: &Origin) -> anyhow::Result<()> {
        let sockets = self.bound.iter().map(|bound| &bound.socket).chain(&self.admin);
        let sockets = sockets.map(|socket| socket.as_fd().try_clone_to_owned());
        let sockets = sockets.collect::<Result<_, _>>()?;
        let origin = origin.clone();
        let child = tokio::task::spawn_blocking(move || origin.hand_over(sockets)).await??;
        tracing::info!(successor = child.id(), "another process serves");
        self.admin_over.cancel();
        Ok(())
    }

    /// Lets everybody there end what they began, for at most `time`; asked to stop meanwhile, for at most
    /// `grace` more.
    async fn drain(&mut self, time: Duration, signals: &mut Signals, grace: Duration) {
        self.rouse.drain();
        self.stop.cancel();
        self.accepting.wait().await;
        // Whoever comes now is refused, or another process has these sockets too.
        self.bound.clear();
        self.closing.send_replace(true);
        self.tracker.close();
        let began = Instant::now();
        let mut end = began + time;
        let (mut quiet_since, mut lingers) = (None, true);
        loop {
            tokio::select! {
                biased;
                asked = signals.next() => match asked {
                    Asked::Stop if !grace.is_zero() && end > Instant::now() + grace => {
                        self.rouse.stop();
                        end = Instant::now() + grace;
                    }
                    Asked::Stop => return,
                    Asked::HandOver | Asked::Reload | Asked::Drain => {}
                },
                () = self.tracker.wait() => break,
                () = tokio::time::sleep(LOOK) => {}
            }
            // Whoever was let in a moment ago is served: another process would not get its request.
            let arrives = self.fresh.get() > 0 && began.elapsed() < self.patience;
            if lingers && !arrives && began.elapsed() >= LINGER {
                lingers = false;
                // Connections that wait for a next request end.
                self.app.cleanup().await;
            }
            let there: u64 = self.rouse.gate().status().iter().map(|app| app.in_flight).sum();
            quiet_since = quiet_since.filter(|_| there == 0).or((there == 0).then(Instant::now));
            let quiet = !lingers && quiet_since.is_some_and(|since| since.elapsed() >= QUIET);
            if quiet || Instant::now() >= end {
                tracing::info!(there, "drained");
                return;
            }
        }
        tracing::info!("drained");
    }
}

fn told(reload: &rouse_tls::Reload) {
    for error in &reload.errors {
        tracing::error!("the certificate before it is served still: {error}");
    }
    if reload.changed + reload.removed > 0 {
        let (changed, removed) = (reload.changed, reload.removed);
        tracing::info!(changed, removed, "certificates are read again");
    }
}

fn tell(rouse: &Rouse, store: &Store) {
    let all = store.certificates();
    let named: Vec<_> = all
        .iter()
        .map(|certificate| {
            let file = certificate.file.as_ref().map(|file| file.display().to_string());
            let name = file.or_else(|| certificate.names.first().cloned()).unwrap_or_default();
            let ends = certificate.not_after.duration_since(UNIX_EPOCH).unwrap_or_default();
            (name, i64::try_from(ends.as_secs()).unwrap_or(i64::MAX))
        })
        .collect();
    rouse.certificates(named.iter().map(|(name, ends)| (&**name, *ends)));
}

/// What a signal asks for.
enum Asked {
    /// TERM, INT: holds are let go, requests end.
    Stop,
    /// An operator asks: no more connections, everybody there is let through.
    Drain,
    /// QUIT: another process takes over.
    HandOver,
    /// HUP.
    Reload,
}

struct Signals {
    term: Signal,
    int: Signal,
    quit: Signal,
    hup: Signal,
    asked: Arc<Notify>,
}

impl Signals {
    fn new(asked: Arc<Notify>) -> std::io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hup: signal(SignalKind::hangup())?,
            asked,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.term.recv() => Asked::Stop,
            _ = self.int.recv() => Asked::Stop,
            _ = self.quit.recv() => Asked::HandOver,
            _ = self.hup.recv() => Asked::Reload,
            () = self.asked.notified() => Asked::Drain,
        }
    }
}
