//! `rouse-waker`: the program.
#![forbid(unsafe_code)]

use std::io::IsTerminal;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use rouse_cache::{Budget, Cache};
use rouse_store::{Directory, S3, Store};
use rouse_waker::admission::Admission;
use rouse_waker::app::Node;
use rouse_waker::config::{self, CacheConfig, OnExit, Place, StoreConfig, WakerConfig};
use rouse_waker::lifecycle::Limits;
use rouse_waker::metrics::Metrics;
use rouse_waker::pressure::{self, Reading};
use rouse_waker::registry::{Proxies, Registry};
use rouse_waker::store::{NodeStore, Pagers};
use rouse_waker::vmm::Vmm;
use rouse_waker::vmm::qemu::{self, Qemu};
use rouse_waker::{fault, image, pager, server};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, Semaphore, broadcast};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing_subscriber::EnvFilter;

/// EX_USAGE of sysexits(3): the configuration is refused.
const BAD_CONFIG: u8 = 64;

/// How many changes a watcher may be behind.
const CHANGES: usize = 1024;

/// After a file in apps.d changed: editors write in several steps.
const SETTLE: Duration = Duration::from_millis(200);

/// How long clients may take to read their last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// How long the store may take at the start to tell what it can.
const FIRST_LOOK: Duration = Duration::from_secs(3);

/// How often the cache is tidied, and how many images may go each time.
const EVICT: Duration = Duration::from_secs(30);
const EVICT_AT_MOST: usize = 16;

/// Wakes sleeping apps, and puts idle ones to sleep.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only check the configuration and the apps' files.
    #[arg(long)]
    check: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What this program does in a process of its own.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
enum Part {
    /// Fills a guest's memory from the store while it runs. Started by the waker.
    #[command(hide = true)]
    Pager,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi);
    log.with_writer(std::io::stderr).init();
    let config = match config::read_waker(&args.config) {
        Ok(config) => config,
        Err(refused) => return refuse(&refused),
    };
    if args.check {
        return check(&config);
    }
    let _armed = fault::arm();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let work = async {
        match args.part {
            Some(Part::Pager) => page(&config).await,
            None => run(config, &args.config).await,
        }
    };
    let ran = runtime.context("no runtime").and_then(|runtime| runtime.block_on(work));
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stderr, reason = "it is what the operator asked to see")]
fn refuse(why: &impl std::fmt::Display) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(BAD_CONFIG)
}

#[expect(clippy::print_stdout, reason = "it is what the operator asked to see")]
fn check(config: &WakerConfig) -> ExitCode {
    let files = match config::read_apps(&config.apps_dir) {
        Ok(files) => files,
        Err(error) => return refuse(&format!("{}: {error}", config.apps_dir.display())),
    };
    let mut problems: Vec<String> = files.refused.iter().map(ToString::to_string).collect();
    for app in files.apps.values() {
        for (path, error) in app.machine.unreadable() {
            problems.push(format!("app {}: {}: {error}", app.id, path.display()));
        }
    }
    if problems.is_empty() {
        println!("the configuration and {} apps are right", files.apps.len());
        return ExitCode::SUCCESS;
    }
    refuse(&problems.join("\n"))
}

/// `rouse-waker pager`: see [`rouse_waker::pager`].
async fn page(config: &WakerConfig) -> anyhow::Result<()> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("standard input")?;
    let job = serde_json::from_str(&line).context("the job")?;
    let store = config.store.as_ref().context("there is no `[store]`")?;
    let node = NodeStore::new(open_place(&store.place).await?, store.settings.clone(), None);
    Ok(pager::run(&node, job).await?)
}

