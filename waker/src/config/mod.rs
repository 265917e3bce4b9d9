//! The waker's configuration: `waker.toml`, and one file an app in `apps.d`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rouse_conf::check::{SUN_PATH, base, between, seconds, socket, word};
use rouse_conf::{Refused, Table};

mod app;
mod store;

pub use store::{CacheConfig, Place, StoreConfig};

pub use app::{AfterCrash, AppConfig, AppFiles, DiskConfig, MachineConfig, PatchConfig, read_apps};

/// `waker.toml`.
#[derive(Clone, Debug)]
pub struct WakerConfig {
    /// Where apps' images are kept.
    pub state_dir: PathBuf,
    /// Where apps are configured.
    pub apps_dir: PathBuf,
    /// What proxies and operators talk to.
    pub socket: SocketConfig,
    /// The VMM.
    pub qemu: QemuConfig,
    /// How apps are put to sleep.
    pub sleep: SleepConfig,
    /// How apps are woken.
    pub wake: WakeConfig,
    /// Where apps' generations go when they sleep; none: they stay on this node.
    pub store: Option<StoreConfig>,
    /// How much of the disk images may take that are in the store, too.
    pub cache: CacheConfig,
}

/// `[socket]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketConfig {
    /// Where it is.
    pub path: PathBuf,
    /// Users who may talk to it, besides root and the waker's own.
    pub allow_uids: Vec<u32>,
    /// Groups whose members may, by their effective group.
    pub allow_gids: Vec<u32>,
}

/// `[qemu]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuConfig {
    /// The program.
    pub binary: PathBuf,
    /// What runs guests.
    pub accelerator: AcceleratorChoice,
    /// How many VMMs of each shape are started ahead of wakes.
    pub pool: usize,
}

/// What runs guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceleratorChoice {
    /// KVM if it boots a guest here, else TCG.
    Auto,
    /// KVM.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

/// `[sleep]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SleepConfig {
    /// How long proxies have to agree to a sleep.
    pub agreement: Duration,
    /// How long a guest has to write out its disk before it stands still.
    pub flush: Duration,
    /// How much of the node's memory is to stay free, in bytes: when it does not, paused apps become
    /// images. None: see [`crate::pressure::Limits::of_node`].
    pub keep_free: Option<u64>,
    /// What becomes of awake apps when the waker is told to end.
    pub on_exit: OnExit,
}

/// What becomes of awake apps when the waker is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExit {
    /// Their VMs run on, and the next waker adopts them.
    Leave,
    /// They are put to sleep.
    Sleep,
}

/// `[wake]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeConfig {
    /// How many wakes may run at once on this node; the others queue, first come first served.
    pub at_once: usize,
    /// How much memory all VMs together may have, in MiB; none: nine tenths of the node's.
    pub memory_mib: Option<u64>,
    /// How long a wake may wait in that queue.
    pub queue: Duration,
    /// How long loading a device state may take.
    pub restore: Duration,
    /// After how many failed wakes in a row an app is parked.
    pub failed_before_park: u32,
}

/// Reads `waker.toml`. Relative paths in it are relative to its directory.
pub fn read_waker(path: &Path) -> Result<WakerConfig, Refused> {
    let base = base(path);
    rouse_conf::read(path, |file| waker(file, &base))
}

