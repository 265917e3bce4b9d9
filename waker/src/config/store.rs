//! `[store]` of `waker.toml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rouse_conf::Table;
use rouse_conf::check::{between, seconds};
use rouse_store::{Encryption, Key, S3Options};
use rouse_transfer::Patience;

use crate::store::Settings;

/// `[store]`.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Where it is.
    pub place: Place,
    /// How this node uses it.
    pub settings: Settings,
    /// What has to be fetched of a memory for its wake to go on before all of it is there, in bytes; none: each
    /// wake waits for all of it.
    pub demand: Option<u64>,
}

/// Where a store is.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a directory.
    Directory(PathBuf),
    /// In a bucket.
    S3(Box<S3Options>),
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
    let directory = t.optional_as("directory", None, |path: PathBuf| {
        Ok::<_, String>(Some(Place::Directory(base.join(path))))
    });
    let has_s3 = t.has("s3");
    let s3 = t.optional_table("s3", |t| s3(t, base));
    let node = t.optional_as("node", None, |name: String| node(&name).map(Some));
    let moving = t.optional("moving", true);
    let keep = t.optional_as("keep", 1, between(0, 100));
    let grace = t.optional_as("grace_seconds", Duration::from_secs(86_400), seconds(0, 31_536_000));
    let ups_at_once = t.optional_as("at_once", 1, between(1, 64));
    let demand = t.optional("demand", true);
    let demand_from = t
        .optional_as("demand_from_mib", 16 << 20, |mib: u32| Ok::<_, String>(u64::from(mib) << 20));
    let demand = demand.then_some(demand_from);
    let node = match node.map_or_else(host_name, Ok) {
        Ok(node) => node,
        Err(why) => {
            t.mistake(&format!("`store.node` is missing, and {why}"));
            return None;
        }
    };
    let settings = Settings { node, moving, keep, grace, ups_at_once, patience: PATIENCE };
    let place = match (directory, s3) {
        (Some(_), _) if has_s3 => {
            t.mistake("`store` has both `directory` and `s3`: a node has one store, remove one");
            return None;
        }
        (Some(place), _) => place,
        (None, Some(options)) => Place::S3(Box::new(options)),
        (None, None) if has_s3 => return None,
        (None, None) => {
            t.mistake("`store` needs `directory`, or a table `store.s3`");
            return None;
        }
    };
    Some(StoreConfig { place, settings, demand })
}

/// `[store.s3]`.
fn s3(t: &mut Table<'_>, base: &Path) -> Option<S3Options> {
    let bucket = t.required_as("bucket", |name: String| match name.len() {
        3..=63 => Ok(name),
        length => Err(format!("is a name of 3 to 63 characters; this one has {length}")),
    });
    let prefix = t.optional_as("prefix", None, |prefix: String| {
        // With the longest key it comes to S3's 1024 bytes.
        match Key::new(prefix) {
            Ok(key) if key.as_str().len() > 255 => Err("has more than 255 characters".to_owned()),
            Ok(key) => Ok(Some(key)),
            Err(error) => Err(error.to_string()),
        }
    });
    let endpoint = t.optional_as("endpoint", None, |url: String| {
        let right = url.starts_with("https://") || url.starts_with("http://");
        if right { Ok(Some(url)) } else { Err("is a URL that begins with https:// or http://") }
    });
    let file = |path: PathBuf| Ok::<_, String>(Some(base.join(path)));
    let text = |text: String| Ok::<_, String>(Some(text));
    let region = t.optional_as("region", None, text);
    let path_style = t.optional("path_style", endpoint.is_some());
    let ca_file = t.optional_as("ca_file", None, file);
    let credentials_file = t.optional_as("credentials_file", None, file);
    let profile = t.optional_as("profile", None, text);
    let sse = t.optional_as("sse", None, |word: String| match &*word {
        "AES256" | "aws:kms" => Ok(Some(word)),
        _ => Err("is `AES256` or `aws:kms`"),
    });
    let kms_key = t.optional_as("kms_key", None, text);
    let encryption = match (sse.as_deref(), kms_key) {
        (Some("aws:kms"), key_id) => Encryption::Kms { key_id },
        (_, Some(_)) => {
            t.mistake("`store.s3.kms_key` needs `store.s3.sse = \"aws:kms\"`");
            return None;
        }
        (Some(_), None) => Encryption::Aes256,
        (None, None) => Encryption::Bucket,
    };
    let connect_timeout = t.optional_as("connect_seconds", Duration::from_secs(5), seconds(1, 300));
    let call_timeout = t.optional_as("call_seconds", Duration::from_secs(30), seconds(1, 600));
    Some(S3Options {
        bucket: bucket?,
        prefix,
        endpoint,
        region,
        path_style,
        ca_file,
        credentials_file,
        profile,
        encryption,
        connect_timeout,
        call_timeout,
    })
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
