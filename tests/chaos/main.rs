//! `rouse-chaos`: a node under everything that may happen to it.
//!
//! Real waker, real proxy, real VMs; visitors without a pause; and whatever a seed decides:
//! sleeps, wakes, kill -9 of anything, fail points, a full disk. All the while a ledger looks
//! whether what visitors were told can be true, and two threads look on at the processes and the
//! directories. In the end everything is mended, and nothing that was acknowledged may be missing.
//!
//! The same seed decides the same; what comes of it also depends on the machine.
#![forbid(unsafe_code)]

mod answer;
mod counters;
mod deeds;
mod dice;
mod director;
mod entries;
mod ledger;
mod mend;
mod operators;
mod points;
mod run;
mod summary;
mod told;
mod trouble;
mod twins;
mod visitors;
mod watchers;
mod way_back;
mod world;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use clap::Parser;
use futures_util::FutureExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::world::print;

/// Runs a node, and does to it whatever may happen to one.
#[derive(Clone, Debug, Parser)]
#[command(version)]
struct Args {
    /// How long there are visitors and deeds. Mending and the last checks come after it.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// What decides everything; without it one is drawn.
    #[arg(long)]
    seed: Option<u64>,
    /// How many apps there are.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    apps: u8,
    /// The apps have no disk, and so no log.
    #[arg(long)]
    without_disk: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    // The harness panics when a node does not start; what it started is dropped all the same.
    let run = AssertUnwindSafe(run::run(args)).catch_unwind();
    // Whoever is interrupted drops what it started, and with it every process.
    let held = tokio::select! {
        ended = run => ended.unwrap_or(false),
        () = interrupted() => {
            print(format_args!("interrupted"));
            false
        }
    };
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn interrupted() {
    let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let mut all = JoinSet::new();
    for kind in signals {
        all.spawn(async move {
            match signal(kind) {
                Ok(mut signals) => drop(signals.recv().await),
                Err(_) => std::future::pending().await,
            }
        });
    }
    all.join_next().await;
}