fn waker(file: &mut Table<'_>, base: &Path) -> Option<WakerConfig> {
    let state_dir = file.required_as("state_dir", |path: PathBuf| {
        let path = base.join(path);
        // The VMMs' sockets are the longest: STATE/vmm/NUMBER/agent.sock.
        let longest = path.join(format!("vmm/{}/agent.sock", u32::MAX)).as_os_str().len();
        if longest > SUN_PATH {
            Err(format!("is {} characters too long for the sockets in it", longest - SUN_PATH))
        } else {
            Ok(path)
        }
    });
    let apps_dir = base.join(file.optional("apps_dir", PathBuf::from("apps.d")));
    let socket = file.table("socket", |t| {
        let path = t.required_as("path", socket(base));
        let allow_uids = t.optional("allow_uids", Vec::new());
        let allow_gids = t.optional("allow_gids", Vec::new());
        path.map(|path| SocketConfig { path, allow_uids, allow_gids })
    });
    let qemu = file.table("qemu", |t| QemuConfig {
        binary: t.optional("binary", PathBuf::from("qemu-system-x86_64")),
        accelerator: t.optional_as(
            "accelerator",
            AcceleratorChoice::Auto,
            word(&[
                ("auto", AcceleratorChoice::Auto),
                ("kvm", AcceleratorChoice::Kvm),
                ("tcg", AcceleratorChoice::Tcg),
            ]),
        ),
        pool: t.optional_as("pool", 1, between(0, 64)),
    });
    let sleep = file.table("sleep", |t| SleepConfig {
        agreement: t.optional_as("agreement_seconds", Duration::from_secs(2), seconds(1, 600)),
        flush: t.optional_as("flush_seconds", Duration::from_secs(5), seconds(1, 600)),
        keep_free: t.optional_as("keep_free_mib", None, |mib: u32| {
            Ok::<_, String>(Some(u64::from(mib) << 20))
        }),
        on_exit: t.optional_as(
            "on_exit",
            OnExit::Leave,
            word(&[("leave", OnExit::Leave), ("sleep", OnExit::Sleep)]),
        ),
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let wake = file.table("wake", |t| WakeConfig {
        at_once: t.optional_as("at_once", cores, between(1, 1024)),
        memory_mib: t.optional_as("memory_mib", None, |mib: u64| match mib {
            0 => Err("is at least 1"),
            mib => Ok(Some(mib)),
        }),
        queue: t.optional_as("queue_seconds", Duration::from_secs(20), seconds(1, 600)),
        restore: t.optional_as("restore_seconds", Duration::from_secs(10), seconds(1, 600)),
        failed_before_park: t.optional_as("failed_before_park", 5, between(1, 1000)),
    });
    let store = file.optional_table("store", |t| store::read(t, base));
    let cache = file.table("cache", store::read_cache);
    Some(WakerConfig {
        state_dir: state_dir?,
        apps_dir,
        socket: socket?,
        qemu,
        sleep,
        wake,
        store,
        cache,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<WakerConfig, Refused> {
        rouse_conf::parse_text(Path::new("waker.toml"), text, |t| waker(t, Path::new("/etc/rouse")))
    }

    #[test]
    fn defaults_and_relative_paths() {
        let config = read("state_dir = 's'\n[socket]\npath = '/run/w.sock'\n").unwrap();
        assert_eq!(config.state_dir, Path::new("/etc/rouse/s"));
        assert_eq!(config.apps_dir, Path::new("/etc/rouse/apps.d"));
        assert_eq!(config.socket.path, Path::new("/run/w.sock"));
        assert_eq!(config.qemu.accelerator, AcceleratorChoice::Auto);
        assert_eq!(config.sleep.on_exit, OnExit::Leave);
    }

    #[test]
    fn everything_wrong_is_told() {
        let text = "stat_dir = 's'\n[socket]\npath = 3\n[qemu]\naccelerator = 'xen'\npool = 65\n\
                    [sleep]\nagreement_seconds = 0\non_exit = 'x'\n[wake]\nat_once = 0\n";
        let refused = read(text).unwrap_err().to_string();
        for expected in [
            "waker.toml: `state_dir` is missing",
            "waker.toml:1: unknown key `stat_dir`; did you mean `state_dir`?",
            "waker.toml:3: `socket.path`: ",
            "waker.toml:5: `qemu.accelerator`: is one of `auto`, `kvm`, `tcg`",
            "waker.toml:6: `qemu.pool`: is between 0 and 64",
            "waker.toml:8: `sleep.agreement_seconds`: is between 1 and 600",
            "waker.toml:9: `sleep.on_exit`: is one of `leave`, `sleep`",
            "waker.toml:11: `wake.at_once`: is between 1 and 1024",
        ] {
            assert!(refused.contains(expected), "{expected} is not in\n{refused}");
        }
        let long =
            format!("state_dir = '/{}'\n[socket]\npath = '/{}'", "s".repeat(90), "p".repeat(120));
        let refused = read(&long).unwrap_err().to_string();
        assert!(refused.contains("`state_dir`: is 10 characters too long"), "{refused}");
        assert!(refused.contains("`socket.path`: has 121 characters"), "{refused}");
    }

    #[test]
    fn a_store_is_one_and_all_that_is_wrong_with_it_is_told() {
        let with = |store: &str| read(&format!("state_dir='s'\n[socket]\npath='w'\n{store}"));
        let store = |text: &str| with(text).unwrap().store.unwrap();
        let directory = store("[store]\ndirectory = 'd'\nnode = 'n'\n");
        assert!(matches!(&directory.place, Place::Directory(d) if d == Path::new("/etc/rouse/d")));
        let settings = directory.settings;
        assert_eq!((&*settings.node, settings.moving, settings.keep), ("n", true, 1));
        let s3 = store("[store.s3]\nbucket = 'images'\nprefix = 'a/b'\nendpoint = 'http://x'\n");
        let Place::S3(options) = s3.place else { panic!("{s3:?}") };
        assert!(options.path_style, "which most compatible stores want");
        assert_eq!(options.prefix, rouse_store::Key::new("a/b").ok());
        let wrong = "[store]\nkeep = 101\nnode = '../x'\n[store.s3]\nbucket = 'x'\nprefix = '../y'\n\
                     endpoint = 'ftp://x'\nsse = 'none'\n";
        let refused = with(wrong).unwrap_err().to_string();
        for expected in [
            ":5: `store.keep`: is between 0 and 100",
            ":6: `store.node`: ",
            ":8: `store.s3.bucket`: ",
            ":9: `store.s3.prefix`: ",
            ":10: `store.s3.endpoint`: is a URL",
            ":11: `store.s3.sse`: is `AES256` or `aws:kms`",
        ] {
            assert!(refused.contains(expected), "{expected} is not in\n{refused}");
        }
        for (text, expected) in [
            ("[store]\n", "needs `directory`"),
            ("[store]\ndirectory='d'\n[store.s3]\nbucket='abc'\n", "has both"),
            ("[store.s3]\nbucket='abc'\nkms_key='k'\n", "needs `store.s3.sse"),
        ] {
            let refused = with(text).unwrap_err().to_string();
            assert!(refused.contains(expected), "{expected} is not in\n{refused}");
        }
    }

    #[test]
    fn the_example_is_right() {
        let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf");
        let config = read_waker(&conf.join("waker.toml")).unwrap();
        let apps = read_apps(&conf.join("apps.d")).unwrap();
        assert!(apps.refused.is_empty(), "{:?}", apps.refused);
        assert!(!apps.apps.is_empty());
        assert!(config.state_dir.is_absolute());
    }
}
