//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use rouse_protocol::app::AppId;

/// Where the waker's configuration is, unless it is said otherwise.
const CONFIG: &str = "/etc/rouse/waker.toml";

const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  it failed, and trying again alone won't help; doctor: at least one check failed
   64  wrong usage, or a configuration that can't be read
   69  the waker can't be reached, or broke off
   75  not now: the app is in use or backing off, the node is full; try again later
   77  this user may not talk to the waker

With --json a failure is {\"error\":{\"code\",\"message\",\"todo\"}} on standard output.";

/// Looks at apps that sleep, wakes them, and puts them to sleep.
#[derive(Debug, Parser)]
#[command(name = "rouse", version, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Prints one JSON document instead of text. Fields are named as on the waker's socket.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The waker's socket; unless given, the one in the configuration.
    #[arg(long, global = true, value_name = "PATH", env = "ROUSE_SOCKET", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<PathBuf>,
    /// The waker's configuration.
    #[arg(long, global = true, value_name = "FILE", default_value = CONFIG, value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows all apps: state, generation, sizes, last wake.
    Ps {
        /// Goes on, and shows each change as it happens. With --json one document a line.
        #[arg(short, long)]
        watch: bool,
    },
    /// Wakes an app, or joins the wake that runs, and shows its phases as they end.
    Wake {
        /// The app.
        #[arg(value_name = "APP")]
        app: AppId,
    },
    /// Puts an app to sleep, if no proxy has anything in flight for it.
    Sleep {
        /// The app.
        #[arg(value_name = "APP")]
        app: AppId,
        /// Only stops its VM, and keeps its RAM: the next wake takes milliseconds.
        #[arg(long)]
        pause: bool,
    },
    /// Boots an app cold from its disk, though it may have an image.
    Boot {
        /// The app.
        #[arg(value_name = "APP")]
        app: AppId,
        /// Back to memory and disk of the last sleep instead, where the file system keeps both.
        /// What was written to the disk since is set aside.
        #[arg(long)]
        rollback: bool,
    },
    /// Fetches a sleeping app's image from the store into this node's cache, ahead of a wake.
    Prewarm {
        /// The app.
        #[arg(value_name = "APP")]
        app: AppId,
    },
    /// Frees an app that another node holds and that will not come back. What that node has of it beyond the store is
    /// lost, and it may not wake the app again before another has.
    Release {
        /// The app.
        #[arg(value_name = "APP")]
        app: AppId,
    },
    /// Ends an app's VM, if it has one, and lets nobody wake it until it is cleared.
    Park {
        /// The app.
        #[arg(value_name = "APP")]
        app: AppId,
        /// Why; whoever asks for the app's state is told.
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Frees a parked app, and forgets the failures of one that is backing off.
    Clear {
        /// The app.
        #[arg(value_name = "APP")]
        app: AppId,
    },
    /// Draws the last wakes of an app, phase by phase.
    Trace {
        /// The app.
        #[arg(value_name = "APP")]
        app: AppId,
        /// How many.
        #[arg(short = 'n', long = "last", value_name = "N", default_value_t = 5)]
        last: usize,
    },
    /// Checks this node: configuration, KVM, file system, limits, permissions; says what to do.
    /// Needs no running waker. Run it as the waker's user or as root.
    Doctor,
    /// Prints a script that completes this program's words in a shell.
    Completions {
        /// The shell.
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }
}
