//! What operators are told: metrics, health, apps, holds, the configuration; and the order to drain.
//!
//! [`Admin::answer`] is all of it, and knows no listener: method and path in, an answer out.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rouse_gate::{Gate, Status};
use rouse_protocol::app::AppId;
use rouse_proxy::Rouse;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const TOML: &str = "application/toml";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What there is, as `/` tells it.
const INDEX: &str = "\
GET  /metrics   everything counted, for Prometheus
GET  /healthz   this process is alive
GET  /readyz    it knows its apps, and does not drain
GET  /config    the configuration with its defaults, without secrets
GET  /apps      all apps
GET  /apps/ID   one of them
GET  /holds     how many are held, app by app, and since when
POST /drain     stop accepting, let everybody through, end
";

/// The operators' side of one proxy.
pub(crate) struct Admin {
    pub(crate) rouse: Rouse,
    /// The configuration as it may be shown.
    pub(crate) config: String,
    /// Only tells, and takes no orders.
    pub(crate) read_only: bool,
    /// Begins to drain. Returns at once, and may be called again.
    pub(crate) drain: Arc<dyn Fn() + Send + Sync>,
}

/// An answer to an operator.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) body: Vec<u8>,
    /// The methods that there are, where another was used.
    pub(crate) allow: Option<&'static str>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked<'a> {
    Index,
    Metrics,
    Alive,
    Ready,
    Config,
    Apps,
    App(&'a str),
    Holds,
    Drain,
}

/// Why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unasked {
    Unknown,
    Method(&'static str),
}

fn route<'a>(method: &Method, path: &'a str) -> Result<Asked<'a>, Unasked> {
    let asked = match path {
        "/" => Asked::Index,
        "/metrics" => Asked::Metrics,
        "/healthz" => Asked::Alive,
        "/readyz" => Asked::Ready,
        "/config" => Asked::Config,
        "/apps" => Asked::Apps,
        "/holds" => Asked::Holds,
        "/drain" => Asked::Drain,
        path => match path.strip_prefix("/apps/") {
            Some(id) if !id.is_empty() && !id.contains('/') => Asked::App(id),
            _ => return Err(Unasked::Unknown),
        },
    };
    match (asked, method) {
        (Asked::Drain, &Method::POST) => Ok(asked),
        (Asked::Drain, _) => Err(Unasked::Method("POST")),
        (_, &Method::GET | &Method::HEAD) => Ok(asked),
        _ => Err(Unasked::Method("GET, HEAD")),
    }
}

/// One app in `/apps`.
#[derive(Serialize)]
struct AppRow<'a> {
    id: &'a str,
    hosts: Vec<String>,
    state: &'static str,
    gate: &'static str,
    generation: u64,
    in_flight: u64,
    holds: usize,
    idle_seconds: f64,
}

/// What apps claim in vain.
type Unserved = HashMap<AppId, Vec<String>>;

/// How long an operator's request may take to come.
const HEADER: Duration = Duration::from_secs(10);
/// How long to wait when no connection can be accepted (no descriptors) before the next try.
const BREATH: Duration = Duration::from_millis(50);
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
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "can't accept an operator's connection");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        // One too many is closed.
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else { continue };
        let admin = Arc::clone(&admin);
        connections.spawn(async move {
            let _place = place;
            let answer = service_fn(move |request: Request<Incoming>| {
                let (method, path) = (request.method(), request.uri().path());
                let answer = admin.answer(method, path, request.headers());
                let response = answer.response(*request.method() == Method::HEAD);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEADER);
            if let Err(error) = server.serve_connection(TokioIo::new(stream), answer).await {
                tracing::debug!(%error, "an operator's connection broke");
            }
        });
    }
}

impl<'a> AppRow<'a> {
    fn of(app: &'a Status, gate: &Gate) -> Self {
        Self {
            id: app.id.as_str(),
            hosts: gate.rules(&app.id),
            state: app.state,
            gate: app.gate,
            generation: app.generation.0,
            in_flight: app.in_flight,
            holds: app.holds,
            idle_seconds: app.idle.as_secs_f64(),
        }
    }
}

/// One app in `/holds`.
#[derive(Serialize)]
struct HoldRow<'a> {
    id: &'a str,
    state: &'static str,
    gate: &'static str,
    generation: u64,
    holds: usize,
    /// For how long the first of them has been there.
    oldest_ms: Option<u64>,
    in_flight: u64,
    idle_ms: u64,
    /// What it claims in vain.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    unserved: &'a [String],
}

