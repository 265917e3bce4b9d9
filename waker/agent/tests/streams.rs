//! HTTP/2 through the agent: streams, trailers, resets, windows, and the agent's own word.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, client};
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use support::{Agent, GATE, app_id, due, text};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

type Sender = client::SendRequest<Bytes>;
/// A request as the app gets it, and what answers it.
type Asked = (Request<RecvStream>, SendResponse<Bytes>);

/// One connection to the agent, as the proxy makes it.
struct Visitor {
    sender: Sender,
    _driver: JoinSet<()>,
}

impl Visitor {
    async fn of(agent: &Agent) -> Self {
        // As the proxy does: no stream that is not read uses up what the others need.
        let (sender, connection) = client::Builder::new()
            .initial_connection_window_size(16 << 20)
            .handshake(agent.connect().await)
            .await
            .unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            let _ = connection.await;
        });
        Self { sender, _driver: driver }
    }

    /// Opens a stream.
    async fn ask(
        &self,
        method: &str,
        path: &str,
    ) -> (client::ResponseFuture, h2::SendStream<Bytes>) {
        let request = Request::builder()
            .method(method)
            .version(Version::HTTP_2)
            .uri(format!("http://app.example:81{path}"))
            .header("te", "trailers")
            .header("rouse-nonce", "n")
            .body(())
            .unwrap();
        let mut sender = due(self.sender.clone().ready()).await.unwrap();
        sender.send_request(request, method == "GET").unwrap()
    }

    async fn get(&self, path: &str) -> Result<Response<RecvStream>, h2::Error> {
        let (response, _) = self.ask("GET", path).await;
        due(response).await
    }
}

/// An app of streams, which a test answers one by one.
struct App {
    asked: mpsc::Receiver<Asked>,
    connections: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

impl App {
    async fn of(agent: &Agent) -> Self {
        let listener = agent.listen().await;
        let (to_test, asked) = mpsc::channel(256);
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut served = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let to_test = to_test.clone();
                served.spawn(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok(asked)) = connection.accept().await {
                        to_test.send(asked).await.unwrap();
                    }
                });
            }
        });
        Self { asked, connections, tasks }
    }

    async fn next(&mut self) -> Asked {
        due(self.asked.recv()).await.unwrap()
    }
}

async fn whole(mut body: RecvStream) -> (Vec<u8>, Option<HeaderMap>) {
    let mut bytes = Vec::new();
    while let Some(data) = due(body.data()).await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        bytes.extend_from_slice(&data);
    }
    (bytes, due(body.trailers()).await.unwrap())
}

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    lines.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect()
}

#[tokio::test]
async fn a_request_passes_as_http_2_with_trailers_both_ways_but_not_ours() {
    let (agent, _port) = Agent::start().await;
    let mut app = App::of(&agent).await;
    let visitor = Visitor::of(&agent).await;
    let (response, mut up) = visitor.ask("POST", "/p%2F?q").await;
    up.send_data("hel".into(), false).unwrap();
    let (request, mut answer) = app.next().await;
    assert_eq!(request.uri().to_string(), "http://app.example:81/p%2F?q");
    assert_eq!(request.headers(), &headers(&[("te", "trailers")]));

    // The answer begins before the request ends.
    let head = Response::builder().status(201).header("rouse-agent", "v=1").header("x", "y");
    let mut down = answer.send_response(head.body(()).unwrap(), false).unwrap();
    let mut response = due(response).await.unwrap();
    assert_eq!(
        (response.status(), response.headers()),
        (StatusCode::CREATED, &headers(&[("x", "y")]))
    );
    down.send_data("one".into(), false).unwrap();
    assert_eq!(due(response.body_mut().data()).await.unwrap().unwrap(), "one");

    up.send_data("lo".into(), false).unwrap();
    up.send_trailers(headers(&[("x-sum", "7"), ("rouse-x", "y")])).unwrap();
    let sent = whole(request.into_body()).await;
    assert_eq!(sent, (b"hello".to_vec(), Some(headers(&[("x-sum", "7")]))));
    down.send_trailers(headers(&[("grpc-status", "0"), ("rouse-agent", "v=1")])).unwrap();
    let got = whole(response.into_body()).await;
    assert_eq!(got, (Vec::new(), Some(headers(&[("grpc-status", "0")]))));
}

