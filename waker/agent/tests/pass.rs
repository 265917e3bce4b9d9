//! What passes between visitor and app, and what does not.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod support;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, stream};
use http::Response;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use support::{Agent, due, read_until, text};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;

#[tokio::test]
async fn the_request_arrives_as_it_was_sent() {
    let (agent, _port) = Agent::start().await;
    let listener = agent.listen().await;
    let app = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = read_until(&mut stream, "\r\n\r\n").await;
        let answer = "HTTP/1.1 299 Why Not\r\nX-B: 1\r\nrouse-error: x\r\nx-A: 2\r\nContent-Length: 2\r\n\r\nok";
        stream.write_all(answer.as_bytes()).await.unwrap();
        head
    };
    let request = "GET /a%2Fb//../c%20?q=%zz&r=+ HTTP/1.1\r\nX-Zed: 1\r\nHost: App.Example:81\r\nROUSE-NONCE: n\r\nRouse-Other: x\r\naccept: */*\r\nConnection: close\r\nX-Last: \t two words \r\n\r\n";
    let (answer, head) = tokio::join!(agent.raw(request), due(app));
    let arrived = "GET /a%2Fb//../c%20?q=%zz&r=+ HTTP/1.1\r\nX-Zed: 1\r\nHost: App.Example:81\r\naccept: */*\r\nX-Last: two words\r\n\r\n";
    assert_eq!(head, arrived);
    let back = "HTTP/1.1 299 Why Not\r\nX-B: 1\r\nx-A: 2\r\nContent-Length: 2\r\nconnection: close\r\n\r\nok";
    assert_eq!(answer.0, back);
}

#[tokio::test]
async fn the_apps_own_errors_pass() {
    let (agent, _port) = Agent::start().await;
    let _app = agent
        .app(async |request| {
            let code = request.uri().path()[1..].parse().unwrap();
            text(code, format!("the app's own {code}"))
        })
        .await;
    for code in [404, 500, 502, 503, 504] {
        let answer = agent.get(&format!("/{code}")).await;
        assert_eq!((answer.status(), answer.body()), (code, &*format!("the app's own {code}")));
        assert_eq!((answer.header("rouse-agent"), answer.header("rouse-error")), (None, None));
    }
}

#[tokio::test]
async fn a_copy_of_our_error_passes_without_our_headers() {
    let (agent, _port) = Agent::start().await;
    let ours = agent.get("/").await;
    let copy: Vec<(String, String)> = ours
        .head()
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let (headers, body) = (copy.clone(), ours.body().to_owned());
    let _app = agent
        .app(move |_| {
            let mut response = Response::builder().status(503);
            for (name, value) in &headers {
                response = response.header(name, value);
            }
            let response = response.body(Full::new(Bytes::from(body.clone()))).unwrap();
            async { response }
        })
        .await;
    let answer = agent.get("/").await;
    assert_eq!((answer.status(), answer.body()), (503, ours.body()));
    for (name, value) in &copy {
        let expected = (!name.starts_with("rouse-")).then_some(&**value);
        assert_eq!(answer.header(name), expected, "{name}");
    }
}

#[tokio::test]
async fn trailers_pass_both_ways_but_not_ours() {
    let (agent, _port) = Agent::start().await;
    let _app = agent
        .app(async |request| {
            let whole = request.into_body().collect().await.unwrap();
            let mut trailers = whole.trailers().cloned().unwrap_or_default();
            assert_eq!(trailers.get("rouse-x"), None);
            trailers.insert("rouse-agent", "v=1".parse().unwrap());
            let frames = [Frame::data(whole.to_bytes()), Frame::trailers(trailers)];
            Response::builder()
                .header("trailer", "x-sum, rouse-agent")
                .body(StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>))))
                .unwrap()
        })
        .await;
    let answer = agent
        .raw("POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close, TE\r\nTrailer: x-sum, rouse-x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 7\r\nRouse-X: y\r\n\r\n")
        .await;
    assert_eq!(answer.body(), "3\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n");
}

