//! What is stripped, what is added, what is told of a wake.

use std::time::Duration;

use crate::World;
use crate::guest::Act;
use crate::waker::Wake;

#[tokio::test]
async fn ours_are_stripped_both_ways() {
    let world = World::new("").await;
    let reply = world
        .request(
            "GET / HTTP/1.1\r\nHost: hello.test\r\nRouse-Nonce: mine\r\nrouse-agent: x\r\n\
             ROUSE-ERROR: y\r\nX-Mine: z\r\n",
        )
        .await;
    assert_eq!((reply.header("rouse-secret"), reply.header("x-app")), (None, Some("yes")));
    let seen = &world.guest.seen()[0];
    assert_eq!(seen.header("rouse-agent"), None);
    assert_eq!(seen.header("rouse-error"), None);
    assert_eq!(seen.header("x-mine"), Some("z"));
    let nonces: Vec<_> = seen.head.to_ascii_lowercase().matches("rouse-nonce").map(drop).collect();
    assert_eq!(nonces.len(), 1, "one, and it is ours");
    assert_eq!(seen.header("rouse-nonce").unwrap().len(), 32);
    assert_eq!(seen.header("host"), Some("hello.test"));
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
}

fn timing(header: &str) -> Vec<(String, f64)> {
    let entry = |entry: &str| {
        let (name, ms) = entry.split_once(";dur=").unwrap();
        (name.to_owned(), ms.parse().unwrap())
    };
    header.split(", ").map(entry).collect()
}

#[tokio::test]
async fn the_first_answer_after_a_wake_tells_of_it() {
    let world = World::with("", |plan| plan.wake = Wake::Runs(Duration::from_millis(40))).await;
    let reply = world.get("/").await;
    assert_eq!(reply.header("rouse-wake"), Some("resumed"));
    let timing = timing(reply.header("server-timing").unwrap());
    let names: Vec<_> = timing.iter().map(|(name, _)| name.as_str()).collect();
    let all =
        ["hold", "queue", "fetch", "image", "vmm", "load", "resume", "gate", "release", "app"];
    assert_eq!(names[..10], all);
    assert_eq!(names[10..], ["own", "total"]);
    let of = |name: &str| timing.iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!((of("queue"), of("image"), of("load")), (0.001, 0.002, 40.0));
    let sum: f64 = timing[..10].iter().map(|(_, ms)| ms).sum();
    // Each is rounded to a microsecond.
    assert!((sum - of("total")).abs() < 0.02, "{timing:?}");
    assert!(of("own") <= of("total") - 40.0 && of("total") >= 40.0, "{timing:?}");

    let next = world.get("/").await;
    assert_eq!((next.header("rouse-wake"), next.header("server-timing")), (None, None));
    for metric in [
        "rouse_visitor_wake_seconds_count",
        "rouse_wake_own_seconds_count",
        "rouse_wake_seconds_count{outcome=\"resumed\"}",
        "rouse_wake_phase_seconds_count{phase=\"gate\"}",
    ] {
        assert_eq!(world.proxy.metric(metric).await, 1.0, "{metric}");
    }
    let text = world.proxy.metrics().await;
    assert!(text.contains("rouse_apps{state=\"awake\"} 1"), "{text}");
    assert!(text.contains("rouse_apps{state=\"parked\"} 0"), "{text}");
}

#[tokio::test]
async fn an_apps_own_server_timing_stays() {
    let world = World::new("").await;
    let own = "HTTP/1.1 200 OK\r\nServer-Timing: db;dur=1\r\nContent-Length: 0\r\n\r\n";
    world.guest.script([Act::Raw(own.to_owned())]);
    let reply = world.get("/").await;
    let values: Vec<_> = reply.headers.iter().filter(|(n, _)| n == "server-timing").collect();
    assert_eq!(values.len(), 2);
    assert_eq!(values[0].1, "db;dur=1");
}
