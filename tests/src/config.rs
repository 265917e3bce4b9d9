//! The configuration files of a node, as the programs read them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::Binaries;
use crate::visit::DEFAULT_HOST;

/// `waker.toml`.
#[derive(Clone, Debug, Serialize)]
pub struct WakerConfig {
    /// Where apps and images are kept.
    pub state_dir: PathBuf,
    /// Where the apps' files are.
    pub apps_dir: PathBuf,
    /// The socket.
    pub socket: WakerSocket,
    /// The VMM.
    pub qemu: Qemu,
    /// How apps fall asleep.
    pub sleep: WakerSleep,
    /// How they wake.
    pub wake: Wake,
    /// Where generations go; none: they stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<Store>,
    /// What is kept of them here.
    pub cache: Cache,
}

/// `[cache]` of `waker.toml`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cache {
    /// What images there may occupy; none: the waker's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_mib: Option<u32>,
}

/// `[store]` of `waker.toml`.
#[derive(Clone, Debug, Serialize)]
pub struct Store {
    /// The node's name there.
    pub node: String,
    /// Where it is, if it is a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Where it is, if it is a bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3>,
    /// Whether wakes go on before all of the memory is there; none: the waker's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demand: Option<bool>,
    /// From how much memory on a wake goes on before all of it is there; none: the waker's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demand_from_mib: Option<u32>,
    /// Whether apps move; none: the waker's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moving: Option<bool>,
    /// How many older generations are kept; none: the waker's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<usize>,
    /// What is younger is never removed; none: the waker's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u64>,
}

/// `[store.s3]` of `waker.toml`.
#[derive(Clone, Debug, Serialize)]
pub struct S3 {
    /// The bucket.
    pub bucket: String,
    /// Where in it the store is.
    pub prefix: String,
    /// Where the server is.
    pub endpoint: String,
    /// A file with the credentials for it.
    pub credentials_file: PathBuf,
}

impl Store {
    /// A store in this directory, as `node` uses it: what is fetched is fetched whole.
    pub fn directory(node: &str, path: &Path) -> Self {
        Self {
            node: node.to_owned(),
            directory: Some(path.to_owned()),
            s3: None,
            demand: Some(false),
            demand_from_mib: None,
            moving: None,
            keep: None,
            grace_seconds: None,
        }
    }
}

/// `[socket]` of `waker.toml`.
#[derive(Clone, Debug, Serialize)]
pub struct WakerSocket {
    /// Its path.
    pub path: PathBuf,
}

/// `[qemu]` of `waker.toml`.
#[derive(Clone, Debug, Serialize)]
pub struct Qemu {
    /// `tcg`, `kvm` or `auto`.
    pub accelerator: String,
    /// Pre-started VMMs per shape.
    pub pool: u32,
    /// The program; none: the waker's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary: Option<PathBuf>,
}

/// `[sleep]` of `waker.toml`.
#[derive(Clone, Debug, Serialize)]
pub struct WakerSleep {
    /// How long proxies have to agree.
    pub agreement_seconds: u64,
    /// How long a guest has to write out its disk.
    pub flush_seconds: u64,
    /// How much of the machine's memory is to stay free; none: the waker's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_free_mib: Option<u32>,
    /// `leave` or `sleep`.
    pub on_exit: String,
}

/// `[wake]` of `waker.toml`.
#[derive(Clone, Debug, Serialize)]
pub struct Wake {
    /// How much memory all VMs together may have; none: the waker's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// How long a wake may wait for its turn.
    pub queue_seconds: u64,
    /// How long loading a device state may take.
    pub restore_seconds: u64,
    /// After how many failed wakes an app is parked.
    pub failed_before_park: u32,
}

impl WakerConfig {
    /// For a node in `root`: nothing gives up before a busy machine would.
    pub(crate) fn in_dir(root: &Path) -> Self {
        let accelerator = std::env::var("ROUSE_ACCEL").unwrap_or_else(|_| "tcg".into());
        Self {
            state_dir: root.join("state"),
            apps_dir: root.join("apps.d"),
            socket: WakerSocket { path: root.join("waker.sock") },
            qemu: Qemu { accelerator, pool: 1, binary: None },
            sleep: WakerSleep {
                agreement_seconds: 30,
                flush_seconds: 30,
                keep_free_mib: None,
                on_exit: "leave".into(),
            },
            wake: Wake {
                memory_mib: None,
                queue_seconds: 240,
                restore_seconds: 60,
                failed_before_park: 5,
            },
            store: None,
            cache: Cache::default(),
        }
    }
}

/// `apps.d/NAME.toml`.
#[derive(Clone, Debug, Serialize)]
pub struct App {
    /// Its id.
    pub id: String,
    /// The hosts it is reached by.
    pub hosts: Vec<String>,
    /// Its microVM.
    pub vm: GuestVm,
    /// When it sleeps.
    pub sleep: AppSleep,
    /// How its visitors are held.
    pub gate: Gate,
    /// Its disk; none: it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// What its guest is told after each wake.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What is checked after each wake.
    pub patch: Patch,
    /// What is done when it is parked.
    pub park: Park,
    /// Starts from the image that all tests share, not from a boot. See [`App::cold`].
    #[serde(skip)]
    pub(crate) golden: bool,
}

/// `[vm]` of an app.
#[derive(Clone, Debug, Serialize)]
pub struct GuestVm {
    /// Its memory.
    pub memory_mib: u32,
    /// Its cores.
    pub vcpus: u32,
    /// The guest's kernel.
    pub kernel: PathBuf,
    /// The guest's first file system.
    pub initrd: PathBuf,
    /// What is appended to the kernel's command line.
    pub cmdline: String,
    /// The guest port that visitors reach.
    pub port: u16,
    /// Whether an agent fronts the app.
    pub agent: bool,
}