async fn run(config: WakerConfig, path: &Path) -> anyhow::Result<()> {
    let in_state = |name: &str| config.state_dir.join(name);
    for dir in [in_state("apps"), in_state("vmm")] {
        // Images hold the guests' memory.
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.with_context(|| format!("{}", dir.display()))?;
    }
    let lock = in_state("waker.lock");
    let _lock = image::lock_exclusively(&lock)
        .with_context(|| format!("{}", lock.display()))?
        .with_context(|| format!("another waker works on {}", config.state_dir.display()))?;

    // What runs an app is adopted or ended by that app; the rest served nobody.
    let running = image::running(&in_state("apps")).context("the apps' directories")?;
    let keep: Vec<_> = running.iter().map(|(_, record)| record.runtime.clone()).collect();
    qemu::sweep(&in_state("vmm"), &keep).await.context("the VMMs' directories")?;
    let total = Reading::now().map_or(0, |reading| reading.memory.total);
    // What VMs may have, where nothing is said: the rest is for the page cache, proxy and waker.
    let memory_mib = config.wake.memory_mib.unwrap_or((total >> 20) * 9 / 10);
    // Each is waited for when its guest is gone; those of guests that run on outlive this waker.
    let pagers = TaskTracker::new();
    let vmm = Arc::new(Qemu::new(&config.qemu, in_state("vmm"), config.wake.restore));
    let node = Node {
        vmm: vmm.clone(),
        apps_root: in_state("apps"),
        limits: Limits {
            failed_before_park: config.wake.failed_before_park,
            agreement: config.sleep.agreement,
            // Each app has its own.
            paused: Duration::ZERO,
        },
        admission: Admission::new(memory_mib, config.wake.at_once),
        queue: config.wake.queue,
        flush: config.sleep.flush,
        trims: Arc::new(Semaphore::new(1)),
        store: open_store(&config, path, &pagers).await?,
        proxies: Arc::new(Proxies::open(in_state("proxies.json"))),
        changes: broadcast::channel(CHANGES).0,
        metrics: Arc::new(Metrics::default()),
    };
    let registry = Arc::new(Registry::new(node, config.apps_dir.clone()));
    registry.reload().await;
    for (app, record) in running {
        if registry.app(&app).is_none() {
            let pid = record.pid;
            tracing::error!(%app, pid, "its VM runs, and no file in apps.d has it: put the file back, or end the process");
        }
    }

    let listener = server::bind(&config.socket.path)
        .with_context(|| format!("{}", config.socket.path.display()))?;
    tracing::info!(socket = %config.socket.path.display(), "serving");
    let stop = CancellationToken::new();
    let serving = server::serve(listener, &config.socket, Arc::clone(&registry), stop.clone());
    let stopping = async {
        let told = until_told_to_stop(&config, &registry).await;
        registry.stop(config.sleep.on_exit).await;
        stop.cancel();
        told
    };
    let mut relief = pressure::Limits::of_node(total);
    relief.keep_free = config.sleep.keep_free.unwrap_or(relief.keep_free);
    let relieving = registry.relieve(relief, stop.clone());
    let evicting = evict(registry.node().store.clone(), stop.clone());
    let bounded = async {
        let late = async {
            stop.cancelled().await;
            tokio::time::sleep(LAST_ANSWERS).await;
        };
        tokio::select! {
            served = serving => served,
            () = late => Ok(()),
        }
    };
    // Finds out what runs guests here, so that VMMs can be started before the first wake. It ends by
    // itself when the VMM is closed.
    let mut warm = JoinSet::new();
    warm.spawn(warm_up(Arc::clone(&registry)));
    let (served, told, (), ()) = tokio::join!(bounded, stopping, relieving, evicting);
    vmm.close().await;
    warm.join_all().await;
    served.context("the socket")?;
    if config.sleep.on_exit == OnExit::Leave {
        tracing::info!("VMs that run are left to the next waker");
    }
    told
}

/// The store, if there is to be one. What it can do is found out now; one that can't be reached yet is no reason
/// not to start: what is here can be woken.
async fn open_store(
    config: &WakerConfig,
    path: &Path,
    tracker: &TaskTracker,
) -> anyhow::Result<Option<Arc<NodeStore>>> {
    let Some(StoreConfig { place, settings, demand }) = &config.store else { return Ok(None) };
    let store = open_place(place).await?;
    let pagers = match (demand, rouse_lazy::available()) {
        (Some(least), Ok(())) => {
            let config = std::path::absolute(path).context("the configuration's path")?;
            Some(Pagers { config, least: *least, tracker: tracker.clone() })
        }
        (Some(_), Err(error)) => {
            tracing::warn!(%error, "no wake goes on before all of its memory is here");
            None
        }
        (None, _) => None,
    };
    let cache = open_cache(&config.cache, &config.state_dir)?;
    let store = Arc::new(NodeStore::new(store, settings.clone(), cache).with_pagers(pagers));
    let node = &settings.node;
    // Whoever needs to know finds out again: a store that is away holds up nobody who is served from here.
    let Ok(known) = tokio::time::timeout(FIRST_LOOK, store.moving()).await else {
        tracing::error!(%node, "the store has not answered in {FIRST_LOOK:?}; what is here is served all the same");
        return Ok(Some(store));
    };
    match known {
        Ok(true) => tracing::info!(%node, "apps may move between the nodes of this store"),
        Ok(false) if settings.moving => {
            let conditions = store.conditions().await;
            tracing::warn!(%node, ?conditions, "the store has no conditional writes: no other node can have this one's apps");
        }
        Ok(false) => tracing::info!(%node, "apps do not move, as configured"),
        Err(error) => tracing::error!(%node, %error, "the store can't be reached"),
    }
    Ok(Some(store))
}

