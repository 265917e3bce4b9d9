//! All apps of a node: read from `apps.d`, started, changed and removed with its files.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rouse_protocol::app::AppId;
use rouse_protocol::status::AppStatus;
use rouse_protocol::watch::{AppState, AppView};
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::{App, Change, Command, Node};
use crate::config::{AppConfig, MachineConfig, OnExit, read_apps};
use crate::pressure::{self, Judge, Paused, Pressure, Reading};

/// How long a proxy that has gone is still asked before an app sleeps: it may only have lost its
/// watch, and still have visitors in flight.
pub const PROXY_LEASE: Duration = Duration::from_secs(15);

/// How often memory is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How many proxies may watch.
const MAX_PROXIES: usize = 256;

/// The proxies that watch, by name. Kept in a file, so that a waker that has restarted waits for
/// those that the one before it knew.
#[derive(Debug)]
pub struct Proxies {
    file: PathBuf,
    known: Mutex<HashMap<String, Proxy>>,
}

#[derive(Debug, Default)]
struct Proxy {
    watches: usize,
    /// When its last watch ended.
    left: Option<Instant>,
}

impl Proxies {
    /// Those that are noted in `file`, if any: as if they had just gone.
    pub fn open(file: PathBuf) -> Self {
        let noted = std::fs::read(&file).ok();
        let names: Vec<String> =
            noted.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let gone = || Proxy { watches: 0, left: Some(Instant::now()) };
        let known = names.into_iter().take(MAX_PROXIES).map(|name| (name, gone())).collect();
        Self { file, known: Mutex::new(known) }
    }

    /// Whose agreement a sleep needs now.
    pub fn names(&self) -> BTreeSet<String> {
        let mut known = self.lock();
        prune(&mut known);
        known.keys().cloned().collect()
    }

    /// A proxy watches; false when there are too many.
    pub(crate) fn enter(&self, name: &str) -> bool {
        let mut known = self.lock();
        prune(&mut known);
        let new = !known.contains_key(name);
        if new && known.len() >= MAX_PROXIES {
            return false;
        }
        let proxy = known.entry(name.to_owned()).or_default();
        proxy.watches += 1;
        proxy.left = None;
        if new {
            let names: Vec<&String> = known.keys().collect();
            let noted = serde_json::to_vec(&names).map_err(std::io::Error::from);
            if let Err(error) = noted.and_then(|text| std::fs::write(&self.file, text)) {
                tracing::warn!(%error, "the proxies are not noted for the next waker");
            }
        }
        true
    }

    /// A watch of a proxy has ended; true when it was its last.
    pub(crate) fn leave(&self, name: &str) -> bool {
        let mut known = self.lock();
        let Some(proxy) = known.get_mut(name) else {
            return false;
        };
        proxy.watches = proxy.watches.saturating_sub(1);
        if proxy.watches == 0 {
            proxy.left = Some(Instant::now());
        }
        proxy.watches == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Proxy>> {
        self.known.lock().expect("no holder panics")
    }
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn prune(known: &mut HashMap<String, Proxy>) {
    known.retain(|_, p| p.watches > 0 || p.left.is_some_and(|l| l.elapsed() < PROXY_LEASE));
}

/// All apps.
pub struct Registry {
    node: Node,
    apps_dir: PathBuf,
    apps: RwLock<HashMap<AppId, Entry>>,
    /// One reload at a time.
    reloading: tokio::sync::Mutex<()>,
    tracker: TaskTracker,
}

#[derive(Clone)]
struct Entry {
    app: App,
    config: AppConfig,
}

/// What a reload has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// How many apps there are now.
    pub apps: usize,
    /// What is wrong with files that were refused, and with apps that could not be started.
    pub problems: Vec<String>,
}

impl Registry {
    /// No apps yet; [`Self::reload`] reads them from `apps_dir`.
    pub fn new(node: Node, apps_dir: PathBuf) -> Self {
        Self {
            node,
            apps_dir,
            apps: RwLock::default(),
            reloading: tokio::sync::Mutex::default(),
            tracker: TaskTracker::new(),
        }
    }

