//! Which path shows what.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::answer::{self, Body};
use crate::error::Refusal;
use crate::memory::Memory;
use crate::random::Random;
use crate::{crash, echo, page, random, stream, time, ws};

/// What the app remembers. All of it is in memory only: that is the point.
pub(crate) struct App {
    pub(crate) memory: Memory,
    pub(crate) random: Random,
    pub(crate) seen: echo::Seen,
    pub(crate) tasks: TaskTracker,
    /// Set to the code to exit with.
    pub(crate) exit: watch::Sender<Option<u8>>,
}

impl App {
    pub(crate) fn new(tasks: TaskTracker, exit: watch::Sender<Option<u8>>) -> Self {
        Self {
            memory: Memory::default(),
            random: Random::new(),
            seen: echo::Seen::default(),
            tasks,
            exit,
        }
    }
}

/// The answer to `request`.
pub(crate) async fn answer(app: Arc<App>, request: Request<Incoming>) -> Response<Body> {
    route(app, request).await.unwrap_or_else(|refusal| answer::refused(&refusal))
}

async fn route(app: Arc<App>, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
    let path = request.uri().path();
    if path == "/echo" || path.starts_with("/echo/") {
        return echo::answer(&app.seen, request).await;
    }
    if let Some(code) = path.strip_prefix("/status/") {
        return status(code);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Err(Refusal::Method("GET, HEAD"));
    }
    match path {
        "/" => Ok(page::html()),
        "/style.css" => Ok(page::style()),
        "/logo.png" => Ok(page::logo()),
        "/counter" => Ok(app.memory.counter(&app.random)),
        "/dirty" => app.memory.dirty(request.uri()),
        "/slow" => time::slow(request.uri()).await,
        "/time" => Ok(time::now()),
        "/random" => random::answer(&app.random),
        "/drip" => stream::drip(request.uri()),
        "/sse" => stream::events(request.uri()),
        "/trailers" => Ok(stream::trailers()),
        "/agent-copy" => Ok(page::agent_copy()),
        "/crash" => crash::answer(&app, request.uri()),
        "/ws" => ws::answer(&app.tasks, request),
        _ => Err(Refusal::NotFound),
    }
}

/// Any final status, as the app's own.
fn status(code: &str) -> Result<Response<Body>, Refusal> {
    let code = code
        .parse::<u16>()
        .ok()
        .filter(|code| (200..=999).contains(code))
        .and_then(|code| StatusCode::from_u16(code).ok())
        .ok_or_else(|| Refusal::parameter("code", "a status from 200 to 999"))?;
    let text = format!("The test app itself answers {}.\n", code.as_u16());
    let mut response = answer::of("text/plain; charset=utf-8", text);
    *response.status_mut() = code;
    Ok(response)
}
