//! What is seen from outside: access log, traces, health, and what operators are told.

use rouse_protocol::wake::Phase;
use serde_json::Value;

use crate::guest::Act;
use crate::waker::Wake;
use crate::{World, client, eventually};

const LOG: &str = "[log]\naccess = './access.log'\n";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// The first `n` lines of the access log, when they are there, and all that are.
async fn lines(world: &World, n: usize) -> Vec<Value> {
    let file = world.waker.directory().join("access.log");
    let read = || std::fs::read_to_string(&file).unwrap();
    eventually("the lines are written", async || read().lines().count() >= n).await;
    read().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_woken_request_is_logged_with_its_phases() {
    let world = World::new(LOG).await;
    let head = format!(
        "POST /a%20b?token=secret HTTP/1.1\r\nHost: Hello.Test\r\nUser-Agent: a \"b\"\r\n\
         traceparent: {PARENT}\r\nContent-Length: 3\r\n"
    );
    let reply = client::request(world.proxy.http, &head, b"abc").await;
    assert_eq!(reply.status, 200);
    let lines = lines(&world, 1).await;
    let [line] = &*lines else { panic!("{lines:?}") };
    for (key, value) in [
        ("app", "hello"),
        ("host", "Hello.Test"),
        ("method", "POST"),
        ("path", "/a%20b"),
        ("protocol", "HTTP/1.1"),
        ("client", "127.0.0.1"),
        ("wake", "resumed"),
        ("user_agent", "a \"b\""),
        ("trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"),
    ] {
        assert_eq!(line[key], value, "{key} in {line}");
    }
    for (key, value) in [("generation", 1), ("status", 200), ("bytes_in", 3), ("bytes_out", 4)] {
        assert_eq!(line[key], value, "{key} in {line}");
    }
    assert_eq!(line["upstream_reused"], false);
    for absent in ["tls", "error", "retries"] {
        assert_eq!(line.get(absent), None, "{line}");
    }
    let phases = line["phases"].as_object().unwrap();
    assert_eq!(phases.len(), Phase::ALL.len());
    let sum: f64 = phases.values().map(|ms| ms.as_f64().unwrap()).sum();
    let (held, all) = (line["held_ms"].as_f64().unwrap(), line["duration_ms"].as_f64().unwrap());
    assert!(held > 0.0 && held <= all && sum <= all + 0.01, "{line}");
}

#[tokio::test]
async fn an_awake_app_is_logged_without_phases_and_an_error_with_its_code() {
    let world = World::new(LOG).await;
    for path in ["/1", "/2"] {
        assert_eq!(world.get(path).await.status, 200);
    }
    world.request("GET /3 HTTP/1.1\r\nHost: other.test\r\n").await;
    let lines = lines(&world, 3).await;
    let of = |path: &str| lines.iter().find(|line| line["path"] == path).unwrap();
    let awake = of("/2");
    assert_eq!((&awake["app"], &awake["upstream_reused"]), (&"hello".into(), &true.into()));
    for absent in ["wake", "phases", "held_ms", "trace_id"] {
        assert_eq!(awake.get(absent), None, "{awake}");
    }
    let unknown = of("/3");
    assert_eq!((&unknown["status"], &unknown["error"]), (&404.into(), &"unknown-host".into()));
    assert_eq!(unknown.get("app"), None);
}

#[tokio::test]
async fn a_request_that_was_sent_back_to_the_hold_tells_of_it() {
    let world = World::new(LOG).await;
    assert_eq!(world.get("/1").await.status, 200);
    world.guest.script([Act::SignedDown]);
    assert_eq!(world.get("/2").await.status, 200);
    let lines = lines(&world, 2).await;
    let again = lines.iter().find(|line| line["path"] == "/2").unwrap();
    assert_eq!((&again["retries"], &again["wake"]), (&1.into(), &"awake".into()), "{again}");
}

#[tokio::test]
async fn only_what_is_unremarkable_is_sampled() {
    let world = World::new(&format!("{LOG}sample = 0.0\nquery = true\n")).await;
    assert_eq!(world.get("/woken?q").await.status, 200);
    assert_eq!(world.get("/awake").await.status, 200);
    world.guest.script([Act::Raw("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_owned())]);
    assert_eq!(world.get("/own-500").await.status, 500);
    assert_eq!(world.get("/awake").await.status, 200);
    assert_eq!(world.request("GET /err HTTP/1.1\r\nHost: x.test\r\n").await.status, 404);
    let lines = lines(&world, 3).await;
    let paths: Vec<_> = lines.iter().map(|line| line["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/woken?q", "/own-500", "/err"]);
    assert_eq!(world.proxy.metric("rouse_log_dropped_total").await, 0.0);
}

#[tokio::test]
async fn a_log_that_cannot_be_opened_ends_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("proxy.toml");
    let text = "[listen]\nhttp = ['127.0.0.1:0']\n[waker]\nsocket = './s'\n\
                [log]\naccess = './not/there.log'\n";
    std::fs::write(&file, text).unwrap();
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_rouse-proxy"));
    let run = program.arg("--config").arg(&file).kill_on_drop(true).output();
    let output = tokio::time::timeout(crate::PATIENCE, run).await.unwrap().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the access log can't be opened"), "{said}");
}

#[tokio::test]
async fn traces_pass_and_wrong_ones_do_not() {
    let world = World::new("").await;
    let ask = async |fields: &str| {
        world.request(&format!("GET / HTTP/1.1\r\nHost: hello.test\r\n{fields}")).await;
        let seen = world.guest.seen().pop().unwrap();
        let get = |name| seen.header(name).map(str::to_owned);
        (get("traceparent"), get("tracestate"))
    };
    let state = "tracestate: a=1,b=2\r\n";
    let (parent, kept) = ask(&format!("traceparent: {PARENT}\r\n{state}")).await;
    assert_eq!((parent.as_deref(), kept.as_deref()), (Some(PARENT), Some("a=1,b=2")));

    let (parent, kept) = ask(&format!("traceparent: ff{}\r\n{state}", &PARENT[2..])).await;
    let parent = parent.unwrap();
    assert!(parent.starts_with("00-") && parent.len() == PARENT.len(), "{parent}");
    assert!(!parent.contains("4bf92f35"), "{parent}");
    assert_eq!(kept, None);

    assert_eq!(ask(state).await, (None, None));
    let long = format!("traceparent: {PARENT}\r\ntracestate: a={}\r\n", "x".repeat(600));
    assert_eq!(ask(&long).await, (Some(PARENT.to_owned()), None));
}

#[tokio::test]
async fn with_tracing_on_the_app_hears_of_us_and_the_log_of_the_trace() {
    let world = World::new(&format!("{LOG}trace = 'always'\n")).await;
    world.get("/none").await;
    let head = format!("GET /one HTTP/1.1\r\nHost: hello.test\r\ntraceparent: {PARENT}\r\n");
    world.request(&head).await;
    let lines = lines(&world, 2).await;
    let seen = world.guest.seen();
    let parents: Vec<_> = seen.iter().map(|seen| seen.header("traceparent").unwrap()).collect();
    for (parent, line) in parents.iter().zip(&lines) {
        assert_eq!(&parent[3..35], line["trace_id"], "{line}");
    }
    assert_eq!(&parents[1][..36], &PARENT[..36]);
    assert_ne!(&parents[1][36..52], &PARENT[36..52]);
}

#[tokio::test]
async fn our_own_health_wakes_nobody_and_counts_as_nothing() {
    let world = World::new(LOG).await;
    for host in ["hello.test", "anything.test"] {
        let head = format!("GET /.well-known/rouse-health?x HTTP/1.1\r\nHost: {host}\r\n");
        let reply = world.request(&head).await;
        assert_eq!((reply.status, &*reply.body), (200, "ok\n"), "{host}");
        assert_eq!(reply.header("cache-control"), Some("no-store"));
    }
    let post = world.post("/.well-known/rouse-health", b"abc").await;
    assert_eq!((post.status, post.header("allow")), (405, Some("GET, HEAD")));
    assert_eq!(world.waker.wakes(), 0);
    assert_eq!(world.proxy.metric("rouse_requests_total{class=\"2xx\"}").await, 0.0);

    assert_eq!(world.get("/.well-known/other").await.status, 200);
    let lines = lines(&world, 1).await;
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["path"], "/.well-known/other");
}

#[tokio::test]
async fn health_can_be_elsewhere_or_nowhere_and_logged() {
    let world = World::new(&format!("{LOG}[health]\npath = '/up'\nlog = true\n")).await;
    assert_eq!(world.get("/up").await.status, 200);
    assert_eq!(world.waker.wakes(), 0);
    assert_eq!(lines(&world, 1).await[0]["path"], "/up");
    let world = World::new("[health]\npath = ''\n").await;
    assert_eq!(world.get("/.well-known/rouse-health").await.body, "page");
}

#[tokio::test]
async fn operators_are_told() {
    let world = World::with("[server]\nname = 'edge'\n", |plan| plan.wake = Wake::Hangs).await;
    let ask = async |method: &str, path: &str| world.proxy.ask(method, path).await;
    assert!(ask("GET", "/").await.body.contains("/apps/ID"));
    for path in ["/healthz", "/readyz"] {
        assert_eq!((ask("GET", path).await.status, &*ask("GET", path).await.body), (200, "ok\n"));
    }
    let config = ask("GET", "/config").await.body;
    for line in ["name = \"edge\"", "per_app = 1000", "access = \"off\""] {
        assert!(config.contains(line), "{line} is not in {config}");
    }
    let app: Value = serde_json::from_str(&ask("GET", "/apps/hello").await.body).unwrap();
    assert_eq!((&app["state"], &app["hosts"][0]), (&"asleep".into(), &"hello.test".into()));
    assert_eq!(ask("GET", "/apps/other").await.status, 404);
    let unknown = ask("GET", "/what").await;
    assert!(unknown.status == 404 && unknown.body.contains("/holds"), "{unknown:?}");
    let wrong = ask("POST", "/apps").await;
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("GET, HEAD")));
    assert_eq!(ask("GET", "/drain").await.header("allow"), Some("POST"));

    assert_eq!(world.proxy.app().await["oldest_ms"], Value::Null);
    let mut held = client::connect(world.proxy.http).await;
    client::send(&mut held, "GET / HTTP/1.1\r\nHost: hello.test\r\n\r\n", &[]).await;
    eventually("the hold is seen, and ages", async || {
        world.proxy.app().await["oldest_ms"].as_u64().is_some_and(|ms| ms > 0)
    })
    .await;
    assert!(world.proxy.metric("rouse_holds_oldest_seconds").await > 0.0);
}

#[tokio::test]
async fn an_order_to_drain_keeps_who_is_held_and_loses_no_line() {
    let mut world = World::with(LOG, |plan| plan.wake = Wake::Hangs).await;
    let mut held = client::connect(world.proxy.http).await;
    let head = "GET /held HTTP/1.1\r\nHost: hello.test\r\nConnection: close\r\n\r\n";
    client::send(&mut held, head, &[]).await;
    eventually("it is held", async || world.proxy.holds().await == 1).await;
    let reply = world.proxy.ask("POST", "/drain").await;
    assert_eq!((reply.status, &*reply.body), (202, "draining\n"));
    eventually("operators see it", async || world.proxy.ask("GET", "/readyz").await.status == 503)
        .await;
    assert_eq!(world.proxy.holds().await, 1, "whoever is there is held on");
    world.proxy.terminate().await;
    assert_eq!(client::read(&mut held).await.error(), Some("stopping"));
    assert!(world.proxy.ended().await);
    let lines = lines(&world, 1).await;
    assert_eq!((&lines[0]["path"], &lines[0]["error"]), (&"/held".into(), &"stopping".into()));
    assert!(lines[0]["held_ms"].as_f64().unwrap() > 0.0);
}
