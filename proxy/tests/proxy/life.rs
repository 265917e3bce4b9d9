//! Joining, leaving, sleeping, going down.

use std::time::Duration;

use rouse_protocol::app::Generation;
use rouse_protocol::wake::Phase;
use rouse_protocol::watch::AppState;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::guest::Act;
use crate::waker::Wake;
use crate::{World, client, eventually};

const GET: &str = "GET / HTTP/1.1\r\nHost: hello.test\r\nConnection: close\r\n\r\n";

async fn visitor(world: &World) -> TcpStream {
    let mut stream = client::connect(world.proxy.http).await;
    client::send(&mut stream, GET, &[]).await;
    stream
}

#[tokio::test]
async fn two_hundred_visitors_are_one_wake() {
    let world = World::with("[hold]\nrelease_at_once = 20\n", |plan| {
        plan.wake = Wake::Runs(Duration::from_millis(300));
    })
    .await;
    let mut visitors = JoinSet::new();
    for _ in 0..200 {
        let http = world.proxy.http;
        visitors.spawn(async move {
            client::request(http, "GET / HTTP/1.1\r\nHost: hello.test\r\n", &[]).await
        });
    }
    let mut words = std::collections::HashMap::new();
    while let Some(reply) = visitors.join_next().await {
        let reply = reply.unwrap();
        assert_eq!((reply.status, &*reply.body), (200, "page"));
        *words.entry(reply.header("rouse-wake").map(str::to_owned)).or_insert(0) += 1;
    }
    assert_eq!(words.get(&Some("resumed".to_owned())), Some(&1), "{words:?}");
    assert_eq!(world.waker.wakes(), 1);
    assert_eq!(world.guest.seen().len(), 200);
    assert_eq!(world.proxy.holds().await, 0);
}

#[tokio::test]
async fn whoever_leaves_frees_its_place_and_nobody_elses_wake() {
    let world = World::with("", |plan| plan.wake = Wake::Runs(Duration::from_secs(6))).await;
    let first = visitor(&world).await;
    eventually("the first is held", async || world.proxy.holds().await == 1).await;
    let mut others = Vec::new();
    for _ in 0..9 {
        others.push(visitor(&world).await);
    }
    // One that leaves with a body under way, and one that only says that it sends no more.
    let mut posting = client::connect(world.proxy.http).await;
    let head = "POST / HTTP/1.1\r\nHost: hello.test\r\nContent-Length: 1000\r\n\r\nsome";
    client::send(&mut posting, head, &[]).await;
    eventually("all are held", async || world.proxy.holds().await == 11).await;
    drop(first);
    posting.shutdown().await.unwrap();
    eventually("two places are free", async || world.proxy.holds().await == 9).await;
    assert_eq!(world.proxy.metric("rouse_holds_total{end=\"gone\"}").await, 2.0);
    for mut other in others {
        let reply = client::read(&mut other).await;
        assert_eq!((reply.status, reply.header("rouse-wake")), (200, Some("joined")));
    }
    assert_eq!(world.waker.wakes(), 1);
}

#[tokio::test]
async fn a_pipelined_request_survives_the_hold() {
    let world = World::with("", |plan| plan.wake = Wake::Runs(Duration::from_secs(4))).await;
    let mut stream = client::connect(world.proxy.http).await;
    let first = "GET /1 HTTP/1.1\r\nHost: hello.test\r\n\r\n";
    client::send(&mut stream, first, &[]).await;
    eventually("it is held", async || world.proxy.holds().await == 1).await;
    let second = "GET /2 HTTP/1.1\r\nHost: hello.test\r\nConnection: close\r\n\r\n";
    client::send(&mut stream, second, &[]).await;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 2, "{text}");
    assert_eq!(world.guest.seen().len(), 2);
}

#[tokio::test]
async fn an_idle_app_is_put_to_sleep_and_its_connections_with_it() {
    let world = World::with("", |plan| plan.policy.idle_ms = 300).await;
    assert_eq!(world.get("/").await.status, 200);
    let from = world.guest.seen()[0].from;
    eventually("it sleeps", async || world.waker.state() == AppState::Asleep).await;
    eventually("no connection is left", async || world.guest.closed() == world.guest.probes() + 1)
        .await;
    let agreed = world.waker.agreements();
    assert!(agreed.iter().any(|a| a.agree && a.generation == Generation(1)), "{agreed:?}");
    assert_eq!(world.proxy.app().await["gate"], "closed");
    let reply = world.get("/").await;
    assert_eq!((reply.status, reply.header("rouse-wake")), (200, Some("resumed")));
    let seen = world.guest.seen();
    assert_ne!(seen[1].from, from, "a connection of the life before was used");
    assert_eq!(world.waker.wakes(), 2);
}

#[tokio::test]
async fn a_paused_app_is_woken_in_the_same_life_and_on_new_connections() {
    let world = World::new("").await;
    assert_eq!(world.get("/").await.status, 200);
    let from = world.guest.seen()[0].from;
    world.through().await;
    assert_eq!(world.waker.pause().await, Ok(Generation(1)));
    eventually("the proxy knows", async || {
        world.proxy.metric("rouse_apps{state=\"paused\"}").await == 1.0
    })
    .await;
    assert_eq!(world.proxy.app().await["gate"], "closed");
    let reply = world.get("/").await;
    assert_eq!((reply.status, reply.header("rouse-wake")), (200, Some("unpaused")));
    let timing = reply.header("server-timing").unwrap();
    for name in ["hold;dur=", "resume;dur=", "gate;dur=", "app;dur=", "total;dur="] {
        assert!(timing.contains(name), "{timing}");
    }
    assert_ne!(world.guest.seen()[1].from, from, "a connection of before the pause was used");
    assert_eq!(world.proxy.app().await["generation"], 1);
    assert_eq!(world.get("/").await.header("rouse-wake"), None);
    assert_eq!(world.proxy.metric("rouse_wake_seconds_count{outcome=\"unpaused\"}").await, 1.0);
    assert_eq!(world.waker.wakes(), 2);
}