#[tokio::test]
async fn trailers_only_stays_trailers_only() {
    let (agent, _port) = Agent::start().await;
    let mut app = App::of(&agent).await;
    let visitor = Visitor::of(&agent).await;
    let (response, _up) = visitor.ask("POST", "/").await;
    let (_request, mut answer) = app.next().await;
    let head = Response::builder().header("grpc-status", "5").body(()).unwrap();
    answer.send_response(head, true).unwrap();
    let response = due(response).await.unwrap();
    assert_eq!(response.headers(), &headers(&[("grpc-status", "5")]));
    assert!(response.body().is_end_stream());
}

#[tokio::test]
async fn streams_of_one_connection_share_one_to_the_app_that_is_made_anew() {
    let (agent, _port) = Agent::start().await;
    let visitor = Visitor::of(&agent).await;
    for _life in 0..2 {
        let mut app = App::of(&agent).await;
        let mut responses = Vec::new();
        for n in 0..50 {
            responses.push(visitor.ask("GET", &format!("/{n}")).await.0);
        }
        let mut all = Vec::new();
        for _ in 0..50 {
            all.push(app.next().await);
        }
        assert_eq!(app.connections.load(Ordering::SeqCst), 1);
        // Backwards: none waits for another.
        for (request, mut answer) in all.into_iter().rev() {
            let head = Response::builder().header("path", request.uri().path());
            answer.send_response(head.body(()).unwrap(), true).unwrap();
        }
        for (n, response) in responses.into_iter().enumerate() {
            assert_eq!(due(response).await.unwrap().headers()["path"], format!("/{n}"));
        }
        app.tasks.shutdown().await;
        // Whether the end of the old connection is seen before a request is sent or by it, the
        // app that does not listen is told of.
        let down = due(async {
            loop {
                let response = visitor.get("/").await.unwrap();
                if response.headers().contains_key("rouse-agent") {
                    return response;
                }
            }
        })
        .await;
        assert_eq!(down.status(), 503);
        assert_eq!(down.headers()["rouse-error"], "down");
        assert_eq!(down.headers().get("connection"), None);
        let word = down.headers()["rouse-agent"].to_str().unwrap();
        let signed = agent.key.verify(&app_id(), "n", word).unwrap();
        assert_eq!(signed.state.as_str(), "down");
    }
}