/// `[sleep]` of an app.
#[derive(Clone, Debug, Serialize)]
pub struct AppSleep {
    /// After how long without a visitor it sleeps; 0: never.
    pub idle_seconds: u64,
    /// How long it stays paused, its memory kept, before it becomes an image; none: the waker's
    /// own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_seconds: Option<u64>,
    /// What there is after a crash: `boot` or `rollback`; none: the waker's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_crash: Option<&'static str>,
}

/// `[disk]` of an app.
#[derive(Clone, Debug, Serialize)]
pub struct Disk {
    /// How large it is for the guest.
    pub size_mib: u32,
}

/// `[patch]` of an app.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Patch {
    /// An SSH server has to greet on this port of the guest; none: nobody asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_port: Option<u16>,
    /// A program that has to end well in the guest; none: none is run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// How long each patch may take; none: the waker's own default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
}

/// `[park]` of an app.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Park {
    /// A program that is run then; none: none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook: Option<Vec<String>>,
}

/// `[gate]` of an app.
#[derive(Clone, Debug, Serialize)]
pub struct Gate {
    /// What the gate asks for.
    pub path: String,
    /// How long a visitor may be held.
    pub hold_deadline_seconds: u64,
}

impl App {
    /// The test app `hello`, asleep with a warm image. It never sleeps by itself, and holds longer
    /// than anything should take.
    pub fn hello(binaries: &Binaries) -> Self {
        Self {
            id: "hello".into(),
            hosts: vec![DEFAULT_HOST.into()],
            vm: GuestVm {
                memory_mib: 256,
                vcpus: 1,
                kernel: binaries.kernel(),
                initrd: binaries.initrd(),
                cmdline: String::new(),
                port: 8080,
                agent: true,
            },
            sleep: AppSleep { idle_seconds: 0, paused_seconds: Some(0), after_crash: None },
            gate: Gate { path: "/.well-known/rouse-gate".into(), hold_deadline_seconds: 240 },
            disk: None,
            env: BTreeMap::new(),
            patch: Patch { timeout_seconds: Some(60), ..Patch::default() },
            park: Park::default(),
            golden: true,
        }
    }

    /// An app without an image, as one that was never awake.
    pub fn cold(mut self) -> Self {
        self.golden = false;
        self
    }

    /// An app with a disk of so many MiB. It has no image that others share.
    pub fn disk(mut self, size_mib: u32) -> Self {
        self.disk = Some(Disk { size_mib });
        self.cold()
    }

    /// An app that is paused for so many seconds before it becomes an image.
    pub fn paused(mut self, seconds: u64) -> Self {
        self.sleep.paused_seconds = Some(seconds);
        self
    }
}

/// `proxy.toml`.
#[derive(Clone, Debug, Serialize)]
pub struct ProxyConfig {
    /// Where it listens.
    pub listen: Listen,
    /// Whom it asks to wake apps; none when there are only origins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waker: Option<ProxyWaker>,
    /// How many visitors it holds.
    pub hold: Hold,
    /// The process.
    pub server: Server,
    /// Apps that never sleep.
    #[serde(rename = "origin", skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<Origin>,
}

/// `[listen]` of `proxy.toml`.
#[derive(Clone, Debug, Serialize)]
pub struct Listen {
    /// For visitors.
    pub http: Vec<String>,
    /// For visitors who speak HTTP/2 without TLS.
    pub h2c: Vec<String>,
    /// For operators.
    pub admin: String,
}

/// `[waker]` of `proxy.toml`.
#[derive(Clone, Debug, Serialize)]
pub struct ProxyWaker {
    /// Its socket.
    pub socket: PathBuf,
}

/// `[hold]` of `proxy.toml`.
#[derive(Clone, Debug, Serialize)]
pub struct Hold {
    /// The most visitors held for one app.
    pub per_app: usize,
    /// The most visitors held in all.
    pub total: usize,
    /// How many are let go at once when the app serves.
    pub release_at_once: usize,
}

/// `[server]` of `proxy.toml`.
#[derive(Clone, Debug, Serialize)]
pub struct Server {
    /// Worker threads.
    pub threads: usize,
    /// How long running requests have when it stops.
    pub grace_seconds: u64,
    /// Its name at the waker.
    pub name: String,
}

/// `[[origin]]` of `proxy.toml`: an app that never sleeps.
#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    /// Its id.
    pub id: String,
    /// The hosts it is reached by.
    pub hosts: Vec<String>,
    /// Where it listens.
    pub address: String,
}

impl ProxyConfig {
    pub(crate) fn new(waker: &WakerConfig, [http, h2c, admin]: [u16; 3]) -> Self {
        Self {
            listen: Listen {
                http: vec![format!("127.0.0.1:{http}")],
                h2c: vec![format!("127.0.0.1:{h2c}")],
                admin: format!("127.0.0.1:{admin}"),
            },
            waker: Some(ProxyWaker { socket: waker.socket.path.clone() }),
            hold: Hold { per_app: 1000, total: 20_000, release_at_once: 100 },
            // A stopping proxy sleeps its whole grace; no test needs it to be long.
            server: Server { threads: 2, grace_seconds: 1, name: "proxy-test".into() },
            origins: Vec::new(),
        }
    }
}

/// Writes `config` to `path`.
pub(crate) fn write(path: &Path, config: &impl Serialize) {
    let text = toml::to_string(config).expect("our own configuration can be written as TOML");
    std::fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
