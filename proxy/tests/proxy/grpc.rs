//! gRPC goes to the app by HTTP/2, with all that the other requests have: holds, replays, lives.

use std::time::Duration;

use bytes::Bytes;
use h2::{RecvStream, client};
use http::{HeaderMap, Request, Response};
use rouse_protocol::watch::AppState;
use tokio::task::JoinSet;

use crate::guest::Act;
use crate::waker::Wake;
use crate::{PATIENCE, World, client as http1, eventually};

/// A visitor's connection of HTTP/2.
struct Visitor {
    sender: client::SendRequest<Bytes>,
    _driver: JoinSet<()>,
}

/// A whole answer.
#[derive(Debug)]
struct Reply {
    head: Response<()>,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

impl Visitor {
    async fn of(world: &World) -> Self {
        let stream = http1::connect(world.proxy.h2c).await;
        let (sender, connection) = client::handshake(stream).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            let _ = connection.await;
        });
        Self { sender, _driver: driver }
    }

    async fn send(&self, kind: &str, path: &str, body: &[u8]) -> Result<Reply, h2::Error> {
        let request = Request::builder()
            .method("POST")
            .uri(format!("http://hello.test{path}"))
            .header("te", "trailers")
            .header("content-type", kind)
            .header("rouse-x", "y")
            .body(())
            .unwrap();
        let exchange = async {
            let mut sender = self.sender.clone().ready().await?;
            let (response, mut up) = sender.send_request(request, false)?;
            // What the window does not take yet waits in the library.
            up.send_data(body.to_vec().into(), true)?;
            let (head, mut down) = response.await?.into_parts();
            let body = read(&mut down).await?;
            let trailers = down.trailers().await?;
            Ok(Reply { head: Response::from_parts(head, ()), body, trailers })
        };
        tokio::time::timeout(PATIENCE, exchange).await.unwrap()
    }

    async fn call(&self, path: &str, body: &[u8]) -> Reply {
        self.send("application/grpc", path, body).await.unwrap()
    }
}

async fn read(down: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut body = Vec::new();
    while let Some(data) = down.data().await {
        let data = data?;
        down.flow_control().release_capacity(data.len())?;
        body.extend_from_slice(&data);
    }
    Ok(body)
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.headers().get(name).map(|value| value.to_str().unwrap())
    }

    fn trailer(&self, name: &str) -> Option<&str> {
        let trailers = self.trailers.as_ref()?;
        trailers.get(name).map(|value| value.to_str().unwrap())
    }

    fn expect_page(&self) {
        assert_eq!((self.head.status().as_u16(), &*self.body), (200, &b"page"[..]), "{self:?}");
        assert_eq!((self.trailer("grpc-status"), self.trailer("x-sum")), (Some("0"), Some("7")));
    }
}

#[tokio::test]
async fn a_call_wakes_the_app_and_its_trailers_come_back() {
    let world = World::with("", |plan| plan.wake = Wake::Runs(Duration::from_millis(50))).await;
    let reply = Visitor::of(&world).await.call("/pkg.Service/Method", b"hello").await;
    reply.expect_page();
    assert_eq!(reply.header("rouse-wake"), Some("resumed"));
    let seen = &world.guest.seen()[0];
    assert!(
        seen.head.starts_with("POST http://hello.test/pkg.Service/Method HTTP/2\r\n"),
        "{seen:?}"
    );
    assert_eq!((seen.header("te"), &*seen.body), (Some("trailers"), &b"hello"[..]));
    assert_eq!((seen.header("rouse-x"), seen.header("x-forwarded-for")), (None, Some("127.0.0.1")));
}

#[tokio::test]
async fn a_trailers_only_answer_passes_as_it_is() {
    let world = World::new("").await;
    let visitor = Visitor::of(&world).await;
    visitor.call("/", b"").await.expect_page();
    world.guest.script([Act::TrailersOnly("5")]);
    let reply = visitor.call("/", b"").await;
    assert_eq!((reply.head.status().as_u16(), reply.header("grpc-status")), (200, Some("5")));
    assert_eq!((&*reply.body, reply.trailers.is_none()), (&b""[..], true));
    assert_eq!(reply.header("rouse-secret"), None);
}

