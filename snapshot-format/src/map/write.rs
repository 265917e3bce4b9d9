//! From a map to bytes, and under its name at once or not at all.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::layout::{self, Section, at, entry};
use super::{MAX_MEM_SIZE, Map};
use crate::id::ImageId;

/// Why a map could not be written. The name holds what it held before, except after
/// [`Self::NotDurable`].
#[derive(Debug, thiserror::Error)]
pub enum WriteMapError {
    /// The path has no file name.
    #[error("{0:?} names no file")]
    NoName(PathBuf),
    /// The image is larger than any that we take.
    #[error("the image has {mem_size} bytes, more than the {MAX_MEM_SIZE} that are allowed")]
    TooLarge {
        /// The image's size in bytes.
        mem_size: u64,
    },
    /// The map came from a file with features that this version does not know and would lose.
    #[error("the map has features that this program can't write (bits {bits:#x})")]
    ReadOnly {
        /// Their bits.
        bits: u64,
    },
    /// The file could not be made, written, synced or renamed.
    #[error("the map {path:?} can't be written: {source}")]
    Io {
        /// The map's name.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The map has its name, but the directory could not be synced: after a power loss the old
    /// one may be back.
    #[error("the map {path:?} is written, but may be lost with the power: {source}")]
    NotDurable {
        /// The map's name.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

pub(super) fn write(map: &Map, path: &Path) -> Result<(), WriteMapError> {
    let bytes = bytes(map)?;
    let name = path.file_name().ok_or_else(|| WriteMapError::NoName(path.to_owned()))?;
    let dir = match path.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    let failed = |source| WriteMapError::Io { path: path.to_owned(), source };

    // Mode 0600, as everything beside an image of somebody's memory.
    let mut temporary = tempfile::Builder::new()
        .prefix(&[".".as_ref(), name, ".".as_ref()].into_iter().collect::<std::ffi::OsString>())
        .suffix(".tmp")
        .tempfile_in(dir)
        .map_err(failed)?;
    temporary.write_all(&bytes).map_err(failed)?;
    temporary.as_file().sync_all().map_err(failed)?;
    temporary.persist(path).map_err(|e| failed(e.error))?;
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|source| WriteMapError::NotDurable { path: path.to_owned(), source })
}

pub(super) fn bytes(map: &Map) -> Result<Vec<u8>, WriteMapError> {
    let mem_size = map.mem_size();
    if mem_size > MAX_MEM_SIZE {
        return Err(WriteMapError::TooLarge { mem_size });
    }
    if map.foreign_ro != 0 {
        return Err(WriteMapError::ReadOnly { bits: map.foreign_ro });
    }
    let (data, zero) = map.states.bitmaps();
    let sections = [(Section::Data, data), (Section::Zero, zero)];
    let header_len = layout::FIXED + sections.len() * layout::ENTRY + layout::CRC;

    let mut file = vec![0; header_len];
    let mut table = Vec::new();
    for (section, words) in sections {
        file.resize(file.len().next_multiple_of(layout::ALIGN as usize), 0);
        let offset = file.len();
        file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let body = &file[offset..];
        let mut line = [0; layout::ENTRY];
        put(&mut line, entry::KIND, &(section as u32).to_le_bytes());
        put(&mut line, entry::CRC, &crc32c::crc32c(body).to_le_bytes());
        put(&mut line, entry::OFFSET, &(offset as u64).to_le_bytes());
        put(&mut line, entry::LENGTH, &(body.len() as u64).to_le_bytes());
        table.extend(line);
    }

    let counts = map.counts();
    let header = &mut file[..header_len];
    put(header, 0, &layout::MAGIC);
    put(header, at::MAJOR, &layout::MAJOR.to_le_bytes());
    put(header, at::MINOR, &layout::MINOR.to_le_bytes());
    put(header, at::HEADER_LEN, &(header_len as u32).to_le_bytes());
    put(header, at::INCOMPAT, &0_u64.to_le_bytes());
    put(header, at::RO_COMPAT, &0_u64.to_le_bytes());
    put(header, at::COMPAT, &0_u64.to_le_bytes());
    header[at::PAGE_SHIFT] = layout::PAGE_SHIFT;
    header[at::WINDOW_SHIFT] = map.window.shift();
    put(header, at::SECTIONS, &(sections.len() as u16).to_le_bytes());
    put(header, at::MEM_SIZE, &mem_size.to_le_bytes());
    put(header, at::IMAGE_ID, &map.image_id.to_bytes());
    put(header, at::PARENT_ID, &map.parent.map_or([0; 16], ImageId::to_bytes));
    put(header, at::DATA_PAGES, &counts.data.to_le_bytes());
    put(header, at::ZERO_PAGES, &counts.zero.to_le_bytes());
    put(header, at::PARENT_PAGES, &counts.parent.to_le_bytes());
    put(header, layout::FIXED, &table);
    let (rest, crc) = header.split_at_mut(header_len - layout::CRC);
    put(crc, 0, &crc32c::crc32c(rest).to_le_bytes());
    Ok(file)
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}
