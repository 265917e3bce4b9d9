//! The waker's socket: HTTP/1.1 and JSON, for proxies and for `curl --unix-socket`.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{DefaultBodyLimit, Path as UrlPath, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use axum::{Json, Router};
use futures_util::FutureExt;
use rouse_protocol::app::AppId;
use rouse_protocol::problem::{PROBLEM_JSON, Problem};
use rouse_protocol::status::AppStatus;
use rouse_protocol::wake::{Agreement, BootRequest, PrewarmReport, ReleaseReport, SleepRequest};
use rouse_protocol::watch::{AppState, AppView, HEARTBEAT, WatchEvent};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::{UnixListener, unix};
use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;

use crate::app::{App, Change, Command, Ended};
use crate::config::SocketConfig;
use crate::registry::Registry;
use crate::store::{NodeStore, PrewarmError, Prewarmed, ReleaseError};

/// The largest body that is read, in bytes. Ours are a few hundred.
const MAX_BODY: usize = 64 * 1024;

/// What a watcher may be behind before it is told everything anew.
const WATCH_QUEUE: usize = 64;

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
struct Peer(Option<unix::UCred>);

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self(stream.io().peer_cred().ok())
    }
}

#[derive(Clone)]
struct Shared {
    registry: Arc<Registry>,
    allowed: Arc<Allowed>,
    stop: CancellationToken,
}

struct Allowed {
    uids: Vec<u32>,
    gids: Vec<u32>,
}

impl Allowed {
    fn new(config: &SocketConfig, own: u32) -> Self {
        let uids = [0, own].into_iter().chain(config.allow_uids.iter().copied()).collect();
        Self { uids, gids: config.allow_gids.clone() }
    }

    /// By the effective ids that the kernel tells of the peer, if it does.
    fn admits(&self, peer: Option<(u32, u32)>) -> bool {
        peer.is_some_and(|(uid, gid)| self.uids.contains(&uid) || self.gids.contains(&gid))
    }
}

/// Binds the socket: 0660 from the first moment that it can be seen under its name, in the place of
/// one that a dead waker has left.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let _ = std::fs::remove_file(&temporary);
    let listener = UnixListener::bind(&temporary)?;
    std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o660))?;
    std::fs::rename(&temporary, path)?;
    Ok(listener)
}

/// Serves until `stop`; streams that run then end.
pub async fn serve(
    listener: UnixListener,
    config: &SocketConfig,
    registry: Arc<Registry>,
    stop: CancellationToken,
) -> io::Result<()> {
    let allowed = Arc::new(Allowed::new(config, nix::unistd::geteuid().as_raw()));
    let shared = Shared { registry, allowed, stop: stop.clone() };
    let router = Router::new()
        .route("/v1/apps", get(apps))
        .route("/v1/apps/{id}", get(app))
        .route("/v1/apps/{id}/wake", post(wake))
        .route("/v1/apps/{id}/sleep", post(sleep))
        .route("/v1/apps/{id}/agreement", post(agreement))
        .route("/v1/apps/{id}/clear", post(clear))
        .route("/v1/apps/{id}/boot", post(boot))
        .route("/v1/apps/{id}/park", post(park))
        .route("/v1/apps/{id}/prewarm", post(prewarm))
        .route("/v1/apps/{id}/release", post(release))
        .route("/v1/apps/{id}/served", post(served))
        .route("/v1/apps/{id}/trace", get(trace))
        .route("/v1/status", get(status))
        .route("/v1/watch", get(watch))
        .route("/v1/reload", post(reload))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/metrics", get(metrics))
        .fallback(|| async { refuse(404, "unknown-path", "there is nothing here", "") })
        .method_not_allowed_fallback(|| async { refuse(405, "method", "not with this method", "") })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(shared.clone(), check_peer))
        .with_state(shared);
    axum::serve(listener, router.into_make_service_with_connect_info::<Peer>())
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
}

async fn check_peer(
    State(shared): State<Shared>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if shared.allowed.admits(peer.0.map(|c| (c.uid(), c.gid()))) {
        return next.run(request).await;
    }
    tracing::warn!(?peer, "refused at the socket");
    let detail = "add the user to socket.allow_uids or its group to socket.allow_gids";
    refuse(403, "peer", "this user may not talk to the waker", detail)
}

fn refuse(status: u16, code: &str, title: &str, detail: impl Into<String>) -> Response {
    let problem = Problem::new(status, code, title, detail);
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], Json(problem)).into_response()
}

impl IntoResponse for Ended {
    fn into_response(self) -> Response {
        refuse(503, "stopping", "the app is being stopped", self.to_string())
    }
}

