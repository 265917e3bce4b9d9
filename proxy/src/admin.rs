//! The operators' own listener: metrics, health, holds.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rouse_protocol::app::AppId;
use rouse_proxy::Rouse;
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

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
    /// What it claims in vain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unserved: Vec<String>,
}

/// How long an operator's request may take to come.
const HEADER: Duration = Duration::from_secs(10);
/// How many operators' connections there may be.
const CONNECTIONS: usize = 256;

/// Serves operators until `over`.
pub(crate) async fn serve(socket: TcpListener, admin: Arc<Admin>, over: CancellationToken) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = over.cancelled() => return,
            Some(_) = connections.join_next() => continue,
            accepted = socket.accept() => accepted,
        };
        // One too many is closed.
        let (Ok((stream, _)), Ok(place)) = (accepted, Arc::clone(&room).try_acquire_owned()) else {
            tokio::task::yield_now().await;
            continue;
        };
        let admin = Arc::clone(&admin);
        connections.spawn(async move {
            let _place = place;
            let answer = service_fn(move |request: Request<Incoming>| {
                let admin = Arc::clone(&admin);
                async move {
                    Ok::<_, Infallible>(admin.answer(request.method(), request.uri().path()).await)
                }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEADER);
            if let Err(error) = server.serve_connection(TokioIo::new(stream), answer).await {
                tracing::debug!(%error, "an operator's connection broke");
            }
        });
    }
}

impl Admin {
    async fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        if *method != Method::GET {
            return text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET only\n".into());
        }
        match path {
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
        let mut unserved: HashMap<AppId, Vec<String>> = HashMap::new();
        for one in self.rouse.gate().unserved() {
            unserved.entry(one.app).or_default().push(one.why);
        }
        let row = |app: rouse_gate::Status| Row {
            unserved: unserved.get(&app.id).cloned().unwrap_or_default(),
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

fn text(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Response<Full<Bytes>> {
    let length = body.len();
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    response
}
