//! Programs that others have written.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::wait::patience;

/// What a program made of its arguments.
#[derive(Clone, Debug)]
pub struct Ran {
    /// It ended well.
    pub ok: bool,
    /// What it printed, its errors last.
    pub text: String,
}

/// Runs a program that is given `input`. Panics when it is not there, or does not end.
pub async fn run(program: &str, args: &[&str], input: &str) -> Ran {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|e| panic!("{program} is not there ({e}): ./dev setup"));
    let mut stdin = child.stdin.take().expect("it is piped");
    // It may have ended before it read all of it.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let output = tokio::time::timeout(patience(), child.wait_with_output()).await;
    let output = output.unwrap_or_else(|_| panic!("{program} {args:?} does not end"));
    let output = output.expect("its output can be read");
    let text = [output.stdout, output.stderr].map(|o| String::from_utf8_lossy(&o).into_owned());
    Ran { ok: output.status.success(), text: text.concat() }
}
