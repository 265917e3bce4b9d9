//! A stand-in for the waker: answers that a test has laid down, to calls whose bodies it reads as
//! strictly as the real one, and a record of what was asked.

use std::collections::HashMap;
use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use rouse_protocol::app::Generation;
use rouse_protocol::problem::{PROBLEM_JSON, Problem};
use rouse_protocol::route::HostPattern;
use rouse_protocol::signature::AgentKey;
use rouse_protocol::status::{AppStatus, PatchTrace, WakeTrace};
use rouse_protocol::wake::{
    BootRequest, Outcome, ParkRequest, Phase, PhaseTime, Ready, SleepReport, SleepRequest, Tier,
    WakeEvent,
};
use rouse_protocol::watch::{AppState, AppView, Policy};
use serde::Serialize;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// One answer.
enum Answer {
    Whole(StatusCode, &'static str, Bytes),
    /// Lines as they come; the channel's end is the stream's.
    Stream(Option<mpsc::UnboundedReceiver<Bytes>>),
}

#[derive(Default)]
struct Shared {
    answers: Mutex<HashMap<String, Answer>>,
    asked: Mutex<Vec<String>>,
}

pub(crate) struct StandIn {
    directory: tempfile::TempDir,
    shared: Arc<Shared>,
    _server: JoinSet<()>,
}

impl StandIn {
    /// It listens, and knows of one app, `hello`, and of nothing else.
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let shared = Arc::new(Shared::default());
        let path = directory.path().join("waker.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)).unwrap();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await.unwrap() });
        let standin = Self { directory, shared, _server: server };
        standin.answer("GET /v1/apps", &[view(AppState::Asleep)]);
        standin
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("waker.sock")
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// `call` (method and path) is answered by `value` from now on.
    pub(crate) fn answer(&self, call: &str, value: &(impl Serialize + ?Sized)) {
        let body = serde_json::to_vec(value).unwrap().into();
        self.lay(call, Answer::Whole(StatusCode::OK, "application/json", body));
    }

    /// `call` is refused.
    pub(crate) fn refuse(&self, call: &str, status: u16, code: &str, detail: &str) {
        let problem = Problem::new(status, code, "the waker's own title", detail);
        let body = serde_json::to_vec(&problem).unwrap().into();
        let status = StatusCode::from_u16(status).unwrap();
        self.lay(call, Answer::Whole(status, PROBLEM_JSON, body));
    }

    /// `call` is answered by these lines.
    pub(crate) fn lines(&self, call: &str, lines: &[impl Serialize]) {
        let text: Vec<u8> = lines.iter().flat_map(line).collect();
        self.lay(call, Answer::Whole(StatusCode::OK, "application/x-ndjson", text.into()));
    }

    /// The next `call` is answered by what is sent here.
    pub(crate) fn stream(&self, call: &str) -> mpsc::UnboundedSender<Bytes> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.lay(call, Answer::Stream(Some(receiver)));
        sender
    }

    fn lay(&self, call: &str, answer: Answer) {
        self.shared.answers.lock().unwrap().insert(call.to_owned(), answer);
    }

    /// What was asked since the last look: method, path, body.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.asked.lock().unwrap())
    }
}

pub(crate) fn line(event: &impl Serialize) -> Bytes {
    let mut line = serde_json::to_vec(event).unwrap();
    line.push(b'\n');
    line.into()
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response {
    let call = format!("{method} {uri}");
    let text = String::from_utf8_lossy(&body);
    shared.asked.lock().unwrap().push(format!("{call} {text}").trim_end().to_owned());
    if !well_formed(uri.path(), &body) {
        return problem(400, "body");
    }
    if uri.path().starts_with("/v1/apps/") && !uri.path().starts_with("/v1/apps/hello/") {
        return problem(404, "unknown-app");
    }
    match shared.answers.lock().unwrap().get_mut(&call) {
        None => problem(404, "unknown-path"),
        Some(Answer::Whole(status, kind, body)) => {
            (*status, [(header::CONTENT_TYPE, *kind)], body.clone()).into_response()
        }
        Some(Answer::Stream(receiver)) => {
            let receiver = receiver.take().unwrap();
            let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
                receiver.recv().await.map(|line| (Ok::<_, Infallible>(line), receiver))
            });
            Body::from_stream(stream).into_response()
        }
    }
}

fn well_formed(path: &str, body: &[u8]) -> bool {
    match path.rsplit('/').next().unwrap() {
        "sleep" => serde_json::from_slice::<SleepRequest>(body).is_ok(),
        "boot" => serde_json::from_slice::<BootRequest>(body).is_ok(),
        "park" => serde_json::from_slice::<ParkRequest>(body).is_ok(),
        _ => body.is_empty(),
    }
}

fn problem(status: u16, code: &str) -> Response {
    let problem = Problem::new(status, code, "the waker's own title", "");
    let status = StatusCode::from_u16(status).unwrap();
    (status, [(header::CONTENT_TYPE, PROBLEM_JSON)], serde_json::to_vec(&problem).unwrap())
        .into_response()
}

pub(crate) fn view(state: AppState) -> AppView {
    AppView {
        id: "hello".parse().unwrap(),
        rules: vec!["hello.test".parse::<HostPattern>().unwrap().into()],
        policy: Policy {
            idle_ms: 1,
            hold_deadline_ms: 2,
            gate_path: "/".into(),
            ..Policy::default()
        },
        generation: Generation(7),
        since_unix_ms: 1_796_085_123_456,
        state,
    }
}

pub(crate) fn ready(key: Option<AgentKey>) -> Ready {
    Ready {
        endpoint: "127.0.0.1:4000".parse().unwrap(),
        generation: Generation(8),
        outcome: Outcome::Resumed,
        key,
    }
}

pub(crate) fn phases() -> Vec<PhaseTime> {
    let times = [(Phase::Queue, 31), (Phase::Vmm, 12_000), (Phase::Load, 6_969)];
    times.into_iter().map(|(phase, us)| PhaseTime { phase, us }).collect()
}

/// The lines of a wake that goes well; the last has a key.
pub(crate) fn waking(key: &AgentKey) -> Vec<WakeEvent> {
    let end = WakeEvent::Ready(ready(Some(key.clone())));
    phases().into_iter().map(WakeEvent::Phase).chain([end]).collect()
}

pub(crate) fn status(state: AppState) -> AppStatus {
    AppStatus {
        view: view(state),
        memory_mib: 256,
        vcpus: 1,
        pid: Some(77),
        image_bytes: 41 << 20,
        disk_bytes: Some(3 << 30),
        disk_size: Some(8 << 30),
        busy_until_unix_ms: None,
        failures: 0,
        last_wake: Some(trace(8)),
    }
}

pub(crate) fn trace(generation: u64) -> WakeTrace {
    WakeTrace {
        at_unix_ms: 1_796_085_123_456,
        generation: Generation(generation),
        outcome: Some(Outcome::Resumed),
        refused: None,
        store: None,
        error: None,
        phases: phases(),
        patches: vec![PatchTrace { patch: "clock".into(), us: 900, error: None }],
    }
}

pub(crate) fn report(tier: Tier) -> SleepReport {
    SleepReport {
        generation: Generation(8),
        tier,
        agreed_us: 1_100,
        flushed_us: 2_200,
        stopped_us: 3_300,
        saved_us: 7_700,
        durable_us: 41_000,
        published_us: 52_000,
        written_bytes: 3 << 20,
        image_bytes: 41 << 20,
    }
}