/// Keeps the cache below its low mark once it was full, and notes when its images were used.
async fn evict(store: Option<Arc<NodeStore>>, stop: CancellationToken) {
    let Some(cache) = store.and_then(|store| store.cache().cloned()) else { return };
    while stop.run_until_cancelled(tokio::time::sleep(EVICT)).await.is_some() {
        let cache = cache.clone();
        let evicted = tokio::task::spawn_blocking(move || cache.evict(EVICT_AT_MOST, unix_ms()));
        match evicted.await {
            Ok(Ok(evicted)) if evicted.entries > 0 => {
                tracing::info!(?evicted, "images are evicted")
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the cache can't be tidied"),
            Err(error) => tracing::error!(%error, "tidying the cache broke off"),
        }
    }
}

fn unix_ms() -> u64 {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

async fn open_place(place: &Place) -> anyhow::Result<Arc<dyn Store>> {
    Ok(match place {
        Place::Directory(path) => {
            let opened = Directory::open(path);
            Arc::new(opened.with_context(|| format!("the store in {}", path.display()))?)
        }
        Place::S3(options) => {
            let opened = S3::open((**options).clone()).await;
            Arc::new(opened.with_context(|| format!("the store in bucket {}", options.bucket))?)
        }
    })
}

fn open_cache(config: &CacheConfig, state_dir: &Path) -> anyhow::Result<Option<Cache>> {
    let CacheConfig { max, low_percent, keep_free } = *config;
    let path = state_dir.join("cache");
    let quarter = || -> anyhow::Result<u64> {
        let fs = rustix::fs::statvfs(state_dir).map_err(std::io::Error::from)?;
        Ok(fs.f_blocks.saturating_mul(fs.f_frsize) / 4)
    };
    let high = max.map_or_else(quarter, Ok).with_context(|| format!("{}", state_dir.display()))?;
    if high == 0 {
        return Ok(None);
    }
    let budget = Budget::new(high, high / 100 * low_percent, keep_free)?;
    let cache = Cache::open(&path, budget, unix_ms());
    Ok(Some(cache.with_context(|| format!("the cache in {}", path.display()))?))
}

/// Reloads on SIGHUP and when a file in `apps.d` changes; returns on SIGTERM and SIGINT.
async fn until_told_to_stop(config: &WakerConfig, registry: &Registry) -> anyhow::Result<()> {
    let changed = Arc::new(Notify::new());
    let _watcher = watch_files(config, Arc::clone(&changed)).inspect_err(|error| {
        tracing::warn!("apps.d is not watched, only SIGHUP reloads: {error:#}")
    });
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("SIGHUP")?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => {}
            () = changed.notified() => tokio::time::sleep(SETTLE).await,
        }
        let reloaded = registry.reload().await;
        tracing::info!(apps = reloaded.apps, problems = reloaded.problems.len(), "reloaded");
    }
}

async fn warm_up(registry: Arc<Registry>) {
    let machines = registry.machines();
    let Some(machine) = machines.first() else { return };
    match registry.node().vmm.identity(machine).await {
        Ok(identity) => {
            tracing::info!(version = identity.version, accelerator = identity.accelerator);
        }
        Err(error) => tracing::error!(%error, "no guest can be run"),
    }
}

fn watch_files(
    config: &WakerConfig,
    changed: Arc<Notify>,
) -> anyhow::Result<notify::RecommendedWatcher> {
    use notify::{Event, RecursiveMode, Watcher};
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        // Reading a file, as we do ourselves, is no change.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            changed.notify_one();
        }
    })?;
    watcher.watch(&config.apps_dir, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}
