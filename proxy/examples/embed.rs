//! Another Pingora server that holds visitors while their app wakes.
//!
//! What is its own: a rule on paths and a header. What it adds for holding: a [`Rouse`] among its
//! fields, a [`Visit`] as its context, and one line in each of eleven hooks.
//!
//! ```sh
//! cargo run --example embed -- 127.0.0.1:8081 /run/rouse/waker.sock
//! ```

use async_trait::async_trait;
use bytes::Bytes;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, Session};
use rouse_proxy::{Options, Rouse, Visit};

struct Mine {
    rouse: Rouse,
}

#[async_trait]
impl ProxyHttp for Mine {
    type CTX = Visit;

    fn new_ctx(&self) -> Visit {
        Visit::new()
    }

    async fn request_filter(&self, session: &mut Session, visit: &mut Visit) -> Result<bool> {
        // Its own rule, and it comes first: nobody wakes an app to be told this.
        if session.req_header().uri.path().starts_with("/internal/") {
            return Error::e_explain(ErrorType::HTTPStatus(403), "not for visitors");
        }
        self.rouse.request_filter(session, visit).await
    }

    async fn upstream_peer(&self, s: &mut Session, visit: &mut Visit) -> Result<Box<HttpPeer>> {
        self.rouse.upstream_peer(s, visit).await
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        visit: &mut Visit,
    ) -> Result<()> {
        self.rouse.upstream_request_filter(session, request, visit)
    }

    async fn request_body_filter(
        &self,
        _: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        _: &mut Visit,
    ) -> Result<()> {
        self.rouse.request_body_filter(body, end);
        Ok(())
    }

    async fn upstream_response_filter(
        &self,
        _: &mut Session,
        response: &mut ResponseHeader,
        visit: &mut Visit,
    ) -> Result<()> {
        self.rouse.upstream_response_filter(response, visit)
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        _: &mut Visit,
    ) -> Result<()> {
        self.rouse.response_filter(session, response);
        response.insert_header("x-served-by", "mine")
    }

    fn fail_to_connect(
        &self,
        _: &mut Session,
        _: &HttpPeer,
        visit: &mut Visit,
        error: Box<Error>,
    ) -> Box<Error> {
        self.rouse.fail_to_connect(visit, error)
    }

    fn error_while_proxy(
        &self,
        peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        visit: &mut Visit,
        reused: bool,
    ) -> Box<Error> {
        self.rouse.error_while_proxy(peer, session, error, visit, reused)
    }

    async fn fail_to_proxy(&self, s: &mut Session, error: &Error, v: &mut Visit) -> FailToProxy {
        self.rouse.fail_to_proxy(s, error, v).await
    }

    async fn logging(&self, session: &mut Session, _: Option<&Error>, visit: &mut Visit) {
        self.rouse.logging(session, visit);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(listen), Some(waker)) = (arguments.next(), arguments.next()) else {
        return Err("usage: embed ADDRESS SOCKET".into());
    };
    let name = format!("embed-{}", std::process::id());
    let rouse = Rouse::start(Options { name, waker: Some(waker.into()), ..Options::default() })?;

    let mut server = pingora_core::server::Server::new(None)?;
    server.bootstrap();
    let mut service = pingora_proxy::http_proxy_service(&server.configuration, Mine { rouse });
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever();
}
