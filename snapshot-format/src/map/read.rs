//! From bytes to a map, trusting none of them.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use super::layout::{self, Section, at, entry};
use super::{MAX_MEM_SIZE, Map, TooManyWindows};
use crate::bitmaps::{Bitmaps, BitmapsError};
use crate::bytes::{id_at, u16_at, u32_at, u64_at};
use crate::checksums::Checksums;
use crate::id::ImageId;
use crate::read_at::ReadAt;
use crate::units::{Counts, PAGE_SHIFT, WindowSize};
use crate::working_set::WorkingSet;

/// How many bytes of a section are read at once; a multiple of 8.
const PIECE: u64 = 1024 * 1024;

/// Why a file could not be opened as a map.
#[derive(Debug, thiserror::Error)]
pub enum OpenMapError {
    /// The file could not be opened or read.
    #[error("the map can't be read: {0}")]
    Io(#[from] io::Error),
    /// It is no regular file, or does not start with the map's magic bytes.
    #[error("this is no map")]
    NotAMap,
    /// The file ends before what it says that it holds.
    #[error("the map is cut short: {needed} bytes are needed and {there} are there")]
    Truncated {
        /// Up to where it should reach, in bytes.
        needed: u64,
        /// Its length.
        there: u64,
    },
    /// It was written to a layout that this version does not know.
    #[error("the map's major version is {found}, and this program reads version {known}")]
    UnknownMajor {
        /// The version in the file.
        found: u16,
        /// Ours.
        known: u16,
    },
    /// Its header says a length that no header has.
    #[error("the map's header can't have {0} bytes")]
    HeaderLength(u32),
    /// Its header is not what was written.
    #[error("the checksum of the map's header is wrong")]
    HeaderChecksum,
    /// It can't be understood without features that this version does not know.
    #[error("the map needs features that this program does not know (bits {bits:#x})")]
    UnknownFeatures {
        /// Their bits.
        bits: u64,
    },
    /// Its pages are not of 4 KiB.
    #[error("the map's pages are of 2^{0} bytes, and this program knows 2^12")]
    PageSize(u8),
    /// Its windows have no size that windows may have.
    #[error(transparent)]
    WindowSize(#[from] crate::units::WindowSizeError),
    /// The image is larger than any that we take.
    #[error("the image has {mem_size} bytes, more than the {MAX_MEM_SIZE} that are allowed")]
    TooLarge {
        /// The image's size in bytes.
        mem_size: u64,
    },
    /// The image id is zero.
    #[error("the map names no image")]
    NoImageId,
    /// The table of sections contradicts itself.
    #[error("the map's section table is wrong: {0}")]
    Sections(&'static str),
    /// A section is not what was written.
    #[error("the checksum of the map's section {section} is wrong")]
    SectionChecksum {
        /// The section's name in `FORMAT.md`.
        section: &'static str,
    },
    /// The bitmaps reach behind the last page or give a page two states.
    #[error("the map's bitmaps contradict each other or reach behind the last page")]
    States,
    /// The header counts other pages than the bitmaps.
    #[error("the map's header counts {header:?} and its bitmaps {bitmaps:?}")]
    Counts {
        /// What the header says.
        header: Counts,
        /// What is so.
        bitmaps: Counts,
    },
    /// Pages are as in a parent, and there is none.
    #[error(transparent)]
    WithoutParent(#[from] super::WithoutParent),
    /// Its windows are too small for the image.
    #[error(transparent)]
    TooManyWindows(#[from] TooManyWindows),
    /// A window without data has the checksum of some.
    #[error("the map has a checksum for window {window}, where the image has no data")]
    EmptyChecksum {
        /// The window.
        window: u64,
    },
}

pub(super) fn open(path: &Path) -> Result<Map, OpenMapError> {
    // Looked at before it is opened: to open a pipe is to wait for who writes to it.
    if !fs::metadata(path)?.is_file() {
        return Err(OpenMapError::NotAMap);
    }
    read(&File::open(path)?)
}

pub(super) fn read(source: &(impl ReadAt + ?Sized)) -> Result<Map, OpenMapError> {
    let source = Bounded { source, length: source.size()? };
    let header = source.part(0, header_length(&source)?.into())?;
    let header = Header::parse(&header)?;

    let mut bitmaps = Bitmaps::new(header.mem_size, header.parent.is_none());
    for section in [Section::Data, Section::Zero] {
        source.section(&header, section, bitmaps.length(), |piece| bitmaps.take(piece))?;
    }
    let states = bitmaps.finish()?;
    if states.counts() != header.counts {
        return Err(OpenMapError::Counts { header: header.counts, bitmaps: states.counts() });
    }
    let mut map = Map::new(header.image_id, header.parent, header.window, states)?;
    map.foreign_ro = header.foreign_ro;
    if header.place(Section::Checksums).is_some() {
        let mut checksums = Checksums::default();
        source.section(&header, Section::Checksums, map.windows() * 8, |piece| {
            for word in piece.as_chunks().0 {
                checksums.push(u64::from_le_bytes(*word));
            }
        })?;
        map.checksums = Some(checksums);
        if let Some(window) = wrong_empty(&map) {
            return Err(OpenMapError::EmptyChecksum { window });
        }
    }
    if let Some(place) = header.place(Section::WorkingSet) {
        // Advice. A map without is as good, so damage here does not cost the image.
        let read = match place.length {
            ..=WorkingSet::MAX_LENGTH => {
                let bytes = source.part(place.offset, place.length)?;
                (crc32c::crc32c(&bytes) == place.crc)
                    .then(|| WorkingSet::from_bytes(&bytes, header.window, map.windows()))
                    .flatten()
            }
            _ => None,
        };
        map.working_set_dropped = read.is_none();
        map.working_set = read.unwrap_or_default();
    }
    Ok(map)
}

/// A window without DATA whose checksum is not that of nothing.
fn wrong_empty(map: &Map) -> Option<u64> {
    let mut of_data = map.checksums.iter().flat_map(Checksums::of_data);
    of_data.find(|window| map.window_data_pages(*window) == 0)
}

/// A source and its length, which bounds what is read and so what is allocated.
struct Bounded<'a, S: ?Sized> {
    source: &'a S,
    length: u64,
}

impl<S: ReadAt + ?Sized> Bounded<'_, S> {
    fn part(&self, offset: u64, length: u64) -> Result<Vec<u8>, OpenMapError> {
        let needed = offset.saturating_add(length);
        if needed > self.length {
            return Err(OpenMapError::Truncated { needed, there: self.length });
        }
        let mut part = vec![0; length as usize];
        match self.source.read_exact_at(&mut part, offset) {
            Ok(()) => Ok(part),
            // It was cut while we read.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                Err(OpenMapError::Truncated { needed, there: self.source.size()? })
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Hands over a section, which must have so many bytes, a multiple of 8: in pieces, so that a
    /// large image's are not in memory as a whole. Each piece is a multiple of 8, too.
    fn section(
        &self,
        header: &Header,
        section: Section,
        length: u64,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), OpenMapError> {
        let place = header.place(section).ok_or(OpenMapError::Sections("a bitmap is missing"))?;
        if place.length != length {
            return Err(OpenMapError::Sections("a section does not fit the image's size"));
        }
        let needed = place.offset.saturating_add(length);
        if needed > self.length {
            return Err(OpenMapError::Truncated { needed, there: self.length });
        }
        let (mut at, mut crc) = (place.offset, 0);
        while at < needed {
            let piece = self.part(at, (needed - at).min(PIECE))?;
            crc = crc32c::crc32c_append(crc, &piece);
            take(&piece);
            at += piece.len() as u64;
        }
        if crc != place.crc {
            return Err(OpenMapError::SectionChecksum { section: section.name() });
        }
        Ok(())
    }
}

impl From<BitmapsError> for OpenMapError {
    fn from(error: BitmapsError) -> Self {
        match error {
            BitmapsError::Clash => Self::States,
            BitmapsError::WithoutParent(without) => Self::WithoutParent(without),
        }
    }
}

/// Checks what stands before anything that a later version may lay out otherwise.
fn header_length<S: ReadAt + ?Sized>(source: &Bounded<'_, S>) -> Result<u32, OpenMapError> {
    let magic_there = source.length.min(layout::MAGIC.len() as u64);
    if source.part(0, magic_there)? != layout::MAGIC[..magic_there as usize] {
        return Err(OpenMapError::NotAMap);
    }
    let fixed = source.part(0, layout::FIXED as u64)?;
    let major = u16_at(&fixed, at::MAJOR);
    if major != layout::MAJOR {
        return Err(OpenMapError::UnknownMajor { found: major, known: layout::MAJOR });
    }
    let length = u32_at(&fixed, at::HEADER_LEN);
    let table = usize::from(u16_at(&fixed, at::SECTIONS)) * layout::ENTRY;
    let least = layout::FIXED + table + layout::CRC;
    if length > layout::MAX_HEADER || (length as usize) < least {
        return Err(OpenMapError::HeaderLength(length));
    }
    Ok(length)
}

/// A header that makes sense in itself.
struct Header {
    mem_size: u64,
    image_id: ImageId,
    parent: Option<ImageId>,
    window: WindowSize,
    counts: Counts,
    foreign_ro: u64,
    sections: Vec<Place>,
}

/// Where a section that we know is.
struct Place {
    section: Section,
    offset: u64,
    length: u64,
    crc: u32,
}

impl Header {
    fn place(&self, section: Section) -> Option<&Place> {
        self.sections.iter().find(|place| place.section == section)
    }

    /// `bytes` are as long as they themselves say.
    fn parse(bytes: &[u8]) -> Result<Self, OpenMapError> {
        let (rest, crc) = bytes.split_at(bytes.len() - layout::CRC);
        if crc32c::crc32c(rest) != u32_at(crc, 0) {
            return Err(OpenMapError::HeaderChecksum);
        }
        let bits = u64_at(bytes, at::INCOMPAT) & !layout::KNOWN_INCOMPAT;
        if bits != 0 {
            return Err(OpenMapError::UnknownFeatures { bits });
        }
        if bytes[at::PAGE_SHIFT] != PAGE_SHIFT {
            return Err(OpenMapError::PageSize(bytes[at::PAGE_SHIFT]));
        }
        let mem_size = u64_at(bytes, at::MEM_SIZE);
        if mem_size > MAX_MEM_SIZE {
            return Err(OpenMapError::TooLarge { mem_size });
        }
        let window = WindowSize::from_shift(bytes[at::WINDOW_SHIFT])?;
        TooManyWindows::check(window, mem_size)?;
        Ok(Self {
            mem_size,
            image_id: id_at(bytes, at::IMAGE_ID).ok_or(OpenMapError::NoImageId)?,
            parent: id_at(bytes, at::PARENT_ID),
            window,
            counts: Counts {
                data: u64_at(bytes, at::DATA_PAGES),
                zero: u64_at(bytes, at::ZERO_PAGES),
                parent: u64_at(bytes, at::PARENT_PAGES),
            },
            foreign_ro: u64_at(bytes, at::RO_COMPAT) & !layout::KNOWN_RO_COMPAT,
            sections: sections(bytes)?,
        })
    }
}

/// The sections that we know. All of them, known or not, must lie behind the header, in order and
/// apart, so that no byte is read (and nothing allocated for it) twice.
fn sections(header: &[u8]) -> Result<Vec<Place>, OpenMapError> {
    let count = u16_at(header, at::SECTIONS);
    if count > layout::MAX_SECTIONS {
        return Err(OpenMapError::Sections("too many sections"));
    }
    let mut places: Vec<Place> = Vec::new();
    let mut free_from = header.len() as u64;
    let table = &header[layout::FIXED..];
    for line in table.chunks_exact(layout::ENTRY).take(count.into()) {
        let (offset, length) = (u64_at(line, entry::OFFSET), u64_at(line, entry::LENGTH));
        if offset < free_from {
            return Err(OpenMapError::Sections("sections overlap or are out of order"));
        }
        free_from =
            offset.checked_add(length).ok_or(OpenMapError::Sections("a section has no end"))?;
        let Some(section) = Section::from_kind(u32_at(line, entry::KIND)) else { continue };
        if places.iter().any(|place| place.section == section) {
            return Err(OpenMapError::Sections("a section comes twice"));
        }
        places.push(Place { section, offset, length, crc: u32_at(line, entry::CRC) });
    }
    Ok(places)
}
