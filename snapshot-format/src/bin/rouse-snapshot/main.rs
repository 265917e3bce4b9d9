//! `rouse-snapshot`: looks at sparse VM images, makes them small, and moves them.
#![forbid(unsafe_code)]

mod failure;
mod inspect;
mod judged;
mod kind;
mod layers;
mod output;
mod pack;
mod record;
mod sparsify;
mod task;
mod text;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use task::Task;

/// Looks at sparse VM images, makes them small, and moves them.
#[derive(Parser)]
#[command(name = "rouse-snapshot", version, after_help = EXIT_CODES)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Shows no progress and says nothing but errors.
    #[arg(short, long, global = true)]
    quiet: bool,
}

const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  the system refused: no such file, no space, a broken disk
    2  wrong usage
   65  an input can't be used: damaged, of another version, or not of the others
   73  an output is there already (see --force) or can't be made
   75  an image is in use, try again later
  130  ended by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP: nothing half-made is left, and a merge in
       place can be gone on with; a second signal ends it at once";

#[derive(Subcommand)]
enum Command {
    /// Shows what is known of an image: where its data lies, and how much of it is zeros.
    Inspect(inspect::Args),
    /// Gives the blocks of an image's zero pages back, and writes its map.
    Sparsify(sparsify::Args),
    /// Compresses an image into an archive, a seekable zstd file.
    Pack(pack::PackArgs),
    /// Restores the image of an archive, and its map.
    Unpack(pack::UnpackArgs),
    /// Checks every byte of maps, archives and images.
    Verify(verify::Args),
    /// Adds a wake to an image's working set: what it touched first, and is to be had first.
    Record(record::Args),
    /// Makes a layer: what one image changed of another.
    Diff(layers::DiffArgs),
    /// Applies layers to their base, or makes one layer of several.
    Merge(layers::MergeArgs),
    /// Takes the sparse diff that a VMM wrote for a layer, and writes its map.
    ImportDiff(layers::ImportArgs),
}

impl Command {
    /// Whether it works on an image's bytes, and looks on the way whether it is to end.
    fn is_long(&self) -> bool {
        !matches!(self, Self::Inspect(_) | Self::Record(_))
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let task = Task::start(args.quiet, args.command.is_long());
    let done = match &args.command {
        Command::Inspect(args) => inspect::run(args),
        Command::Sparsify(args) => sparsify::run(args, &task),
        Command::Pack(args) => pack::pack_image(args, &task),
        Command::Unpack(args) => pack::unpack(args, &task),
        Command::Verify(args) => verify::run(args, &task),
        Command::Record(args) => record::run(args, &task),
        Command::Diff(args) => layers::run_diff(args, &task),
        Command::Merge(args) => layers::run_merge(args, &task),
        Command::ImportDiff(args) => layers::run_import(args, &task),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            text::complain(&failure);
            failure.exit().code(task.signal())
        }
    }
}
