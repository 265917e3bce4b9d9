//! Putting the server together, and taking it down without cutting anybody off.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::Context;
use async_trait::async_trait;
use pingora_core::server::configuration::ServerConf;
use pingora_core::server::{RunArgs, Server, ShutdownSignal, ShutdownSignalWatch};
use pingora_core::services::listening::Service;
use rouse_proxy::Rouse;
use tokio::signal::unix::{SignalKind, signal};

use crate::admin::Admin;
use crate::config::Config;
use crate::service::Proxy;

/// How often a drain looks whether everybody is through.
const LOOK: Duration = Duration::from_millis(20);
/// For how long nobody must be there before the process ends: a request that was just accepted is
/// not counted yet, and an answer that is through here may still have to leave the kernel's hands.
const QUIET: Duration = Duration::from_millis(250);
/// How many upstream connections may lie unused.
const POOL: usize = 1024;

enum Event {
    /// A signal to go down came.
    Stopping,
    /// Another came: at once.
    AtOnce,
    /// The server ended.
    Ended,
}

/// Serves until a signal. Then holds are let go, listeners are closed, and it returns when every
/// visitor is through, or after the grace time.
pub(crate) fn run(config: Config) -> anyhow::Result<()> {
    // Pingora goes on trying for half a minute and then serves nothing: rather find out now.
    for address in config.http.iter().chain(config.admin.as_ref()) {
        claim(*address)?;
    }
    let rouse = Rouse::start(config.rouse)?;

    let mut conf = ServerConf { threads: config.threads, ..ServerConf::default() };
    conf.upstream_keepalive_pool_size = POOL;
    conf.grace_period_seconds = Some(config.grace_seconds);
    conf.graceful_shutdown_timeout_seconds = Some(1);
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();

    let proxy = Proxy { rouse: rouse.clone() };
    let mut service =
        pingora_proxy::http_proxy_service_with_name(&server.configuration, proxy, "proxy");
    for address in &config.http {
        service.add_tcp(&address.to_string());
    }
    server.add_service(service);
    if let Some(address) = config.admin {
        let mut service = Service::new(
            "admin".to_owned(),
            Admin { rouse: rouse.clone(), http: config.http.clone() },
        );
        service.threads = Some(1);
        service.add_tcp(&address.to_string());
        server.add_service(service);
    }

    let (events, incoming) = mpsc::channel();
    let signals = Signals { rouse: rouse.clone(), events: events.clone() };
    // Pingora sleeps through the whole grace time whether anybody is there or not. So it runs on a
    // thread of its own, and the process ends when its work is done.
    std::thread::Builder::new().name("server".to_owned()).spawn(move || {
        server.run(RunArgs { shutdown_signal: Box::new(signals) });
        // The receiver is gone when the process is ending anyway.
        let _ = events.send(Event::Ended);
    })?;
    tracing::info!(listening = ?config.http, admin = ?config.admin, "serving");
    match incoming.recv() {
        Ok(Event::Stopping) => drain(&rouse, &incoming, Duration::from_secs(config.grace_seconds)),
        Ok(Event::AtOnce | Event::Ended) | Err(_) => {}
    }
    tracing::info!("gone");
    Ok(())
}

fn drain(rouse: &Rouse, incoming: &mpsc::Receiver<Event>, grace: Duration) {
    let end = Instant::now() + grace;
    let mut quiet_since = None;
    loop {
        match incoming.recv_timeout(LOOK) {
            Ok(Event::Stopping) => {}
            Ok(Event::AtOnce | Event::Ended) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let there: u64 = rouse.gate().status().iter().map(|app| app.in_flight).sum();
        quiet_since = quiet_since.filter(|_| there == 0).or((there == 0).then(Instant::now));
        let quiet = quiet_since.is_some_and(|since| since.elapsed() >= QUIET);
        if quiet || Instant::now() >= end {
            tracing::info!(there, "drained");
            return;
        }
    }
}

fn claim(address: SocketAddr) -> anyhow::Result<()> {
    TcpListener::bind(address).map(drop).with_context(|| format!("can't listen on {address}"))
}

/// Our own signals: TERM, INT and QUIT go down gracefully, the second one at once.
struct Signals {
    rouse: Rouse,
    events: Sender<Event>,
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        let watch = |kind| signal(kind).map_err(|error| tracing::error!("no signals: {error}"));
        let (Ok(mut term), Ok(mut int), Ok(mut quit)) = (
            watch(SignalKind::terminate()),
            watch(SignalKind::interrupt()),
            watch(SignalKind::quit()),
        ) else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
            _ = quit.recv() => {}
        }
        tracing::info!("going down");
        self.rouse.stop();
        let _ = self.events.send(Event::Stopping);
        let events = self.events.clone();
        self.rouse.gate().spawn(async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
                _ = quit.recv() => {}
            }
            let _ = events.send(Event::AtOnce);
        });
        ShutdownSignal::GracefulTerminate
    }
}
