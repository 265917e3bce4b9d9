//! Flushes and patches over the control port: who is answered, when, and with what.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rouse_agent::disk::Disk;
use rouse_protocol::app::Generation;
use rouse_protocol::control::{FromAgent, Patch, ToAgent};
use support::{Agent, Port, due};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

const MARKER: &str = "00112233445566778899aabbccddeeff";

fn flush(id: u64) -> ToAgent {
    ToAgent::Flush { id, marker: MARKER.into() }
}

fn patch(id: u64, patch: Patch) -> ToAgent {
    ToAgent::Patch { id, patch }
}

fn shell(id: u64, script: &str) -> ToAgent {
    let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    patch(id, Patch::Command { argv, timeout_ms: 600_000 })
}

fn env(id: u64, name: &str, value: &str) -> ToAgent {
    let vars = BTreeMap::from([(name.to_owned(), value.to_owned())]);
    patch(id, Patch::Env { vars })
}

/// The answer's id and error; panics unless it is one.
async fn answer(port: &mut Port) -> (u64, Option<String>) {
    match port.heard().await {
        FromAgent::Flushed { id, error } | FromAgent::Patched { id, error } => (id, error),
        other => panic!("no answer: {other:?}"),
    }
}

async fn error(port: &mut Port, told: ToAgent) -> String {
    port.tell(&told).await;
    answer(port).await.1.expect("an error")
}

async fn well(port: &mut Port, told: ToAgent) {
    port.tell(&told).await;
    let (id, error) = answer(port).await;
    let (ToAgent::Flush { id: asked, .. } | ToAgent::Patch { id: asked, .. }) = told else {
        panic!("nothing that is answered: {told:?}")
    };
    assert_eq!((id, error), (asked, None));
}

/// A directory in the place of a mounted disk.
fn disk_in(dir: &Path) -> Disk {
    let dir = dir.canonicalize().unwrap();
    let (data, table) = (dir.join("data"), dir.join("mountinfo"));
    std::fs::create_dir(&data).unwrap();
    let line = format!("30 22 254:0 / {} rw - ext4 /dev/vda rw\n", data.display());
    std::fs::write(&table, line).unwrap();
    Disk::seen_through(data, table, dir.join("sys"))
}

#[tokio::test]
async fn without_a_disk_all_is_well_with_it() {
    let (_agent, mut port) = Agent::start().await;
    well(&mut port, flush(1)).await;
    well(&mut port, patch(2, Patch::Disk)).await;
}

#[tokio::test]
async fn a_disk_is_flushed_and_compared() {
    let agent = Agent::unborn_with(|dir| Some(disk_in(dir))).await;
    let (agent, mut port) = agent.born().await;
    well(&mut port, flush(1)).await;
    port.tell(&agent.life(2, 0)).await;
    assert!(matches!(port.heard().await, FromAgent::Alive { .. }));
    well(&mut port, patch(2, Patch::Disk)).await;

    let marker = agent.path("data/.rouse-marker");
    assert!(std::fs::read_to_string(&marker).unwrap().starts_with(MARKER));
    std::fs::write(&marker, "ff".repeat(16)).unwrap();
    let error = error(&mut port, patch(3, Patch::Disk)).await;
    assert!(error.contains("of different instants") && error.contains(MARKER), "{error}");
    // In the order in which they were asked: the second check meets the new marker.
    for told in [patch(4, Patch::Disk), flush(5), patch(6, Patch::Disk)] {
        port.tell(&told).await;
    }
    let mut answers = Vec::new();
    for _ in 0..3 {
        let (id, error) = answer(&mut port).await;
        answers.push((id, error.is_none()));
    }
    assert_eq!(answers, [(4, false), (5, true), (6, true)]);
}

#[tokio::test]
async fn the_environment_is_delivered_or_left_alone() {
    let (agent, mut port) = Agent::start().await;
    well(&mut port, env(1, "GREETING", "it's")).await;
    let written = std::fs::read_to_string(agent.path("env")).unwrap();
    assert_eq!(written, "GREETING='it'\"'\"'s'\n");
    let error = error(&mut port, env(2, "NO-NAME", "")).await;
    assert!(error.contains("NO-NAME"), "{error}");
    assert_eq!(std::fs::read_to_string(agent.path("env")).unwrap(), written);
}

