//! `rouse-bench hotpath`: what a request to an awake app costs.
//!
//! The program under test runs on one core, load and origin on another. All peers run all the
//! time and are loaded in turn, each round in another order. Ratios are taken round by round, and
//! their median is told: what the machine does to all of them cancels out.

mod peer;
mod wrk;

use std::num::NonZeroUsize;

use anyhow::Context;
use serde_json::{Value, json};

pub(crate) use self::peer::nginx_origin;
use self::peer::{HOST, Peer};
use self::wrk::Wrk;
use crate::machine::{self, Cores};
use crate::report::{Bar, Report};
use crate::server::{Server, free_address};
use crate::stats::{median, paired_ratio};

/// What Rouse adds to bare Pingora may cost no more than this leaves.
const BAR: Bar = Bar::AtLeast(0.97);
/// Below this part of its core's time a peer was not what limited the requests per second.
const SATURATED: f64 = 0.85;
/// How long each peer is loaded before anything counts, in seconds.
const WARM_UP: NonZeroUsize = NonZeroUsize::MIN;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also print one JSON object, on the last line.
    #[arg(long)]
    json: bool,
    /// How often each peer is measured.
    #[arg(long, default_value = "5")]
    rounds: NonZeroUsize,
    /// How long one measurement takes.
    #[arg(long, default_value = "4")]
    seconds: NonZeroUsize,
    /// How many connections load a peer.
    #[arg(long, default_value = "64")]
    connections: NonZeroUsize,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Figures {
    requests_per_second: f64,
    cpu_us_per_request: f64,
    /// Which part of the time the peer's core worked for it. Near 1 the peer was the bottleneck.
    busy: f64,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let cores = Cores::find();
    let nginx = machine::installed("nginx")?;
    let wrk = Wrk::find(cores, args.connections)?;
    let machine = machine::describe(&[("nginx", &nginx, "-v"), ("wrk", wrk.program(), "-v")]);
    println!(
        "hotpath: {} rounds of {} s, {} connections, keep-alive on both sides",
        args.rounds, args.seconds, args.connections
    );
    machine::print(&machine);
    match cores {
        Some(Cores { under_test, load }) => {
            println!(
                "pinned: program under test on core {under_test}, load and origin on core {load}"
            );
        }
        None => println!("NOT PINNED: there is one core only, and all share it"),
    }

    let dir = tempfile::Builder::new().prefix("rouse-bench-").tempdir()?;
    let origin_at = free_address()?;
    let mut origin = nginx_origin(&nginx, origin_at, dir.path(), cores.map(|cores| cores.load))?;
    origin.ready(origin_at, HOST).await?;
    let core = cores.map(|cores| cores.under_test);
    let mut peers = [
        peer::rouse(origin_at, dir.path(), core)?,
        peer::bare(origin_at, dir.path(), core)?,
        peer::nginx(&nginx, origin_at, dir.path(), core)?,
    ];
    for peer in &mut peers {
        peer.ready().await?;
        wrk.load(peer.address, WARM_UP).await.with_context(|| peer.name)?;
    }

    let mut rounds: [Vec<Figures>; 3] = Default::default();
    for round in 0..args.rounds.get() {
        let order = (0..peers.len()).map(|n| (n + round) % peers.len());
        for n in order {
            let figures = measure(&peers[n], &wrk, args.seconds).await?;
            rounds[n].push(figures);
        }
        let told: Vec<_> = peers
            .iter()
            .zip(&rounds)
            .filter_map(|(peer, r)| {
                Some(format!("{} {:.0}/s", peer.name, r.last()?.requests_per_second))
            })
            .collect();
        println!("round {}: {}", round + 1, told.join(", "));
    }
    drop((peers, origin));

    report(&rounds, &machine, cores.is_some())?.print(args.json);
    Ok(())
}

async fn measure(peer: &Peer, wrk: &Wrk, seconds: NonZeroUsize) -> anyhow::Result<Figures> {
    let cpu = |server: &Server| server.cpu_time().context("its processor time");
    let before = cpu(&peer.server)?;
    let load = wrk.load(peer.address, seconds).await.with_context(|| peer.name)?;
    let used = cpu(&peer.server)?.saturating_sub(before).as_secs_f64();
    Ok(Figures {
        requests_per_second: load.requests_per_second,
        cpu_us_per_request: used * 1e6 / load.requests as f64,
        busy: used / load.seconds,
    })
}

/// The table, and the same as JSON. The peers are in the order rouse, bare Pingora, nginx.
fn report(rounds: &[Vec<Figures>; 3], machine: &Value, pinned: bool) -> anyhow::Result<Report> {
    let names = ["rouse", "bare", "nginx"];
    let column = |n: usize, of: fn(&Figures) -> f64| rounds[n].iter().map(of).collect::<Vec<_>>();
    let per_second: fn(&Figures) -> f64 = |f| f.requests_per_second;
    let cpu: fn(&Figures) -> f64 = |f| f.cpu_us_per_request;
    // Requests per second of processor time are one over the processor time of a request.
    let per_cpu_second: fn(&Figures) -> f64 = |f| 1.0 / f.cpu_us_per_request;
    let ratio = |n: usize, of| paired_ratio(&column(0, of), &column(n, of)).context("no rounds");
    let middle = |n: usize, of| median(&column(n, of)).context("no rounds");

    println!("\n{:<16}{:>12}{:>18}{:>12}", "median", "requests/s", "CPU µs/request", "core busy");
    let mut saturated = true;
    let mut figures = json!({ "machine": machine, "pinned": pinned, "rounds": rounds[0].len() });
    for (n, name) in names.into_iter().enumerate() {
        let (rate, cost) = (middle(n, per_second)?, middle(n, cpu)?);
        let busy = middle(n, |f| f.busy)?;
        saturated &= busy >= SATURATED;
        let title = if name == "bare" { "bare Pingora" } else { name };
        println!("{title:<16}{rate:>12.0}{cost:>18.1}{:>10.0} %", busy * 100.0);
        figures[name] = json!({
            "requests_per_second": rate,
            "cpu_us_per_request": cost,
            "core_busy": busy,
            "requests_per_second_by_round": column(n, per_second),
            "cpu_us_per_request_by_round": column(n, cpu),
        });
    }
    figures["saturated"] = saturated.into();
    if !saturated {
        println!("NOT SATURATED: others used these cores too, or load and origin were the limit");
    }
    println!("\nrouse to the others, median of the ratios of each round:");
    println!("{:<16}{:>12}{:>24}", "", "requests/s", "requests/CPU second");
    for (n, title, key) in [(1, "bare Pingora", "vs_bare"), (2, "nginx", "vs_nginx")] {
        let (rate, cost) = (ratio(n, per_second)?, ratio(n, per_cpu_second)?);
        println!("{title:<16}{rate:>12.3}{cost:>24.3}");
        figures[key] = json!({ "requests_per_second": rate, "requests_per_cpu_second": cost });
    }
    Ok(Report::new("hotpath", figures)
        .bar("requests_per_second_vs_bare", ratio(1, per_second)?, BAR)
        .bar("requests_per_cpu_second_vs_bare", ratio(1, per_cpu_second)?, BAR))
}
