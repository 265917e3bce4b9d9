//! Real programs, run by `/bin/sh`.

use std::path::Path;

use super::*;
use crate::vmm::process::{Process, start_ticks};

const LONG: Duration = Duration::from_secs(60);
/// Enough for a shell to begin.
const SHORT: Duration = Duration::from_secs(2);

fn sh(script: &str, timeout: Duration) -> Hook {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned);
    Hook::new(argv.to_vec(), timeout).unwrap()
}

/// The process whose pid the file comes to hold.
async fn process_in(file: &Path) -> Process {
    let found = async {
        loop {
            if let Ok(text) = std::fs::read_to_string(file)
                && let Some(pid) = text.strip_suffix('\n')
            {
                let pid = pid.parse().unwrap();
                return Process::adopt(pid, start_ticks(pid).unwrap()).unwrap();
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, found).await.expect("the script writes its pid")
}

async fn gone(process: Process) {
    let mut exited = process.exited();
    let ended = timeout(LONG, exited.wait_for(Option::is_some)).await;
    if ended.is_err() {
        process.kill().await;
        panic!("process {} outlives the run", process.pid());
    }
}

#[tokio::test]
async fn it_gets_its_variables_and_little_else() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("env");
    let vars = [("ROUSE_APP", "shop".to_owned()), ("FILE", file.display().to_string())];
    run(&sh("env > \"$FILE\"; read line || echo no input >> \"$FILE\"", LONG), &vars)
        .await
        .unwrap();
    let env = std::fs::read_to_string(file).unwrap();
    assert!(env.lines().any(|l| l == "ROUSE_APP=shop"), "{env}");
    assert!(env.ends_with("no input\n"), "{env}");
    // What the shell sets by itself.
    let known = ["PATH", "HOME", "LANG", "ROUSE_APP", "FILE", "PWD", "OLDPWD", "SHLVL", "_"];
    for name in env.lines().filter_map(|l| l.split_once('=')).map(|(name, _)| name) {
        assert!(known.contains(&name), "{name} in {env}");
    }
}

#[tokio::test]
async fn a_bad_end_is_told_with_the_last_of_what_was_said() {
    let script = "yes out | head -n 50000; echo err >&2; exit 3";
    let error = run(&sh(script, LONG), &[]).await.unwrap_err();
    let HookError::Failed { status, output, .. } = &error else { panic!("{error}") };
    assert_eq!(status.code(), Some(3));
    assert!(output.ends_with("out\nout\nerr"), "{output}");
    assert!((KEPT - 8..=KEPT).contains(&output.len()), "{} bytes", output.len());
    let said = error.to_string();
    assert!(said.starts_with("/bin/sh ended with exit status: 3; it said: "), "{said}");

    let error = run(&sh("kill -9 $$", LONG), &[]).await.unwrap_err();
    assert!(error.to_string().contains("signal: 9"), "{error}");
}

#[tokio::test]
async fn one_that_cannot_be_run_is_told_so() {
    assert_eq!(Hook::new(vec![], LONG), Err(NoProgram));
    assert_eq!(Hook::new(vec![String::new()], LONG), Err(NoProgram));
    let missing = Hook::new(vec!["/nowhere/at-all".to_owned()], LONG).unwrap();
    let error = run(&missing, &[]).await.unwrap_err();
    assert!(matches!(error, HookError::Spawn { .. }), "{error}");
    assert!(error.to_string().starts_with("can't run /nowhere/at-all: "), "{error}");
}

#[tokio::test]
async fn at_the_timeout_the_group_ends_and_may_say_why() {
    let script = "trap 'echo ended; exit 0' TERM; echo begun; while :; do sleep 1; done";
    let error = run(&sh(script, SHORT), &[]).await.unwrap_err();
    let HookError::Timeout { output, .. } = &error else { panic!("{error}") };
    assert_eq!(output.lines().next(), Some("begun"), "{output}");
    assert_eq!(output.lines().last(), Some("ended"), "{output}");
}

#[tokio::test]
async fn a_grandchild_that_ignores_sigterm_is_gone_after_the_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let vars = [("FILE", file.display().to_string())];
    let script = "(trap '' TERM; exec sleep 600) & echo $! > \"$FILE\"; wait";
    let hook = sh(script, SHORT);
    let run = run(&hook, &vars);
    let (ended, grandchild) = tokio::join!(run, process_in(&file));
    assert!(matches!(ended, Err(HookError::Timeout { .. })), "{ended:?}");
    gone(grandchild).await;
}

#[tokio::test]
async fn what_is_left_behind_is_gone_when_the_program_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (file, go) = (dir.path().join("pid"), dir.path().join("go"));
    let fifo = std::process::Command::new("mkfifo").arg(&go).status().unwrap();
    assert!(fifo.success());
    let vars = [("FILE", file.display().to_string()), ("GO", go.display().to_string())];
    let script = "sleep 600 & echo $! > \"$FILE\"; read line < \"$GO\"; exit 0";
    let hook = sh(script, LONG);
    let left = async {
        let left = process_in(&file).await;
        tokio::fs::write(&go, "go\n").await.unwrap();
        left
    };
    let (ended, left) = tokio::join!(run(&hook, &vars), left);
    ended.unwrap();
    gone(left).await;
}

#[tokio::test]
async fn a_dropped_run_leaves_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let vars = [("FILE", file.display().to_string())];
    let hook = sh("sleep 600 & echo $! > \"$FILE\"; wait", LONG);
    let grandchild = tokio::select! {
        ended = run(&hook, &vars) => panic!("{ended:?}"),
        grandchild = process_in(&file) => grandchild,
    };
    gone(grandchild).await;
}
