//! HTTP/2: streams, and the frames about them.

use bytes::Bytes;
use rouse_tests::frames::{ACK, END_HEADERS, END_STREAM, kind, request};
use rouse_tests::{Frames, ORIGIN_HOST};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::{World, client, get, long, tls, whole};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_streams_at_once_are_answered() {
    let world = World::new().await;
    let plain = TcpStream::connect(world.front.h2c()).await.expect("the proxy listens");
    let secure = tls(&world.front, ORIGIN_HOST, b"h2").await;
    for (client, _driver) in [client(plain).await, client(secure).await] {
        let mut answers = JoinSet::new();
        for n in 0..100 {
            let mut client = client.clone().ready().await.expect("the connection is there");
            answers.spawn(async move {
                let path = format!("/n/{n}");
                let (answer, _) =
                    client.send_request(get(ORIGIN_HOST, &path), true).expect("it goes out");
                let answer = answer.await.expect("an answer");
                assert_eq!(answer.status(), 200);
                assert_eq!(whole(&mut answer.into_body()).await, format!("[{path}]").as_bytes());
            });
        }
        answers.join_all().await;
    }
    assert_eq!(world.origin.requests().len(), 200, "each came once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_very_long_answer_comes_whole() {
    let world = World::new().await;
    let (client, _driver) = client(tls(&world.front, ORIGIN_HOST, b"h2").await).await;
    let mut client = client.ready().await.expect("the connection is there");
    let (answer, _) = client.send_request(get(ORIGIN_HOST, "/long"), true).expect("it goes out");
    let answer = answer.await.expect("an answer");
    assert!(whole(&mut answer.into_body()).await == long(), "byte for byte");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_upload_arrives_whole_and_the_app_s_trailers_come_back() {
    let world = World::new().await;
    let stream = TcpStream::connect(world.front.h2c()).await.expect("the proxy listens");
    let (client, _driver) = client(stream).await;
    let mut client = client.ready().await.expect("the connection is there");
    let mut post = get(ORIGIN_HOST, "/trailers");
    *post.method_mut() = http::Method::POST;
    let (answer, mut body) = client.send_request(post, false).expect("it goes out");
    let upload = long()[..3_000_000].to_vec();
    body.send_data(Bytes::from(upload.clone()), false).expect("it goes out");
    body.send_data(Bytes::new(), true).expect("it goes out");
    let mut answer = answer.await.expect("an answer").into_body();
    assert_eq!(whole(&mut answer).await, b"one");
    assert_eq!(world.origin.requests()[0].body, upload);
    // Whether they come is the proxy's choice (RFC 9110, section 6.5.1), but not that they come wrong.
    if let Some(trailers) = answer.trailers().await.expect("a whole answer") {
        assert_eq!(trailers["x-end"], "whole");
    }
}

/// An empty DATA frame at an upload's end is no second end of it for the app.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_frame_at_the_end_leaves_the_apps_connection_clean() {
    let world = World::new().await;
    let mut frames = world.frames().await;
    // An answer can be here before its connection is back in the pool: then the next request has another.
    for stream in (1..80).step_by(2) {
        let head = request("POST", ORIGIN_HOST, "/page");
        frames.send(kind::HEADERS, END_HEADERS, stream, &head).await;
        frames.send(kind::DATA, 0, stream, b"hello").await;
        frames.send(kind::DATA, 0, stream, b"").await;
        frames.send(kind::DATA, END_STREAM, stream, b"").await;
        frames.stream(stream).await;
        let requests = world.origin.requests();
        if requests.iter().filter(|r| r.connection == 0).count() == 4 {
            break;
        }
    }
    let requests = world.origin.requests();
    assert_eq!(requests.iter().filter(|r| r.connection == 0).count(), 4, "{requests:#?}");
    assert!(requests.iter().all(|r| r.body == b"hello"), "{requests:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_without_a_body_end_their_stream() {
    let world = World::new().await;
    for (path, status) in [("/no-content", 204), ("/not-modified", 304)] {
        let mut frames = world.frames().await;
        frames.get(1, ORIGIN_HOST, path).await;
        let answer = frames.stream(1).await;
        assert_eq!(answer[0].status(), Some(status), "{answer:?}");
        let data = answer.iter().filter(|f| f.kind == kind::DATA);
        assert_eq!(data.map(|f| f.payload.len()).sum::<usize>(), 0, "{answer:?}");
        assert_ne!(answer[answer.len() - 1].kind, kind::RST_STREAM, "{answer:?}");
    }
    let mut frames = world.frames().await;
    let head = request("HEAD", ORIGIN_HOST, "/page");
    frames.send(kind::HEADERS, END_HEADERS | END_STREAM, 1, &head).await;
    let answer = frames.stream(1).await;
    assert_eq!(answer[0].status(), Some(200), "{answer:?}");
    assert!(answer.iter().all(|f| f.kind != kind::DATA || f.payload.is_empty()), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_early_answer_reaches_who_is_still_sending() {
    let world = World::new().await;
    let mut frames = world.frames().await;
    let head = request("POST", ORIGIN_HOST, "/early");
    frames.send(kind::HEADERS, END_HEADERS, 1, &head).await;
    frames.send(kind::DATA, 0, 1, &[b'x'; 10_000]).await;
    let answer = frames.stream(1).await;
    assert_eq!(answer[0].status(), Some(413), "the app's own: {answer:?}");
    // The connection goes on.
    frames.get(3, ORIGIN_HOST, "/page").await;
    frames.until("the next answer", |f| f.stream == 3 && f.kind == kind::HEADERS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_and_pings_are_acknowledged() {
    let world = World::new().await;
    let mut frames = Frames::connect(world.front.h2c(), &[(0x3, 10), (0xbeef, 1)]).await;
    let acked = |f: &rouse_tests::frames::Frame| f.kind == kind::SETTINGS && f.flags & ACK != 0;
    frames.until("an acknowledgement", acked).await;
    frames.send(kind::PING, 0, 0, b"12345678").await;
    let pong = frames.until("an answer to a ping", |f| f.kind == kind::PING).await;
    assert_eq!((pong.flags & ACK, &*pong.payload), (ACK, &b"12345678"[..]));
    // What nobody knows is nothing: a frame of another kind, and flags that mean nothing.
    frames.send(0xbe, 0xff, 0, b"whatever").await;
    frames.send(kind::PING, 0xf0, 0, b"87654321").await;
    let pong = frames.until("an answer to a ping", |f| f.kind == kind::PING).await;
    assert_eq!(&*pong.payload, b"87654321");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_no_window_gets_no_data_until_it_does() {
    let world = World::new().await;
    let mut frames = Frames::connect(world.front.h2c(), &[(0x4, 0)]).await;
    frames.get(1, ORIGIN_HOST, "/page").await;
    frames.until("a header", |f| f.kind == kind::HEADERS && f.stream == 1).await;
    // The answer to a ping comes behind all that could be sent.
    frames.send(kind::PING, 0, 0, b"12345678").await;
    let mut data = 0;
    loop {
        let frame = frames.next().await.expect("the connection is kept");
        match frame.kind {
            kind::DATA => data += frame.payload.len(),
            kind::PING => break,
            _ => {}
        }
    }
    assert_eq!(data, 0, "there is no window");
    frames.send(kind::WINDOW_UPDATE, 0, 1, &2_u32.to_be_bytes()).await;
    let part = frames.until("some", |f| f.kind == kind::DATA && !f.payload.is_empty()).await;
    assert_eq!(part.payload, b"pa");
    frames.send(kind::WINDOW_UPDATE, 0, 1, &100_u32.to_be_bytes()).await;
    let part = frames.until("the rest", |f| f.kind == kind::DATA && !f.payload.is_empty()).await;
    assert_eq!(part.payload, b"ge");
}
