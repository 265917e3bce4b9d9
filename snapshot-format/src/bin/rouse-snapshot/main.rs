//! `rouse-snapshot`: looks at images and makes them small.
//!
//! Exit codes: 0 done; 1 failed; 2 wrong usage; 65 the map can't be used; 75 the image is in use,
//! try again later (the last two as in `sysexits.h`).
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod inspect;
mod sparsify;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rouse_snapshot_format::{OpenMapError, SparsifyError};

/// Looks at sparse VM images and makes them small.
#[derive(Parser)]
#[command(
    version,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, \
    65 the map can't be used, 75 the image is in use."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows what a map says of its image: where the data lies and how much of it is zeros.
    Inspect {
        /// The map.
        #[arg(value_name = "FILE.map")]
        map: PathBuf,
        /// One JSON object instead of a picture.
        #[arg(long)]
        json: bool,
    },
    /// Gives the blocks of an image's zero pages back, and writes its map.
    Sparsify(sparsify::Args),
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Inspect { map, json } => inspect::run(&map, json),
        Command::Sparsify(args) => sparsify::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rouse-snapshot: {error:#}");
            ExitCode::from(exit_code(&error))
        }
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let map = error.downcast_ref::<OpenMapError>();
    let image = error.downcast_ref::<SparsifyError>();
    match (map, image) {
        (Some(OpenMapError::Io(_)), _) => 1,
        (Some(_), _) => 65,
        (_, Some(SparsifyError::InUse(_))) => 75,
        _ => 1,
    }
}