    /// What all apps share.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The app of this id.
    pub fn app(&self, id: &AppId) -> Option<App> {
        self.read().get(id).map(|entry| entry.app.clone())
    }

    /// All apps, by id.
    pub fn views(&self) -> Vec<(Arc<AppView>, u64)> {
        let mut views: Vec<_> = self.read().values().map(|entry| entry.app.view()).collect();
        views.sort_by(|(a, _), (b, _)| a.id.cmp(&b.id));
        views
    }

    /// All apps as an operator wants to see them, by id. An app that is being stopped is left out.
    pub(crate) async fn statuses(&self) -> Vec<AppStatus> {
        let mut apps: Vec<_> =
            self.read().iter().map(|(id, entry)| (id.clone(), entry.app.clone())).collect();
        apps.sort_by(|(a, _), (b, _)| a.cmp(b));
        let asked = apps.iter().map(|(_, app)| app.status());
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }

    /// Has paused apps become images while memory is short, or a wake waits for it. Runs until
    /// `stop`.
    pub async fn relieve(&self, limits: pressure::Limits, stop: CancellationToken) {
        let mut judge = Judge::new(limits);
        let mut lacking = self.node.admission.lacking();
        loop {
            let next = async {
                tokio::select! {
                    () = tokio::time::sleep(LOOK) => {}
                    Ok(()) = lacking.changed() => {}
                }
            };
            if stop.run_until_cancelled(next).await.is_none() {
                return;
            }
            let short = match Reading::now() {
                Ok(reading) => match judge.judge(Instant::now(), &reading) {
                    Pressure::None => 0,
                    Pressure::Short { lacking_bytes } => lacking_bytes,
                },
                Err(error) => {
                    tracing::debug!(%error, "it can't be seen whether memory is short");
                    0
                }
            };
            let waited_for = lacking.borrow_and_update().saturating_mul(1 << 20);
            self.free(short.max(waited_for));
        }
    }

    /// Chooses paused apps, so that so many bytes come free with what is being saved already.
    fn free(&self, lacking_bytes: u64) {
        if lacking_bytes == 0 {
            return;
        }
        let (now, unix) = (Instant::now(), unix_ms());
        let (mut paused, mut coming) = (Vec::new(), 0_u64);
        for (id, entry) in self.read().iter() {
            let (view, _) = entry.app.view();
            let memory_bytes = entry.config.machine.memory_bytes();
            match view.state {
                AppState::Paused => {
                    let ago = Duration::from_millis(unix.saturating_sub(view.since_unix_ms));
                    let since = now.checked_sub(ago).unwrap_or(now);
                    paused.push(Paused { app: id.clone(), since, memory_bytes });
                }
                AppState::Snapshotting => coming = coming.saturating_add(memory_bytes),
                _ => {}
            }
        }
        for id in pressure::choose(&paused, lacking_bytes.saturating_sub(coming)) {
            tracing::info!(app = %id, "memory is short: what was paused becomes an image");
            if let Some(app) = self.app(&id) {
                app.try_tell(Command::Pressure);
            }
        }
    }

    /// The machines of all apps.
    pub fn machines(&self) -> Vec<Arc<MachineConfig>> {
        self.read().values().map(|e| Arc::clone(&e.config.machine)).collect()
    }

    /// Every change from here on.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.node.changes.subscribe()
    }

