//! `rouse-bench`: how fast Rouse is, beside what one would use without it.
//!
//! Each benchmark prints figures for people and, with `--json`, the same as one JSON object on the
//! last line: `bench`, `figures`, and `bars`, name → `{value, limit, holds}`. A bar that is missed
//! is a result: the exit code is 0. It is not when something failed; then nothing is measured.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod guest;
mod hold;
mod hotpath;
mod machine;
mod report;
mod restore;
mod server;
mod sleep;
mod snapshot;
mod stats;
mod timing;
mod units;
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
    /// What thousands of held visitors cost, and what they cost another app.
    Hold(hold::Args),
    /// What a wake is made of, on a real microVM.
    Wake(wake::Args),
    /// What a sleep costs, beside writing the whole memory, and what it costs a visitor.
    Sleep(sleep::Args),
    /// What the command line tool for images does, beside fallocate, cp and zstd.
    Snapshot(snapshot::Args),
    /// How fast an image comes back from an S3 server, beside what one would script.
    Restore(restore::Args),
    /// Makes one visit, and shows the wake that it caused.
    Visit(visit::Args),
    /// Prints a port that nobody listens on, for scripts that start servers.
    FreePort,
    /// Serves S3 for `restore`, until its standard input ends.
    #[command(hide = true)]
    RestoreServer,
    /// Restores once for `restore`.
    #[command(hide = true)]
    RestoreOurs(restore::OursArgs),
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
            Command::Hold(args) => Box::pin(hold::run(&args)).await,
            Command::Wake(args) => Box::pin(wake::run(&args)).await,
            Command::Sleep(args) => Box::pin(sleep::run(&args)).await,
            Command::Snapshot(args) => Box::pin(snapshot::run(&args)).await,
            Command::Restore(args) => Box::pin(restore::run(&args)).await,
            Command::RestoreServer => restore::run_server().await,
            Command::RestoreOurs(args) => Box::pin(restore::run_ours(&args)).await,
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

/// Ends, with an error, at the first SIGINT or SIGTERM, or SIGHUP unless that was to be ignored.
async fn interrupted() -> anyhow::Result<()> {
    let mut int = signal(SignalKind::interrupt())?;
    let mut term = signal(SignalKind::terminate())?;
    let hangup = async {
        if ignores_hangup(&std::fs::read_to_string("/proc/self/status")?) {
            return std::future::pending().await;
        }
        signal(SignalKind::hangup())?.recv().await;
        std::io::Result::Ok(())
    };
    tokio::select! {
        _ = int.recv() => {}
        _ = term.recv() => {}
        hung_up = hangup => hung_up?,
    }
    anyhow::bail!("interrupted")
}

/// Whether whoever started us wants us to outlive the terminal, as nohup does: by our own
/// `/proc/PID/status`. To listen would undo that.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Signal n is bit n - 1, and SIGHUP is 1.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
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

    #[test]
    fn nohup_is_respected() {
        let status = |mask| format!("SigBlk:\t0000000000000001\nSigIgn:\t{mask}\nSigCgt:\t1\n");
        assert!(ignores_hangup(&status("0000000000001001")));
        assert!(!ignores_hangup(&status("0000000000001000")));
        assert!(!ignores_hangup(""));
    }
}