impl Shared {
    /// The app of this id, and the node's store.
    fn stored(&self, id: &str) -> Result<(AppId, Arc<NodeStore>), Box<Response>> {
        let app = self.find(id)?.view().0.id.clone();
        let store = self.registry.node().store.clone().ok_or_else(|| {
            let detail = "`[store]` is not in waker.toml";
            Box::new(refuse(409, "no-store", "this node has no store", detail))
        })?;
        Ok((app, store))
    }

    fn find(&self, id: &str) -> Result<App, Box<Response>> {
        let detail = match id.parse::<AppId>() {
            Ok(id) => match self.registry.app(&id) {
                Some(app) => return Ok(app),
                None => format!("no file in apps.d has an app {id}"),
            },
            Err(error) => error.to_string(),
        };
        Err(Box::new(refuse(404, "unknown-app", "there is no such app", detail)))
    }
}

/// Without the key, which only proxies are given.
fn public(view: &AppView) -> AppView {
    let mut view = view.clone();
    if let AppState::Awake(ready) | AppState::Draining { ready, .. } = &mut view.state {
        ready.key = None;
    }
    view
}

async fn apps(State(shared): State<Shared>) -> Json<Vec<AppView>> {
    Json(shared.registry.views().iter().map(|(view, _)| public(view)).collect())
}

async fn app(State(shared): State<Shared>, UrlPath(id): UrlPath<String>) -> Response {
    match shared.find(&id) {
        Ok(app) => Json(public(&app.view().0)).into_response(),
        Err(refused) => *refused,
    }
}

async fn wake(State(shared): State<Shared>, UrlPath(id): UrlPath<String>) -> Response {
    let app = match shared.find(&id) {
        Ok(app) => app,
        Err(refused) => return *refused,
    };
    match app.wake().await {
        Ok(events) => lines(events),
        Err(ended) => ended.into_response(),
    }
}

async fn sleep(
    State(shared): State<Shared>,
    UrlPath(id): UrlPath<String>,
    body: Bytes,
) -> Response {
    let request: SleepRequest = match whole_or_default(&body) {
        Ok(request) => request,
        Err(error) => return bad_body(&error),
    };
    let app = match shared.find(&id) {
        Ok(app) => app,
        Err(refused) => return *refused,
    };
    match app.sleep(request).await {
        Ok(Ok(report)) => Json(report).into_response(),
        Ok(Err((why, detail))) => refuse(409, why.as_str(), "the app was not put to sleep", detail),
        Err(ended) => ended.into_response(),
    }
}

/// What the body says; nothing said is the default.
fn whole_or_default<T: DeserializeOwned + Default>(body: &[u8]) -> serde_json::Result<T> {
    if body.is_empty() { Ok(T::default()) } else { serde_json::from_slice(body) }
}

fn bad_body(error: &serde_json::Error) -> Response {
    refuse(400, "body", "the body can't be read", error.to_string())
}

async fn agreement(
    State(shared): State<Shared>,
    UrlPath(id): UrlPath<String>,
    body: Bytes,
) -> Response {
    let agreement: Agreement = match serde_json::from_slice(&body) {
        Ok(agreement) => agreement,
        Err(error) => return bad_body(&error),
    };
    tell(&shared, &id, Command::Agreement(agreement)).await
}

async fn clear(State(shared): State<Shared>, UrlPath(id): UrlPath<String>) -> Response {
    tell(&shared, &id, Command::Clear).await
}

async fn boot(State(shared): State<Shared>, UrlPath(id): UrlPath<String>, body: Bytes) -> Response {
    let request: BootRequest = match whole_or_default(&body) {
        Ok(request) => request,
        Err(error) => return bad_body(&error),
    };
    let app = match shared.find(&id) {
        Ok(app) => app,
        Err(refused) => return *refused,
    };
    match app.boot(request).await {
        Ok(events) => lines(events),
        Err(ended) => ended.into_response(),
    }
}

async fn park(State(shared): State<Shared>, UrlPath(id): UrlPath<String>, body: Bytes) -> Response {
    match serde_json::from_slice(&body) {
        Ok(request) => tell(&shared, &id, Command::Park(request)).await,
        Err(error) => bad_body(&error),
    }
}

