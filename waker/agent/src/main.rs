//! `rouse-agent`: fronts the app's port in the guest.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use rouse_agent::busy::Busy;
use rouse_agent::control::{self, Machine};
use rouse_agent::disk::Disk;
use rouse_agent::front::{self, Settings};
use rouse_agent::lanes::Lanes;
use rouse_protocol::signature::DEFAULT_GATE_PATH;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// How long the control port may take to appear after the guest's start.
const PORT_WAIT: Duration = Duration::from_secs(10);

/// Fronts an app in its microVM: answers the gate, and tells the proxy when the app is missing.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Where visitors come in. Bound once the waker has said who this guest is.
    #[arg(long)]
    front: SocketAddr,
    /// Where the app listens.
    #[arg(long)]
    app: SocketAddr,
    /// The path at which the gate probes.
    #[arg(long, default_value = DEFAULT_GATE_PATH)]
    gate_path: String,
    /// The control port: a virtio-serial device or a Unix socket. Found by name when absent.
    #[arg(long)]
    control: Option<PathBuf>,
    /// Where the app's disk is mounted. Without it there is none to flush or to check.
    #[arg(long)]
    disk: Option<PathBuf>,
    /// The file that the app's environment is written to, as a shell and systemd's EnvironmentFile
    /// read it. It has mode 0640; under a directory with the set-group-ID bit it has that group.
    #[arg(long, default_value = "/run/rouse/env")]
    env_file: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::builder()
        .with_default_directive(tracing::level_filters::LevelFilter::INFO.into())
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();

    let arguments = Arguments::parse();
    let port = match arguments.control {
        Some(path) => path,
        None => wait_for_port()?,
    };
    let lanes = Lanes::start(arguments.disk.map(Disk::new), arguments.env_file)
        .context("the threads of flushes and patches")?;
    let busy = Busy::start().context("the thread that tells of the app's work")?;
    let (told, lives) = watch::channel(None);
    let of_control = busy.clone();
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || control::run(&port, &Machine, &lanes, &of_control, &told))
        .context("the control thread")?;

    let settings = Settings { app: arguments.app, gate_path: arguments.gate_path, busy };
    let stop = CancellationToken::new();
    runtime()?
        .block_on(front::run(arguments.front, settings, lives, stop))
        .with_context(|| format!("{} can't be bound", arguments.front))
}

fn wait_for_port() -> anyhow::Result<PathBuf> {
    let started = Instant::now();
    loop {
        if let Some(port) = control::find_port(Path::new("/sys/class/virtio-ports")) {
            return Ok(port);
        }
        anyhow::ensure!(
            started.elapsed() < PORT_WAIT,
            "no virtio-serial port is called {}",
            rouse_protocol::control::PORT_NAME
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One thread where there is one processor: handing tasks to a second one costs a wake-up each.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let several = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
    let mut builder = if several {
        tokio::runtime::Builder::new_multi_thread()
    } else {
        tokio::runtime::Builder::new_current_thread()
    };
    builder.enable_all().build().context("the runtime")
}
