//! An archive in a store whose index is here.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use futures_util::StreamExt as _;
use rouse_snapshot_format::{Archive, Index, Map, OpenArchiveError, ReadAt};
use rouse_store::{Got, Key, Span, Store, StoreError, Version};

use crate::retry::{Asked, Patience, retry};

/// How much of the end is asked for at first, in bytes: what [`Archive::open`] reads at once.
const TAIL: u64 = 1 << 20;
/// The most that an index with its seek table can have, in bytes (`FORMAT.md`: 2^20 frames of 56 bytes, 2^28
/// pages of two bits), with room: what is fetched of an end at most.
const MAX_END: u64 = 160 << 20;

/// An archive in a store: its index is in memory and is the one that the manifest vouches for, its
/// frames are not looked at yet.
pub struct Remote {
    store: Arc<dyn Store>,
    key: Key,
    version: Version,
    index: Index,
    size: u64,
    requests: u64,
}

/// Why an archive in a store can't be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenRemoteError {
    /// The store did not give it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It has another size than its manifest says.
    #[error("{key}: the archive has {there} bytes and its manifest says {expected}")]
    Size {
        /// The object.
        key: Key,
        /// Its size in bytes.
        there: u64,
        /// The manifest's.
        expected: u64,
    },
    /// Its end is no archive's.
    #[error("{key}: {source}")]
    Archive {
        /// The object.
        key: Key,
        /// What is wrong with it.
        source: OpenArchiveError,
    },
    /// It is another archive than the manifest speaks of.
    #[error("{key}: the archive's index is not the one that its manifest speaks of")]
    Other {
        /// The object.
        key: Key,
    },
}

impl OpenRemoteError {
    /// Whether the object may be good all the same, and only what came of it was not.
    fn may_be_the_way(&self) -> bool {
        match self {
            Self::Archive { source, .. } => source.is_damage(),
            Self::Other { .. } => true,
            Self::Store(error) => matches!(error, StoreError::Corrupt { .. }),
            Self::Size { .. } => false,
        }
    }
}

impl Remote {
    /// Reads the end of an archive, and holds it against what its manifest says: the size and
    /// the BLAKE3 of the index. One request, and two more at most where the index is larger than a MiB. What is
    /// damaged is read again, as often as `patience` has it: it may have been the way.
    pub async fn open(
        store: Arc<dyn Store>,
        key: Key,
        index_blake3: [u8; 32],
        size: u64,
        patience: &Patience,
    ) -> Result<Self, OpenRemoteError> {
        let asked = Asked::default();
        let mut tries = 1;
        let (version, index) = loop {
            match Self::read_index(&store, &key, index_blake3, size, patience, &asked).await {
                Ok(read) => break read,
                Err(error) if error.may_be_the_way() && tries < patience.tries => tries += 1,
                Err(error) => return Err(error),
            }
        };
        Ok(Self { store, key, version, index, size, requests: asked.requests() })
    }

    async fn read_index(
        store: &Arc<dyn Store>,
        key: &Key,
        index_blake3: [u8; 32],
        size: u64,
        patience: &Patience,
        asked: &Asked,
    ) -> Result<(Version, Index), OpenRemoteError> {
        let fetch = |span: Span, version: Option<Version>| {
            retry(patience, asked, move |_| {
                let (span, version) = (span.clone(), version.clone());
                async move { all(key, store.get(key, span, version.as_ref()).await?).await }
            })
        };
        let (there, version, range, bytes) = fetch(Span::Last(TAIL), None).await?;
        if there != size {
            return Err(OpenRemoteError::Size { key: key.clone(), there, expected: size });
        }
        if range != (size.saturating_sub(TAIL)..size) {
            return Err(wrong_range(key).into());
        }
        let mut end = End { from: range.start, size, bytes };
        let index = loop {
            let source = match Archive::open(&end) {
                Ok(archive) => break archive.into_index(),
                Err(source) => source,
            };
            let from = match &source {
                OpenArchiveError::Read { offset, .. } if *offset < end.from => *offset,
                _ => return Err(OpenRemoteError::Archive { key: key.clone(), source }),
            };
            if size - from > MAX_END {
                return Err(OpenRemoteError::Archive { key: key.clone(), source });
            }
            let missing = from..end.from;
            let (_, _, range, mut more) =
                fetch(Span::Range(missing.clone()), Some(version.clone())).await?;
            if range != missing {
                return Err(wrong_range(key).into());
            }
            more.extend_from_slice(&end.bytes);
            end = End { from, size, bytes: more };
        };
        if index.blake3() != index_blake3 {
            return Err(OpenRemoteError::Other { key: key.clone() });
        }
        Ok((version, index))
    }

    /// What it holds, and where.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The map of the image in it.
    pub fn map(&self) -> &Map {
        self.index.map()
    }

    /// How many bytes it has.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The store that it is in.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The object's key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// How many requests it took to open.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The version of the object that was opened.
    pub fn version(&self) -> &Version {
        &self.version
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("key", &self.key).finish_non_exhaustive()
    }
}

fn wrong_range(key: &Key) -> StoreError {
    StoreError::Corrupt { key: key.clone(), detail: "other bytes came than were asked for".into() }
}

type Whole = (u64, Version, std::ops::Range<u64>, BytesMut);

/// All bytes of a body that is no longer than it says, nor than an end may be.
async fn all(key: &Key, mut got: Got) -> Result<Whole, StoreError> {
    let length = got.range.end.saturating_sub(got.range.start);
    if length > MAX_END {
        return Err(wrong_range(key));
    }
    let mut bytes = BytesMut::new();
    while let Some(some) = got.body.next().await {
        let some = some?;
        if (bytes.len() + some.len()) as u64 > length {
            return Err(wrong_range(key));
        }
        bytes.extend_from_slice(&some);
    }
    if bytes.len() as u64 != length {
        return Err(wrong_range(key));
    }
    Ok((got.size, got.version, got.range, bytes))
}

/// The end of a file; what lies before it can't be read, and the error's offset says what is missing.
struct End {
    from: u64,
    size: u64,
    bytes: BytesMut,
}

impl ReadAt for End {
    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let part = offset.checked_sub(self.from).and_then(|start| {
            let start = usize::try_from(start).ok()?;
            self.bytes.get(start..start.checked_add(into.len())?)
        });
        into.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }
}
