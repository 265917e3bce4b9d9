//! A node: one waker, one proxy, and the apps on them.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use rand::RngExt;
use rouse_protocol::app::AppId;
use rouse_protocol::client::{Client, ClientError};
use rouse_protocol::signature::{AGENT_HEADER, NONCE_HEADER};
use rouse_protocol::status::{AppStatus, WakeTrace};
use rouse_protocol::wake::{Ready, SleepReport, SleepRequest, WakeEvent};
use rouse_protocol::watch::{AppState, AppView};
use serde_json::Value;
use tempfile::TempDir;

use crate::config::{App, ProxyConfig, WakerConfig, write};
use crate::daemon::Daemon;
use crate::log::{LogHead, LogLine, read_log};
use crate::metrics::Metrics;
use crate::slots::Slot;
use crate::visit::{Reply, Visit, fetch_unix};
use crate::vm::{Vm, pagers_of, vmms_of};
use crate::wait::eventually;
use crate::{Binaries, golden};

/// The longest path of a Unix socket, in bytes, and what a node's directory must leave of it for
/// the sockets that the waker makes below it.
const SOCKET_PATH: usize = 107;
const BELOW_ROOT: usize = 64;

/// What a node is made of. [`Self::start`] starts it.
#[derive(Debug)]
pub struct NodeBuilder {
    root: TempDir,
    binaries: Binaries,
    waker: WakerConfig,
    proxy: ProxyConfig,
    apps: Vec<App>,
    files: Vec<(String, String)>,
    slot: bool,
}

impl NodeBuilder {
    /// Where all of it will be.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// With this app, besides those named before.
    pub fn app(mut self, app: App) -> Self {
        self.apps.push(app);
        self
    }

    /// With a file in `apps.d` that the waker need not accept.
    pub fn app_file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// With a `waker.toml` changed by `change`.
    pub fn waker(mut self, change: impl FnOnce(&mut WakerConfig)) -> Self {
        change(&mut self.waker);
        self
    }

    /// With a `proxy.toml` changed by `change`.
    pub fn proxy(mut self, change: impl FnOnce(&mut ProxyConfig)) -> Self {
        change(&mut self.proxy);
        self
    }

    /// Without waiting for other nodes to end.
    pub fn without_slot(mut self) -> Self {
        self.slot = false;
        self
    }

    /// Writes the configuration, starts waker and proxy, and returns when both are ready and know
    /// every app.
    pub async fn start(self) -> Node {
        let Self { root, binaries, waker, proxy, apps, files, slot } = self;
        let slot = if slot { Some(Slot::take(&binaries.kept().join("slots")).await) } else { None };

        std::fs::create_dir_all(&waker.apps_dir).expect("a node's directory can be written");
        if apps.iter().any(|app| app.golden) {
            golden::copy_to(&waker.state_dir, &binaries, &waker).await;
        }
        for app in &apps {
            write(&waker.apps_dir.join(format!("{}.toml", app.id)), app);
        }
        for (name, text) in files {
            std::fs::write(waker.apps_dir.join(name), text).expect("apps.d can be written");
        }
        let (waker_toml, proxy_toml) =
            (root.path().join("waker.toml"), root.path().join("proxy.toml"));
        write(&waker_toml, &waker);
        write(&proxy_toml, &proxy);

        let daemon = |program: PathBuf, config: &Path, log: &str| {
            let args = vec!["--config".into(), config.to_string_lossy().into_owned()];
            Daemon::new(program, args, root.path().join(log))
        };
        let mut node = Node {
            waker: daemon(binaries.waker(), &waker_toml, "waker.log"),
            proxy: daemon(binaries.proxy(), &proxy_toml, "proxy.log"),
            client: Client::new(&waker.socket.path),
            http: proxy.listen.http[0].parse().expect("we wrote an address"),
            h2c: proxy.listen.h2c[0].parse().expect("we wrote an address"),
            admin: proxy.listen.admin.parse().expect("we wrote an address"),
            state_dir: waker.state_dir,
            apps: apps.into_iter().map(|app| app.id).collect(),
            root,
            _slot: slot,
        };
        node.start_waker().await;
        node.start_proxy().await;
        node
    }
}

