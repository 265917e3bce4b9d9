//! What people see.

use std::io::{ErrorKind, Read};
use std::process::Stdio;

use nix::pty::openpty;
use rouse_protocol::watch::{AppState, WatchEvent};

use crate::waker::{self, StandIn, line};

/// The exit code, and all that the program writes on a terminal.
async fn on_terminal(
    waker: &StandIn,
    line: &str,
    change: fn(&mut tokio::process::Command),
) -> (i32, String) {
    let pty = openpty(None, None).unwrap();
    let mut command = waker.command(line);
    change(&mut command);
    let mut child = command.stdout(pty.slave).stderr(Stdio::inherit()).spawn().unwrap();
    // It holds a copy of the terminal's other end, without which reading would not end.
    drop(command);
    let mut master = std::fs::File::from(pty.master);
    let read = tokio::task::spawn_blocking(move || {
        let mut told = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match master.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => told.extend_from_slice(&piece[..length]),
                // The other end is closed.
                Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}"),
            }
        }
        String::from_utf8(told).unwrap()
    });
    let told = tokio::time::timeout(crate::PATIENCE, read).await.unwrap().unwrap();
    (child.wait().await.unwrap().code().unwrap(), told)
}

#[tokio::test]
async fn states_have_colours_and_lines_fit() {
    let waker = StandIn::start();
    let mut app = waker::status(AppState::Awake(waker::ready(None)));
    app.view.id = "a".repeat(63).parse().unwrap();
    waker.answer("GET /v1/status", &[app]);
    let (code, told) = on_terminal(&waker, "ps", |_| {}).await;
    assert_eq!(code, 0);
    assert!(told.contains("\x1b[32mawake\x1b[0m"), "{told:?}");
    let (code, plain) = on_terminal(&waker, "ps", |command| {
        command.env("NO_COLOR", "1");
    })
    .await;
    assert_eq!(code, 0);
    assert!(!plain.contains('\x1b') && plain.contains("aaa…"), "{plain:?}");
    assert!(plain.lines().all(|line| line.chars().count() <= 80), "{plain}");
}

#[tokio::test]
async fn json_has_no_colours() {
    let waker = StandIn::start();
    waker.answer("GET /v1/status", &[waker::status(AppState::Asleep)]);
    let (code, told) = on_terminal(&waker, "ps --json", |_| {}).await;
    assert_eq!(code, 0);
    assert!(!told.contains('\x1b') && told.starts_with("[{\"id\":\"hello\""), "{told:?}");
}

#[tokio::test]
async fn a_watch_draws_over_what_it_drew() {
    let waker = StandIn::start();
    waker.answer("GET /v1/status", &[waker::status(AppState::Asleep)]);
    let events = waker.stream("GET /v1/watch");
    for event in [WatchEvent::Synced, WatchEvent::Alive] {
        events.send(line(&event)).unwrap();
    }
    // The stream's end is the waker's.
    drop(events);
    let (code, told) = on_terminal(&waker, "ps -w", |_| {}).await;
    assert_eq!((code, told.matches("\x1b[H\x1b[JAPP").count()), (69, 2), "{told:?}");
}
