//! What is in the store comes back as it was, once, wherever; and what is needed stays.
//!
//! Nodes are directories side by side over one store; what a VM would do to an app's files is done by hand.

mod cache;
mod layers;
mod needed;
mod turns;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rouse_cache::{Budget, Cache};
use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::wake::Outcome;
use rouse_snapshot_format::Progress;
use rouse_store::{Directory, Store};
use rouse_transfer::{Asked, Patience};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::config::{DiskConfig, MachineConfig};
use crate::image::{AppDir, Live, SavedMemory, Settle};
use crate::vmm::touched::{Reason, Touched};
use crate::vmm::{RunRecord, VmmIdentity};

const MIB: u32 = 4;
const PAGE: usize = 4096;

/// Nodes over one store.
struct World {
    root: tempfile::TempDir,
    store: Arc<dyn Store>,
    keep: usize,
}

/// A node with one app's directory, or several.
struct NodeWorld {
    node: NodeStore,
    apps: std::path::PathBuf,
    machine: MachineConfig,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let store = Arc::new(Directory::open(root.path().join("store")).unwrap());
        Self { root, store, keep: 1 }
    }

    fn node(&self, name: &str) -> NodeWorld {
        self.node_with(name, None)
    }

    /// With a cache of so many bytes.
    fn node_with(&self, name: &str, cache: Option<u64>) -> NodeWorld {
        let state = self.root.path().join(name);
        let apps = state.join("apps");
        fs::create_dir_all(&apps).unwrap();
        let cache = cache.map(|bytes| {
            let budget = Budget::new(bytes, bytes / 10 * 9, 0).unwrap();
            Cache::open(&state.join("cache"), budget, 1).unwrap()
        });
        let settings = Settings {
            node: name.to_owned(),
            moving: true,
            keep: self.keep,
            grace: Duration::ZERO,
            ups_at_once: 4,
            patience: Patience {
                tries: 3,
                time: Duration::from_secs(10),
                first: Duration::from_millis(1),
                most: Duration::from_millis(5),
            },
        };
        let template = self.root.path().join("template.img");
        if !template.exists() {
            fs::write(&template, vec![7; 64 * PAGE]).unwrap();
        }
        let disk = DiskConfig { size_mib: 0, template: Some(template), mkfs: "mkfs.ext4".into() };
        let machine = MachineConfig {
            memory_mib: MIB,
            vcpus: 1,
            kernel: "vmlinuz".into(),
            initrd: None,
            cmdline: String::new(),
            port: 8080,
            agent: true,
            outbound: false,
            gate_path: "/".into(),
            disk: Some(disk),
        };
        let node = NodeStore::new(Arc::clone(&self.store), settings, cache);
        NodeWorld { node, apps, machine }
    }
}

fn app(name: &str) -> AppId {
    name.parse().unwrap()
}

fn identity() -> VmmIdentity {
    VmmIdentity {
        kind: "qemu".into(),
        version: "7.2".into(),
        accelerator: "tcg".into(),
        cpu: "qemu64".into(),
        kernel: "any".into(),
    }
}

impl NodeWorld {
    fn dir(&self, name: &str) -> Arc<AppDir> {
        Arc::new(AppDir::open(&self.apps, &app(name)).unwrap())
    }

    fn up(&self, name: &str) -> Up {
        let dir = self.dir(name);
        let key = dir.key().unwrap();
        Up { dir, app: app(name), key, cancel: CancellationToken::new() }
    }

    /// Sends what sleeps, and removes what nobody needs.
    async fn free(&self, name: &str) -> Freed {
        let freed = Box::pin(self.node.free(&self.up(name))).await.unwrap().expect("it sleeps");
        self.node.collect(&app(name)).await.unwrap();
        freed
    }

    /// Takes the app, and fetches it where that is due. None: nothing was fetched.
    async fn take(&self, name: &str) -> Result<Option<Fetched>, TakeError> {
        let (dir, asked) = (self.dir(name), Asked::default());
        let taken = self.node.take(&app(name), &dir, &asked).await?;
        for stored in &taken.fetch {
            let fetched = self.node.fetch(&app(name), &dir, stored, taken.superseded, &asked).await;
            match fetched {
                Ok(fetched) => {
                    self.node.held(&dir).unwrap();
                    return Ok(Some(fetched));
                }
                Err(error) => assert!(error.is_spoilt(), "{error}"),
            }
        }
        assert!(taken.fetch.is_empty(), "none of {:?} is whole", taken.fetch);
        Ok(None)
    }

    /// A life: from the image if there is one, else from the disk.
    fn begin(&self, name: &str) -> Live {
        let dir = self.dir(name);
        let generation = dir.next_generation();
        let live = match dir.consume(&self.machine, &identity()) {
            Ok(live) => live,
            Err(crate::image::ImageRefusal::None) => dir.fresh(&self.machine).unwrap(),
            Err(refusal) => panic!("{refusal}"),
        };
        dir.write_run_record(&RunRecord {
            pid: 1,
            start_ticks: 1,
            generation,
            outcome: Outcome::Cold,
            endpoint: "127.0.0.1:1".parse().unwrap(),
            runtime: "/nowhere".into(),
            identity: identity(),
            machine: self.machine.fingerprint(),
            memory_mib: MIB,
            vcpus: 1,
            mark: None,
            keep_pair: false,
        })
        .unwrap();
        live
    }

    /// Its end: what it was becomes a generation.
    fn end(&self, name: &str, live: Live) -> Generation {
        let dir = self.dir(name);
        live.clear_state().unwrap();
        fs::write(live.state(), b"device state").unwrap();
        let record = dir.run_record().unwrap();
        dir.settle(Settle {
            live: live.path().to_owned(),
            record: &record,
            memory: SavedMemory::InPlace,
            touched: Touched::Unknown(Reason::NoMark),
            woken_by: vec![],
            progress: &Progress::new(),
        })
        .unwrap();
        dir.publish(live).unwrap().generation
    }

    /// Wakes it, has it write `value` to memory and disk, and puts it to sleep. What it had before is told.
    async fn live_once(&self, name: &str, value: u8) -> u8 {
        self.take(name).await.unwrap();
        let live = self.begin(name);
        let before = check(&live);
        write(&live, value);
        self.end(name, live);
        before
    }
}

/// Pages of memory and of the disk say the same; which ones depends on the value, so that layers differ.
fn write(live: &Live, value: u8) {
    let noise: Vec<u8> = (0..PAGE).map(|i| ((i * usize::from(value)) >> 3) as u8 ^ value).collect();
    let page = 32 * (1 + u64::from(value) % 16);
    for path in [live.memory(), live.disk().expect("a disk")] {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&[value], 0).unwrap();
        let end = file.metadata().unwrap().len() - PAGE as u64;
        file.write_all_at(&noise, (page * PAGE as u64).min(end)).unwrap();
    }
}

/// Memory and disk are of one instant.
fn check(live: &Live) -> u8 {
    let first = |path: &Path| {
        let mut byte = [0];
        File::open(path).unwrap().read_exact_at(&mut byte, 0).unwrap();
        byte[0]
    };
    let (memory, disk) = (first(&live.memory()), first(&live.disk().expect("a disk")));
    // The template's, on a disk that was never written to.
    assert!(memory == disk || (memory == 0 && disk == 7), "memory {memory}, disk {disk}");
    memory
}
