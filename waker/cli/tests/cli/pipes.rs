//! Whoever closes the pipe has seen enough.

use rouse_protocol::signature::AgentKey;
use rouse_protocol::watch::{AppState, WatchEvent};

use crate::waker::{self, StandIn, line};
use crate::{configure, run};

#[tokio::test]
async fn a_closed_pipe_is_no_failure() {
    let waker = StandIn::start();
    waker.answer("GET /v1/status", &[waker::status(AppState::Asleep)]);
    waker.answer("GET /v1/apps/hello/trace", &[waker::trace(1)]);
    waker.lines("POST /v1/apps/hello/wake", &waker::waking(&AgentKey::generate()));
    let events = waker.stream("GET /v1/watch");
    events.send(line(&WatchEvent::Synced)).unwrap();
    let doctor = format!("doctor --config '{}'", configure(&waker, "").display());
    for line in [
        "ps",
        "ps --json",
        "ps -w",
        "wake hello",
        "trace hello",
        "completions bash",
        "--help",
        &doctor,
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = waker.command(line).stdout(writer).stderr(std::process::Stdio::piped()).spawn();
        let wait = child.unwrap().wait_with_output();
        let ended = tokio::time::timeout(crate::PATIENCE, wait).await.unwrap().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!((ended.status.code(), &*said), (Some(0), ""), "{line}");
    }
}

#[tokio::test]
async fn a_full_disk_is_one() {
    let waker = StandIn::start();
    waker.answer("GET /v1/status", &[waker::status(AppState::Asleep)]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = waker.command("ps");
    command.stdout(full).stderr(std::process::Stdio::piped());
    let ended = command.spawn().unwrap().wait_with_output().await.unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("standard output can't be written"), "{said}");
    assert_eq!(run(&mut waker.command("ps")).await.code, 0);
}
