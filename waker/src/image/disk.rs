//! An app's disk: one sparse raw file that goes with its life's directory, and what it is known by.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::files::{read_small, reflink, sync_dir, write_durably};
use super::{DISK, DISK_ID};
use crate::config::DiskConfig;
use crate::fault;

/// How much of a disk's begin is hashed: a file system's superblock is in it.
const HEAD: usize = 64 * 1024;

/// `disk.json`: which disk the file beside it is. It never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskId {
    /// Random, hexadecimal.
    pub id: String,
}

/// A disk as it was when its app fell asleep. The memory of that sleep knows this disk and no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSeal {
    /// [`DiskId::id`].
    pub id: String,
    /// The disk's size in bytes.
    pub bytes: u64,
    /// When it was last written to, in nanoseconds of Unix time. Whoever mounts, repairs or restores
    /// it meanwhile changes this.
    pub written_unix_ns: i64,
    /// BLAKE3 of its first 64 KiB, hexadecimal.
    pub head_blake3: String,
}

/// Why a disk could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A file can't be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file system could not be made.
    #[error("{program} could not make the disk's file system: {detail}")]
    MakeFs {
        /// The program.
        program: PathBuf,
        /// What it said.
        detail: String,
    },
    /// There is an id and no disk: it was removed, or is somewhere else.
    #[error(
        "{0} is missing: put the disk back, or remove {DISK_ID} beside it to start with an empty one"
    )]
    Missing(PathBuf),
    /// There is a disk and no id.
    #[error("{0} is there without its {DISK_ID}: that file names the disk, restore both")]
    Nameless(PathBuf),
}

impl DiskSeal {
    /// The disk in `directory` as it is now.
    pub(super) fn of(directory: &Path) -> io::Result<Self> {
        let DiskId { id } = read_id(directory)?;
        let file = File::open(directory.join(DISK))?;
        let metadata = file.metadata()?;
        let mut head = vec![0; HEAD];
        let mut filled = 0;
        while filled < HEAD {
            match file.read_at(&mut head[filled..], filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        let nanoseconds = metadata.mtime().saturating_mul(1_000_000_000);
        Ok(Self {
            id,
            bytes: metadata.len(),
            written_unix_ns: nanoseconds.saturating_add(metadata.mtime_nsec()),
            head_blake3: blake3::hash(&head[..filled]).to_hex().to_string(),
        })
    }

    /// What tells the two apart, as sealed and as it is; none when they are one.
    pub(super) fn differs(&self, now: &Self) -> Option<(&'static str, String, String)> {
        let texts = |what, sealed: &dyn ToString, now: &dyn ToString| {
            Some((what, sealed.to_string(), now.to_string()))
        };
        if self.id != now.id {
            texts("disk id", &self.id, &now.id)
        } else if self.bytes != now.bytes {
            texts("disk size", &self.bytes, &now.bytes)
        } else if self.written_unix_ns != now.written_unix_ns {
            texts("disk's last write", &self.written_unix_ns, &now.written_unix_ns)
        } else if self.head_blake3 != now.head_blake3 {
            texts("disk's begin", &self.head_blake3, &now.head_blake3)
        } else {
            None
        }
    }
}

fn read_id(directory: &Path) -> io::Result<DiskId> {
    serde_json::from_slice(&read_small(&directory.join(DISK_ID))?)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("{DISK_ID}: {e}")))
}

/// Makes the disk in `directory`, if it has none. Durable when it returns.
pub(super) fn provide(directory: &Path, config: &DiskConfig) -> Result<(), DiskError> {
    let (disk, id_draft) = (directory.join(DISK), directory.join(".disk.id"));
    let there = |path: &Path| {
        path.try_exists().map_err(|source| DiskError::File { path: path.to_owned(), source })
    };
    let found = (there(&disk)?, there(&directory.join(DISK_ID))?);
    if found == (true, false) && there(&id_draft)? {
        // Cut off between the two renames below.
        return fs::rename(&id_draft, directory.join(DISK_ID))
            .and_then(|()| sync_dir(directory))
            .map_err(|source| DiskError::File { path: id_draft, source });
    }
    match found {
        (true, true) => return Ok(()),
        (false, true) => return Err(DiskError::Missing(disk)),
        (true, false) => return Err(DiskError::Nameless(disk)),
        (false, false) => {}
    }
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| DiskError::File { path, source }
    };
    let draft = directory.join(".disk.img");
    super::files::remove_file(&draft).map_err(file(&draft))?;
    fault::hit("disk").map_err(file(&draft))?;
    match &config.template {
        Some(template) => copy(template, &draft).map_err(file(template))?,
        None => {
            make_fs(&draft, config)?;
        }
    }
    let made = OpenOptions::new().write(true).open(&draft).map_err(file(&draft))?;
    let size = made.metadata().map_err(file(&draft))?.len();
    made.set_len(size.max(config.bytes())).and_then(|()| made.sync_all()).map_err(file(&draft))?;
    // When the disk has its name, its id is there at least as a draft.
    let id = DiskId { id: hex::encode(rand::random::<[u8; 16]>()) };
    let text = serde_json::to_vec(&id).map_err(io::Error::from);
    text.and_then(|text| write_durably(&id_draft, &text)).map_err(file(&id_draft))?;
    fs::rename(&draft, &disk)
        .and_then(|()| fs::rename(&id_draft, directory.join(DISK_ID)))
        .and_then(|()| sync_dir(directory))
        .map_err(file(&disk))
}

/// An empty ext4, made by e2fsprogs.
fn make_fs(path: &Path, config: &DiskConfig) -> Result<(), DiskError> {
    let file = |source| DiskError::File { path: path.to_owned(), source };
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.and_then(|made| made.set_len(config.bytes())).map_err(file)?;
    let program = config.mkfs.clone();
    let refused = |detail| DiskError::MakeFs { program: program.clone(), detail };
    let output = Command::new(&program)
        // The inode tables are zeroed at once and not by the guest in the background, for which a
        // sparse file is as good as written. No blocks are kept back for root.
        .args([
            "-q",
            "-F",
            "-m",
            "0",
            "-E",
            "lazy_itable_init=0,lazy_journal_init=0",
            "-L",
            "rouse",
        ])
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| refused(format!("{e} (Debian: apt-get install e2fsprogs)")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(refused(format!("{}: {}", output.status, said.trim())))
}

/// Shares blocks where it can, else copies without the holes.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if reflink(from, to)?.is_some() {
        return Ok(());
    }
    let options = rouse_snapshot_format::SparsifyOptions::default();
    let size = fs::metadata(from)?.len();
    if size % 4096 == 0 {
        return rouse_snapshot_format::sparsify_to(from, to, &options)
            .map(drop)
            .map_err(io::Error::other);
    }
    fs::copy(from, to).map(drop)
}
