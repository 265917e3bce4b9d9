//! `rouse` as people and scripts see it: the program itself, against a stand-in for the waker on a
//! Unix socket.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod doctor;
mod doing;
mod looking;
mod pipes;
mod refusals;
mod terminal;
mod waker;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;

use waker::StandIn;

/// How long a test waits for something that must come.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a run of the program came to.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

/// The program with the arguments in `line`, which blanks part; `'` keeps them together.
fn command(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rouse"));
    for (i, part) in line.split('\'').enumerate() {
        if i % 2 == 1 {
            command.arg(part);
        } else {
            command.args(part.split_whitespace());
        }
    }
    command.stdin(Stdio::null()).env_remove("ROUSE_SOCKET").env_remove("NO_COLOR");
    command.kill_on_drop(true);
    command
}

async fn run(command: &mut Command) -> Ran {
    let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
    let ran = Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    };
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
    assert!(!ran.out.contains('\x1b'), "no colours but on a terminal: {}", ran.out);
    ran
}

impl StandIn {
    fn command(&self, line: &str) -> Command {
        let mut command = command(line);
        command.env("ROUSE_SOCKET", self.socket());
        command
    }

    async fn run(&self, line: &str) -> Ran {
        run(&mut self.command(line)).await
    }

    /// What it says when all is well.
    async fn good(&self, line: &str) -> String {
        let ran = self.run(line).await;
        assert_eq!((ran.code, &*ran.err), (0, ""), "{line}: {}", ran.out);
        ran.out
    }

    /// The one document that it says when all is well.
    async fn document(&self, line: &str) -> Value {
        one_document(&self.good(&format!("--json {line}")).await)
    }

    /// It fails with `code`, and what it says has all of `words`. As JSON it is the same.
    async fn refused(&self, line: &str, code: i32, words: &[&str]) {
        let ran = self.run(line).await;
        assert_eq!(ran.code, code, "{line}: {}{}", ran.out, ran.err);
        assert!(ran.err.starts_with("rouse: "), "{line}: {}", ran.err);
        for word in words {
            assert!(ran.err.contains(word), "{line}: {word:?} is not in\n{}", ran.err);
        }
        let json = self.run(&format!("--json {line}")).await;
        assert_eq!((json.code, &json.err), (code, &ran.err));
        let document = one_document(&json.out);
        let error = &document["error"];
        assert!(ran.err.contains(error["message"].as_str().unwrap()), "{document}");
        assert!(ran.err.contains(error["todo"].as_str().unwrap()), "{document}");
    }
}

fn one_document(text: &str) -> Value {
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(text).unwrap()
}

/// A configuration for that socket, in the stand-in's own directory.
fn configure(waker: &StandIn, more: &str) -> std::path::PathBuf {
    let directory: &Path = waker.directory();
    std::fs::create_dir_all(directory.join("apps.d")).unwrap();
    let file = directory.join("waker.toml");
    std::fs::write(&file, format!("state_dir = 'state'\n[socket]\npath = 'waker.sock'\n{more}"))
        .unwrap();
    file
}