impl<'a> HoldRow<'a> {
    fn of(app: &'a Status, unserved: &'a Unserved) -> Self {
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        Self {
            unserved: unserved.get(&app.id).map_or(&[], Vec::as_slice),
            id: app.id.as_str(),
            state: app.state,
            gate: app.gate,
            generation: app.generation.0,
            holds: app.holds,
            oldest_ms: app.oldest.map(ms),
            in_flight: app.in_flight,
            idle_ms: ms(app.idle),
        }
    }
}

impl Admin {
    /// The answer to `method path`; a query is no part of the path. For HEAD it is that of GET.
    pub(crate) fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Answer {
        let asked = match route(method, path) {
            Ok(asked) => asked,
            Err(Unasked::Unknown) => {
                let body = format!("There is no such page. There are:\n{INDEX}");
                return Answer::new(StatusCode::NOT_FOUND, TEXT, body);
            }
            Err(Unasked::Method(allow)) => {
                let body = format!("{path} takes {allow}.\n");
                let answer = Answer::new(StatusCode::METHOD_NOT_ALLOWED, TEXT, body);
                return Answer { allow: Some(allow), ..answer };
            }
        };
        match asked {
            Asked::Index => Answer::new(StatusCode::OK, TEXT, INDEX),
            Asked::Metrics => Answer::new(StatusCode::OK, PROMETHEUS, self.rouse.metrics()),
            Asked::Alive => Answer::new(StatusCode::OK, TEXT, "ok\n"),
            Asked::Ready => {
                let gate = self.rouse.gate();
                ready(gate.synced(), self.rouse.draining())
            }
            Asked::Config => Answer::new(StatusCode::OK, TOML, self.config.as_str()),
            Asked::Apps => {
                let gate = self.rouse.gate();
                let apps = gate.status();
                let row = |app| AppRow::of(app, gate);
                Answer::json(&apps.iter().map(row).collect::<Vec<_>>())
            }
            Asked::App(id) => {
                let apps = self.rouse.gate().status();
                match apps.iter().find(|app| app.id.as_str() == id) {
                    Some(app) => Answer::json(&AppRow::of(app, self.rouse.gate())),
                    None => Answer::new(StatusCode::NOT_FOUND, TEXT, "There is no such app.\n"),
                }
            }
            Asked::Holds => {
                let apps = self.rouse.gate().status();
                let mut unserved = Unserved::new();
                for one in self.rouse.gate().unserved() {
                    unserved.entry(one.app).or_default().push(one.why);
                }
                let row = |app| HoldRow::of(app, &unserved);
                Answer::json(&apps.iter().map(row).collect::<Vec<_>>())
            }
            Asked::Drain if self.read_only => {
                let why = "Orders are not taken here (`listen.admin_read_only`). Send SIGQUIT or SIGTERM.\n";
                Answer::new(StatusCode::FORBIDDEN, TEXT, why)
            }
            Asked::Drain if is_a_pages(headers) => {
                let why = "Orders are not taken from pages in a browser.\n";
                Answer::new(StatusCode::FORBIDDEN, TEXT, why)
            }
            Asked::Drain => {
                (self.drain)();
                Answer::new(StatusCode::ACCEPTED, TEXT, "draining\n")
            }
        }
    }
}

/// Whether a browser sends this for some page: one that the operator looks at could else give orders to whatever
/// listens on the operator's own machine. Browsers say so of each POST (Fetch standard, "origin header" and
/// "Sec-Fetch-Site").
fn is_a_pages(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN)
        || headers.get("sec-fetch-site").is_some_and(|site| site != "none")
}

fn ready(synced: bool, stopping: bool) -> Answer {
    match (synced, stopping) {
        (_, true) => Answer::new(StatusCode::SERVICE_UNAVAILABLE, TEXT, "draining\n"),
        (false, _) => {
            let why = "the waker has not told its apps yet\n";
            Answer::new(StatusCode::SERVICE_UNAVAILABLE, TEXT, why)
        }
        (true, false) => Answer::new(StatusCode::OK, TEXT, "ok\n"),
    }
}

