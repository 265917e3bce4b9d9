//! What a merge in place is about, while the image has no map.
//!
//! The file is called as the map, with `.merging` behind. Its bytes are in `FORMAT.md`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::MAX_DEPTH;
use crate::bytes::{id_at, put, u16_at, u32_at, u64_at};
use crate::draft::Draft;
use crate::id::ImageId;
use crate::map::{MAX_MEM_SIZE, Map, OpenMapError, WriteMapError};
use crate::read_at::ReadAt;

const MAGIC: [u8; 8] = *b"ROUSEMRG";
const VERSION: u16 = 1;
/// What stands before the layers' ids.
const FIXED: usize = 40;
const ID: usize = 16;
const CRC: usize = 4;

/// A merge in place that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Journal {
    pub(super) base: ImageId,
    /// In bytes, before the merge.
    pub(super) base_size: u64,
    /// From the bottom up; at least one.
    pub(super) layers: Vec<ImageId>,
    /// What the image's map will be.
    pub(super) map: Map,
}

/// Why the journal of a merge can't be read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file could not be opened or read.
    #[error("it can't be read: {0}")]
    Io(#[from] io::Error),
    /// It is another file.
    #[error("it is no journal of a merge, or cut short")]
    NotAJournal,
    /// Another version of this program wrote it.
    #[error("its version is {found}, and this program reads version {VERSION}")]
    UnknownVersion {
        /// The version in the file.
        found: u16,
    },
    /// It is not what was written.
    #[error("its checksum is wrong")]
    Checksum,
    /// It contradicts itself.
    #[error("it contradicts itself: {0}")]
    Contradiction(&'static str),
    /// The map in it is no good.
    #[error("{0}")]
    Map(#[from] OpenMapError),
    /// The map in it has what this version can't write: the merge is for a later one to end.
    #[error("{0}; go on with the program that began it")]
    Unwritable(#[source] WriteMapError),
}

/// Where the journal of a merge into the image with the map at `map` is, from before the first
/// byte of the image changes until it is whole again. An image that has a journal and no map is
/// half merged, and good for nothing until [`merge_in_place`](super::merge_in_place()) was called
/// again.
pub fn journal_path(map: impl AsRef<Path>) -> PathBuf {
    let mut path = OsString::from(map.as_ref());
    path.push(".merging");
    path.into()
}

impl Journal {
    /// The journal at `path`, if there is one.
    pub(super) fn open(path: &Path) -> Result<Option<Self>, JournalError> {
        match fs::metadata(path) {
            Ok(meta) if meta.is_file() => Self::read(&File::open(path)?).map(Some),
            Ok(_) => Err(JournalError::NotAJournal),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn read(source: &(impl ReadAt + ?Sized)) -> Result<Self, JournalError> {
        let part = |offset, length| {
            let mut part = vec![0; length];
            source.read_exact_at(&mut part, offset).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => JournalError::NotAJournal,
                _ => JournalError::Io(error),
            })?;
            Ok::<_, JournalError>(part)
        };
        let fixed = part(0, FIXED)?;
        if fixed[..MAGIC.len()] != MAGIC {
            return Err(JournalError::NotAJournal);
        }
        let found = u16_at(&fixed, 8);
        if found != VERSION {
            return Err(JournalError::UnknownVersion { found });
        }
        let count = usize::from(u16_at(&fixed, 10));
        if !(1..=MAX_DEPTH).contains(&count) {
            return Err(JournalError::Contradiction("no merge has so many layers"));
        }
        let header = part(0, FIXED + count * ID + CRC)?;
        let (rest, crc) = header.split_at(header.len() - CRC);
        if crc32c::crc32c(rest) != u32_at(crc, 0) {
            return Err(JournalError::Checksum);
        }
        let no_id = JournalError::Contradiction("an image has no id");
        let base = id_at(rest, 16);
        let layers = (0..count).map(|n| id_at(rest, FIXED + n * ID)).collect::<Option<Vec<_>>>();
        let (Some(base), Some(layers)) = (base, layers) else { return Err(no_id) };
        let base_size = u64_at(rest, 32);
        if base_size > MAX_MEM_SIZE {
            return Err(JournalError::Contradiction("the image can't have been so large"));
        }
        let map = Map::read(&Behind { source, from: header.len() as u64 })?;
        map.check_writable().map_err(JournalError::Unwritable)?;
        if layers.last() != Some(&map.image_id()) || map.parent().is_some() {
            return Err(JournalError::Contradiction("the map is not of what is merged"));
        }
        Ok(Self { base, base_size, layers, map })
    }

    fn write_to(&self, mut to: impl Write) -> Result<(), WriteMapError> {
        let mut bytes = vec![0; FIXED];
        put(&mut bytes, 0, &MAGIC);
        put(&mut bytes, 8, &VERSION.to_le_bytes());
        put(&mut bytes, 10, &(self.layers.len() as u16).to_le_bytes());
        put(&mut bytes, 16, &self.base.to_bytes());
        put(&mut bytes, 32, &self.base_size.to_le_bytes());
        bytes.extend(self.layers.iter().flat_map(|layer| layer.to_bytes()));
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        to.write_all(&bytes).map_err(WriteMapError::Io)?;
        self.map.write_to(to)
    }

    /// Writes it so that it is durable.
    pub(super) fn write(&self, path: &Path) -> Result<(), WriteMapError> {
        let draft = Draft::create(path)?;
        self.write_to(draft.file())?;
        Ok(draft.publish(true)?)
    }
}

/// A source from a place on.
struct Behind<'a, S: ?Sized> {
    source: &'a S,
    from: u64,
}

impl<S: ReadAt + ?Sized> ReadAt for Behind<'_, S> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.source.size()?.saturating_sub(self.from))
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let offset = offset.checked_add(self.from).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.source.read_exact_at(buffer, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{PAGE, PageState, PageStates, WindowSize};

    fn id(n: u8) -> ImageId {
        ImageId::from_bytes([n; 16]).unwrap()
    }

    fn bytes(journal: &Journal) -> Vec<u8> {
        let mut bytes = Vec::new();
        journal.write_to(&mut bytes).unwrap();
        bytes
    }

    fn journal(layers: u8) -> Journal {
        let states = PageStates::all(10 * PAGE, PageState::Data);
        let layers: Vec<_> = (2..2 + layers).map(id).collect();
        let map = Map::new(*layers.last().unwrap(), None, WindowSize::DEFAULT, states).unwrap();
        Journal { base: id(1), base_size: 77, layers, map }
    }

    #[test]
    fn it_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = journal_path(dir.path().join("memory.map"));
        assert!(path.ends_with("memory.map.merging"));
        assert_eq!(Journal::open(&path).unwrap(), None);
        for layers in [1, 8] {
            journal(layers).write(&path).unwrap();
            assert_eq!(Journal::open(&path).unwrap(), Some(journal(layers)));
        }
        assert!(matches!(Journal::open(dir.path()), Err(JournalError::NotAJournal)));
    }

    #[test]
    fn no_changed_byte_changes_what_is_read() {
        let journal = journal(2);
        let bytes = bytes(&journal);
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut wrong = bytes.clone();
                wrong[at] ^= flip;
                if let Ok(read) = Journal::read(&wrong) {
                    assert_eq!(read, journal, "byte {at}");
                }
            }
            assert!(Journal::read(&bytes[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn what_no_merge_writes_is_refused() {
        let with = |change: &dyn Fn(&mut Journal)| {
            let mut journal = journal(2);
            change(&mut journal);
            Journal::read(&bytes(&journal)).unwrap_err()
        };
        let contradicts = |error| matches!(error, JournalError::Contradiction(_));
        assert!(contradicts(with(&|j| j.layers = vec![id(3); 9])));
        assert!(contradicts(with(&|j| j.layers.clear())));
        assert!(contradicts(with(&|j| j.layers[1] = id(9))));
        assert!(contradicts(with(&|j| j.base_size = MAX_MEM_SIZE + 1)));
        let states = PageStates::all(PAGE, PageState::Parent);
        let layer = Map::new(id(3), Some(id(9)), WindowSize::DEFAULT, states).unwrap();
        assert!(contradicts(with(&|j| j.map = layer.clone())));

        let mut later = bytes(&journal(1));
        // The map's ro_compat, and its header's checksum.
        let map = FIXED + ID + CRC;
        later[map + 24] = 4;
        let end = map + u32_at(&later, map + 12) as usize - CRC;
        let crc = crc32c::crc32c(&later[map..end]);
        put(&mut later, end, &crc.to_le_bytes());
        assert!(matches!(Journal::read(&later), Err(JournalError::Unwritable(_))));

        let mut bytes = bytes(&journal(1));
        bytes[8] = 2;
        let later = Journal::read(&bytes).unwrap_err();
        assert!(matches!(later, JournalError::UnknownVersion { found: 2 }), "{later}");
        assert!(matches!(Journal::read(&b"ROUSEMAP"[..]), Err(JournalError::NotAJournal)));
    }
}
