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
use self::peer::{AWAKE_HOST, HOST, Lab, Peer};
use self::wrk::Wrk;
use crate::machine::{self, Cores};
use crate::report::{Bar, Report};
use crate::server::{Server, free_address};
use crate::stats::{median, paired_ratio};

/// What Rouse adds to bare Pingora may cost no more than this leaves.
const BAR: Bar = Bar::AtLeast(0.97);
/// And at least this much more than bare Pingora as one gets it by its user guide.
const GUIDE_BAR: Bar = Bar::AtLeast(1.1);
/// How many apps a proxy knows, usually and at the most.
const FEW: usize = 10;
const MANY: usize = 10_000;
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
    let lab = Lab { origin: origin_at, dir: dir.path(), core: cores.map(|cores| cores.under_test) };
    let few = lab.waker("few", FEW)?;
    let many = lab.waker("many", MANY)?;
    let mut peers = vec![
        lab.rouse(("rouse", "rouse, 10 apps"), &few, HOST, false)?,
        lab.rouse(("rouse_many", "rouse, 10,000 apps"), &many, HOST, false)?,
        lab.rouse(("rouse_app", "rouse, an awake app of 10,000"), &many, AWAKE_HOST, false)?,
        lab.rouse(("rouse_log", "rouse, access log on"), &few, HOST, true)?,
        lab.bare()?,
    ];
    match lab.guide()? {
        Some(guide) => peers.push(guide),
        None => println!("WITHOUT bare Pingora as its guide builds it, which is not built"),
    }
    peers.push(lab.nginx(&nginx)?);
    for peer in &mut peers {
        peer.ready().await?;
        wrk.load(peer, WARM_UP).await.with_context(|| peer.name)?;
    }

    let mut rounds = vec![Vec::new(); peers.len()];
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
    let rows: Vec<_> = peers
        .iter()
        .zip(rounds)
        .map(|(p, rounds)| Row { name: p.name, title: p.title, rounds })
        .collect();
    drop((peers, origin, few, many));

    report(&rows, &machine, cores.is_some())?.print(args.json);
    Ok(())
}

async fn measure(peer: &Peer, wrk: &Wrk, seconds: NonZeroUsize) -> anyhow::Result<Figures> {
    let cpu = |server: &Server| server.cpu_time().context("its processor time");
    let before = cpu(&peer.server)?;
    let load = wrk.load(peer, seconds).await.with_context(|| peer.name)?;
    let used = cpu(&peer.server)?.saturating_sub(before).as_secs_f64();
    Ok(Figures {
        requests_per_second: load.requests_per_second,
        cpu_us_per_request: used * 1e6 / load.requests as f64,
        busy: used / load.seconds,
    })
}

/// All that was measured of one peer.
#[derive(Debug)]
struct Row {
    name: &'static str,
    title: &'static str,
    rounds: Vec<Figures>,
}

impl Row {
    fn column(&self, of: fn(&Figures) -> f64) -> Vec<f64> {
        self.rounds.iter().map(of).collect()
    }

    fn middle(&self, of: fn(&Figures) -> f64) -> anyhow::Result<f64> {
        median(&self.column(of)).context("no rounds")
    }

    fn ratio(&self, to: &Self, of: fn(&Figures) -> f64) -> anyhow::Result<f64> {
        paired_ratio(&self.column(of), &to.column(of)).context("no rounds")
    }
}

fn per_second(f: &Figures) -> f64 {
    f.requests_per_second
}

/// Requests per second of processor time are one over the processor time of a request.
fn per_cpu_second(f: &Figures) -> f64 {
    1.0 / f.cpu_us_per_request
}

/// The tables, and the same as JSON.
fn report(rows: &[Row], machine: &Value, pinned: bool) -> anyhow::Result<Report> {
    println!("\n{:<34}{:>12}{:>18}{:>12}", "median", "requests/s", "CPU µs/request", "core busy");
    let mut saturated = true;
    let runs = rows.first().map_or(0, |row| row.rounds.len());
    let mut figures = json!({ "machine": machine, "pinned": pinned, "rounds": runs });
    for row in rows {
        let (rate, cost) = (row.middle(per_second)?, row.middle(|f| f.cpu_us_per_request)?);
        let busy = row.middle(|f| f.busy)?;
        saturated &= busy >= SATURATED;
        println!("{:<34}{rate:>12.0}{cost:>18.1}{:>10.0} %", row.title, busy * 100.0);
        figures[row.name] = json!({
            "requests_per_second": rate,
            "cpu_us_per_request": cost,
            "core_busy": busy,
            "requests_per_second_by_round": row.column(per_second),
            "cpu_us_per_request_by_round": row.column(|f| f.cpu_us_per_request),
        });
    }
    figures["saturated"] = saturated.into();
    if !saturated {
        println!("NOT SATURATED: others used these cores too, or load and origin were the limit");
    }
    let of = |name: &str| rows.iter().find(|row| row.name == name);
    let rouse = of("rouse").context("Rouse itself is not measured")?;
    println!("\nrouse to the others, median of the ratios of each round:");
    println!("{:<34}{:>12}{:>24}", "", "requests/s", "requests/CPU second");
    let mut bars = Vec::new();
    for (name, bar) in [
        ("bare", Some(BAR)),
        ("guide", Some(GUIDE_BAR)),
        ("nginx", None),
        ("rouse_many", None),
        ("rouse_app", None),
        ("rouse_log", None),
    ] {
        let Some(row) = of(name) else { continue };
        let (rate, cost) = (rouse.ratio(row, per_second)?, rouse.ratio(row, per_cpu_second)?);
        println!("{:<34}{rate:>12.3}{cost:>24.3}", row.title);
        figures[format!("vs_{name}")] =
            json!({ "requests_per_second": rate, "requests_per_cpu_second": cost });
        if let Some(bar) = bar {
            bars.push((format!("requests_per_second_vs_{name}"), rate, bar));
            bars.push((format!("requests_per_cpu_second_vs_{name}"), cost, bar));
        }
    }
    // With all apps that one would have, and as one of them, it may cost no more.
    if let (Some(many), Some(app), Some(bare)) = (of("rouse_many"), of("rouse_app"), of("bare")) {
        for (name, row) in [("many", many), ("app", app)] {
            bars.push((
                format!("{name}_requests_per_second_vs_bare"),
                row.ratio(bare, per_second)?,
                BAR,
            ));
        }
    }
    let report = Report::new("hotpath", figures);
    Ok(bars.iter().fold(report, |report, (name, value, bar)| report.bar(name, *value, *bar)))
}
