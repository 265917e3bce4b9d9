//! From the end of an archive to its index.

use std::io;

use zeekstd::{BytesWrapper, SEEK_TABLE_INTEGRITY_SIZE, SeekTable};

use super::index::{Index, IndexError};
use super::layout::{
    HEADER_FRAME, Header, HeaderError, INDEX_FRAME, MAX_HEADER, SKIPPABLE, skippable,
};
use crate::bytes::u32_at;
use crate::read_at::ReadAt;
use crate::units::MAX_WINDOWS;

/// How much of an archive's end is read at once, in bytes: seek table and index of a guest of some
/// GiB, so that over a network one request is enough.
const TAIL: u64 = 1024 * 1024;

/// Bytes of an entry of the seek table, by its specification.
const ENTRY: u64 = 8;
/// What the seek table has besides entries: a skippable frame's header and the integrity field.
const AROUND_ENTRIES: u64 = (SKIPPABLE + SEEK_TABLE_INTEGRITY_SIZE) as u64;
/// Entries of the seek table besides the frames': the header's and the index's.
const EXTRA_ENTRIES: u64 = 2;

/// Why a file could not be opened as an archive.
#[derive(Debug, thiserror::Error)]
pub enum OpenArchiveError {
    /// It could not be read.
    #[error("the archive can't be read at offset {offset}: {source}")]
    Read {
        /// Where, in bytes.
        offset: u64,
        /// What reading it said.
        source: io::Error,
    },
    /// It ends without a seek table: it is something else, or cut short.
    #[error("this is no archive, or one that is cut short: it does not end in a seek table")]
    NoSeekTable,
    /// Its seek table has a form that no archive has.
    #[error("the archive's seek table is wrong: {0}")]
    SeekTable(String),
    /// Its seek table tells of other frames than its index.
    #[error("the archive's seek table and its index differ in frame {frame}")]
    Differ {
        /// The frame's number in the seek table, where the header is number 0.
        frame: u32,
    },
    /// The index is wrong.
    #[error("the archive's index, at offset {offset}: {source}")]
    Index {
        /// Where it starts, in bytes.
        offset: u64,
        /// What is wrong with it.
        source: IndexError,
    },
}

impl OpenArchiveError {
    /// Whether it is what is in the file that is wrong: neither the reading of it, nor that it is of
    /// a later version and may be as good as ever.
    pub fn is_damage(&self) -> bool {
        !matches!(self, Self::Read { .. }) && !self.is_unknown()
    }

    /// Whether a later version of this program may read it.
    pub fn is_unknown(&self) -> bool {
        let header = match self {
            Self::Index { source: IndexError::Header(header), .. } => header,
            _ => return false,
        };
        header.is_unknown()
    }
}

/// Where an archive's parts lie, by its seek table.
struct Tail {
    table: SeekTable,
    index: std::ops::Range<u64>,
}

pub(super) fn open(source: &(impl ReadAt + ?Sized)) -> Result<Index, OpenArchiveError> {
    let size = source.size().map_err(|source| OpenArchiveError::Read { offset: 0, source })?;
    let near = size.saturating_sub(TAIL);
    let end = End { source, from: near, bytes: read(source, near, size)? };
    let Tail { table, index } = find(&end, size)?;
    let wrong = |source| OpenArchiveError::Index { offset: index.start, source };

    let frames = u64::from(table.num_frames()) - EXTRA_ENTRIES;
    let length = index.end - index.start - SKIPPABLE as u64;
    let payload = index.start + SKIPPABLE as u64;
    let frame = end.part(index.start..payload)?;
    if u32_at(&frame, 0) != INDEX_FRAME || u64::from(u32_at(&frame, 4)) != length {
        return Err(wrong(IndexError::NotAnIndex));
    }
    let start = end.part(payload..payload + length.min(Index::START))?;
    Index::check_start(&start, length, frames).map_err(wrong)?;
    let bytes = end.part(payload..index.end)?;
    drop(end);
    let parsed = Index::parse(bytes, index.start).map_err(wrong)?;
    same(&table, &parsed)?;
    Ok(parsed)
}

