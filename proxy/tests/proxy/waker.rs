//! A stand-in for the waker: the real socket API over a made-up VM, and as strict as the real one.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt;
use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::problem::{PROBLEM_JSON, Problem};
use rouse_protocol::route::Rule;
use rouse_protocol::signature::{AgentKey, DEFAULT_GATE_PATH};
use rouse_protocol::wake::{
    Agreement, Outcome, Phase, PhaseTime, Ready, Served, SleepReason, SleepReport, SleepRequest,
    Tier, WakeEvent, WakeFailure,
};
use rouse_protocol::watch::{AppState, AppView, Policy, WatchEvent};
use serde::Serialize;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::guest::Guest;

/// How wakes go.
#[derive(Clone, Debug)]
pub(crate) enum Wake {
    /// The VM runs after this long.
    Runs(Duration),
    /// It never comes.
    Hangs,
    /// This failure, at once.
    Fails(WakeFailure),
    /// The stream breaks off after the first phase.
    BreaksOff,
}

/// What a test can change.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) wake: Wake,
    pub(crate) policy: Policy,
    pub(crate) state: AppState,
    pub(crate) rules: Vec<Rule>,
}

struct Shared {
    endpoint: SocketAddr,
    key: AgentKey,
    plan: Mutex<Plan>,
    generation: Mutex<u64>,
    view: watch::Sender<AppView>,
    wakes: Mutex<usize>,
    agreements: Mutex<Vec<Agreement>>,
    served: Mutex<Vec<Served>>,
    agreed: watch::Sender<Option<bool>>,
}

pub(crate) struct StandIn {
    pub(crate) socket: PathBuf,
    shared: Arc<Shared>,
    directory: tempfile::TempDir,
    server: JoinSet<()>,
}

impl StandIn {
    pub(crate) async fn start(guest: &Guest, change: impl FnOnce(&mut Plan)) -> Self {
        let mut plan = Plan {
            wake: Wake::Runs(Duration::ZERO),
            policy: Policy {
                idle_ms: 0,
                hold_deadline_ms: 25_000,
                gate_path: DEFAULT_GATE_PATH.to_owned(),
                ..Policy::default()
            },
            state: AppState::Asleep,
            rules: vec![serde_json::from_str("\"hello.test\"").unwrap()],
        };
        change(&mut plan);
        let view = AppView {
            id: "hello".parse().unwrap(),
            rules: plan.rules.clone(),
            policy: plan.policy.clone(),
            generation: Generation(0),
            since_unix_ms: 0,
            state: plan.state.clone(),
        };
        let shared = Arc::new(Shared {
            endpoint: guest.endpoint,
            key: guest.key.clone(),
            plan: Mutex::new(plan),
            generation: Mutex::new(0),
            view: watch::Sender::new(view),
            wakes: Mutex::new(0),
            agreements: Mutex::new(Vec::new()),
            served: Mutex::new(Vec::new()),
            agreed: watch::Sender::new(None),
        });
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("waker.sock");
        let mut standin = Self { socket, shared, directory, server: JoinSet::new() };
        standin.listen();
        standin
    }

    /// Listens, anew after [`Self::die`].
    pub(crate) fn listen(&mut self) {
        let router = Router::new()
            .route("/v1/apps/{id}/wake", post(wake))
            .route("/v1/apps/{id}/sleep", post(sleep))
            .route("/v1/apps/{id}/agreement", post(agreement))
            .route("/v1/apps/{id}/served", post(served))
            .route("/v1/watch", get(watch_apps))
            .with_state(self.shared.clone());
        let listener = UnixListener::bind(&self.socket).unwrap();
        self.server.spawn(async move { axum::serve(listener, router).await.unwrap() });
    }

    /// Dies as from a kill: every stream breaks, the socket file stays.
    pub(crate) async fn die(&mut self) {
        // axum's connections are tasks of their own; a runtime of one's own would be needed to
        // cut them. What breaks here is what the proxy sees first: nobody listens.
        self.server.shutdown().await;
        self.shared.view.send_modify(|view| view.since_unix_ms = u64::MAX);
        std::fs::remove_file(&self.socket).unwrap();
    }

    /// How many wakes were asked for.
    pub(crate) fn wakes(&self) -> usize {
        *self.shared.wakes.lock().unwrap()
    }

