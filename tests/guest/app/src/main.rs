//! `rouse-test-app`: the app that runs in the test guest. Each path shows one thing that a wake or
//! a proxy can break.
#![forbid(unsafe_code)]

mod answer;
mod chain;
mod crash;
mod disk;
mod echo;
mod env;
mod error;
mod grpc;
mod log;
mod memory;
mod page;
mod query;
mod random;
mod route;
mod ssh;
mod stream;
mod time;
mod ws;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use http_body_util::Either;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::task::TaskTracker;

use crate::route::App;

/// A visitor stampede fits.
const BACKLOG: u32 = 4096;

/// The test guest's app.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
    /// Where to greet as an SSH server does.
    #[arg(long)]
    ssh: Option<SocketAddr>,
    /// Where the app's disk is mounted; the app's own directory on it is `app`.
    #[arg(long, default_value = "/data")]
    data: PathBuf,
    /// The environment file that the agent keeps.
    #[arg(long, default_value = "/run/rouse/env")]
    env_file: PathBuf,
}

// A guest has one processor; the work here is waiting.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let tasks = TaskTracker::new();
    let (exit, mut exiting) = tokio::sync::watch::channel(None);
    if let Some(address) = arguments.ssh {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("{address} can't be bound"))?;
        tasks.spawn(ssh::serve(listener, tasks.clone()));
    }
    let app = Arc::new(App::new(arguments.data, arguments.env_file, tasks.clone(), exit));
    let serving = serve(arguments.listen, app, tasks);
    tokio::select! {
        served = serving => served.map(|()| ExitCode::SUCCESS),
        code = exiting.wait_for(Option::is_some) => Ok(ExitCode::from(
            code.ok().and_then(|code| *code).unwrap_or(1),
        )),
    }
}

async fn serve(address: SocketAddr, app: Arc<App>, tasks: TaskTracker) -> anyhow::Result<()> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address).with_context(|| format!("{address} can't be bound"))?;
    let listener = socket.listen(BACKLOG)?;
    loop {
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                // Out of descriptors, most likely.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let app = app.clone();
        let service = service_fn(move |request| {
            let app = app.clone();
            async move {
                let answer = if grpc::is_for(&request) {
                    grpc::answer(app.left.clone(), request).await.map(Either::Right)
                } else {
                    route::answer(app, request).await.map(Either::Left)
                };
                Ok::<_, Infallible>(answer)
            }
        });
        tasks.spawn(async move {
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder
                .http1()
                .timer(TokioTimer::new())
                // Idle connections are the visitor's to close.
                .header_read_timeout(None)
                .preserve_header_case(true);
            let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
            // A visitor who leaves ends here too.
            let _ = connection.await;
        });
    }
}
