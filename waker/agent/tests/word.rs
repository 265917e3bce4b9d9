//! What the agent signs, and when.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod support;

use std::io;

use rouse_protocol::app::Generation;
use rouse_protocol::control::FromAgent;
use rouse_protocol::signature::{AgentState, Signed};
use support::{Agent, GATE, text};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn signed(state: AgentState, generation: u64) -> Signed {
    Signed { state, generation: Generation(generation) }
}

#[tokio::test]
async fn nothing_is_bound_before_the_first_life() {
    let agent = Agent::unborn().await;
    let mut port = agent.port().await;
    let hello = FromAgent::Hello { version: env!("CARGO_PKG_VERSION").into() };
    assert_eq!(port.heard().await, hello);
    let refused = TcpStream::connect(agent.front).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);

    port.tell(&agent.life(1, 5)).await;
    assert!(matches!(port.heard().await, FromAgent::Alive { .. }));
    agent.connect().await;
}

#[tokio::test]
async fn from_starting_to_serving_to_down_and_back() {
    let (agent, _port) = Agent::start().await;
    let probe = agent.get(GATE).await;
    assert_eq!((probe.status(), probe.body()), (503, ""));
    assert_eq!(probe.header("cache-control"), Some("no-store"));
    assert_eq!(agent.verify(&probe), signed(AgentState::Starting, 1));

    for _ in 0..2 {
        let app = agent.app(async |_| text(404, "")).await;
        let probe = agent.get(GATE).await;
        assert_eq!((probe.status(), probe.body()), (200, ""));
        assert_eq!(agent.verify(&probe), signed(AgentState::Serving, 1));
        drop(app);
        support::due(async {
            while agent.verify(&agent.get(GATE).await) != signed(AgentState::Down, 1) {}
        })
        .await;
    }
}

#[tokio::test]
async fn a_visitor_counts_as_having_seen_the_app() {
    let (agent, _port) = Agent::start().await;
    assert_eq!(agent.verify(&agent.get("/").await).state, AgentState::Starting);
    let app = agent.app(async |_| text(200, "hi")).await;
    assert_eq!(agent.get("/").await.body(), "hi");
    drop(app);
    support::due(async { while agent.verify(&agent.get("/").await).state != AgentState::Down {} })
        .await;
}

#[tokio::test]
async fn a_missing_app_is_a_signed_error() {
    let (agent, _port) = Agent::start().await;
    let answer = agent.get("/any?thing").await;
    assert_eq!(answer.status(), 503);
    assert_eq!(agent.verify(&answer), signed(AgentState::Starting, 1));
    for (name, value) in [
        ("rouse-error", "starting"),
        ("cache-control", "no-store"),
        ("connection", "close"),
        ("content-type", "application/problem+json"),
    ] {
        assert_eq!(answer.header(name), Some(value));
    }
    assert!(answer.body().contains("urn:rouse:error:starting"));
    assert_eq!(answer.header("content-length").unwrap(), answer.body().len().to_string());
}

#[tokio::test]
async fn without_a_sound_nonce_nothing_is_signed() {
    let (agent, _port) = Agent::start().await;
    let long = "n".repeat(65);
    for nonce in [
        "",
        "Rouse-Nonce: \r\n",
        &format!("Rouse-Nonce: {long}\r\n"),
        "Rouse-Nonce: a b\r\n",
        "Rouse-Nonce: n\r\nRouse-Nonce: n\r\n",
    ] {
        for path in [GATE, "/"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{nonce}\r\n");
            let answer = agent.raw(request).await;
            assert_eq!((answer.status(), answer.header("rouse-agent")), (503, None), "{nonce}");
        }
    }
}