/// A running node. Dropped, nothing of it is left; when the test has failed, what its programs
/// said is shown.
#[derive(Debug)]
pub struct Node {
    /// The waker's process.
    pub waker: Daemon,
    /// The proxy's process.
    pub proxy: Daemon,
    client: Client,
    http: SocketAddr,
    h2c: SocketAddr,
    admin: SocketAddr,
    state_dir: PathBuf,
    apps: Vec<String>,
    root: TempDir,
    _slot: Option<Slot>,
}

impl Node {
    /// A node of these binaries, without an app.
    pub fn builder(binaries: &Binaries) -> NodeBuilder {
        let root = directory();
        let waker = WakerConfig::in_dir(root.path());
        let proxy = ProxyConfig::new(&waker, std::array::from_fn(|_| free_port()));
        NodeBuilder {
            root,
            binaries: binaries.clone(),
            waker,
            proxy,
            apps: Vec::new(),
            files: Vec::new(),
            slot: true,
        }
    }

    /// A node with the test app, asleep with a warm image.
    pub async fn start() -> Self {
        Self::with_app(|_| {}).await
    }

    /// A node with the test app, changed by `change`, asleep with a warm image.
    pub async fn with_app(change: impl FnOnce(&mut App)) -> Self {
        let binaries = Binaries::find();
        let mut app = App::hello(&binaries);
        change(&mut app);
        Self::builder(&binaries).app(app).start().await
    }

    /// Where all of it is.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// The waker's `state_dir`.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The directory of an app's images.
    pub fn app_dir(&self, app: &str) -> PathBuf {
        self.state_dir.join("apps").join(app)
    }

    /// Where visitors come.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Where visitors come who speak HTTP/2 without TLS.
    pub fn h2c(&self) -> SocketAddr {
        self.h2c
    }

    /// Where operators come.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The waker's socket.
    pub fn socket(&self) -> &Path {
        self.client.socket()
    }

    /// A client of the waker.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Starts the waker, and returns when it answers and knows every app.
    pub async fn start_waker(&mut self) {
        self.waker.start();
        eventually("the waker knows its apps", async || {
            self.waker.assert_runs();
            let known = self.client.apps().await.ok()?;
            let knows = |app: &String| known.iter().any(|view| view.id.as_str() == app);
            self.apps.iter().all(knows).then_some(())
        })
        .await;
    }

    /// Starts the proxy, and returns when it answers and knows every app.
    pub async fn start_proxy(&mut self) {
        self.proxy.start();
        eventually("the proxy is healthy", async || {
            self.proxy.assert_runs();
            let health = Visit::get("/healthz").send(self.admin).await.ok()?;
            health.status.is_success().then_some(())
        })
        .await;
        eventually("the proxy knows its apps", async || {
            self.proxy.assert_runs();
            self.apps_at_proxy().await
        })
        .await;
        // The listeners open one after the other; this is the one that visitors come to.
        eventually("the proxy answers visitors", async || {
            self.proxy.assert_runs();
            let reply = Visit::get("/").host("nobody.invalid").send(self.http).await.ok()?;
            (reply.status == 404).then_some(())
        })
        .await;
    }

    /// What the proxy holds, as it tells operators.
    pub async fn holds(&self) -> Value {
        let reply = Visit::get("/holds").send(self.admin).await;
        reply.expect("the proxy tells its holds").expect_status(200).json()
    }

    /// What the proxy counts.
    pub async fn proxy_metrics(&self) -> Metrics {
        let reply = Visit::get("/metrics").send(self.admin).await;
        Metrics::parse(reply.expect("the proxy tells its metrics").expect_status(200).text())
    }

    /// What the waker counts.
    pub async fn waker_metrics(&self) -> Metrics {
        let reply = fetch_unix(self.socket(), "/metrics").await;
        Metrics::parse(reply.expect("the waker tells its metrics").expect_status(200).text())
    }

    /// Visits through the proxy. Panics when no answer comes.
    pub async fn visit(&self, visit: &Visit) -> Reply {
        visit.send(self.http).await.unwrap_or_else(|e| panic!("{visit}: {e}"))
    }

    /// Visits the test app with a `GET` through the proxy. Panics when no answer comes.
    pub async fn get(&self, path: &str) -> Reply {
        self.visit(&Visit::get(path)).await
    }

    /// An app as the waker knows it.
    pub async fn view(&self, app: &str) -> AppView {
        let views = self.client.apps().await.expect("the waker tells its apps");
        views.into_iter().find(|v| v.id.as_str() == app).expect("the waker knows the app")
    }

