use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{Budget, Cache, ContentId, Draft, Pinned};

mod budget;
mod crashes;
mod entries;
mod sharing;
mod together;

/// A page, in bytes.
const PAGE: u64 = 4096;
/// What an entry of the tests has, in bytes of data.
const DATA: u64 = 64 << 10;
/// More than an entry of [`DATA`] occupies, and less than two.
const ENTRY: u64 = DATA + (24 << 10);

fn id(number: u64) -> ContentId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    ContentId::from_bytes(bytes)
}

fn budget(high: u64, low: u64) -> Budget {
    Budget::new(high, low, 0).unwrap()
}

fn large() -> Budget {
    budget(1 << 30, 1 << 30)
}

struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("cache")
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn open(&self, budget: Budget, now: u64) -> Cache {
        Cache::open(&self.root(), budget, now).unwrap()
    }
}

/// Writes an entry's files: `number` all over `data` bytes behind a hole, and a small state.
fn fill(draft: &Draft, number: u64, data: u64) {
    let memory = draft.create("memory.img").unwrap();
    memory.set_len((1 << 20) + data).unwrap();
    let pages = number.to_be_bytes().repeat(data as usize / 8);
    memory.write_all_at(&pages, 1 << 20).unwrap();
    draft.create("vm.state").unwrap().write_all_at(&number.to_be_bytes(), 0).unwrap();
}

fn put(cache: &Cache, number: u64, now: u64) -> Pinned {
    let draft = cache.reserve(DATA + PAGE, now).unwrap();
    fill(&draft, number, DATA);
    draft.publish(&id(number), now).unwrap()
}

/// Panics unless the entry is all that [`fill`] wrote.
fn check(pinned: &Pinned, number: u64) {
    let mut state = Vec::new();
    pinned.open("vm.state").unwrap().read_to_end(&mut state).unwrap();
    assert_eq!(state, number.to_be_bytes());
    check_memory(&pinned.open("memory.img").unwrap(), number);
}

fn check_memory(memory: &File, number: u64) {
    let size = memory.metadata().unwrap().len();
    let mut data = vec![0; (size - (1 << 20)) as usize];
    memory.read_exact_at(&mut data, 1 << 20).unwrap();
    assert!(
        data.chunks(8).all(|word| word == number.to_be_bytes()),
        "{number} holds another's data"
    );
}

/// What a directory and all in it occupies, each inode once, as du(1) reckons; what vanishes meanwhile is 0.
fn occupied(path: &Path) -> u64 {
    fn walk(path: &Path, seen: &mut HashMap<(u64, u64), u64>) {
        let Ok(found) = fs::symlink_metadata(path) else { return };
        seen.insert((found.dev(), found.ino()), found.blocks() * 512);
        if found.is_dir() {
            let Ok(names) = fs::read_dir(path) else { return };
            names.flatten().for_each(|name| walk(&name.path(), seen));
        }
    }
    let mut seen = HashMap::new();
    walk(path, &mut seen);
    seen.values().sum()
}

/// The same by the program.
fn du(path: &Path) -> u64 {
    let output = Command::new("du").args(["-s", "-B1"]).arg(path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// The names in the cache's directory, in order, without its lock.
fn names(root: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(root)
        .unwrap()
        .map(|name| name.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != ".lock")
        .collect();
    names.sort();
    names
}