#[tokio::test]
async fn a_signed_down_sends_short_bodies_again() {
    for size in [0, 1, 63 << 10] {
        let world = World::new("").await;
        let visitor = Visitor::of(&world).await;
        visitor.call("/", b"").await.expect_page();
        world.guest.script([Act::SignedDown]);
        let body = vec![7; size];
        let reply = visitor.call("/order", &body).await;
        reply.expect_page();
        assert_eq!(reply.header("rouse-wake"), Some("awake"), "{size}");
        let seen = world.guest.seen();
        assert!(seen.len() == 2 && seen[1].body == body, "{size}: {}", seen.len());
        assert_eq!(world.waker.wakes(), 2, "a down asks for a wake");
    }
}

#[tokio::test]
async fn a_call_that_the_app_resets_is_no_wake_and_is_not_repeated() {
    let world = World::new("").await;
    let visitor = Visitor::of(&world).await;
    visitor.call("/", b"").await.expect_page();
    world.guest.script([Act::Reset]);
    let reply = visitor.call("/", b"x").await;
    assert_eq!(
        (reply.head.status().as_u16(), reply.header("rouse-error")),
        (200, Some("app-broke")),
        "as gRPC has it: the status is in the header"
    );
    assert_eq!((world.guest.seen().len(), world.waker.wakes()), (2, 1));
    visitor.call("/", b"").await.expect_page();
}

#[tokio::test]
async fn only_grpc_goes_by_http_2_and_the_two_share_no_connection() {
    let world = World::new("").await;
    let visitor = Visitor::of(&world).await;
    visitor.call("/1", b"").await.expect_page();
    for kind in ["text/plain", "application/grpc-web+proto"] {
        let reply = visitor.send(kind, "/2", b"x").await.unwrap();
        assert_eq!((reply.head.status().as_u16(), &*reply.body), (200, &b"page"[..]));
    }
    visitor.send("application/grpc+proto", "/3", b"").await.unwrap().expect_page();
    let seen = world.guest.seen();
    let versions: Vec<_> = seen.iter().map(|s| s.head.contains("HTTP/2\r\n")).collect();
    assert_eq!(versions, [true, false, false, true], "{seen:?}");
    assert_eq!(seen[0].from, seen[3].from, "a connection is used again");
    assert!(seen[1].from != seen[0].from && seen[2].from != seen[0].from);
}

#[tokio::test]
async fn many_calls_at_once_are_one_wake_and_few_connections() {
    let world = World::with("", |plan| plan.wake = Wake::Runs(Duration::from_millis(200))).await;
    let visitor = std::sync::Arc::new(Visitor::of(&world).await);
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let visitor = visitor.clone();
        calls.spawn(async move { visitor.call("/", b"hello").await.expect_page() });
    }
    calls.join_all().await;
    assert_eq!((world.waker.wakes(), world.guest.seen().len()), (1, 50));
}

#[tokio::test]
async fn a_sleep_ends_the_connections_of_both_versions() {
    let world = World::with("", |plan| plan.policy.idle_ms = 300).await;
    let visitor = Visitor::of(&world).await;
    visitor.call("/", b"").await.expect_page();
    assert_eq!(world.get("/").await.status, 200);
    eventually("it sleeps", async || world.waker.state() == AppState::Asleep).await;
    eventually("no connection is left", async || world.guest.closed() == world.guest.probes() + 2)
        .await;
    let reply = visitor.call("/", b"").await;
    reply.expect_page();
    assert_eq!(reply.header("rouse-wake"), Some("resumed"));
    let seen = world.guest.seen();
    assert_ne!(seen[0].from, seen[2].from, "a connection of the life before was used");
}