/// Makes an app free that another node holds.
async fn release(State(shared): State<Shared>, UrlPath(id): UrlPath<String>) -> Response {
    let (app, store) = match shared.stored(&id) {
        Ok(found) => found,
        Err(refused) => return *refused,
    };
    let error = match store.release(&app).await {
        Ok(owner) => return Json(ReleaseReport { owner }).into_response(),
        Err(error) => error,
    };
    let (status, code, title) = match &error {
        ReleaseError::Nothing => (404, "not-in-store", "it is not in the store"),
        ReleaseError::Stays => (409, "stays", "apps do not move here"),
        ReleaseError::Free => (409, "free", "it is free already"),
        ReleaseError::Ours => (409, "held", "this node holds it"),
        ReleaseError::Reference(_) => (502, "store", "the store did not do it"),
    };
    refuse(status, code, title, error.to_string())
}

/// Fetches the app's image into the cache, and answers when it is there.
async fn prewarm(State(shared): State<Shared>, UrlPath(id): UrlPath<String>) -> Response {
    let (app, store) = match shared.stored(&id) {
        Ok(found) => found,
        Err(refused) => return *refused,
    };
    let fetched = Box::pin(store.prewarm(&app)).await;
    let error = match fetched {
        Ok(Prewarmed { generation, was_there, bytes }) => {
            return Json(PrewarmReport { generation, was_there, bytes }).into_response();
        }
        Err(error) => error,
    };
    let (status, code, title) = match &error {
        PrewarmError::NoCache => (409, "no-cache", "this node has no cache"),
        PrewarmError::Nothing => (404, "not-in-store", "it is not in the store"),
        PrewarmError::Held(_) => (409, "held", "it is not free"),
        PrewarmError::Keep(_) => (507, "full", "the cache has no room for it"),
        PrewarmError::Reference(_) | PrewarmError::Fetch(_) => {
            (502, "store", "the store did not give it")
        }
    };
    refuse(status, code, title, error.to_string())
}

async fn served(
    State(shared): State<Shared>,
    UrlPath(id): UrlPath<String>,
    body: Bytes,
) -> Response {
    match serde_json::from_slice(&body) {
        Ok(served) => tell(&shared, &id, Command::Served(served)).await,
        Err(error) => bad_body(&error),
    }
}

async fn trace(State(shared): State<Shared>, UrlPath(id): UrlPath<String>) -> Response {
    let app = match shared.find(&id) {
        Ok(app) => app,
        Err(refused) => return *refused,
    };
    match app.trace().await {
        Ok(wakes) => Json(wakes).into_response(),
        Err(ended) => ended.into_response(),
    }
}

async fn status(State(shared): State<Shared>) -> Json<Vec<AppStatus>> {
    Json(shared.registry.statuses().await)
}

async fn tell(shared: &Shared, id: &str, command: Command) -> Response {
    match shared.find(id) {
        Ok(app) => match app.tell(command).await {
            Ok(()) => Json(serde_json::json!({})).into_response(),
            Err(ended) => ended.into_response(),
        },
        Err(refused) => *refused,
    }
}

async fn reload(State(shared): State<Shared>) -> Response {
    let reloaded = shared.registry.reload().await;
    let body = serde_json::json!({ "apps": reloaded.apps, "problems": reloaded.problems });
    Json(body).into_response()
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let views = shared.registry.views();
    let states = views.iter().map(|(view, _)| view.state.as_str());
    let node = shared.registry.node();
    let cache = node.store.as_ref().and_then(|store| store.cache());
    let text = node.metrics.text(states, node.admission.figures(), cache);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WatchQuery {
    #[serde(rename = "as")]
    name: Option<String>,
}

async fn watch(State(shared): State<Shared>, Query(query): Query<WatchQuery>) -> Response {
    if let Some(name) = &query.name {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > 128 || !name.chars().all(allowed) {
            let detail = "1 to 128 letters, digits, '-', '_' or '.'";
            return refuse(400, "name", "this is no proxy's name", detail);
        }
        if !shared.registry.node().proxies.enter(name) {
            return refuse(503, "full", "too many proxies watch", "");
        }
    }
    // Subscribed before the first look, so that nothing falls between the two.
    let changes = shared.registry.changes();
    let (events, receiver) = mpsc::channel(WATCH_QUEUE);
    let watcher = Watcher { shared, name: query.name, events, told: HashMap::new() };
    lines_from(receiver, watcher.run(changes))
}

/// One watch. Its proxy is counted for as long as it lives.
struct Watcher {
    shared: Shared,
    name: Option<String>,
    events: mpsc::Sender<WatchEvent>,
    /// The number of the newest view that was told, by app.
    told: HashMap<AppId, u64>,
}

/// The reader has hung up.
struct HungUp;

impl Watcher {
    async fn run(mut self, mut changes: broadcast::Receiver<Change>) {
        let stop = self.shared.stop.clone();
        let watch = async {
            self.everything().await?;
            loop {
                match tokio::time::timeout(HEARTBEAT, changes.recv()).await {
                    Ok(Ok(Change::App(view, number))) => self.app(&view, number).await?,
                    Ok(Ok(Change::Removed(id))) => {
                        self.told.remove(&id);
                        self.send(WatchEvent::Removed { id }).await?;
                    }
                    // Too slow for all that happens: who comes again gets a whole picture, with
                    // what was removed gone from it.
                    Ok(Err(error)) => {
                        tracing::warn!(name = self.name, %error, "a watch ends");
                        return Err(HungUp);
                    }
                    Err(_) => self.send(WatchEvent::Alive).await?,
                }
            }
        };
        let _: Option<Result<(), HungUp>> = stop.run_until_cancelled(watch).await;
    }

    async fn everything(&mut self) -> Result<(), HungUp> {
        for (view, number) in self.shared.registry.views() {
            self.app(&view, number).await?;
        }
        self.send(WatchEvent::Synced).await
    }

    async fn app(&mut self, view: &AppView, number: u64) -> Result<(), HungUp> {
        let told = self.told.entry(view.id.clone()).or_default();
        if *told >= number {
            return Ok(());
        }
        *told = number;
        let view = if self.name.is_some() { view.clone() } else { public(view) };
        self.send(WatchEvent::App(view)).await
    }

    async fn send(&self, event: WatchEvent) -> Result<(), HungUp> {
        self.events.send(event).await.map_err(|_| HungUp)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let Some(name) = self.name.take() else {
            return;
        };
        if self.shared.registry.node().proxies.leave(&name) {
            self.shared.registry.proxy_gone(&name);
        }
    }
}

/// Each message as one line of JSON, sent at once.
fn lines<T: Serialize + Send + 'static>(messages: mpsc::Receiver<T>) -> Response {
    lines_from(messages, std::future::pending())
}

