//! The files of a directory store. Everything here blocks.
//!
//! A file ends in a tail of [`TAIL`] bytes: [`MAGIC`] and the BLAKE3 of what is before it. So bytes
//! and version appear together, and a look costs no reading of the whole.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, ResolveFlags, flock, fsync, mkdirat, openat2, renameat,
    unlinkat,
};
use rustix::io::Errno;

use super::{CHUNK, Failed, Held};
use crate::{Key, MAX_PARTS, Meta, Part, Upload, Version};

const MAGIC: &[u8; 8] = b"rouse-o1";
const TAIL: u64 = 40;
/// Keys share this many locks, by their hash.
const LOCKS: u8 = 64;

const INSIDE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

#[derive(Debug)]
pub(super) struct Files {
    root: OwnedFd,
    own: PathBuf,
    count: AtomicU64,
}

/// A file that nobody sees yet. It is locked while it is written, and removed unless published.
pub(super) struct Draft {
    path: PathBuf,
    file: File,
    hash: blake3::Hasher,
}

impl Draft {
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        self.hash.update(bytes);
        Ok(self.file.write_all(bytes)?)
    }

    fn seal(&mut self) -> Result<Version, Failed> {
        let hash = self.hash.finalize();
        self.file.write_all(MAGIC)?;
        self.file.write_all(hash.as_bytes())?;
        self.file.sync_all()?;
        Ok(Version::new(hash.to_hex().as_str()))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Gone already where it was published.
        let _ = fs::remove_file(&self.path);
    }
}

