//! What may a client take of this server?

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

#[tokio::test]
async fn a_header_that_drips_is_cut_and_an_idle_connection_is_not() {
    let world = World::new("[downstream]\nheader_seconds = 1\n").await;
    let whole = "GET / HTTP/1.1\r\nHost: hello.test\r\n\r\n";
    let mut idle = client::connect(world.proxy.http).await;
    client::send(&mut idle, whole, &[]).await;
    assert!(client::one(&mut idle).await.starts_with("HTTP/1.1 200 "));

    // The first request of a connection, and the second.
    for requests in [0, 1] {
        let mut slow = client::connect(world.proxy.http).await;
        for _ in 0..requests {
            client::send(&mut slow, whole, &[]).await;
            assert!(client::one(&mut slow).await.starts_with("HTTP/1.1 200 "));
        }
        let drip = async {
            for byte in std::iter::repeat_n(b'a', 10_000) {
                if slow.write_all(&[byte]).await.is_err() {
                    return;
                }
                let mut one = [0];
                let pause = Duration::from_millis(50);
                if let Ok(Ok(0) | Err(_)) = tokio::time::timeout(pause, slow.read(&mut one)).await {
                    return;
                }
            }
            panic!("it may drip for ever");
        };
        tokio::time::timeout(PATIENCE, drip).await.expect("it is cut");
    }
    client::send(&mut idle, whole, &[]).await;
    assert!(client::one(&mut idle).await.starts_with("HTTP/1.1 200 "), "who is idle may be");
}

#[tokio::test]
async fn each_header_has_the_whole_time() {
    let world = World::new("[downstream]\nheader_seconds = 1\n").await;
    let mut stream = client::connect(world.proxy.http).await;
    let began = std::time::Instant::now();
    // None takes long, all of them take longer than one may.
    while began.elapsed() < Duration::from_secs(3) {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: hel").await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        client::send(&mut stream, "lo.test\r\n\r\n", &[]).await;
        assert!(client::one(&mut stream).await.starts_with("HTTP/1.1 200 "));
    }
}

#[tokio::test]
async fn nobody_has_more_connections_than_it_may() {
    let world = World::new("[downstream]\nconnections_per_address = 3\n").await;
    let whole = "GET / HTTP/1.1\r\nHost: hello.test\r\n\r\n";
    let mut there = Vec::new();
    // Those of the start may still be on their way out.
    eventually("three fit", async || {
        let mut stream = client::connect(world.proxy.http).await;
        if stream.write_all(whole.as_bytes()).await.is_ok()
            && client::one(&mut stream).await.starts_with("HTTP/1.1 200 ")
        {
            there.push(stream);
        }
        there.len() == 3
    })
    .await;
    let mut fourth = client::connect(world.proxy.http).await;
    let _ = fourth.write_all(whole.as_bytes()).await;
    assert_eq!(client::rest(&mut fourth).await, b"");
    there.pop();
    eventually("a place is free again", async || {
        let mut stream = client::connect(world.proxy.http).await;
        stream.write_all(whole.as_bytes()).await.is_ok()
            && client::one(&mut stream).await.starts_with("HTTP/1.1 200 ")
    })
    .await;
}

#[tokio::test]
async fn a_port_for_http_2_waits_for_nobody_for_ever() {
    let world = World::new("[downstream]\nheader_seconds = 1\n").await;
    for said in ["", "PRI * HT", "GET / HTTP/1.0\r\n"] {
        let mut stream = client::connect(world.proxy.h2c).await;
        stream.write_all(said.as_bytes()).await.unwrap();
        client::rest(&mut stream).await;
    }
}

#[tokio::test]
async fn what_is_too_large_is_refused() {
    let world = World::new("").await;
    let long = "a".repeat(20_000);
    let head = format!("GET /{long} HTTP/1.1\r\nHost: hello.test\r\n");
    assert_eq!(world.request(&head).await.status, 414);
    let head = format!("GET / HTTP/1.1\r\nHost: hello.test\r\nX: {}\r\n", "a".repeat(100_000));
    assert_eq!(world.request(&head).await.status, 431);
    let many: String = (0..200).map(|n| format!("X-{n}: a\r\n")).collect();
    let head = format!("GET / HTTP/1.1\r\nHost: hello.test\r\n{many}");
    assert_eq!(world.request(&head).await.status, 431);
    assert_eq!(world.waker.wakes(), 0);
}
