//! An image is used once, whole or not at all, and only by what it was made with; the disk is kept
//! whatever happens.
//!
//! Fail points are the process's, so every test here takes a turn: [`Place`] holds it.

use std::any::Any;
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, UNIX_EPOCH};

use rouse_protocol::wake::Outcome;
use rouse_snapshot_format::{Image, Map, Progress, Work, verify_image};

use super::*;
use crate::config::DiskConfig;
use crate::vmm::touched::{Reason, Touched};

#[cfg(feature = "failpoints")]
mod crashes;
mod disks;
mod finish;
mod layer;
mod once;
mod refusals;
mod roll_back;
mod room;
mod settle;

const MIB: u32 = 4;
const PAGE: u64 = 4096;
/// The disk's template: longer than what of a disk is hashed.
const DISK_BYTES: usize = 256 * 1024;
const SAVED: &[u8] = b"device state";

fn identity() -> VmmIdentity {
    VmmIdentity {
        kind: "qemu".into(),
        version: "7.2".into(),
        accelerator: "tcg".into(),
        cpu: "qemu64".into(),
        kernel: "any".into(),
    }
}

/// An app's directory, and all that a waker and a guest do in it.
struct Place {
    root: tempfile::TempDir,
    dir: AppDir,
    machine: MachineConfig,
    /// Stands for the clock: within one tick of a real one two writes look like one.
    written: Cell<u64>,
    keep_pair: bool,
    _turn: Box<dyn Any>,
}

impl Place {
    fn new() -> Self {
        let turn = Box::new(fault::arm());
        let root = tempfile::tempdir().unwrap();
        let template = root.path().join("template.img");
        let pattern: Vec<u8> = (0..DISK_BYTES).map(|i| (i / 4096 + 1) as u8).collect();
        fs::write(&template, pattern).unwrap();
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
            disk: Some(DiskConfig {
                size_mib: 0,
                template: Some(template),
                mkfs: "mkfs.ext4".into(),
            }),
        };
        let dir = AppDir::open(root.path(), &"hello".parse().unwrap()).unwrap();
        Self { root, dir, machine, written: Cell::new(0), keep_pair: false, _turn: turn }
    }

    fn without_disk() -> Self {
        let mut place = Self::new();
        place.machine.disk = None;
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A waker that knows nothing but the files; the one before and its VM are gone.
    fn crash(&mut self) {
        self.dir = AppDir::open(self.root.path(), &"hello".parse().unwrap()).unwrap();
        let (found, lock) = self.dir.look().unwrap();
        assert!(matches!(found, Found::Asleep(_)) && lock.is_some(), "{found:?}");
    }

    fn begin(&self, generation: Generation) {
        let record = RunRecord {
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
            keep_pair: self.keep_pair,
        };
        self.dir.write_run_record(&record).unwrap();
    }

    fn consume(&self) -> Result<Live, ImageRefusal> {
        self.dir.consume(&self.machine, &identity())
    }

    /// A life from the image.
    fn wake(&self) -> Result<Live, ImageRefusal> {
        let generation = self.dir.next_generation();
        let live = self.consume()?;
        self.dir.sync_consumed().map_err(ImageRefusal::Consume)?;
        self.begin(generation);
        Ok(live)
    }

    /// A life from the disk.
    fn boot(&self) -> Live {
        let generation = self.dir.next_generation();
        let live = self.dir.fresh(&self.machine).unwrap();
        self.begin(generation);
        live
    }

    /// The guest writes to its disk.
    fn write_disk(&self, live: &Live, offset: u64, bytes: &[u8]) {
        write(&live.disk().unwrap(), offset, bytes);
        self.written.set(self.written.get() + 1);
        set_written(&live.disk().unwrap(), 1_000_000_000 + self.written.get());
    }

    /// A standing guest's device state is written, and all of it settled.
    fn settle(&self, live: &Live) -> Result<Settled, SettleError> {
        self.settle_by(live, SavedMemory::InPlace, unknown(), &Progress::new())
    }

    fn settle_by(
        &self,
        live: &Live,
        memory: SavedMemory,
        touched: Touched,
        progress: &Progress,
    ) -> Result<Settled, SettleError> {
        if memory == SavedMemory::InPlace {
            live.clear_state().unwrap();
        }
        fs::write(live.state(), SAVED).unwrap();
        let record = self.dir.run_record().unwrap();
        let live = live.path().to_owned();
        self.dir.settle(Settle {
            live,
            record: &record,
            memory,
            touched,
            woken_by: vec![],
            progress,
        })
    }

    fn sleep(&self, live: Live) -> Published {
        self.settle(&live).unwrap();
        self.dir.publish(live).unwrap()
    }

    /// A first life with something in its memory and on its disk, put to sleep.
    fn sleep_once(&self) -> Published {
        self.sleep(self.first_life())
    }

    fn first_life(&self) -> Live {
        let live = self.boot();
        write(&live.memory(), 5 * PAGE + 1, b"memory");
        write(&live.memory(), 1 << 20, &[0; 8192]);
        if live.disk().is_some() {
            self.write_disk(&live, 100_000, b"disk");
        }
        live
    }
}

fn unknown() -> Touched {
    Touched::Unknown(Reason::NoMark)
}

fn write(path: &Path, offset: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

fn read(path: &Path, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

/// Sets when a file was last written to, in seconds of Unix time.
fn set_written(path: &Path, seconds: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

/// What is in a directory, in order.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<_> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Every byte of a life's memory is as its map says.
fn verified(live: &Live) -> Map {
    let map = Map::open(live.path().join(MAP)).unwrap();
    let image = Image::with_map(live.memory(), map.clone()).unwrap();
    verify_image(&image, Work::default()).unwrap();
    map
}

/// A manifest's text, changed.
fn edit_manifest(directory: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let path = directory.join(MANIFEST);
    let mut manifest = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut manifest);
    fs::write(&path, serde_json::to_vec(&manifest).unwrap()).unwrap();
}