    /// Waits until the app's state is one that `is` wants.
    pub async fn wait_state(
        &self,
        app: &str,
        what: &str,
        is: impl Fn(&AppState) -> bool,
    ) -> AppView {
        eventually(&format!("{app} is {what}"), async || {
            Some(self.view(app).await).filter(|view| is(&view.state))
        })
        .await
    }

    /// Waits until the app sleeps.
    pub async fn wait_asleep(&self, app: &str) -> AppView {
        self.wait_state(app, "asleep", |state| matches!(state, AppState::Asleep)).await
    }

    /// Wakes the app at the waker, not as a visitor, and returns when its VM answers HTTP.
    pub async fn wake(&self, app: &str) -> Ready {
        let ready = self.wake_events(app).await.expect("the waker wakes the app");
        eventually("the woken app answers", async || {
            let reply = Visit::get("/").send(ready.endpoint).await.ok()?;
            reply.status.is_success().then_some(())
        })
        .await;
        ready
    }

    /// Wakes the app at the waker and reads the stream of events to its end.
    pub async fn wake_events(&self, app: &str) -> Result<Ready, String> {
        let mut events = self.client.wake(&id(app)).await.map_err(|e| e.to_string())?;
        loop {
            match events.next().await.map_err(|e| e.to_string())? {
                Some(WakeEvent::Phase(_)) => {}
                Some(WakeEvent::Ready(ready)) => return Ok(ready),
                Some(WakeEvent::Failed(failure)) => return Err(failure.to_string()),
                None => return Err("the stream ended without its last line".into()),
            }
        }
    }

    /// Puts the app to sleep. A visitor who has just had the last byte of his answer may still be
    /// in flight for the proxy, so `busy` is asked again.
    pub async fn sleep(&self, app: &str) -> SleepReport {
        eventually(&format!("{app} can be put to sleep"), async || {
            match self.try_sleep(app).await {
                Ok(report) => Some(report),
                Err(ClientError::Refused(problem)) if problem.code() == "busy" => None,
                Err(error) => panic!("{app} is put to sleep: {error}"),
            }
        })
        .await
    }

    /// Asks once, as an operator, that the app sleeps.
    pub async fn try_sleep(&self, app: &str) -> Result<SleepReport, ClientError> {
        self.client.sleep(&id(app), &SleepRequest::default()).await
    }

    /// The app's VMM process. Panics when none is recorded.
    pub fn vm(&self, app: &str) -> Vm {
        let file = self.app_dir(app).join("run.json");
        Vm::recorded_in(&file).unwrap_or_else(|| panic!("{}: no running VM", file.display()))
    }

    /// The VMM processes that have something of the app open, recorded or not.
    pub fn vms(&self, app: &str) -> Vec<Vm> {
        let dir = self.app_dir(app);
        let all = vmms_of(self.root.path()).into_iter();
        all.filter(|vm| !vm.open_below(&dir).is_empty()).collect()
    }

    /// An app as the waker shows it to operators.
    pub async fn status(&self, app: &str) -> AppStatus {
        let all = self.client.status().await.expect("the waker tells its status");
        all.into_iter().find(|s| s.view.id.as_str() == app).expect("the waker knows the app")
    }

    /// The newest wake of the app.
    pub async fn trace(&self, app: &str) -> Option<WakeTrace> {
        self.client.trace(&id(app)).await.expect("the waker tells of its wakes").pop()
    }

    /// Has the test app append to its log, and returns when that is acknowledged.
    pub async fn log(&self, entry: &str) -> LogHead {
        self.visit(&Visit::post("/log", entry.to_owned())).await.expect_status(200).json()
    }

    /// The test app's log as it is on its disk. Panics when it is not whole.
    pub async fn logged(&self) -> Vec<LogLine> {
        let reply = self.get("/log").await.expect_status(200);
        read_log(reply.text()).unwrap_or_else(|e| panic!("{e}: {reply:?}"))
    }

    /// Where the app's VM is reached now. Panics when there is none.
    pub async fn endpoint(&self, app: &str) -> SocketAddr {
        let view = self.view(app).await;
        view.state.ready().unwrap_or_else(|| panic!("{app} serves: {view:?}")).endpoint
    }

    /// The newest life that the app has had.
    pub async fn generation(&self, app: &str) -> u64 {
        self.view(app).await.generation.0
    }