/// [`lines`] of what `source` sends. It runs within the response, and ends with it.
fn lines_from<T: Serialize + Send + 'static>(
    messages: mpsc::Receiver<T>,
    source: impl Future<Output = ()> + Send + 'static,
) -> Response {
    let state = (messages, Box::pin(source.fuse()));
    let stream = futures_util::stream::unfold(state, |(mut messages, mut source)| async move {
        let message = tokio::select! {
            biased;
            message = messages.recv() => message?,
            () = &mut source => messages.recv().await?,
        };
        let mut line = serde_json::to_vec(&message).expect("our messages are JSON");
        line.push(b'\n');
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(line)), (messages, source)))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(stream)).into_response()
}

#[cfg(test)]
mod tests {
    use rouse_protocol::app::Generation;
    use rouse_protocol::signature::AgentKey;
    use rouse_protocol::wake::{Outcome, Ready, SleepReason};
    use rouse_protocol::watch::Policy;

    use super::*;

    #[test]
    fn only_root_ourselves_and_those_configured_are_admitted() {
        let config =
            SocketConfig { path: "s".into(), allow_uids: vec![1001], allow_gids: vec![2001] };
        let allowed = Allowed::new(&config, 1000);
        for (peer, admitted) in [
            (Some((0, 0)), true),
            (Some((1000, 5)), true),
            (Some((1001, 5)), true),
            (Some((9, 2001)), true),
            (Some((1002, 1000)), false),
            (Some((2001, 1001)), false),
            (None, false),
        ] {
            assert_eq!(allowed.admits(peer), admitted, "{peer:?}");
        }
    }

    #[test]
    fn operators_are_not_shown_keys() {
        let key = AgentKey::generate();
        let ready = Ready {
            endpoint: "127.0.0.1:1".parse().unwrap(),
            generation: Generation(1),
            outcome: Outcome::Cold,
            key: Some(key.clone()),
        };
        for state in [
            AppState::Awake(ready.clone()),
            AppState::Draining { ready, reason: SleepReason::Idle, question: 1 },
        ] {
            let view = AppView {
                id: "a".parse().unwrap(),
                rules: vec![],
                policy: Policy {
                    idle_ms: 0,
                    hold_deadline_ms: 0,
                    gate_path: "/".into(),
                    ..Policy::default()
                },
                generation: Generation(1),
                since_unix_ms: 0,
                state,
            };
            let text = |view: &AppView| serde_json::to_string(view).unwrap();
            assert!(text(&view).contains(&String::from(key.clone())));
            assert!(!text(&public(&view)).contains(&String::from(key.clone())));
        }
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_is_never_open_to_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(bind(&path).unwrap());
        let listener = bind(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let (_peer, accepted) =
            tokio::join!(tokio::net::UnixStream::connect(&path), listener.accept());
        accepted.unwrap();
    }
}
