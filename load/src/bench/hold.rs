//! `rouse-bench hold`: thousands of visitors held on one app, and another app meanwhile.
//!
//! The proxy runs on one core, all else on another. Its memory is its resident set; what a hold costs is
//! what that has grown by, over the holds. The other app's visitors come at a fixed rate.

mod visitors;
pub(crate) mod waker;

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rouse_tests::Visit;
use serde_json::json;
use tokio::time::Instant;

use self::visitors::{answered, come, quantile, visit_steadily};
use self::waker::{App, Waker};
use crate::hotpath::nginx_origin;
use crate::machine::{self, Cores};
use crate::report::{Bar, Report};
use crate::server::{Server, free_address};
use crate::stats::median;

/// What a held keep-alive GET may cost, in KiB.
const MEMORY: Bar = Bar::AtMost(24.0);
/// How much slower the slowest hundredth of another app's visitors may get.
const OTHERS: Bar = Bar::AtMost(1.5);
/// How often the other app is visited, in visits per second.
const RATE: usize = 500;
/// How long a step may take.
const PATIENCE: Duration = Duration::from_secs(120);

const SLEEPS: &str = "sleeps.localhost";
const AWAKE: &str = "awake.localhost";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also print one JSON object, on the last line.
    #[arg(long)]
    json: bool,
    /// How many visitors are held.
    #[arg(long, default_value = "10000")]
    visitors: NonZeroUsize,
    /// How often all of it is done.
    #[arg(long, default_value = "3")]
    rounds: NonZeroUsize,
    /// How long the other app is visited before the hold, and in it, in seconds.
    #[arg(long, default_value = "10")]
    seconds: NonZeroUsize,
}

/// One round.
#[derive(Clone, Copy, Debug)]
struct Round {
    kib_per_hold: f64,
    p99_before_ms: f64,
    p99_held_ms: f64,
    first_ms: f64,
    median_ms: f64,
    last_ms: f64,
    kib_left: f64,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    raise_limit(args.visitors.get())?;
    let cores = Cores::find();
    let nginx = machine::installed("nginx")?;
    let about = machine::describe(&[("nginx", &nginx, "-v")]);
    println!(
        "hold: {} rounds of {} visitors held, {RATE} visits a second to another app",
        args.rounds, args.visitors
    );
    machine::print(&about);
    if let Some(cores) = cores {
        machine::run_on(cores.load)?;
    }
    let mut rounds = Vec::new();
    for n in 1..=args.rounds.get() {
        let round = Box::pin(round(args, &nginx, cores)).await?;
        println!(
            "round {n}: {:.1} KiB a hold, answered after {:.0} to {:.0} ms, the other app's p99 {:.2} ms before and {:.2} ms meanwhile, {:.1} MiB left after all have gone",
            round.kib_per_hold,
            round.first_ms,
            round.last_ms,
            round.p99_before_ms,
            round.p99_held_ms,
            round.kib_left / 1024.0
        );
        rounds.push(round);
    }
    let middle = |of: fn(&Round) -> f64| {
        median(&rounds.iter().map(of).collect::<Vec<_>>()).context("no rounds")
    };
    let memory = middle(|r| r.kib_per_hold)?;
    let others = middle(|r| r.p99_held_ms / r.p99_before_ms)?;
    let figures = json!({
        "machine": about,
        "visitors": args.visitors,
        "rounds": rounds.len(),
        "kib_per_hold": memory,
        "release_first_ms": middle(|r| r.first_ms)?,
        "release_median_ms": middle(|r| r.median_ms)?,
        "release_last_ms": middle(|r| r.last_ms)?,
        "release_spread_ms": middle(|r| r.last_ms - r.first_ms)?,
        "other_p99_before_ms": middle(|r| r.p99_before_ms)?,
        "other_p99_held_ms": middle(|r| r.p99_held_ms)?,
        "left_kib": middle(|r| r.kib_left)?,
    });
    println!(
        "\nmedians: {memory:.1} KiB a hold; released: first {:.0} ms, median {:.0} ms, last {:.0} ms; the other app's p99 × {others:.2}; {:.1} MiB left of it all",
        middle(|r| r.first_ms)?,
        middle(|r| r.median_ms)?,
        middle(|r| r.last_ms)?,
        middle(|r| r.kib_left)? / 1024.0
    );
    Report::new("hold", figures)
        .bar("kib_per_hold", memory, MEMORY)
        .bar("other_app_p99_ratio", others, OTHERS)
        .print(args.json);
    Ok(())
}

