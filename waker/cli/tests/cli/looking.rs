//! What is shown of apps.

use std::process::Stdio;

use rouse_protocol::app::AppId;
use rouse_protocol::status::{AppStatus, WakeTrace};
use rouse_protocol::watch::{AppState, WatchEvent};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::waker::{self, StandIn, line};
use crate::{PATIENCE, command, configure, run};

#[tokio::test]
async fn ps_shows_every_app() {
    let waker = StandIn::start();
    let apps = [waker::status(AppState::Awake(waker::ready(None)))];
    waker.answer("GET /v1/status", &apps);
    let said = waker.good("ps").await;
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].starts_with("APP    STATE  GEN  SINCE"), "{said}");
    assert!(lines[1].starts_with("hello  awake    7  "), "{said}");
    assert!(lines[1].ends_with("  256M    41M  3.0G  resumed 19 ms"), "{said}");
    let told: Vec<AppStatus> = serde_json::from_value(waker.document("ps").await).unwrap();
    assert_eq!(told, apps);
    assert_eq!(waker.asked(), ["GET /v1/status", "GET /v1/status"]);
}

#[tokio::test]
async fn the_socket_is_found_by_option_environment_and_configuration() {
    let waker = StandIn::start();
    waker.answer("GET /v1/status", &[waker::status(AppState::Asleep)]);
    let (socket, config) = (waker.socket(), configure(&waker, ""));
    let option = format!("ps --socket '{}'", socket.display());
    let configured = format!("ps --config '{}'", config.display());
    for line in [&option, &configured] {
        let ran = run(&mut command(line)).await;
        assert_eq!((ran.code, &*ran.err), (0, ""), "{line}");
        assert!(ran.out.contains("hello"), "{line}");
    }
    let mut other = command(&option);
    let ran = run(other.env("ROUSE_SOCKET", "/nowhere")).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[tokio::test]
async fn a_watch_shows_each_change_once() {
    let waker = StandIn::start();
    waker.answer("GET /v1/status", &[waker::status(AppState::Asleep)]);
    let events = waker.stream("GET /v1/watch");
    let send = |event: &WatchEvent| events.send(line(event)).unwrap();
    send(&WatchEvent::App(waker::view(AppState::Asleep)));
    send(&WatchEvent::Synced);
    let mut child = waker
        .command("ps -w --json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = tokio::time::timeout(PATIENCE, out.next_line()).await.unwrap().unwrap().unwrap();
        serde_json::from_str::<Vec<AppStatus>>(&line).unwrap()
    };
    assert_eq!(next().await[0].view.state, AppState::Asleep);

    // Nothing new, then something.
    send(&WatchEvent::Alive);
    send(&WatchEvent::App(waker::view(AppState::Asleep)));
    waker.answer("GET /v1/status", &[waker::status(AppState::Waking)]);
    send(&WatchEvent::App(waker::view(AppState::Waking)));
    assert_eq!(next().await[0].view.state, AppState::Waking);

    waker.answer("GET /v1/status", &<[AppStatus; 0]>::default());
    send(&WatchEvent::Removed { id: "hello".parse::<AppId>().unwrap() });
    assert!(next().await.is_empty());

    drop(events);
    let ended = child.wait_with_output().await.unwrap();
    assert_eq!(ended.status.code(), Some(69));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("hung up"), "{said}");
}

#[tokio::test]
async fn a_trace_draws_the_last_wakes() {
    let waker = StandIn::start();
    let wakes: Vec<_> = (1..=8).map(waker::trace).collect();
    waker.answer("GET /v1/apps/hello/trace", &wakes);
    let said = waker.good("trace hello").await;
    let (all, fits) = (said.matches("generation ").count(), |l: &str| l.chars().count() <= 80);
    assert!(all == 5 && said.lines().all(fits), "{said}");
    assert!(said.contains("2026-12-01T00:32:03.456Z (") && said.contains("generation 8  resumed"));
    assert!(said.contains("\n  vmm            12.00 ms  ███"), "{said}");
    assert!(said.contains("\n  clock           0.90 ms  ok"), "{said}");

    let told = waker.document("trace hello -n 2").await;
    assert_eq!(serde_json::from_value::<Vec<WakeTrace>>(told).unwrap(), wakes[6..]);
    waker.answer("GET /v1/apps/hello/trace", &<[WakeTrace; 0]>::default());
    assert!(waker.good("trace hello").await.contains("no wake since"));
}

#[tokio::test]
async fn shells_complete_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(&mut command(&format!("completions {shell}"))).await;
        assert_eq!((ran.code, &*ran.err), (0, ""), "{shell}");
        for word in ["doctor", "trace", "rollback"] {
            assert!(ran.out.contains(word), "{shell}: {word}");
        }
    }
    // What can be had here is also tried.
    let script = run(&mut command("completions bash")).await.out;
    let typed = format!(
        "{script}\nCOMP_WORDS=(rouse sl) COMP_CWORD=1\n_rouse rouse sl rouse\necho $COMPREPLY"
    );
    let bash = tokio::process::Command::new("bash").args(["-c", &typed]).output().await.unwrap();
    assert_eq!(String::from_utf8(bash.stdout).unwrap().trim(), "sleep");
}
