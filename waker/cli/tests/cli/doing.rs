//! What is done to one app.

use rouse_protocol::signature::AgentKey;
use rouse_protocol::wake::{PhaseTime, Ready, SleepReport, Tier};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::waker::{self, StandIn};

#[tokio::test]
async fn a_wake_tells_its_phases_and_keeps_the_key_to_itself() {
    let waker = StandIn::start();
    let key = AgentKey::generate();
    waker.lines("POST /v1/apps/hello/wake", &waker::waking(&key));
    assert_eq!(
        waker.good("wake hello").await,
        "  queue        0.03 ms\n  vmm         12.00 ms\n  load         6.97 ms\n\
         hello runs after 19.00 ms: resumed, generation 8, at 127.0.0.1:4000\n"
    );
    assert_eq!(waker.asked(), ["POST /v1/apps/hello/wake"]);

    let woken = waker.document("wake hello").await;
    assert!(!woken.to_string().contains(&String::from(key)), "{woken}");
    let phases: Vec<PhaseTime> = serde_json::from_value(woken["phases"].clone()).unwrap();
    let ready: Ready = serde_json::from_value(woken["ready"].clone()).unwrap();
    assert_eq!((phases, ready), (waker::phases(), waker::ready(None)));
}

#[tokio::test]
async fn a_phase_is_told_when_it_ends() {
    let waker = StandIn::start();
    let events = waker.stream("POST /v1/apps/hello/wake");
    let mut lines = waker::waking(&AgentKey::generate()).into_iter();
    let mut child =
        waker.command("wake hello").stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    for word in ["queue", "vmm", "load", "hello runs"] {
        events.send(waker::line(&lines.next().unwrap())).unwrap();
        let told = tokio::time::timeout(crate::PATIENCE, out.next_line()).await.unwrap().unwrap();
        assert!(told.as_ref().is_some_and(|told| told.contains(word)), "{told:?}");
    }
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn a_boot_says_which() {
    let waker = StandIn::start();
    waker.lines("POST /v1/apps/hello/boot", &waker::waking(&AgentKey::generate()));
    assert!(waker.good("boot hello").await.contains("hello runs"));
    assert!(waker.document("boot hello --rollback").await["ready"].is_object());
    assert_eq!(
        waker.asked(),
        [
            r#"POST /v1/apps/hello/boot {"rollback":false}"#,
            r#"POST /v1/apps/hello/boot {"rollback":true}"#
        ]
    );
}

#[tokio::test]
async fn a_sleep_tells_its_report() {
    let waker = StandIn::start();
    let call = "POST /v1/apps/hello/sleep";
    waker.answer(call, &waker::report(Tier::Image));
    let said = waker.good("sleep hello").await;
    for words in [
        "  agreed         1.10 ms  every proxy",
        "  flushed        2.20 ms",
        "  stopped        3.30 ms",
        "  saved          7.70 ms",
        "  durable       41.00 ms",
        "  published     52.00 ms",
        "hello sleeps: generation 8, 3.0 MiB written, an image of 41.0 MiB\n",
    ] {
        assert!(said.contains(words), "{words:?} is not in\n{said}");
    }
    let report: SleepReport = serde_json::from_value(waker.document("sleep hello").await).unwrap();
    assert_eq!(report, waker::report(Tier::Image));

    waker.answer(call, &waker::report(Tier::Paused));
    let said = waker.good("sleep --pause hello").await;
    assert!(said.ends_with("hello is paused: generation 8, its RAM kept\n"), "{said}");
    assert!(!said.contains("durable"), "{said}");
    let operator = r#"POST /v1/apps/hello/sleep {"reason":"operator"}"#;
    let pause = r#"POST /v1/apps/hello/sleep {"reason":"operator","tier":"paused"}"#;
    assert_eq!(waker.asked(), [operator, operator, pause]);
}

#[tokio::test]
async fn an_app_is_parked_and_cleared() {
    let waker = StandIn::start();
    waker.answer("POST /v1/apps/hello/park", &json!({}));
    waker.answer("POST /v1/apps/hello/clear", &json!({}));
    let said = waker.good("park hello --reason 'bad deploy'").await;
    assert_eq!(said, "hello is parked; `rouse clear` frees it\n");
    assert_eq!(waker.good("clear hello").await, "hello may be woken\n");
    assert_eq!(waker.document("clear hello").await, json!({ "id": "hello" }));
    assert_eq!(
        waker.asked(),
        [
            r#"POST /v1/apps/hello/park {"reason":"bad deploy"}"#,
            "POST /v1/apps/hello/clear",
            "POST /v1/apps/hello/clear"
        ]
    );
}
