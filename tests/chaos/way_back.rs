//! At every moment a way back: a complete image, or a disk that boots cold.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::Deserialize;

const LIVE: &str = "live";
const DISK: &str = "disk.img";

/// What of a manifest is looked at.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Manifest {
    memory_bytes: u64,
    state_bytes: u64,
}

/// One file of a directory: its size in bytes and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    bytes: u64,
    inode: u64,
}

/// One generation that sleeps, or `live`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Life {
    manifest: Option<Manifest>,
    parts: BTreeMap<String, Part>,
}

/// What is in an app's directory, by name. Only what the way back is made of is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    lives: BTreeMap<String, Life>,
}

/// The disk that the app boots from, when nothing else is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    inode: u64,
}

impl Listing {
    /// Reads the directory of an app. It may change meanwhile: a listing that shows no way back
    /// proves nothing until the next shows the same.
    pub(crate) fn read(dir: &Path) -> Self {
        let mut lives = BTreeMap::new();
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if (name == LIVE || generation(&name).is_some())
                && entry.file_type().is_ok_and(|kind| kind.is_dir())
            {
                lives.insert(name, Life::read(&entry.path()));
            }
        }
        Self { lives }
    }

    /// The app's disk, when there is a way back to serving; or what is wrong. `disk`: the app has
    /// one, and has been awake before.
    pub(crate) fn judge(&self, disk: bool) -> Result<Option<Disk>, String> {
        for (name, life) in &self.lives {
            // A directory gets such a name only when it is whole.
            if name != LIVE {
                life.whole().map_err(|what| format!("{name} is no complete image: {what}"))?;
                if disk && !life.parts.contains_key(DISK) {
                    return Err(format!("{name} has no {DISK}"));
                }
            }
        }
        let live = self.lives.get(LIVE);
        let newest = self.lives.iter().filter_map(|(name, life)| Some((generation(name)?, life)));
        let newest = newest.max_by_key(|(generation, _)| *generation).map(|(_, life)| life);
        let current = live.into_iter().chain(newest).find_map(|life| life.parts.get(DISK));
        match current {
            None if disk => Err(format!("there is no {DISK}: {:?}", self.names())),
            Some(part) if part.bytes == 0 => Err(format!("{DISK} is empty")),
            Some(part) => Ok(Some(Disk { inode: part.inode })),
            None => Ok(None),
        }
    }

    /// How many disks there are.
    pub(crate) fn disks(&self) -> usize {
        self.lives.values().filter(|life| life.parts.contains_key(DISK)).count()
    }

    fn names(&self) -> Vec<&str> {
        self.lives.keys().map(String::as_str).collect()
    }
}

impl Life {
    fn read(dir: &Path) -> Self {
        let manifest = fs::read(dir.join("manifest.json")).ok();
        let parts = ["memory.img", "memory.map", "vm.state", DISK].into_iter().filter_map(|name| {
            let meta = fs::metadata(dir.join(name)).ok()?;
            Some((name.to_owned(), Part { bytes: meta.len(), inode: meta.ino() }))
        });
        Self {
            manifest: manifest.and_then(|text| serde_json::from_slice(&text).ok()),
            parts: parts.collect(),
        }
    }

    fn whole(&self) -> Result<(), String> {
        let Some(manifest) = &self.manifest else {
            return Err("its manifest can't be read".into());
        };
        let bytes = |name: &str| self.parts.get(name).map_or(0, |part| part.bytes);
        for (name, expected) in
            [("memory.img", manifest.memory_bytes), ("vm.state", manifest.state_bytes)]
        {
            if bytes(name) != expected {
                return Err(format!("{name} has {} bytes, not {expected}", bytes(name)));
            }
        }
        if bytes("memory.map") == 0 {
            return Err("its map is missing or empty".into());
        }
        Ok(())
    }
}