#[tokio::test]
async fn a_connection_from_before_the_app_went_away_is_not_trusted() {
    let (agent, _port) = Agent::start().await;
    let visitor = Visitor::of(&agent).await;
    let listener = agent.listen().await;
    let (accepted, dialled) = tokio::join!(listener.accept(), visitor.ask("GET", "/"));
    let mut connection = h2::server::handshake(accepted.unwrap().0).await.unwrap();
    let (_request, mut answer) = due(connection.accept()).await.unwrap().unwrap();
    answer.send_response(Response::new(()), true).unwrap();
    let mut left_open = JoinSet::new();
    left_open.spawn(async move { while connection.accept().await.is_some() {} });
    assert_eq!(due(dialled.0).await.unwrap().status(), StatusCode::OK);

    // As when a process dies: its listener may be gone before its connections are.
    drop(listener);
    assert_eq!(visitor.get(GATE).await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    let down = visitor.get("/").await.unwrap();
    assert_eq!(down.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(down.headers().contains_key("rouse-agent"));
}

#[tokio::test]
async fn the_gate_is_answered_over_http_2_too() {
    let (agent, _port) = Agent::start().await;
    let mut app = App::of(&agent).await;
    let response = Visitor::of(&agent).await.get(GATE).await.unwrap();
    let word = response.headers()["rouse-agent"].to_str().unwrap();
    let signed = agent.key.verify(&app_id(), "n", word).unwrap();
    assert_eq!((response.status(), signed.state.as_str()), (StatusCode::OK, "serving"));
    assert!(app.asked.try_recv().is_err());
}

#[tokio::test]
async fn a_visitor_who_cancels_is_missed_by_the_app() {
    let (agent, _port) = Agent::start().await;
    let mut app = App::of(&agent).await;
    let visitor = Visitor::of(&agent).await;

    // Before the answer, with the request whole and with it half sent.
    for method in ["GET", "POST"] {
        let (response, mut up) = visitor.ask(method, "/").await;
        let (mut request, mut answer) = app.next().await;
        if method == "POST" {
            up.send_data("half".into(), false).unwrap();
            assert_eq!(due(request.body_mut().data()).await.unwrap().unwrap(), "half");
        }
        up.send_reset(Reason::CANCEL);
        let reason = due(std::future::poll_fn(|cx| answer.poll_reset(cx))).await.unwrap();
        assert_eq!(reason, Reason::CANCEL, "{method}");
        // What was cut off never looks whole.
        let rest = due(request.body_mut().data()).await;
        assert!(rest.is_none_or(|data| data.is_err()) || method == "GET", "{method}");
        drop(response);
    }

    // Amid the answer.
    for method in ["GET", "POST"] {
        let (response, mut up) = visitor.ask(method, "/").await;
        let (_request, mut answer) = app.next().await;
        let mut down = answer.send_response(Response::new(()), false).unwrap();
        let response = due(response).await.unwrap();
        up.send_reset(Reason::CANCEL);
        let reason = due(std::future::poll_fn(|cx| down.poll_reset(cx))).await.unwrap();
        assert_eq!(reason, Reason::CANCEL, "{method}");
        drop(response);
    }
    assert_eq!(app.connections.load(Ordering::SeqCst), 1, "other streams go on");
}

#[tokio::test]
async fn the_apps_reset_resets_the_visitors_stream_for_the_same_reason() {
    let (agent, _port) = Agent::start().await;
    let mut app = App::of(&agent).await;
    let visitor = Visitor::of(&agent).await;
    let (response, _up) = visitor.ask("POST", "/").await;
    app.next().await.1.send_reset(Reason::REFUSED_STREAM);
    let error = due(response).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::REFUSED_STREAM));

    let (response, _up) = visitor.ask("POST", "/").await;
    let (_request, mut answer) = app.next().await;
    let mut down = answer.send_response(Response::new(()), false).unwrap();
    let mut response = due(response).await.unwrap();
    down.send_reset(Reason::ENHANCE_YOUR_CALM);
    let error = due(response.body_mut().data()).await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
}

#[tokio::test]
async fn a_stream_that_nobody_reads_is_not_kept_and_holds_up_no_other() {
    let (agent, _port) = Agent::start().await;
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let _app = agent
        .app(move |request| {
            let sent = counted.clone();
            async move {
                let body = if request.uri().path() == "/endless" {
                    let endless = futures_util::stream::repeat_with(move || {
                        sent.fetch_add(16 * 1024, Ordering::SeqCst);
                        Ok(Frame::data(Bytes::from_static(&[7; 16 * 1024])))
                    });
                    StreamBody::new(endless).boxed_unsync()
                } else {
                    text(200, "short").into_body().boxed_unsync()
                };
                Response::new(body)
            }
        })
        .await;
    let visitor = Visitor::of(&agent).await;
    let mut unread = Vec::new();
    for _ in 0..50 {
        unread.push(visitor.get("/endless").await.unwrap());
    }
    let read = whole(visitor.get("/").await.unwrap().into_body()).await;
    assert_eq!(read.0, b"short");
    // In each of both connections' windows and buffers there is room for 64 KiB of a stream.
    let most = 50 * 8 * 64 * 1024;
    assert!(sent.load(Ordering::SeqCst) < most, "{sent:?} bytes are on their way");
    drop(unread);
}

#[tokio::test]
async fn an_app_of_http_1_breaks_the_exchange_and_is_not_called_down() {
    let (agent, _port) = Agent::start().await;
    let listener = agent.listen().await;
    let mut app = JoinSet::new();
    app.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.unwrap();
        }
    });
    let response = Visitor::of(&agent).await.get("/").await.unwrap();
    let broke = [
        ("content-type", "application/grpc"),
        ("grpc-status", "14"),
        ("grpc-message", "the app broke off before it answered"),
        ("rouse-error", "app-broke"),
    ];
    // As a gRPC client understands it, and not signed.
    assert_eq!((response.status(), response.headers()), (StatusCode::OK, &headers(&broke)));
    assert!(response.body().is_end_stream());
}
