//! Requests with bodies arrive once and whole, or not at all.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::guest::Act;
use crate::waker::Wake;
use crate::{World, client, eventually};

fn body(n: usize) -> Vec<u8> {
    (0..n).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

#[tokio::test]
async fn held_bodies_arrive_once_and_whole() {
    for size in [1, 63 << 10, 65 << 10, 10 << 20] {
        let world = World::with("", |plan| plan.wake = Wake::Runs(Duration::from_millis(50))).await;
        let reply = world.post("/", &body(size)).await;
        assert_eq!((reply.status, &*reply.body), (200, "page"), "{size}");
        let seen = world.guest.seen();
        assert_eq!(seen.len(), 1, "{size}");
        assert!(seen[0].body == body(size), "{size}");
    }
}

#[tokio::test]
async fn a_held_chunked_body_arrives_whole() {
    let world = World::with("", |plan| plan.wake = Wake::Runs(Duration::from_millis(50))).await;
    let mut stream = client::connect(world.proxy.http).await;
    let head = "POST / HTTP/1.1\r\nHost: hello.test\r\nTransfer-Encoding: chunked\r\n\
                Connection: close\r\n\r\n5\r\nhello\r\n";
    client::send(&mut stream, head, &[]).await;
    eventually("it is held", async || world.proxy.holds().await == 1 || world.waker.wakes() == 1)
        .await;
    stream.write_all(b"6\r\n world\r\n0\r\n\r\n").await.unwrap();
    assert_eq!(client::read(&mut stream).await.status, 200);
    let seen = world.guest.seen();
    assert_eq!((seen.len(), &*seen[0].body), (1, &b"hello world"[..]));
}

#[tokio::test]
async fn a_signed_down_sends_short_bodies_again() {
    for size in [0, 1, 63 << 10] {
        let world = World::new("").await;
        assert_eq!(world.get("/").await.status, 200);
        world.guest.script([Act::SignedDown]);
        let reply = world.post("/order", &body(size)).await;
        assert_eq!(reply.status, 200, "{size}");
        let seen = world.guest.seen();
        assert_eq!(seen.len(), 2, "{size}");
        assert!(seen[1].body == body(size), "{size}");
        assert_eq!(world.waker.wakes(), 2, "a down asks for a wake");
        assert_eq!(reply.header("rouse-wake"), Some("awake"));
    }
}

#[tokio::test]
async fn a_signed_down_to_a_long_body_is_503() {
    let world = World::new("").await;
    assert_eq!(world.get("/").await.status, 200);
    world.guest.script([Act::SignedDownLate]);
    let mut stream = client::connect(world.proxy.http).await;
    let head = format!(
        "POST / HTTP/1.1\r\nHost: hello.test\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        4 << 20
    );
    client::send(&mut stream, &head, &body(4 << 20)).await;
    let reply = client::read(&mut stream).await;
    assert_eq!((reply.status, reply.error()), (503, Some("not-replayable")));
    assert!(reply.header("retry-after").is_some());
    assert_eq!(world.guest.seen().len(), 1, "the app saw nothing of it");
    assert_eq!(world.get("/").await.status, 200, "and all is well after it");
}

#[tokio::test]
async fn an_answer_of_ours_reaches_a_client_that_is_still_sending() {
    let world = World::with("", |plan| {
        plan.wake = Wake::Hangs;
        plan.policy.hold_deadline_ms = 30;
    })
    .await;
    let reply = world.post("/", &body(8 << 20)).await;
    assert_eq!((reply.status, reply.error()), (503, Some("deadline")));
}
