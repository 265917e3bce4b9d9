//! `entry.json`: what an entry's directory holds, and whether it still does.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, Stat, fstat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::disk::{self, Found};
use crate::id::ContentId;
use crate::policy::{Inode, Part};

/// The record's name.
pub(crate) const RECORD: &str = "entry.json";
/// The lock's name. Its time of last change is the entry's last use.
pub(crate) const LOCK: &str = "lock";
/// Of the record. Another is not ours to read.
const FORMAT: u32 = 1;
/// A record is shorter, in bytes: 16 names and sizes.
const MAX_RECORD: u64 = 8 << 10;
/// The most files of an entry.
pub(crate) const MAX_FILES: usize = 16;
/// The longest name of a file, in bytes.
const MAX_NAME: usize = 64;

/// A file of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryFile {
    /// Its name in the entry's directory.
    pub name: String,
    /// Its length in bytes, holes included.
    pub size: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    format: u32,
    id: String,
    files: Vec<EntryFile>,
}

/// An entry's directory as it was found whole.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    /// In the order of their names.
    pub(crate) files: Vec<EntryFile>,
    /// The files and the record, as they were.
    known: Vec<(String, Seen)>,
    /// The directory and everything in it.
    pub(crate) parts: Vec<Part>,
    /// When it was last used, in milliseconds of Unix time.
    pub(crate) last_use_unix_ms: u64,
}

/// What tells a file from another that has its name now: inode, length, and the time of the last write,
/// since numbers of inodes come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    inode: Inode,
    size: i64,
    written: (i64, u64),
}

impl Seen {
    fn of(stat: &Stat) -> Self {
        let written = (stat.st_mtime, stat.st_mtime_nsec);
        Self { inode: disk::part(stat).inode, size: stat.st_size, written }
    }
}

/// Why an entry is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// It is not what its record says.
    #[error("{0}")]
    Differs(String),
    /// It can't be looked at, and may be as good as ever.
    #[error(transparent)]
    Unread(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        match errno {
            Some(Errno::NOENT) => Self::Differs("something is missing".into()),
            Some(Errno::LOOP | Errno::NOTDIR) => Self::Differs("something is a link".into()),
            Some(Errno::ISDIR | Errno::NXIO) => Self::Differs("something is no plain file".into()),
            // What the disk can't give back is lost.
            Some(Errno::IO | Errno::UCLEAN) => Self::Differs(error.to_string()),
            None => Self::Differs(error.to_string()),
            Some(_) => Self::Unread(error),
        }
    }
}

/// Whether a file of an entry may be called that: lower-case letters, digits, `.`, `-`, `_`, no `.` first,
/// and no name of ours.
pub(crate) fn is_file_name(name: &str) -> bool {
    let plain = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(plain)
        && !name.starts_with('.')
        && name != RECORD
        && name != LOCK
}

/// Writes the record into a draft, and syncs it.
pub(crate) fn write(dir: BorrowedFd<'_>, id: &ContentId, files: &[EntryFile]) -> io::Result<()> {
    let record = Record { format: FORMAT, id: id.to_string(), files: files.to_vec() };
    let mut file = disk::create_file(dir, RECORD)?;
    file.write_all(&serde_json::to_vec(&record)?)?;
    file.sync_all()
}

/// Looks at the whole directory of `id`, and compares it with its record.
pub(crate) fn load(root: BorrowedFd<'_>, id: &ContentId) -> Result<Contents, Fault> {
    let differs = |what: String| Fault::Differs(what);
    let dir = disk::open_dir(root, &id.to_string())?;
    let record = read(dir.as_fd())?;
    if record.format != FORMAT {
        return Err(differs(format!("{RECORD} has format {}, not {FORMAT}", record.format)));
    }
    if record.id != id.to_string() {
        return Err(differs(format!("{RECORD} is of {}", record.id)));
    }
    let mut found = disk::list(dir.as_fd(), disk::MAX_NAMES)?;
    let lock = take(&mut found, LOCK)?;
    let own = take(&mut found, RECORD)?;
    let mut known = Vec::new();
    let mut parts = vec![disk::part(&fstat(&dir).map_err(io::Error::from)?)];
    for file in &record.files {
        let there = take(&mut found, &file.name)?;
        if size(&there) != file.size {
            let is = size(&there);
            return Err(differs(format!("{} has {is} bytes, not {}", file.name, file.size)));
        }
        parts.push(disk::part(&there.stat));
        known.push((file.name.clone(), Seen::of(&there.stat)));
    }
    if let Some(other) = found.first() {
        return Err(differs(format!("{:?} is not in {RECORD}", other.name)));
    }
    known.push((RECORD.into(), Seen::of(&own.stat)));
    parts.extend([disk::part(&own.stat), disk::part(&lock.stat)]);
    let seconds = u64::try_from(lock.stat.st_mtime).unwrap_or(0);
    let rest = lock.stat.st_mtime_nsec / 1_000_000;
    let last_use_unix_ms = seconds.saturating_mul(1000).saturating_add(rest);
    Ok(Contents { files: record.files, known, parts, last_use_unix_ms })
}

/// Whether the files are still those that [`load`] found. Cheap enough for every use.
pub(crate) fn check(root: BorrowedFd<'_>, id: &ContentId, was: &Contents) -> Result<(), Fault> {
    let dir = disk::open_dir(root, &id.to_string())?;
    for (name, seen) in &was.known {
        if Seen::of(&disk::stat(dir.as_fd(), name)?) != *seen {
            return Err(Fault::Differs(format!("{name} is another file than it was")));
        }
    }
    Ok(())
}

fn read(dir: BorrowedFd<'_>) -> Result<Record, Fault> {
    let mut bytes = Vec::new();
    disk::open_file(dir, RECORD)?.take(MAX_RECORD + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_RECORD {
        return Err(Fault::Differs(format!("{RECORD} is longer than {MAX_RECORD} bytes")));
    }
    let record: Record = serde_json::from_slice(&bytes)
        .map_err(|error| Fault::Differs(format!("{RECORD}: {error}")))?;
    if record.files.len() > MAX_FILES {
        return Err(Fault::Differs(format!("{RECORD} names more than {MAX_FILES} files")));
    }
    match record.files.iter().find(|file| !is_file_name(&file.name)) {
        Some(file) => Err(Fault::Differs(format!("{RECORD} names {:?}", file.name))),
        None => Ok(record),
    }
}

/// The plain file called `name`, out of what was found.
fn take(found: &mut Vec<Found>, name: &str) -> Result<Found, Fault> {
    let at = found.iter().position(|found| found.name.as_deref() == Some(name));
    let at = at.ok_or_else(|| Fault::Differs(format!("{name} is missing")))?;
    let there = found.swap_remove(at);
    if !there.is(FileType::RegularFile) {
        return Err(Fault::Differs(format!("{name} is no plain file")));
    }
    Ok(there)
}

fn size(found: &Found) -> u64 {
    u64::try_from(found.stat.st_size).unwrap_or(u64::MAX)
}