    /// How many wakes have come to an end at the waker, well or not, since it started.
    pub async fn wakes(&self) -> f64 {
        self.waker_metrics().await.sum("rouse_waker_wakes_total", &[])
    }

    /// Lets the app in its VM crash, not to come back for `down`, and returns when the agent signs
    /// that it is down.
    pub async fn crash(&self, app: &str, down: Duration) {
        let endpoint = self.endpoint(app).await;
        let crash = Visit::get(&format!("/crash?down_ms={}", down.as_millis()));
        // The app may or may not live to answer.
        if let Ok(reply) = crash.send(endpoint).await {
            assert_eq!(reply.status, 202, "the app crashes when asked to: {reply:?}");
        }
        eventually("the agent signs that its app is down", async || {
            let ask = Visit::get("/").header(NONCE_HEADER, "0123456789abcdef0123456789abcdef");
            let reply = ask.send(endpoint).await.ok()?;
            reply.header(AGENT_HEADER).contains("state=down").then_some(())
        })
        .await;
    }

    /// How many visitors the proxy holds now.
    pub async fn held(&self) -> f64 {
        self.proxy_metrics().await.sum("rouse_holds", &[])
    }

    async fn apps_at_proxy(&self) -> Option<()> {
        let holds = self.holds().await.to_string();
        self.apps.iter().all(|app| holds.contains(&format!("\"{app}\""))).then_some(())
    }

    /// Kills the VMMs that no waker looks after any more.
    fn kill_vmms(&self) {
        // Again until none is found: the waker may have died while it started one.
        for _ in 0..3 {
            vmms_of(self.root.path()).iter().for_each(Vm::kill);
        }
        pagers_of(self.root.path()).iter().for_each(Vm::kill);
        unmount_below(self.root.path());
    }

    #[allow(clippy::print_stderr, reason = "the test runner shows it with the failed test")]
    fn show_logs(&self) {
        eprintln!("{}\n{}", self.waker.tail(), self.proxy.tail());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.proxy.kill();
        self.waker.kill();
        self.kill_vmms();
        if std::thread::panicking() {
            self.show_logs();
        }
        if std::env::var_os("ROUSE_KEEP").is_some() {
            let _ = std::fs::write(self.root.path().join(KEPT), "");
            self.root.disable_cleanup(true);
        }
    }
}

fn id(app: &str) -> AppId {
    app.parse().expect("tests name apps that can be")
}

/// A fresh directory with a path short enough for the sockets in it. Its name tells whose it is.
fn directory() -> TempDir {
    let fits = |dir: &Path| dir.as_os_str().len() + BELOW_ROOT <= SOCKET_PATH;
    let temp = Some(std::env::temp_dir()).filter(|dir| fits(dir)).unwrap_or_else(|| "/tmp".into());
    SWEPT.call_once(|| sweep(&temp));
    let prefix = format!("{PREFIX}{}-", std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir_in(temp).expect("a directory can be made")
}

const PREFIX: &str = "rouse-test-";
/// The file in a directory that is to stay.
const KEPT: &str = "kept";
static SWEPT: Once = Once::new();

/// Ends what test processes that were killed had no time to end: VMMs outlive the waker that
/// started them, as they should.
fn sweep(temp: &Path) {
    for entry in std::fs::read_dir(temp).into_iter().flatten().flatten() {
        let (name, dir) = (entry.file_name(), entry.path());
        let owner = name.to_str().and_then(|n| n.strip_prefix(PREFIX)?.split('-').next());
        let dead = owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists());
        if dead && !dir.join(KEPT).exists() {
            vmms_of(&dir).iter().for_each(Vm::kill);
            pagers_of(&dir).iter().for_each(Vm::kill);
            unmount_below(&dir);
            let _ = std::fs::remove_dir_all(&dir);
        }
    }
}

/// Unmounts what a killed chaos run has mounted in its node's directory.
fn unmount_below(dir: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for point in points.filter(|point| Path::new(point).starts_with(dir)) {
        let _ = std::process::Command::new("umount").arg("-l").arg(point).status();
    }
}

/// A port that nobody listens on, and that nobody else of this process is given. It is below those that the
/// system gives to outgoing connections, so that it is still free when the proxy starts, and again when it restarts.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = rand::rng().random_range(15_000..32_000);
        // Between the look and the start of whoever is to have it another test may look, too.
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && given.insert(port) {
            return port;
        }
    }
}