    pub(crate) fn plan(&self, wake: Wake) {
        self.shared.plan.lock().unwrap().wake = wake;
    }

    pub(crate) fn agreements(&self) -> Vec<Agreement> {
        self.shared.agreements.lock().unwrap().clone()
    }

    /// The first bytes that it was told of.
    pub(crate) fn served(&self) -> Vec<Served> {
        self.shared.served.lock().unwrap().clone()
    }

    pub(crate) fn state(&self) -> AppState {
        self.shared.view.borrow().state.clone()
    }

    /// Tells another state.
    pub(crate) fn tell(&self, state: AppState) {
        self.shared.tell(state);
    }

    /// The app's file has other rules now.
    pub(crate) fn reroute(&self, rules: &[&str]) {
        let rules = rules.iter().map(|json| serde_json::from_str(json).unwrap()).collect();
        self.shared.view.send_modify(|view| view.rules = rules);
    }

    /// An operator's sleep.
    pub(crate) async fn sleep(&self) -> Result<Generation, &'static str> {
        self.shared.sleep(SleepReason::Operator, Tier::Image).await
    }

    /// An operator's sleep that keeps the VM.
    pub(crate) async fn pause(&self) -> Result<Generation, &'static str> {
        self.shared.sleep(SleepReason::Operator, Tier::Paused).await
    }

    pub(crate) fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }
}

impl Shared {
    fn tell(&self, state: AppState) {
        let generation = Generation(*self.generation.lock().unwrap());
        self.view.send_modify(|view| (view.state, view.generation) = (state, generation));
    }

    fn ready(&self, outcome: Outcome) -> Ready {
        Ready {
            endpoint: self.endpoint,
            generation: Generation(*self.generation.lock().unwrap()),
            outcome,
            key: Some(self.key.clone()),
        }
    }

    async fn sleep(&self, reason: SleepReason, tier: Tier) -> Result<Generation, &'static str> {
        let Some(ready) = self.view.borrow().state.ready().cloned() else {
            return Err("not-awake");
        };
        let mut agreed = self.agreed.subscribe();
        self.agreed.send_replace(None);
        agreed.mark_unchanged();
        self.tell(AppState::Draining { ready: ready.clone(), reason, question: 1 });
        let mut view = self.view.subscribe();
        let answer = tokio::select! {
            agree = async { agreed.wait_for(Option::is_some).await.is_ok_and(|a| *a == Some(true)) } => agree,
            () = async { drop(view.wait_for(|v| matches!(v.state, AppState::Awake(_))).await) } => {
                return Err("cancelled");
            }
            () = tokio::time::sleep(Duration::from_secs(2)) => {
                self.tell(AppState::Awake(ready));
                return Err("no-agreement");
            }
        };
        if !answer {
            self.tell(AppState::Awake(ready));
            return Err("busy");
        }
        if tier == Tier::Paused {
            self.tell(AppState::Paused);
        } else {
            self.tell(AppState::Snapshotting);
            self.tell(AppState::Asleep);
        }
        Ok(ready.generation)
    }
}

fn line(event: &impl Serialize) -> Bytes {
    let mut line = serde_json::to_vec(event).unwrap();
    line.push(b'\n');
    line.into()
}

fn lines(receiver: mpsc::UnboundedReceiver<Bytes>) -> Response {
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|line| (Ok::<_, Infallible>(line), receiver))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(stream)).into_response()
}

fn problem(status: StatusCode, code: &str) -> Response {
    let problem = Problem::new(status.as_u16(), code, code, "");
    (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], serde_json::to_vec(&problem).unwrap())
        .into_response()
}

