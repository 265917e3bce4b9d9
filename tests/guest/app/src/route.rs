//! Which path shows what.

use std::path::PathBuf;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::answer::{self, Body};
use crate::error::Refusal;
use crate::log::Log;
use crate::memory::Memory;
use crate::random::Random;
use crate::{crash, disk, echo, env, grpc, page, random, stream, time, ws};

/// What the app remembers. All of it is in memory only, that is the point, but for the log.
pub(crate) struct App {
    pub(crate) log: Log,
    /// Where the app's disk is mounted.
    pub(crate) data: PathBuf,
    pub(crate) env_file: PathBuf,
    pub(crate) memory: Memory,
    pub(crate) random: Random,
    pub(crate) seen: echo::Seen,
    pub(crate) left: grpc::Left,
    pub(crate) tasks: TaskTracker,
    /// Set to the code to exit with.
    pub(crate) exit: watch::Sender<Option<u8>>,
}

impl App {
    pub(crate) fn new(
        data: PathBuf,
        env_file: PathBuf,
        tasks: TaskTracker,
        exit: watch::Sender<Option<u8>>,
    ) -> Self {
        Self {
            log: Log::open(&data.join("app")),
            data,
            env_file,
            memory: Memory::default(),
            random: Random::new(),
            seen: echo::Seen::default(),
            left: grpc::Left::default(),
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
    let post = *request.method() == Method::POST;
    let allowed = match path {
        "/log" | "/dirty" => "GET, HEAD, POST",
        "/zero" => "POST",
        _ => "GET, HEAD",
    };
    if !allowed.split(", ").any(|method| method == request.method().as_str()) {
        return Err(Refusal::Method(allowed));
    }
    match path {
        "/log" if post => app.log.post(request).await,
        "/log" => app.log.whole().await,
        "/log/head" => app.log.head().await,
        "/dirty" => app.memory.dirty(request.method(), request.uri()).await,
        "/zero" => app.memory.zero(request.uri()).await,
        "/env" => env::answer(&app.env_file, request.uri()),
        "/disk" => disk::answer(&app.data),
        "/" => Ok(page::html()),
        "/style.css" => Ok(page::style()),
        "/logo.png" => Ok(page::logo()),
        "/counter" => Ok(app.memory.counter(&app.random)),
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