async fn round(args: &Args, nginx: &Path, cores: Option<Cores>) -> anyhow::Result<Round> {
    let dir = tempfile::Builder::new().prefix("rouse-bench-").tempdir()?;
    let origin_at = free_address()?;
    let mut origin = nginx_origin(nginx, origin_at, dir.path(), cores.map(|cores| cores.load))?;
    origin.ready(origin_at, AWAKE).await?;
    let app = |id: &str, host: &str, awake_at| App { id: id.into(), host: host.into(), awake_at };
    let apps = [app("sleeps", SLEEPS, None), app("awake", AWAKE, Some(origin_at))];
    let waker = Waker::start(dir.path().join("waker.sock"), &apps, origin_at)?;
    // What is awake is woken by its first visitor here, too: this proxy does not know it yet.
    waker.release(true);

    let (http, admin) = (free_address()?, free_address()?);
    let config = format!(
        "[listen]\nhttp = [\"{http}\"]\nadmin = \"{admin}\"\n[server]\nthreads = 1\ngrace_seconds = 1\n\
         name = \"bench\"\n[hold]\nper_app = 100000\ntotal = 100000\n[downstream]\n\
         connections = 100000\nconnections_per_address = 100000\n[waker]\nsocket = {:?}\n",
        waker.socket
    );
    let file = dir.path().join("rouse.toml");
    std::fs::write(&file, config)?;
    let program = machine::beside("rouse-proxy")?;
    let words = ["--config".to_owned(), file.display().to_string()];
    let core = cores.map(|cores| cores.under_test);
    let mut proxy = Server::start("rouse-proxy", &program, &words, core, dir.path())?;
    proxy.ready(http, AWAKE).await?;
    waker.release(false);

    let time = Duration::from_secs(u64::try_from(args.seconds.get())?);
    let before = visit_steadily(http, AWAKE, RATE, time).await?;
    let idle = proxy.resident_kib()?;
    let held = come(http, SLEEPS, args.visitors.get()).await?;
    wait_for_holds(admin, args.visitors.get()).await?;
    let full = proxy.resident_kib()?;
    let meanwhile = visit_steadily(http, AWAKE, RATE, time).await?;

    let since = Instant::now();
    waker.release(true);
    let answers = tokio::time::timeout(PATIENCE, answered(held, since)).await;
    let (times, streams) = answers.context("they are not answered")??;
    drop(streams);
    wait_for_holds(admin, 0).await?;
    // What the allocator keeps it gives back when it has had time to.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let left = proxy.resident_kib()?;
    Ok(Round {
        kib_per_hold: (full - idle) / args.visitors.get() as f64,
        p99_before_ms: quantile(&before, 0.99),
        p99_held_ms: quantile(&meanwhile, 0.99),
        first_ms: times.first().copied().unwrap_or_default(),
        median_ms: quantile(&times, 0.5),
        last_ms: times.last().copied().unwrap_or_default(),
        kib_left: left - idle,
    })
}

/// Waits until so many are held.
async fn wait_for_holds(admin: std::net::SocketAddr, count: usize) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut last = String::new();
    while start.elapsed() < PATIENCE {
        let reply = Visit::get("/metrics").host("admin").send(admin).await?;
        let line = reply.text().lines().find(|line| line.starts_with("rouse_holds "));
        last = line.unwrap_or_default().to_owned();
        if last == format!("rouse_holds {count}") {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("never {count} held: {last}")
}

/// Visitors are descriptors, here and in the proxy, which has some more towards the app.
fn raise_limit(visitors: usize) -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let needed = u64::try_from(visitors)? + 2_000;
    anyhow::ensure!(hard >= needed, "only {hard} files may be open here; see `ulimit -Hn`");
    Ok(())
}
