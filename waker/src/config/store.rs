//! `[store]` of `waker.toml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rouse_conf::Table;
use rouse_conf::check::{between, seconds};
use rouse_transfer::Patience;

use crate::store::Settings;

/// `[store]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Where it is.
    pub place: Place,
    /// How this node uses it.
    pub settings: Settings,
}

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a directory.
    Directory(PathBuf),
}

/// `[cache]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// What images there may occupy, in bytes; none: a quarter of the file system. 0: there is no cache.
    pub max: Option<u64>,
    /// How far it is emptied once it is full, in percent of that.
    pub low_percent: u64,
    /// What stays free in the file system, in bytes, whoever fills it.
    pub keep_free: u64,
}

pub(super) fn read_cache(t: &mut Table<'_>) -> CacheConfig {
    let mib = |mib: u32| Ok::<_, String>(u64::from(mib) << 20);
    CacheConfig {
        max: t.optional_as("max_mib", None, |max| mib(max).map(Some)),
        low_percent: t.optional_as("low_percent", 90, between(0, 100)),
        keep_free: t.optional_as("keep_free_mib", 1 << 30, mib),
    }
}

/// How long a request for a small object is tried: a visitor waits for some of them.
const PATIENCE: Patience = Patience {
    tries: 6,
    time: Duration::from_secs(15),
    first: Duration::from_millis(50),
    most: Duration::from_secs(3),
};

pub(super) fn read(t: &mut Table<'_>, base: &Path) -> Option<StoreConfig> {
    let directory = t.required_as("directory", |path: PathBuf| Ok::<_, String>(base.join(path)));
    let node = t.optional_as("node", None, |name: String| node(&name).map(Some));
    let moving = t.optional("moving", true);
    let keep = t.optional_as("keep", 1, between(0, 100));
    let grace = t.optional_as("grace_seconds", Duration::from_secs(86_400), seconds(0, 31_536_000));
    let ups_at_once = t.optional_as("at_once", 1, between(1, 64));
    let node = match node.map_or_else(host_name, Ok) {
        Ok(node) => node,
        Err(why) => {
            t.mistake(&format!("`store.node` is missing, and {why}"));
            return None;
        }
    };
    let settings = Settings { node, moving, keep, grace, ups_at_once, patience: PATIENCE };
    Some(StoreConfig { place: Place::Directory(directory?), settings })
}

/// A name that can be part of a key.
fn node(name: &str) -> Result<String, String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.';
    if name.is_empty() || name.len() > 63 || name.starts_with('.') || !name.bytes().all(fits) {
        return Err(format!(
            "is 1 to 63 letters, digits, `-`, `_` and `.`, the first no dot; {name:?} is none"
        ));
    }
    Ok(name.to_owned())
}

fn host_name() -> Result<String, String> {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    node(&name).map_err(|why| format!("the host's name {why}"))
}