#[tokio::test]
async fn the_waker_is_told_of_the_first_byte_of_each_wake() {
    let world = World::new("").await;
    for _ in 0..3 {
        assert_eq!(world.get("/").await.status, 200);
    }
    let told = async |n: usize| {
        let name = "rouse_served_total{end=\"told\"}";
        eventually("it is told", async || world.proxy.metric(name).await == n as f64).await;
        let served = world.waker.served();
        assert_eq!(served.len(), n);
        served[n - 1].clone()
    };
    let served = told(1).await;
    let phases: Vec<_> = served.phases.iter().map(|phase| phase.phase).collect();
    assert_eq!(served.generation, Generation(1));
    assert_eq!(phases, [Phase::Hold, Phase::Gate, Phase::Release, Phase::App]);
    assert!(served.phases.iter().any(|phase| phase.us > 0), "{served:?}");

    world.through().await;
    world.waker.pause().await.unwrap();
    assert_eq!(world.get("/").await.status, 200);
    assert_eq!(told(2).await.generation, Generation(1));
    world.through().await;
    world.waker.sleep().await.unwrap();
    assert_eq!(world.get("/").await.status, 200);
    assert_eq!(told(3).await.generation, Generation(2));
}

#[tokio::test]
async fn who_leaves_before_its_answer_leaves_the_telling_to_the_next() {
    let world = World::new("").await;
    world.guest.script([Act::Slow(Duration::from_secs(3_600))]);
    let first = visitor(&world).await;
    eventually("the app has it", async || world.guest.seen().len() == 1).await;
    drop(first);
    world.through().await;
    assert!(world.waker.served().is_empty());
    let reply = world.get("/").await;
    assert_eq!((reply.status, reply.header("rouse-wake")), (200, None));
    eventually("the next has told", async || world.waker.served().len() == 1).await;
}

#[tokio::test]
async fn what_is_in_flight_keeps_an_app_awake() {
    let world = World::new("").await;
    assert_eq!(world.get("/").await.status, 200);
    world.guest.script([Act::Slow(Duration::from_secs(5))]);
    let mut slow = visitor(&world).await;
    eventually("it is there", async || world.proxy.app().await["in_flight"] == 1).await;
    assert_eq!(world.waker.sleep().await, Err("busy"));
    let reply = client::read(&mut slow).await;
    assert_eq!((reply.status, &*reply.body), (200, "slow"));
    world.through().await;
    assert_eq!(world.waker.sleep().await, Ok(Generation(1)));
    assert_eq!(world.waker.wakes(), 1, "asking whether it may sleep disturbed nobody");
}

#[tokio::test]
async fn an_app_that_is_gone_without_a_word_is_woken_again() {
    let world = World::new("").await;
    assert_eq!(world.get("/").await.status, 200);
    world.waker.tell(AppState::Asleep);
    eventually("the gate is closed", async || world.proxy.app().await["gate"] == "closed").await;
    assert_eq!(world.get("/").await.header("rouse-wake"), Some("resumed"));
    assert_eq!(world.waker.wakes(), 2);
}

#[tokio::test]
async fn going_down_lets_holds_go_and_finishes_what_is_in_flight() {
    let mut world = World::with("[server]\ngrace_seconds = 20\n", |plan| {
        plan.wake = Wake::Hangs;
    })
    .await;
    let mut held = visitor(&world).await;
    eventually("it is held", async || world.proxy.holds().await == 1).await;
    world.proxy.terminate().await;
    let reply = client::read(&mut held).await;
    assert_eq!((reply.status, reply.error()), (503, Some("stopping")));
    assert!(reply.header("retry-after").is_some());
    assert!(world.proxy.ended().await);

    let mut world = World::new("[server]\ngrace_seconds = 20\n").await;
    assert_eq!(world.get("/").await.status, 200);
    world.guest.script([Act::Slow(Duration::from_secs(5))]);
    let mut slow = visitor(&world).await;
    eventually("it is there", async || world.proxy.app().await["in_flight"] == 1).await;
    world.proxy.terminate().await;
    let reply = client::read(&mut slow).await;
    assert_eq!((reply.status, &*reply.body), (200, "slow"));
    assert!(world.proxy.ended().await);
}

#[tokio::test]
async fn a_bad_configuration_is_refused_before_anything_binds() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("proxy.toml");
    std::fs::write(&file, "[listen]\nhtpp = 1\n").unwrap();
    let run = async |file: &std::path::Path, check: bool| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_rouse-proxy"));
        command.arg("--config").arg(file);
        if check {
            command.arg("--check");
        }
        command.output().await.unwrap()
    };
    let output = run(&file, false).await;
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("proxy.toml:2: unknown key `listen.htpp`; did you mean `http`?"),
        "{said}"
    );
    std::fs::write(&file, "[listen]\nhttp = [\"127.0.0.1:1\"]\n[waker]\nsocket = \"s\"\n").unwrap();
    assert!(run(&file, true).await.status.success());
}
