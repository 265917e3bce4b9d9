//! The real `rouse-proxy`, between a raw client, a stand-in for the waker on a Unix socket and a
//! scripted guest on a TCP port.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod answers;
mod bodies;
mod client;
mod edge;
mod grpc;
mod guest;
mod headers;
mod life;
mod limits;
#[cfg(feature = "otel")]
mod otel;
mod policy;
mod proxy;
mod routes;
mod seen;
mod tls;
mod upgrade;
mod waker;
mod websocket;

use std::time::Duration;

use client::Reply;
use guest::Guest;
use proxy::Proxy;
use waker::StandIn;

/// How long a test waits for something that must come.
const PATIENCE: Duration = Duration::from_secs(30);

/// All three.
struct World {
    proxy: Proxy,
    waker: StandIn,
    guest: Guest,
}

impl World {
    /// An app `hello` at `hello.test`, asleep; `extra` is more of `proxy.toml`.
    async fn new(extra: &str) -> Self {
        Self::with(extra, |_| {}).await
    }

    /// [`Self::new`] after `change` to what the waker says of the app.
    async fn with(extra: &str, change: impl FnOnce(&mut waker::Plan)) -> Self {
        let guest = Guest::start().await;
        let waker = StandIn::start(&guest, change).await;
        let proxy = Proxy::start(&waker, extra).await;
        Self { proxy, waker, guest }
    }

    /// [`Self::new`] with more of `[listen]`.
    async fn listening(listen: &str, extra: &str) -> Self {
        let guest = Guest::start().await;
        let waker = StandIn::start(&guest, |_| {}).await;
        let proxy = Proxy::listening(&waker, listen, extra).await;
        Self { proxy, waker, guest }
    }

    /// Nobody is there any more: an answer is through here a moment after its client has it.
    async fn through(&self) {
        eventually("all are through", async || self.proxy.app().await["in_flight"] == 0).await;
    }

    async fn get(&self, path: &str) -> Reply {
        self.request(&format!("GET {path} HTTP/1.1\r\nHost: hello.test\r\n")).await
    }

    /// Sends `head` (without its empty line) and reads the answer to its end.
    async fn request(&self, head: &str) -> Reply {
        client::request(self.proxy.http, head, &[]).await
    }

    async fn post(&self, path: &str, body: &[u8]) -> Reply {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: hello.test\r\nContent-Length: {}\r\n",
            body.len()
        );
        client::request(self.proxy.http, &head, body).await
    }
}

/// Waits until `check` holds.
async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "never: {what}");
}