fn unix_ms(time: std::io::Result<SystemTime>) -> u64 {
    let since = time.ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

fn meta_of(file: &File) -> Result<Meta, Failed> {
    let stat = file.metadata()?;
    let Some(size) = stat.len().checked_sub(TAIL).filter(|_| stat.is_file()) else {
        return Err(Failed::Corrupt("its file is too short to be one of ours"));
    };
    let mut tail = [0; TAIL as usize];
    file.read_exact_at(&mut tail, size)?;
    let Some(hash) = tail.strip_prefix(MAGIC).and_then(|h| blake3::Hash::from_slice(h).ok()) else {
        return Err(Failed::Corrupt("its file does not end as ours do"));
    };
    let version = Version::new(hash.to_hex().as_str());
    Ok(Meta { size, version, written_unix_ms: unix_ms(stat.modified()) })
}

fn sync_dir(path: &std::path::Path) -> Result<(), Failed> {
    Ok(File::open(path)?.sync_all()?)
}

impl Files {
    pub(super) fn open(root: PathBuf) -> std::io::Result<Self> {
        let own = root.join(".store");
        for dir in ["drafts", "uploads", "locks"] {
            fs::create_dir_all(own.join(dir))?;
        }
        for draft in fs::read_dir(own.join("drafts"))? {
            let path = draft?.path();
            // Whoever writes it holds its lock.
            let Ok(file) = File::open(&path) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                fs::remove_file(&path)?;
            }
        }
        let dir = File::open(&root)?;
        dir.sync_all()?;
        Ok(Self { root: dir.into(), own, count: AtomicU64::new(0) })
    }

    fn name(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        format!("{now:x}-{:x}-{count:x}", std::process::id())
    }

    pub(super) fn draft(&self) -> Result<Draft, Failed> {
        loop {
            let path = self.own.join("drafts").join(self.name());
            let file = File::create_new(&path)?;
            flock(&file, FlockOperation::LockExclusive)?;
            // Whoever opened the store before it was locked has taken it for one left over.
            if file.metadata()?.nlink() > 0 {
                return Ok(Draft { path, file, hash: blake3::Hasher::new() });
            }
        }
    }

    /// What holds off every other writer of `key`, in any process, until it is dropped.
    fn lock(&self, key: &Key) -> Result<File, Failed> {
        let which = blake3::hash(key.as_str().as_bytes()).as_bytes()[0] % LOCKS;
        let path = self.own.join("locks").join(which.to_string());
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    fn dir(&self, path: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if path.is_empty() { "." } else { path };
        openat2(&self.root, path, flags, Mode::empty(), INSIDE)
    }

    pub(super) fn look(&self, key: &Key) -> Result<(File, Meta), Failed> {
        // Not waiting for a writer, should somebody have put a pipe there.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat2(&self.root, format!("{key}@"), flags, Mode::empty(), INSIDE)?;
        let file = File::from(file);
        let meta = meta_of(&file)?;
        Ok((file, meta))
    }

    pub(super) fn publish(
        &self,
        key: &Key,
        mut draft: Draft,
        held: &Held,
    ) -> Result<Version, Failed> {
        let version = draft.seal()?;
        let (above, name) = key.as_str().rsplit_once('/').unwrap_or(("", key.as_str()));
        let _lock = self.lock(key)?;
        let there = match self.look(key) {
            Ok((_, meta)) => Some(meta.version),
            Err(Failed::Io(e)) if e.kind() == ErrorKind::NotFound => None,
            // Whoever replaces it without asking may replace what is broken.
            Err(Failed::Corrupt(_)) if matches!(held, Held::Always) => None,
            Err(e) => return Err(e),
        };
        let holds = match held {
            Held::Always => true,
            Held::Absent => there.is_none(),
            Held::Unchanged(version) => there.as_ref() == Some(version),
        };
        if !holds {
            return Err(Failed::Changed);
        }
        let mut dir = self.dir("")?;
        for (end, _) in
            above.match_indices('/').chain((!above.is_empty()).then_some((above.len(), "")))
        {
            let part = above[..end].rsplit('/').next().unwrap_or_default();
            match mkdirat(&dir, part, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => fsync(&dir)?,
                Err(e) => return Err(e.into()),
            }
            dir = self.dir(&above[..end])?;
        }
        renameat(rustix::fs::CWD, &draft.path, &dir, format!("{name}@"))?;
        fsync(&dir)?;
        Ok(version)
    }

    pub(super) fn delete(&self, key: &Key) -> Result<(), Failed> {
        let (above, name) = key.as_str().rsplit_once('/').unwrap_or(("", key.as_str()));
        let _lock = self.lock(key)?;
        let dir = match self.dir(above) {
            Err(Errno::NOENT) => return Ok(()),
            dir => dir?,
        };
        match unlinkat(&dir, format!("{name}@"), AtFlags::empty()) {
            Ok(()) => Ok(fsync(&dir)?),
            Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Tells of every key under `prefix`, in no order. Links are passed by.
    pub(super) fn walk(&self, prefix: &Key, tell: &mut impl FnMut(Key)) -> Result<(), Failed> {
        let mut left = vec![prefix.clone()];
        while let Some(at) = left.pop() {
            let dir = match self.dir(at.as_str()) {
                Err(Errno::NOENT) => continue,
                dir => dir?,
            };
            for entry in rustix::fs::Dir::read_from(&dir)? {
                let entry = entry?;
                let Ok(name) = entry.file_name().to_str() else { continue };
                match name.strip_suffix('@') {
                    Some(_) if entry.file_type().is_symlink() => {}
                    Some(name) => at.join(name).into_iter().for_each(&mut *tell),
                    None if entry.file_type().is_dir() => left.extend(at.join(name)),
                    None => {}
                }
            }
        }
        Ok(())
    }

    fn upload(&self, id: &str) -> Result<PathBuf, Failed> {
        if id.is_empty() || !id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-') {
            return Err(Failed::Refused("the upload's id is none of ours"));
        }
        Ok(self.own.join("uploads").join(id))
    }

    /// The upload's directory, which is one for `key`.
    fn upload_of(&self, key: &Key, id: &str) -> Result<PathBuf, Failed> {
        let dir = self.upload(id)?;
        if fs::read_to_string(dir.join("key"))? != key.as_str() {
            return Err(Failed::Refused("the upload is one of another key"));
        }
        Ok(dir)
    }

    pub(super) fn begin(&self, key: &Key) -> Result<Upload, Failed> {
        let id = self.name();
        let dir = self.upload(&id)?;
        fs::create_dir(&dir)?;
        let mut draft = self.draft()?;
        draft.file.write_all(key.as_str().as_bytes())?;
        draft.file.sync_all()?;
        fs::rename(&draft.path, dir.join("key"))?;
        sync_dir(&dir)?;
        sync_dir(&self.own.join("uploads"))?;
        let begun = unix_ms(Ok(SystemTime::now()));
        Ok(Upload { key: key.clone(), id, begun_unix_ms: Some(begun) })
    }

    pub(super) fn put_part(
        &self,
        key: &Key,
        id: &str,
        number: u32,
        bytes: &[u8],
    ) -> Result<Part, Failed> {
        if !(1..=MAX_PARTS).contains(&number) {
            return Err(Failed::Refused("a part's number is from 1 to 10000"));
        }
        let dir = self.upload_of(key, id)?;
        let mut draft = self.draft()?;
        draft.write(bytes)?;
        let tag = draft.seal()?.as_str().to_owned();
        fs::rename(&draft.path, dir.join(number.to_string()))?;
        sync_dir(&dir)?;
        Ok(Part { number, tag, size: bytes.len() as u64 })
    }

    pub(super) fn parts(&self, key: &Key, id: &str) -> Result<Vec<Part>, Failed> {
        let mut parts = Vec::new();
        for entry in fs::read_dir(self.upload_of(key, id)?)? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(number) = number.filter(|n| (1..=MAX_PARTS).contains(n)) else { continue };
            let meta = meta_of(&File::open(entry.path())?)?;
            parts.push(Part { number, tag: meta.version.as_str().to_owned(), size: meta.size });
        }
        parts.sort_by_key(|part| part.number);
        Ok(parts)
    }

    pub(super) fn complete(
        &self,
        key: &Key,
        id: &str,
        parts: &[Part],
        held: &Held,
    ) -> Result<Version, Failed> {
        let dir = self.upload_of(key, id)?;
        if parts.is_empty() || !parts.is_sorted_by(|a, b| a.number < b.number) {
            return Err(Failed::Refused("an upload is completed by its parts, in their order"));
        }
        let mut draft = self.draft()?;
        let mut chunk = vec![0; CHUNK];
        for part in parts {
            let file = match File::open(dir.join(part.number.to_string())) {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    return Err(Failed::Refused("a part has not arrived"));
                }
                file => file?,
            };
            let meta = meta_of(&file)?;
            if (meta.version.as_str(), meta.size) != (&part.tag, part.size) {
                return Err(Failed::Refused("a part has been replaced"));
            }
            let mut hash = blake3::Hasher::new();
            let mut at = 0;
            while at < meta.size {
                let len = (meta.size - at).min(CHUNK as u64);
                let some = &mut chunk[..len as usize];
                file.read_exact_at(some, at)?;
                hash.update(some);
                draft.write(some)?;
                at += len;
            }
            if hash.finalize().to_hex().as_str() != part.tag {
                return Err(Failed::Corrupt("a part's bytes are not what was sent"));
            }
        }
        let version = self.publish(key, draft, held)?;
        self.abort(id)?;
        Ok(version)
    }

    pub(super) fn abort(&self, id: &str) -> Result<(), Failed> {
        match fs::remove_dir_all(self.upload(id)?) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e.into()),
            _ => sync_dir(&self.own.join("uploads")),
        }
    }

    pub(super) fn uploads(&self, prefix: &Key) -> Result<Vec<Upload>, Failed> {
        let mut uploads = Vec::new();
        for entry in fs::read_dir(self.own.join("uploads"))? {
            let file = entry?.path().join("key");
            // One that was cut off as it began, or is aborted just now, has none.
            let Ok(text) = fs::read_to_string(&file) else { continue };
            let Ok(key) = Key::new(text) else { continue };
            let id = file.parent().and_then(|dir| dir.file_name()).and_then(|id| id.to_str());
            if let (true, Some(id)) = (key.is_under(prefix), id) {
                let begun = unix_ms(fs::metadata(&file).and_then(|stat| stat.modified()));
                uploads.push(Upload { key, id: id.to_owned(), begun_unix_ms: Some(begun) });
            }
        }
        uploads.sort_by(|a, b| (&a.key, &a.id).cmp(&(&b.key, &b.id)));
        Ok(uploads)
    }
}