#[tokio::test]
async fn the_gates_path_is_the_apps_without_a_nonce() {
    let (agent, _port) = Agent::start().await;
    let _app = agent.app(async |r| text(200, r.uri().path().to_owned())).await;
    let answer = agent.raw(format!("GET {GATE} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
    assert_eq!(answer.await.body(), GATE);
    let post =
        format!("POST {GATE} HTTP/1.1\r\nHost: a\r\nRouse-Nonce: n\r\nConnection: close\r\n\r\n");
    assert_eq!(agent.raw(post).await.body(), GATE);
}

#[tokio::test]
async fn a_further_life_is_signed_and_patched() {
    let (agent, mut port) = Agent::start().await;
    let _app = agent.app(async |_| text(200, "")).await;
    // A connection that outlives the change, too.
    let mut old = agent.connect().await;
    port.tell(&agent.life(2, 7_000)).await;
    let alive = FromAgent::Alive {
        generation: Generation(2),
        stepped_ms: 17,
        clock_error: None,
        entropy_error: None,
    };
    assert_eq!(port.heard().await, alive);
    assert_eq!(agent.verify(&agent.get(GATE).await), signed(AgentState::Serving, 2));
    let request = format!("GET {GATE} HTTP/1.1\r\nHost: a\r\nRouse-Nonce: n\r\n\r\n");
    old.write_all(request.as_bytes()).await.unwrap();
    let answer = support::Raw(support::read_until(&mut old, "\r\n\r\n").await);
    assert_eq!(agent.verify(&answer), signed(AgentState::Serving, 2));
    let patches = agent.patches.0.lock().unwrap().clone();
    assert_eq!(patches, [(0, vec![0, 255]), (7_000, vec![0, 255])]);
}

#[tokio::test]
async fn the_host_may_go_and_come_again() {
    let agent = Agent::unborn().await;
    let mut port = agent.port().await;
    assert!(matches!(port.heard().await, FromAgent::Hello { .. }));
    // Half a line, and gone: nobody was told who the guest is, so it asks again.
    port.write(r#"{"tell":"life","#).await;
    drop(port);
    let mut port = agent.port().await;
    assert!(matches!(port.heard().await, FromAgent::Hello { .. }));
    // What can't be read is passed over.
    port.write("\nnonsense\n{\"tell\":\"dance\"}\n").await;
    port.write(&"x".repeat(rouse_protocol::MAX_LINE + 1)).await;
    port.write("\n").await;
    port.tell(&agent.life(3, 0)).await;
    let alive = |generation| FromAgent::Alive {
        generation: Generation(generation),
        stepped_ms: 17,
        clock_error: None,
        entropy_error: None,
    };
    assert_eq!(port.heard().await, alive(3));
    // Now that it knows, it does not ask: the next it says is its answer.
    drop(port);
    let mut port = agent.port().await;
    port.tell(&agent.life(4, 0)).await;
    assert_eq!(port.heard().await, alive(4));
}

#[tokio::test]
async fn a_large_body_does_not_eat_the_error() {
    let (agent, _port) = Agent::start().await;
    let mut stream = agent.connect().await;
    let size = 10 << 20;
    let head =
        format!("POST / HTTP/1.1\r\nHost: a\r\nRouse-Nonce: n\r\nContent-Length: {size}\r\n\r\n");
    // The whole request first, and only then a look at the answer.
    stream.write_all(head.as_bytes()).await.unwrap();
    support::due(stream.write_all(&vec![b'x'; size])).await.unwrap();
    let mut bytes = Vec::new();
    support::due(stream.read_to_end(&mut bytes)).await.unwrap();
    let answer = support::Raw(String::from_utf8(bytes).unwrap());
    assert_eq!(answer.status(), 503);
    assert_eq!(agent.verify(&answer), signed(AgentState::Starting, 1));
    assert_eq!(answer.header("content-length").unwrap(), answer.body().len().to_string());
}

#[tokio::test]
async fn who_waits_for_100_continue_is_not_told_to_send() {
    let (agent, _port) = Agent::start().await;
    let answer = agent
        .raw("POST / HTTP/1.1\r\nHost: a\r\nRouse-Nonce: n\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        .await;
    assert_eq!(agent.verify(&answer), signed(AgentState::Starting, 1));
}
