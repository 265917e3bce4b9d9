//! The Rouse proxy: the first user of its own plugin.
#![forbid(unsafe_code)]

mod admin;
mod config;
mod listen;
mod run;
mod service;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code of a configuration that was refused (EX_USAGE of sysexits).
const BAD_CONFIG: u8 = 64;

/// Holds visitors while their app wakes, and serves them the moment it does.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The configuration, TOML.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only say whether the configuration is good.
    #[arg(long)]
    check: bool,
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "answers on the command line")]
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match config::load(&arguments.config) {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    // ring, as in all of Rouse; before anything makes a choice of its own.
    if rouse_tls::rustls::crypto::ring::default_provider().install_default().is_err() {
        eprintln!("another TLS provider is installed");
        return ExitCode::FAILURE;
    }
    if arguments.check {
        if let Some(tls) = &config.tls
            && let Err(errors) = rouse_tls::load(tls)
        {
            for error in errors {
                eprintln!("{error}");
            }
            return ExitCode::from(BAD_CONFIG);
        }
        println!("{}: good", arguments.config.display());
        return ExitCode::SUCCESS;
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        EnvFilter::new("info,pingora_core=warn,pingora_core::apps=off,pingora_proxy=error")
    });
    let ansi = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi);
    log.with_writer(std::io::stderr).init();
    match run::run(config, &arguments.config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