async fn wake(State(shared): State<Arc<Shared>>, Path(id): Path<AppId>) -> Response {
    if id.as_str() != "hello" {
        return problem(StatusCode::NOT_FOUND, "unknown-app");
    }
    *shared.wakes.lock().unwrap() += 1;
    let plan = shared.plan.lock().unwrap().wake.clone();
    let awake = shared.view.borrow().state.ready().cloned();
    let (sender, receiver) = mpsc::unbounded_channel();
    let phase = |phase, us| line(&WakeEvent::Phase(PhaseTime { phase, us }));
    if let Some(ready) = awake {
        // Awake, or draining: then this cancels the sleep.
        shared.tell(AppState::Awake(ready));
        let ready = shared.ready(Outcome::Awake);
        sender.send(line(&WakeEvent::Ready(ready))).unwrap();
        return lines(receiver);
    }
    if matches!(plan, Wake::Runs(_)) && shared.view.borrow().state == AppState::Paused {
        let ready = shared.ready(Outcome::Unpaused);
        shared.tell(AppState::Awake(ready.clone()));
        sender.send(phase(Phase::Resume, 1)).unwrap();
        sender.send(line(&WakeEvent::Ready(ready))).unwrap();
        return lines(receiver);
    }
    match plan {
        Wake::Fails(failure) => sender.send(line(&WakeEvent::Failed(failure))).unwrap(),
        Wake::BreaksOff => sender.send(phase(Phase::Queue, 1)).unwrap(),
        Wake::Hangs => {
            shared.tell(AppState::Waking);
            sender.send(phase(Phase::Queue, 1)).unwrap();
            let stream =
                futures_util::stream::unfold((receiver, sender), |(mut r, s)| async move {
                    r.recv().await.map(|line| (Ok::<_, Infallible>(line), (r, s)))
                });
            return Body::from_stream(stream).into_response();
        }
        Wake::Runs(took) => {
            shared.tell(AppState::Waking);
            let stream = futures_util::stream::once(async move {
                tokio::time::sleep(took).await;
                *shared.generation.lock().unwrap() += 1;
                let us = u64::try_from(took.as_micros()).unwrap();
                let ready = shared.ready(Outcome::Resumed);
                shared.tell(AppState::Awake(ready.clone()));
                let mut text = Vec::new();
                for (p, us) in [(Phase::Queue, 1), (Phase::Image, 2), (Phase::Load, us)] {
                    text.extend_from_slice(&phase(p, us));
                }
                text.extend_from_slice(&line(&WakeEvent::Ready(ready)));
                Ok::<_, Infallible>(Bytes::from(text))
            });
            return Body::from_stream(stream).into_response();
        }
    }
    lines(receiver)
}

async fn sleep(State(shared): State<Arc<Shared>>, Path(_): Path<AppId>, body: Bytes) -> Response {
    let request: SleepRequest = serde_json::from_slice(&body).unwrap();
    let tier = request.tier.unwrap_or(Tier::Image);
    match shared.sleep(request.reason, tier).await {
        Ok(generation) => {
            let report = SleepReport {
                generation,
                tier,
                agreed_us: 0,
                flushed_us: 0,
                stopped_us: 0,
                saved_us: 0,
                durable_us: 0,
                published_us: 0,
                written_bytes: 0,
                image_bytes: 0,
            };
            axum::Json(report).into_response()
        }
        Err(code) => problem(StatusCode::CONFLICT, code),
    }
}

async fn agreement(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let agreement: Agreement = serde_json::from_slice(&body).unwrap();
    let agree = agreement.agree;
    shared.agreements.lock().unwrap().push(agreement);
    shared.agreed.send_replace(Some(agree));
    axum::Json(serde_json::Value::Null).into_response()
}

async fn served(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let served = serde_json::from_slice(&body).unwrap();
    shared.served.lock().unwrap().push(served);
    axum::Json(serde_json::Value::Null).into_response()
}

async fn watch_apps(State(shared): State<Arc<Shared>>) -> Response {
    let view = shared.view.subscribe();
    let first = {
        let mut text = line(&WatchEvent::App(view.borrow().clone())).to_vec();
        text.extend_from_slice(&line(&WatchEvent::Synced));
        Bytes::from(text)
    };
    let changes = futures_util::stream::unfold(view, |mut view| async move {
        let event = match tokio::time::timeout(Duration::from_secs(1), view.changed()).await {
            Ok(Ok(())) => {
                let now = view.borrow_and_update().clone();
                // The mark of a death: see `die`.
                if now.since_unix_ms == u64::MAX {
                    return None;
                }
                WatchEvent::App(now)
            }
            Ok(Err(_)) => return None,
            Err(_) => WatchEvent::Alive,
        };
        Some((line(&event), view))
    });
    let stream = futures_util::stream::once(async { first }).chain(changes);
    Body::from_stream(stream.map(Ok::<_, Infallible>)).into_response()
}
