//! What holds for a connection holds for one with held visitors on it.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use nix::sys::signal::Signal;
use rouse_tests::frames::{END_HEADERS, kind, request};
use rouse_tests::{
    DEFAULT_HOST, Echo, Frames, Front, Node, ORIGIN_HOST, RawOrigin, assert_eventually, patience,
    sha256,
};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::{client, get, tls, whole};

const REFUSED_STREAM: u32 = 7;

/// A node whose app is down for so long, and a proxy beside it with an origin that serves.
async fn down(time: Duration) -> (Node, Front, RawOrigin) {
    let node = Node::start().await;
    node.wake("hello").await;
    let origin = RawOrigin::start().await;
    let front = Front::beside(&node, origin.address(), "").await;
    node.crash("hello", time).await;
    (node, front, origin)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_frees_the_hold_and_a_hundred_are_the_most() {
    let (_node, front, _origin) = down(Duration::from_secs(600)).await;
    let mut frames = Frames::connect(front.h2c(), &[]).await;
    for n in 0..100 {
        frames.get(2 * n + 1, DEFAULT_HOST, "/").await;
    }
    assert_eventually!(front.held().await == 100.0, "a hundred are held");
    frames.get(201, DEFAULT_HOST, "/").await;
    let refused = frames.until("a refusal", |f| f.stream == 201).await;
    assert_eq!(refused.error(), Some(REFUSED_STREAM), "one more may come again: {refused:?}");

    frames.send(kind::RST_STREAM, 0, 1, &8_u32.to_be_bytes()).await;
    assert_eventually!(front.held().await == 99.0, "one has left");
    for n in 1..50 {
        frames.send(kind::RST_STREAM, 0, 2 * n + 1, &8_u32.to_be_bytes()).await;
    }
    assert_eventually!(front.held().await == 50.0, "half of them have left");
    frames.get(203, DEFAULT_HOST, "/").await;
    assert_eventually!(front.held().await == 51.0, "there is room for another");
    drop(frames);
    assert_eventually!(front.held().await == 0.0, "all have left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_upload_holds_up_no_other_stream() {
    let (_node, front, _origin) = down(Duration::from_secs(10)).await;
    let stream = TcpStream::connect(front.h2c()).await.expect("the proxy listens");
    let (client, _driver) = client(stream).await;
    let upload = vec![b'x'; 1 << 20];
    let mut post = get(DEFAULT_HOST, "/echo");
    *post.method_mut() = http::Method::POST;
    let mut client = client.ready().await.expect("the connection is there");
    let mut held = Vec::new();
    for _ in 0..4 {
        let (answer, mut body) = client.send_request(post.clone(), false).expect("it goes out");
        body.send_data(Bytes::from(upload.clone()), true).expect("it is queued");
        held.push(answer);
    }
    assert_eventually!(front.held().await == 4.0, "they are held");
    // A stream whose own window is used up waits alone.
    for _ in 0..20 {
        let (answer, _) = client.send_request(get(ORIGIN_HOST, "/"), true).expect("it goes out");
        let answer =
            tokio::time::timeout(patience(), answer).await.expect("its neighbour is served");
        assert_eq!(whole(&mut answer.expect("an answer").into_body()).await, b"page");
    }
    assert_eq!(front.held().await, 4.0, "while they are held still");
    for answer in held {
        let answer = answer.await.expect("an answer");
        assert_eq!(answer.status(), 200);
        let echo: Echo =
            serde_json::from_slice(&whole(&mut answer.into_body()).await).expect("an echo");
        assert_eq!((echo.body_bytes, echo.body_sha256), (1 << 20, sha256(&upload)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_says_goaway_and_serves_who_is_held() {
    let (_node, mut front, _origin) = down(Duration::from_secs(5)).await;
    let mut frames = Frames::connect(front.h2c(), &[]).await;
    let head = request("POST", DEFAULT_HOST, "/echo");
    frames.send(kind::HEADERS, END_HEADERS, 1, &head).await;
    frames.send(kind::DATA, 1, 1, b"abc").await;
    assert_eventually!(front.held().await == 1.0, "it is held");
    front.proxy.signal(Signal::SIGQUIT);
    let goaway = frames.until("a GOAWAY", |f| f.kind == kind::GOAWAY).await;
    assert_eq!(goaway.error(), Some(0), "it is no fault: {goaway:?}");
    let answer = frames.until("the held one's answer", |f| f.kind == kind::HEADERS).await;
    assert_eq!((answer.stream, answer.status()), (1, Some(200)), "{answer:?}");
    frames.until("its body", |f| f.stream == 1 && f.ends_stream()).await;
    assert_eventually!(!front.proxy.runs(), "and then the proxy is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_over_tls_to_a_sleeping_app_is_held_and_echoed() {
    let node = Node::start().await;
    let origin = RawOrigin::start().await;
    let front = Front::beside(&node, origin.address(), "").await;
    let before = node.generation("hello").await;
    let stream = tls(&front, DEFAULT_HOST, b"http/1.1").await;
    let request = format!("wss://{DEFAULT_HOST}/ws").into_client_request().expect("a request");
    let (mut socket, _) =
        tokio_tungstenite::client_async(request, stream).await.expect("held, and then upgraded");
    assert_eq!(node.generation("hello").await, before + 1, "it woke the app");
    let large = "x".repeat(200_000);
    for text in ["one", &large] {
        socket.send(Message::text(text)).await.expect("it is open");
        let echo = tokio::time::timeout(patience(), socket.next()).await.expect("an echo comes");
        assert_eq!(echo.expect("it is open").expect("it is whole"), Message::text(text));
    }
    socket.close(None).await.expect("it closes");
}
