//! The app's word that it is busy.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod support;

use rouse_protocol::control::FromAgent;
use support::{Agent, text};

fn post(body: &str) -> String {
    format!(
        "POST /.well-known/rouse-busy HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn it_is_told_at_once_and_again_to_the_next_waker() {
    let (agent, mut port) = Agent::start().await;
    assert_eq!(agent.raw(post(r#"{"seconds": 600}"#)).await.status(), 204);
    assert_eq!(port.heard().await, FromAgent::Busy { seconds: 600 });
    drop(port);
    let mut port = agent.port().await;
    port.tell(&agent.life(2, 0)).await;
    assert!(matches!(port.heard().await, FromAgent::Alive { .. }));
    let FromAgent::Busy { seconds } = port.heard().await else { panic!("it was not told") };
    assert!((500..=600).contains(&seconds), "{seconds}");
    assert_eq!(agent.raw(post(r#"{"seconds": 0}"#)).await.status(), 204);
    assert_eq!(port.heard().await, FromAgent::Busy { seconds: 0 });
    // What is over is not told again.
    port.tell(&agent.life(3, 0)).await;
    assert!(matches!(port.heard().await, FromAgent::Alive { .. }));
    port.tell(&agent.life(4, 0)).await;
    assert!(matches!(port.heard().await, FromAgent::Alive { .. }));
}

#[tokio::test]
async fn what_is_no_word_is_refused_and_not_told() {
    let (agent, mut port) = Agent::start().await;
    let long = format!("{{\"seconds\": 1{}}}", " ".repeat(2000));
    for body in ["", "{}", r#"{"seconds": 86401}"#, &long] {
        let raw = agent.raw(post(body)).await;
        assert_eq!((raw.status(), raw.header("rouse-error")), (400, Some("busy-unreadable")));
    }
    assert_eq!(agent.raw(post(r#"{"seconds": 5}"#)).await.status(), 204);
    assert_eq!(port.heard().await, FromAgent::Busy { seconds: 5 });
}

#[tokio::test]
async fn a_get_of_the_path_is_the_apps() {
    let (agent, _port) = Agent::start().await;
    let _app = agent.app(|_| async { text(200, "the app's") }).await;
    assert_eq!(agent.get("/.well-known/rouse-busy").await.body(), "the app's");
}