/// Reads the seek table, which is bounded by the file's size before anything is allocated for it.
fn find(end: &End<'_, impl ReadAt + ?Sized>, size: u64) -> Result<Tail, OpenArchiveError> {
    let integrity = size
        .checked_sub(SEEK_TABLE_INTEGRITY_SIZE as u64)
        .map(|start| end.part(start..size))
        .ok_or(OpenArchiveError::NoSeekTable)??;
    if u32_at(&integrity, 5) != zeekstd::SEEKABLE_MAGIC_NUMBER {
        return Err(OpenArchiveError::NoSeekTable);
    }
    if integrity[4] & 0x80 != 0 {
        return Err(OpenArchiveError::SeekTable("it has checksums, which ours have not".into()));
    }
    let entries = u64::from(u32_at(&integrity, 0));
    if !(EXTRA_ENTRIES..=MAX_WINDOWS + EXTRA_ENTRIES).contains(&entries) {
        return Err(OpenArchiveError::SeekTable(format!("it has {entries} entries")));
    }
    let start = size
        .checked_sub(entries * ENTRY + AROUND_ENTRIES)
        .ok_or_else(|| OpenArchiveError::SeekTable("it is longer than the file".into()))?;
    let table = SeekTable::from_seekable(&mut BytesWrapper::new(&end.part(start..size)?))
        .map_err(|error| OpenArchiveError::SeekTable(error.to_string()))?;
    if table.size_comp() != start {
        let said = table.size_comp();
        let what = format!("its frames end at offset {said}, and it starts at {start}");
        return Err(OpenArchiveError::SeekTable(what));
    }
    let last = table.num_frames() - 1;
    let index = table
        .frame_start_comp(last)
        .map_err(|error| OpenArchiveError::SeekTable(error.to_string()))?;
    if start - index < SKIPPABLE as u64 {
        return Err(OpenArchiveError::SeekTable(format!(
            "its last frame has {} bytes",
            start - index
        )));
    }
    Ok(Tail { table, index: index..start })
}

/// The seek table is what other tools go by, so it must say the same as the index.
fn same(table: &SeekTable, index: &Index) -> Result<(), OpenArchiveError> {
    let frames = index.frames() as u32;
    let differ = |frame| OpenArchiveError::Differ { frame };
    if table.num_frames() != frames + EXTRA_ENTRIES as u32 {
        return Err(differ(table.num_frames()));
    }
    let entry = |frame| (table.frame_size_comp(frame).ok(), table.frame_size_decomp(frame).ok());
    let header = index.frame(0).map_or_else(|| table.frame_start_comp(1).ok(), |f| Some(f.offset));
    if entry(0) != (header, Some(0)) || header.is_none_or(|h| h > (MAX_HEADER + SKIPPABLE) as u64) {
        return Err(differ(0));
    }
    for number in 0..frames {
        let said = index
            .frame(number as usize)
            .map(|frame| (Some(frame.length.into()), Some(frame.raw_length.into())));
        if said != Some(entry(number + 1)) {
            return Err(differ(number + 1));
        }
    }
    if entry(frames + 1).1 != Some(0) {
        return Err(differ(frames + 1));
    }
    Ok(())
}

/// A source whose end is in memory.
struct End<'a, R: ?Sized> {
    source: &'a R,
    from: u64,
    bytes: Vec<u8>,
}

impl<R: ReadAt + ?Sized> End<'_, R> {
    /// The bytes of a range that lies within the file.
    fn part(&self, range: std::ops::Range<u64>) -> Result<Vec<u8>, OpenArchiveError> {
        match range.start.checked_sub(self.from) {
            Some(start) => {
                let start = start as usize;
                Ok(self.bytes[start..start + (range.end - range.start) as usize].to_vec())
            }
            None => read(self.source, range.start, range.end),
        }
    }
}

fn read(
    source: &(impl ReadAt + ?Sized),
    offset: u64,
    end: u64,
) -> Result<Vec<u8>, OpenArchiveError> {
    let mut bytes = vec![0; (end - offset) as usize];
    source
        .read_exact_at(&mut bytes, offset)
        .map_err(|source| OpenArchiveError::Read { offset, source })?;
    Ok(bytes)
}

/// Reads the header at an archive's start and says whether it is the one in the index: a reader
/// that goes by the index alone does not need it, one that reads from the start does.
pub(super) fn check_header(
    source: &(impl ReadAt + ?Sized),
    index: &Index,
) -> Result<(), CheckHeaderError> {
    let header = index.header();
    let mut bytes = vec![0; SKIPPABLE + header.len()];
    source.read_exact_at(&mut bytes, 0).map_err(CheckHeaderError::Read)?;
    let (frame, there) = bytes.split_at(SKIPPABLE);
    if frame != skippable(HEADER_FRAME, header.len() as u32) {
        return Err(CheckHeaderError::Frame);
    }
    if there != header {
        Header::parse(there)?;
        return Err(CheckHeaderError::Differ);
    }
    Ok(())
}

/// What is wrong with an archive's start.
#[derive(Debug, thiserror::Error)]
pub enum CheckHeaderError {
    /// It can't be read.
    #[error("the archive can't be read at offset 0: {0}")]
    Read(io::Error),
    /// There is no skippable frame of the header's length.
    #[error("the archive does not start with a header's frame")]
    Frame,
    /// The header is wrong.
    #[error("at offset 8: {0}")]
    Header(#[from] HeaderError),
    /// It says other things than its copy.
    #[error("the header at the archive's start is not the one in its index")]
    Differ,
}
