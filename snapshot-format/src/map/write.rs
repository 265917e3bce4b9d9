//! From a map to bytes, and under its name at once or not at all.

use std::io::{self, Write};
use std::path::Path;

use super::layout::{self, Section, at, entry};
use super::{MAX_MEM_SIZE, Map, TooManyWindows};
use crate::bits;
use crate::bytes::{each_words, put};
use crate::checksums::Checksums;
use crate::draft::{Draft, WriteFileError};
use crate::id::ImageId;
use crate::units::PAGE_SHIFT;
use crate::working_set::WorkingSet;

/// Why a map could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteMapError {
    /// The image is larger than any that we take.
    #[error("the image has {mem_size} bytes, more than the {MAX_MEM_SIZE} that are allowed")]
    TooLarge {
        /// The image's size in bytes.
        mem_size: u64,
    },
    /// Its windows are too small for the image.
    #[error(transparent)]
    TooManyWindows(#[from] TooManyWindows),
    /// The map came from a file with features that this version does not know and would lose.
    #[error("the map has features that this program can't write (bits {bits:#x})")]
    ReadOnly {
        /// Their bits.
        bits: u64,
    },
    /// The file could not be written.
    #[error("the map {0}")]
    File(#[from] WriteFileError),
    /// What the map was to be written to does not take it.
    #[error("the map can't be written: {0}")]
    Io(#[source] io::Error),
}

pub(super) fn write(map: &Map, path: &Path, sync: bool) -> Result<(), WriteMapError> {
    let draft = Draft::create(path)?;
    match write_to(map, draft.file()) {
        Err(WriteMapError::Io(source)) => Err(draft.failed(source).into()),
        written => written.and_then(|()| Ok(draft.publish(sync)?)),
    }
}

pub(super) fn write_to(map: &Map, mut to: impl Write) -> Result<(), WriteMapError> {
    plan(map)?.write(map, &mut to).map_err(WriteMapError::Io)
}

pub(super) fn bytes(map: &Map) -> Result<Vec<u8>, WriteMapError> {
    let plan = plan(map)?;
    let mut bytes = Vec::with_capacity(plan.length);
    plan.write(map, &mut bytes).expect("memory takes all bytes");
    Ok(bytes)
}

/// All that stands in front of the sections, and where they go. The sections themselves are made
/// twice, once for their checksums and once to be written: a large image's are not to be in memory
/// as a whole.
struct Plan {
    header: Vec<u8>,
    sections: Vec<(Section, usize)>,
    length: usize,
}

pub(super) fn max_size(map: &Map) -> u64 {
    let bitmap = bits::words(map.pages()) * 8;
    let sections = [bitmap, bitmap, map.windows() * 8, WorkingSet::MAX_LENGTH];
    sections.iter().fold(u64::from(layout::MAX_HEADER), |end, length| {
        end.next_multiple_of(layout::ALIGN as u64) + length
    })
}

pub(super) fn check(map: &Map) -> Result<(), WriteMapError> {
    let mem_size = map.mem_size();
    if mem_size > MAX_MEM_SIZE {
        return Err(WriteMapError::TooLarge { mem_size });
    }
    if map.foreign_ro != 0 {
        return Err(WriteMapError::ReadOnly { bits: map.foreign_ro });
    }
    Ok(TooManyWindows::check(map.window, mem_size)?)
}

fn plan(map: &Map) -> Result<Plan, WriteMapError> {
    check(map)?;
    let mut kinds = vec![Section::Data, Section::Zero];
    kinds.extend(map.checksums.as_ref().map(|_| Section::Checksums));
    kinds.extend((!map.working_set.is_empty()).then_some(Section::WorkingSet));

    let mut header = header(map, kinds.len());
    let mut end = header.len();
    let mut sections = Vec::new();
    for (number, section) in kinds.into_iter().enumerate() {
        let offset = end.next_multiple_of(layout::ALIGN);
        let (mut length, mut crc) = (0, 0);
        let sum = |part: &[u8]| {
            length += part.len();
            crc = crc32c::crc32c_append(crc, part);
            Ok(())
        };
        each_part(map, section, sum).expect("summing up can't fail");
        let line = &mut header[layout::FIXED + number * layout::ENTRY..];
        put(line, entry::KIND, &(section as u32).to_le_bytes());
        put(line, entry::CRC, &crc.to_le_bytes());
        put(line, entry::OFFSET, &(offset as u64).to_le_bytes());
        put(line, entry::LENGTH, &(length as u64).to_le_bytes());
        sections.push((section, offset));
        end = offset + length;
    }
    let rest = header.len() - layout::CRC;
    let crc = crc32c::crc32c(&header[..rest]);
    put(&mut header, rest, &crc.to_le_bytes());
    Ok(Plan { header, sections, length: end })
}

/// The header with an empty section table, and without its checksum.
fn header(map: &Map, sections: usize) -> Vec<u8> {
    let length = layout::FIXED + sections * layout::ENTRY + layout::CRC;
    let counts = map.counts();
    let mut header = vec![0; length];
    put(&mut header, 0, &layout::MAGIC);
    put(&mut header, at::MAJOR, &layout::MAJOR.to_le_bytes());
    put(&mut header, at::MINOR, &layout::MINOR.to_le_bytes());
    put(&mut header, at::HEADER_LEN, &(length as u32).to_le_bytes());
    put(&mut header, at::INCOMPAT, &0_u64.to_le_bytes());
    put(&mut header, at::RO_COMPAT, &0_u64.to_le_bytes());
    put(&mut header, at::COMPAT, &0_u64.to_le_bytes());
    header[at::PAGE_SHIFT] = PAGE_SHIFT;
    header[at::WINDOW_SHIFT] = map.window.shift();
    put(&mut header, at::SECTIONS, &(sections as u16).to_le_bytes());
    put(&mut header, at::MEM_SIZE, &map.mem_size().to_le_bytes());
    put(&mut header, at::IMAGE_ID, &map.image_id.to_bytes());
    put(&mut header, at::PARENT_ID, &map.parent.map_or([0; 16], ImageId::to_bytes));
    put(&mut header, at::DATA_PAGES, &counts.data.to_le_bytes());
    put(&mut header, at::ZERO_PAGES, &counts.zero.to_le_bytes());
    put(&mut header, at::PARENT_PAGES, &counts.parent.to_le_bytes());
    header
}

impl Plan {
    fn write(&self, map: &Map, to: &mut impl Write) -> io::Result<()> {
        to.write_all(&self.header)?;
        let mut at = self.header.len();
        for (section, offset) in &self.sections {
            to.write_all(&[0; layout::ALIGN][..offset - at])?;
            at = *offset;
            each_part(map, *section, |part| {
                at += part.len();
                to.write_all(part)
            })?;
        }
        Ok(())
    }
}

/// The bytes of a section, part by part.
fn each_part(
    map: &Map,
    section: Section,
    mut part: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    match section {
        Section::Data => each_words(map.states.data_words(), part),
        Section::Zero => each_words(map.states.zero_words(), part),
        Section::Checksums => each_words(map.checksums.iter().flat_map(Checksums::iter), part),
        Section::WorkingSet => part(&map.working_set.to_bytes()),
    }
}