    /// Reads `apps.d` again. A file that is refused leaves its app, if it has one already, as it is.
    pub async fn reload(&self) -> Reloaded {
        let _one = self.reloading.lock().await;
        if self.tracker.is_closed() {
            let problem = "the waker is going down".to_owned();
            return Reloaded { apps: self.read().len(), problems: vec![problem] };
        }
        let files = match read_apps(&self.apps_dir) {
            Ok(files) => files,
            Err(error) => {
                let problem = format!("{}: {error}", self.apps_dir.display());
                return Reloaded { apps: self.read().len(), problems: vec![problem] };
            }
        };
        let mut problems: Vec<_> = files.refused.iter().map(ToString::to_string).collect();
        // Which app a refused file is about can't be told, so none is taken away for now.
        if problems.is_empty() {
            self.remove_others(&files.apps).await;
        }
        for (id, config) in files.apps {
            let known = self.read().get(&id).cloned();
            match known {
                Some(entry) if entry.config == config && entry.app.runs() => {}
                Some(entry) if entry.app.runs() => {
                    tracing::info!(app = %id, "changed");
                    let _ = entry.app.tell(Command::Configure(Box::new(config.clone()))).await;
                    self.write().insert(id, Entry { config, ..entry });
                }
                _ => {
                    let (app, tried) =
                        App::start(self.node.clone(), config.clone(), &self.tracker).await;
                    if let Err(error) = tried {
                        problems.push(format!(
                            "app {id} can't be started, and is tried again: {error}"
                        ));
                    }
                    self.write().insert(id, Entry { app, config });
                }
            }
        }
        for problem in &problems {
            tracing::error!(problem, "configuration");
        }
        self.node.vmm.prepare(self.machines());
        Reloaded { apps: self.read().len(), problems }
    }

    async fn remove_others(&self, wanted: &HashMap<AppId, AppConfig>) {
        let gone: Vec<_> =
            self.read().keys().filter(|id| !wanted.contains_key(*id)).cloned().collect();
        for id in gone {
            tracing::info!(app = %id, "removed");
            let entry = self.write().remove(&id);
            if let Some(entry) = entry {
                // It falls asleep, and its images stay.
                let _ = entry.app.tell(Command::Stop(OnExit::Sleep)).await;
                entry.app.ended().await;
            }
            let _ = self.node.changes.send(Change::Removed(id));
        }
    }

    /// A proxy's last watch has ended.
    pub(crate) fn proxy_gone(&self, name: &str) {
        for entry in self.read().values() {
            // An app too busy to hear it gives up the sleep when the proxy does not answer.
            entry.app.try_tell(Command::ProxyGone(name.to_owned()));
        }
    }

    /// Ends all apps' tasks, their VMs left or put to sleep.
    pub async fn stop(&self, how: OnExit) {
        // No reload may start an app behind our back.
        let _one = self.reloading.lock().await;
        self.tracker.close();
        let apps: Vec<_> = self.read().values().map(|entry| entry.app.clone()).collect();
        for app in apps {
            let _ = app.tell(Command::Stop(how)).await;
        }
        self.tracker.wait().await;
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<AppId, Entry>> {
        self.apps.read().expect("no holder panics")
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<AppId, Entry>> {
        self.apps.write().expect("no holder panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_has_gone_is_asked_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("proxies.json");
        let names = |proxies: &Proxies| proxies.names().into_iter().collect::<Vec<_>>();

        let proxies = Proxies::open(file.clone());
        assert!(proxies.enter("a") && proxies.enter("a") && proxies.enter("b"));
        assert!(!proxies.leave("a"), "it watches once more");
        assert!(proxies.leave("a"));
        assert_eq!(names(&proxies), ["a", "b"]);
        tokio::time::advance(PROXY_LEASE).await;
        assert_eq!(names(&proxies), ["b"]);

        // The waker restarts.
        let proxies = Proxies::open(file);
        assert_eq!(names(&proxies), ["a", "b"]);
        assert!(proxies.enter("b"));
        tokio::time::advance(PROXY_LEASE).await;
        assert_eq!(names(&proxies), ["b"]);
        for n in 1..MAX_PROXIES {
            assert!(proxies.enter(&n.to_string()));
        }
        assert!(!proxies.enter("one too many"));
    }
}