impl Answer {
    fn new(status: StatusCode, kind: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, kind, body: body.into(), allow: None }
    }

    fn json(rows: &impl Serialize) -> Self {
        match serde_json::to_vec(rows) {
            Ok(mut body) => {
                body.push(b'\n');
                Self::new(StatusCode::OK, JSON, body)
            }
            Err(error) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        }
    }

    fn response(self, head: bool) -> Response<Full<Bytes>> {
        let length = self.body.len();
        let body = if head { Bytes::new() } else { self.body.into() };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(header::CONTENT_LENGTH, length.into());
        if let Some(allow) = self.allow {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rouse_proxy::{Options, Origin};
    use serde_json::Value;

    use super::*;

    fn admin(drained: &Arc<AtomicUsize>) -> Admin {
        let origin = Origin {
            id: "static".parse().unwrap(),
            rules: vec![
                "static.test".parse::<rouse_protocol::route::HostPattern>().unwrap().into(),
            ],
            address: ([127, 0, 0, 1], 9).into(),
        };
        let options = Options { origins: vec![origin], ..Options::default() };
        let drained = drained.clone();
        Admin {
            rouse: Rouse::start(options).unwrap(),
            config: "[listen]\n".to_owned(),
            read_only: false,
            drain: Arc::new(move || {
                drained.fetch_add(1, Ordering::Relaxed);
            }),
        }
    }

    fn get(admin: &Admin, path: &str) -> Answer {
        admin.answer(&Method::GET, path, &HeaderMap::new())
    }

    #[test]
    fn routes() {
        let (get, head, post) = (Method::GET, Method::HEAD, Method::POST);
        for (method, path, expected) in [
            (&get, "/", Ok(Asked::Index)),
            (&head, "/metrics", Ok(Asked::Metrics)),
            (&get, "/apps/a-1", Ok(Asked::App("a-1"))),
            (&get, "/apps", Ok(Asked::Apps)),
            (&get, "/apps/", Err(Unasked::Unknown)),
            (&get, "/apps/a/b", Err(Unasked::Unknown)),
            (&post, "/drain", Ok(Asked::Drain)),
            (&get, "/drain", Err(Unasked::Method("POST"))),
            (&head, "/drain", Err(Unasked::Method("POST"))),
            (&post, "/holds", Err(Unasked::Method("GET, HEAD"))),
            (&post, "/nothing", Err(Unasked::Unknown)),
            (&get, "", Err(Unasked::Unknown)),
        ] {
            assert_eq!(route(method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn every_page_answers() {
        let drained = Arc::default();
        let admin = admin(&drained);
        for line in INDEX.lines() {
            let mut words = line.split_whitespace();
            let method: Method = words.next().unwrap().parse().unwrap();
            let path = words.next().unwrap().replace("ID", "static");
            let answer = admin.answer(&method, &path, &HeaderMap::new());
            assert!(answer.status.is_success() && !answer.body.is_empty(), "{line}: {answer:?}");
        }
        assert_eq!(drained.load(Ordering::Relaxed), 1);
        assert_eq!(get(&admin, "/drain").allow, Some("POST"));
        assert_eq!(drained.load(Ordering::Relaxed), 1);
        let unknown = get(&admin, "/nothing");
        assert_eq!(unknown.status, 404);
        assert!(String::from_utf8(unknown.body).unwrap().contains("/readyz"));
        assert_eq!(get(&admin, "/apps/other").status, 404);
    }

    #[test]
    fn orders_are_the_operators_own() {
        let drained = Arc::default();
        let mut admin = admin(&drained);
        let of = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static(value))])
        };
        for headers in [of("origin", "https://a.example"), of("sec-fetch-site", "cross-site")] {
            assert_eq!(admin.answer(&Method::POST, "/drain", &headers).status, 403);
        }
        admin.read_only = true;
        assert_eq!(admin.answer(&Method::POST, "/drain", &HeaderMap::new()).status, 403);
        assert_eq!(get(&admin, "/holds").status, 200);
        assert_eq!(drained.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_app_is_told_whole() {
        let admin = admin(&Arc::default());
        let row: Value = serde_json::from_slice(&get(&admin, "/apps/static").body).unwrap();
        assert_eq!(row["id"], "static");
        assert_eq!(row["hosts"], serde_json::json!(["static.test"]));
        assert_eq!((&row["state"], &row["gate"]), (&"awake".into(), &"open".into()));
        assert_eq!((&row["generation"], &row["holds"]), (&0.into(), &0.into()));
        assert!(row["idle_seconds"].as_f64().is_some());
        let rows: Value = serde_json::from_slice(&get(&admin, "/apps").body).unwrap();
        assert_eq!(rows.as_array().map(Vec::len), Some(1));
        let rows: Value = serde_json::from_slice(&get(&admin, "/holds").body).unwrap();
        assert_eq!(rows[0]["oldest_ms"], Value::Null);
    }

    #[test]
    fn ready_is_synced_and_not_draining() {
        for (synced, stopping, status) in
            [(true, false, 200), (false, false, 503), (true, true, 503), (false, true, 503)]
        {
            assert_eq!(ready(synced, stopping).status.as_u16(), status);
        }
        let admin = admin(&Arc::default());
        assert_eq!(get(&admin, "/readyz").status, 200);
        admin.rouse.stop();
        assert_eq!(get(&admin, "/readyz").status, 503);
        assert_eq!(get(&admin, "/healthz").status, 200);
    }
}