fn generation(name: &str) -> Option<u64> {
    name.strip_prefix("gen-")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(manifest: bool, parts: &[(&str, u64)]) -> Life {
        let part = |(name, bytes): &(&str, u64)| {
            ((*name).to_owned(), Part { bytes: *bytes, inode: *bytes })
        };
        Life {
            manifest: manifest.then_some(Manifest { memory_bytes: 100, state_bytes: 10 }),
            parts: parts.iter().map(part).collect(),
        }
    }

    const IMAGE: [(&str, u64); 3] = [("memory.img", 100), ("memory.map", 5), ("vm.state", 10)];

    fn image(disk: Option<u64>) -> Life {
        let parts: Vec<_> = IMAGE.into_iter().chain(disk.map(|bytes| (DISK, bytes))).collect();
        life(true, &parts)
    }

    fn listing(lives: &[(&str, Life)]) -> Listing {
        Listing { lives: lives.iter().map(|(n, l)| ((*n).to_owned(), l.clone())).collect() }
    }

    #[test]
    fn ways_back() {
        for (lives, inode) in [
            (vec![("gen-7", image(Some(64)))], 64),
            (vec![("live", life(false, &[("memory.img", 100), (DISK, 64)]))], 64),
            (vec![("live", life(false, &[(DISK, 64)]))], 64),
            (vec![("live", life(false, &[(DISK, 65)])), ("gen-7", image(Some(64)))], 65),
            (vec![("live", life(false, &[])), ("gen-7", image(Some(64)))], 64),
            (vec![("gen-9", image(Some(64))), ("gen-10", image(Some(65)))], 65),
        ] {
            let found = listing(&lives).judge(true);
            assert_eq!(found, Ok(Some(Disk { inode })), "{lives:?}");
        }
        assert_eq!(listing(&[]).judge(false), Ok(None), "an app that was never awake");
        assert_eq!(listing(&[("gen-1", image(None))]).judge(false), Ok(None), "one without a disk");
    }

    #[test]
    fn no_ways_back() {
        let cut: Vec<_> = IMAGE.map(|(name, bytes)| (name, bytes - 1)).into();
        let mapless = life(true, &[IMAGE[0], IMAGE[2], (DISK, 64)]);
        for (lives, why) in [
            (vec![], "no disk.img"),
            (vec![("live", life(true, &IMAGE))], "no disk.img"),
            (vec![("live", life(false, &[(DISK, 0)]))], "is empty"),
            (vec![("gen-7", image(None))], "gen-7 has no disk.img"),
            (vec![("gen-7", life(false, &[(DISK, 64)]))], "manifest"),
            (vec![("gen-7", life(true, &cut))], "memory.img has 99 bytes, not 100"),
            (vec![("gen-7", mapless)], "map"),
        ] {
            let error = listing(&lives).judge(true).expect_err(&format!("{lives:?}"));
            assert!(error.contains(why), "{lives:?}: {error}");
        }
    }

    #[test]
    fn a_directory_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let gen7 = dir.path().join("gen-7");
        for path in [&gen7, &dir.path().join("other"), &dir.path().join("gen-x")] {
            fs::create_dir(path).unwrap();
        }
        for (name, text) in [
            ("manifest.json", r#"{"memory_bytes":3,"state_bytes":2,"more":1}"#),
            ("memory.img", "mem"),
            ("memory.map", "m"),
            ("vm.state", "st"),
            (DISK, "disk"),
        ] {
            fs::write(gen7.join(name), text).unwrap();
        }
        let listing = Listing::read(dir.path());
        let inode = fs::metadata(gen7.join(DISK)).unwrap().ino();
        assert_eq!((listing.names(), listing.disks()), (vec!["gen-7"], 1));
        assert_eq!(listing.judge(true), Ok(Some(Disk { inode })));
        fs::write(gen7.join("vm.state"), "s").unwrap();
        Listing::read(dir.path()).judge(true).unwrap_err();
        assert_eq!(Listing::read(&dir.path().join("none")), Listing::default());
    }
}