#[tokio::test]
async fn a_large_upload_arrives_whole() {
    let (agent, _port) = Agent::start().await;
    let _app = agent
        .app(async |request| {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let sum: u64 = body.iter().map(|b| u64::from(*b)).sum();
            text(200, format!("{} {sum}", body.len()))
        })
        .await;
    let body: Vec<u8> = (0..10_u32 << 20).map(|i| (i % 251) as u8).collect();
    let sum: u64 = body.iter().map(|b| u64::from(*b)).sum();
    let head = format!(
        "PUT / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let answer = agent.raw([head.as_bytes(), &body].concat()).await;
    assert_eq!(answer.body(), format!("{} {sum}", body.len()));
}

#[tokio::test]
async fn one_100_continue_comes_before_the_body() {
    let (agent, _port) = Agent::start().await;
    let _app = agent
        .app(async |request| text(200, request.into_body().collect().await.unwrap().to_bytes()))
        .await;
    let mut stream = agent.connect().await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 5\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(read_until(&mut stream, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").await.unwrap();
    let rest = read_until(&mut stream, "hello").await;
    assert!(rest.starts_with("HTTP/1.1 200 OK\r\n"), "{rest}");
}

#[tokio::test]
async fn a_stream_arrives_bit_by_bit_and_ends_with_its_visitor() {
    let (agent, _port) = Agent::start().await;
    let (bits, from_test) = mpsc::channel::<Bytes>(1);
    let from_test = Arc::new(std::sync::Mutex::new(Some(from_test)));
    let _app = agent
        .app(move |_| {
            let receiver = from_test.lock().unwrap().take().unwrap();
            let frames = stream::unfold(receiver, |mut receiver| async {
                let bit = receiver.recv().await?;
                Some((Ok::<_, Infallible>(Frame::data(bit)), receiver))
            });
            async { Response::new(StreamBody::new(frames)) }
        })
        .await;
    let mut stream = agent.connect().await;
    stream.write_all(b"GET /sse HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    read_until(&mut stream, "\r\n\r\n").await;
    for bit in ["data: 1\n\n", "data: 2\n\n"] {
        // The next is sent only once this one has come.
        bits.send(bit.into()).await.unwrap();
        read_until(&mut stream, &format!("{bit}\r\n")).await;
    }
    drop(stream);
    due(async {
        // A body that nobody reads any more is dropped by the app.
        while bits.try_reserve().is_ok() || !bits.is_closed() {
            let _ = bits.try_send("data: 3\n\n".into());
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_websocket_passes() {
    let (agent, _port) = Agent::start().await;
    let listener = agent.listen().await;
    let mut app = JoinSet::new();
    app.spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        let (said, heard) = socket.split();
        let _ = heard
            .filter(|m| std::future::ready(!m.as_ref().unwrap().is_close()))
            .forward(said)
            .await;
    });
    let (mut socket, answer) =
        due(tokio_tungstenite::client_async("ws://a/ws", agent.connect().await)).await.unwrap();
    assert_eq!(answer.status(), 101);
    for message in [Message::text("hi"), Message::binary(vec![7; 300_000])] {
        socket.send(message.clone()).await.unwrap();
        assert_eq!(due(socket.next()).await.unwrap().unwrap(), message);
    }
    socket.close(None).await.unwrap();
    due(app.join_next()).await.unwrap().unwrap();
}

#[tokio::test]
async fn what_follows_an_upgrade_at_once_is_not_lost() {
    let (agent, _port) = Agent::start().await;
    let listener = agent.listen().await;
    let app = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = read_until(&mut stream, "\r\n\r\n").await;
        assert!(head.contains("Upgrade: echo\r\n"), "{head}");
        let answer =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nfirst";
        stream.write_all(answer.as_bytes()).await.unwrap();
        read_until(&mut stream, "early").await
    };
    let visitor = async {
        let mut stream = agent.connect().await;
        let request =
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nearly";
        stream.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut stream, "first").await
    };
    let (_, answer) = due(async { tokio::join!(app, visitor) }).await;
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
}

#[tokio::test]
async fn an_upgrade_that_the_app_declines_is_an_answer() {
    let (agent, _port) = Agent::start().await;
    let _app = agent.app(async |_| text(426, "no")).await;
    let answer = agent
        .raw(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n",
        )
        .await;
    assert_eq!((answer.status(), answer.body()), (426, "no"));
}

#[tokio::test]
async fn a_head_answer_keeps_its_length() {
    let (agent, _port) = Agent::start().await;
    let _app = agent.app(async |_| text(200, "seven!!")).await;
    let answer = agent.raw("HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert_eq!((answer.header("content-length"), answer.body()), (Some("7"), ""));
}

#[tokio::test]
async fn an_exchange_that_the_app_breaks_off_is_not_called_down() {
    let (agent, _port) = Agent::start().await;
    let listener = agent.listen().await;
    let mut app = JoinSet::new();
    app.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_until(&mut stream, "\r\n\r\n").await;
        }
    });
    for method in ["GET", "POST"] {
        let answer =
            agent.raw(format!("{method} / HTTP/1.1\r\nHost: a\r\nRouse-Nonce: n\r\n\r\n")).await;
        assert_eq!((answer.status(), answer.header("rouse-error")), (502, Some("app-broke")));
        assert_eq!(answer.header("rouse-agent"), None);
    }
}

#[tokio::test]
async fn an_answer_that_is_no_http_is_the_apps_fault() {
    let (agent, _port) = Agent::start().await;
    let listener = agent.listen().await;
    let mut app = JoinSet::new();
    app.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_until(&mut stream, "\r\n\r\n").await;
            stream.write_all(b"SSH-2.0-nonsense\r\n").await.unwrap();
        }
    });
    let answer = agent.get("/").await;
    assert_eq!((answer.status(), answer.header("rouse-error")), (502, Some("app-broke")));
    assert_eq!(answer.header("rouse-agent"), None);
}

/// An app that answers once on each connection and hangs up in the instant in which the next
/// request comes.
async fn hangs_up(agent: &Agent) -> (JoinSet<()>, Arc<AtomicUsize>) {
    let listener = agent.listen().await;
    let posts = Arc::new(AtomicUsize::new(0));
    let counted = posts.clone();
    let mut app = JoinSet::new();
    app.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let counted = counted.clone();
            connections.spawn(async move {
                let head = read_until(&mut stream, "\r\n\r\n").await;
                if head.starts_with("POST") {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                stream.write_all(answer).await.unwrap();
                let _ = stream.read(&mut [0]).await;
            });
        }
    });
    (app, posts)
}

#[tokio::test]
async fn a_connection_that_the_app_closed_costs_nobody_an_error() {
    let (agent, _port) = Agent::start().await;
    let (_app, posts) = hangs_up(&agent).await;
    let mut stream = agent.connect().await;
    for method in ["GET", "GET", "GET", "POST", "POST", "GET", "POST"] {
        let request = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = read_until(&mut stream, "\r\n\r\nok").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{method}: {answer}");
    }
    assert_eq!(posts.load(Ordering::SeqCst), 3);
}
