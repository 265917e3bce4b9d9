//! `rouse`: the operator's program. It looks at apps, wakes them, puts them to sleep, and says what is
//! wrong with a node.
#![forbid(unsafe_code)]

mod apps;
mod args;
mod doctor;
mod failure;
mod output;
mod ps;
mod session;
mod text;
mod trace;
mod waterfall;

use std::process::ExitCode;

use args::{Args, Command};
use clap::{CommandFactory, Parser};
use failure::{Exit, Failure};
use output::Output;
use session::Session;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(said) => {
            // Nobody is left to be told when it can't be written.
            let _ = said.print();
            let exit = if said.use_stderr() { Exit::Usage } else { Exit::Done };
            return exit.into();
        }
    };
    let output = Output::new(args.json);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(run(&args, &output)),
        Err(source) => Err(Failure::Runtime(source)),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(failure) => output.complain(&failure).into(),
    }
}

async fn run(args: &Args, output: &Output) -> Result<Exit, Failure> {
    let session = || Session::open(args, output);
    match &args.command {
        Command::Ps { watch: false } => ps::once(&session()?).await?,
        Command::Ps { watch: true } => ps::watch(&session()?).await?,
        Command::Wake { app } => apps::wake(&session()?, app).await?,
        Command::Sleep { app, pause } => apps::sleep(&session()?, app, *pause).await?,
        Command::Boot { app, rollback } => apps::boot(&session()?, app, *rollback).await?,
        Command::Prewarm { app } => apps::prewarm(&session()?, app).await?,
        Command::Release { app } => apps::release(&session()?, app).await?,
        Command::Park { app, reason } => apps::park(&session()?, app, reason).await?,
        Command::Clear { app } => apps::clear(&session()?, app).await?,
        Command::Trace { app, last } => trace::run(&session()?, app, *last).await?,
        Command::Doctor => return doctor::run(args, output).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Args::command(), "rouse", &mut script);
            output.bytes(&script)?;
        }
    }
    Ok(Exit::Done)
}
