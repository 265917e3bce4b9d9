//! `rouse-bench`: how fast Rouse is, beside what one would use without it.
//!
//! Each benchmark prints figures for people and, with `--json`, the same as one JSON object on the
//! last line: `bench`, `figures`, and `bars`, name → `{value, limit, holds}`. A bar that is missed
//! is a result: the exit code is 0. It is not when something failed; then nothing is measured.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod guest;
mod hotpath;
mod machine;
mod report;
mod server;
mod snapshot;
mod stats;
mod timing;
mod visit;
mod wake;
mod waterfall;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

/// Measures Rouse.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What a request to an awake app costs, beside bare Pingora and nginx.
    Hotpath(hotpath::Args),
    /// What a wake is made of, on a real microVM.
    Wake(wake::Args),
    /// What the command line tool for images does, beside fallocate, cp and zstd.
    Snapshot(snapshot::Args),
    /// Makes one visit, and shows the wake that it caused.
    Visit(visit::Args),
    /// Prints a port that nobody listens on, for scripts that start servers.
    FreePort,
    /// Runs a command and prints the most memory that it had, in bytes.
    #[command(hide = true)]
    PeakMemory(snapshot::PeakArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let run = async {
        match args.command {
            Command::Hotpath(args) => hotpath::run(&args).await,
            Command::Wake(args) => Box::pin(wake::run(&args)).await,
            Command::Snapshot(args) => Box::pin(snapshot::run(&args)).await,
            Command::Visit(args) => visit::run(&args).await,
            Command::FreePort => free_port(),
            Command::PeakMemory(args) => snapshot::peak_memory(&args),
        }
    };
    // Whoever is interrupted drops what it started, and with it every process.
    let ended = tokio::select! {
        done = run => done,
        interrupted = interrupted() => interrupted,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rouse-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn free_port() -> anyhow::Result<()> {
    println!("{}", std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port());
    Ok(())
}

/// Ends, with an error, at the first SIGINT or SIGTERM.
async fn interrupted() -> anyhow::Result<()> {
    let mut int = signal(SignalKind::interrupt())?;
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = int.recv() => {}
        _ = term.recv() => {}
    }
    anyhow::bail!("interrupted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_do_not_contradict_each_other() {
        <Args as clap::CommandFactory>::command().debug_assert();
        let only = ["rouse-bench", "snapshot", "--only", "pack", "map-open", "--json"];
        let Command::Snapshot(args) = Args::parse_from(only).command else { panic!("{only:?}") };
        assert!(format!("{args:?}").contains("only: [Pack, MapOpen]"), "{args:?}");
    }
}