#[tokio::test]
async fn an_ssh_server_is_heard() {
    let (_agent, mut port) = Agent::start().await;
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let number = server.local_addr().unwrap().port();
    port.tell(&patch(1, Patch::Ssh { port: number })).await;
    let (mut stream, _) = due(server.accept()).await.unwrap();
    stream.write_all(b"SSH-2.0-test\r\n").await.unwrap();
    assert_eq!(answer(&mut port).await, (1, None));
    // Nobody has this one. The server's own would not do: a program that another test is about to
    // start may hold it open for a moment longer.
    let error = error(&mut port, patch(2, Patch::Ssh { port: 1 })).await;
    assert!(error.contains("nothing listens"), "{error}");
}

#[tokio::test]
async fn a_command_is_judged_by_its_status() {
    let (_agent, mut port) = Agent::start().await;
    well(&mut port, shell(1, "exit 0")).await;
    let error = error(&mut port, shell(2, "echo no space left; exit 7")).await;
    assert!(error.contains("status: 7") && error.contains("no space left"), "{error}");
}

#[tokio::test]
async fn a_life_does_not_wait_for_what_takes_its_time() {
    let (agent, mut port) = Agent::start().await;
    let path = agent.path("go");
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", path.display());
    port.tell(&shell(1, &wait)).await;
    port.tell(&agent.life(2, 0)).await;
    let FromAgent::Alive { generation, .. } = port.heard().await else { panic!("not alive") };
    assert_eq!(generation, Generation(2));
    // Nor does another kind of work.
    well(&mut port, flush(2)).await;
    well(&mut port, env(3, "A", "1")).await;
    std::fs::write(path, "").unwrap();
    assert_eq!(answer(&mut port).await, (1, None));
}

#[tokio::test]
async fn what_is_more_than_may_wait_is_refused() {
    let (agent, mut port) = Agent::start().await;
    let (begun, go) = (agent.path("begun"), agent.path("go"));
    let wait =
        format!("touch {}; until [ -e {} ]; do sleep 0.01; done", begun.display(), go.display());
    port.tell(&shell(0, &wait)).await;
    due(async {
        while !begun.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for id in 1..=6 {
        port.tell(&shell(id, "exit 0")).await;
    }
    for refused in [5, 6] {
        let (id, error) = answer(&mut port).await;
        assert_eq!(id, refused);
        assert!(error.unwrap().contains("wait already"));
    }
    std::fs::write(go, "").unwrap();
    for id in 0..=4 {
        assert_eq!(answer(&mut port).await, (id, None));
    }
}

#[tokio::test]
async fn answers_are_whole_lines_whoever_gives_them() {
    let (agent, mut port) = Agent::start().await;
    let say = "i=0; while [ $i -lt 200 ]; do echo $i$i$i; i=$((i+1)); done; exit 1";
    for round in 0..20 {
        let id = |n| round * 4 + n;
        for told in
            [shell(id(0), say), flush(id(1)), env(id(2), "A", "1"), patch(id(3), Patch::Disk)]
        {
            port.tell(&told).await;
        }
        port.tell(&agent.life(round + 2, 0)).await;
        let mut ids = BTreeSet::new();
        for _ in 0..5 {
            match port.heard().await {
                FromAgent::Flushed { id, .. } | FromAgent::Patched { id, .. } => ids.insert(id),
                other => {
                    assert!(matches!(other, FromAgent::Alive { .. }), "{other:?}");
                    continue;
                }
            };
        }
        assert_eq!(ids, (id(0)..=id(3)).collect());
    }
}

#[tokio::test]
async fn who_has_not_asked_is_not_answered() {
    let (agent, mut port) = Agent::start().await;
    let (begun, go) = (agent.path("begun"), agent.path("go"));
    let wait =
        format!("touch {}; until [ -e {} ]; do sleep 0.01; done", begun.display(), go.display());
    port.tell(&shell(1, &wait)).await;
    due(async {
        while !begun.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(port);
    let mut port = agent.port().await;
    port.tell(&shell(2, "exit 0")).await;
    std::fs::write(go, "").unwrap();
    assert_eq!(answer(&mut port).await, (2, None));
}
