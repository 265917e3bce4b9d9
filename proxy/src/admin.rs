//! The operators' own listener: metrics, health, holds.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use http::{Method, Response, StatusCode, header};
use pingora_core::apps::http_app::ServeHttp;
use pingora_core::protocols::http::ServerSession;
use rouse_proxy::Rouse;
use serde::Serialize;
use tokio::net::TcpStream;

pub(crate) struct Admin {
    pub(crate) rouse: Rouse,
    /// Where visitors come in.
    pub(crate) http: Vec<SocketAddr>,
}

/// How long our own listener may take to accept, for `/healthz`.
const ACCEPT: Duration = Duration::from_secs(1);

/// One app in `/holds`.
#[derive(Serialize)]
struct Row {
    id: String,
    state: &'static str,
    gate: &'static str,
    generation: u64,
    holds: usize,
    in_flight: u64,
    idle_ms: u64,
}

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let request = session.req_header();
        if request.method != Method::GET {
            return text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET only\n".into());
        }
        match request.uri.path() {
            "/metrics" => {
                let kind = "text/plain; version=0.0.4; charset=utf-8";
                text(StatusCode::OK, kind, self.rouse.metrics().into())
            }
            "/healthz" => match self.accepts().await {
                Ok(()) => text(StatusCode::OK, "text/plain", "ok\n".into()),
                Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, "text/plain", why.into_bytes()),
            },
            "/holds" => text(StatusCode::OK, "application/json", self.holds()),
            _ => text(StatusCode::NOT_FOUND, "text/plain", "/metrics /healthz /holds\n".into()),
        }
    }
}

impl Admin {
    /// Whether visitors can come in: this listener may be up before theirs are, and outlives them
    /// when the server goes down.
    async fn accepts(&self) -> Result<(), String> {
        for address in &self.http {
            let tried = tokio::time::timeout(ACCEPT, TcpStream::connect(address)).await;
            match tried {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(format!("{address}: {error}\n")),
                Err(_) => return Err(format!("{address}: does not accept\n")),
            }
        }
        Ok(())
    }

    fn holds(&self) -> Vec<u8> {
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let row = |app: rouse_gate::Status| Row {
            id: app.id.to_string(),
            state: app.state,
            gate: app.gate,
            generation: app.generation.0,
            holds: app.holds,
            in_flight: app.in_flight,
            idle_ms: ms(app.idle),
        };
        let rows: Vec<_> = self.rouse.gate().status().into_iter().map(row).collect();
        serde_json::to_vec(&rows).expect("rows are plain JSON")
    }
}

fn text(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Response<Vec<u8>> {
    let length = body.len();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    response
}
