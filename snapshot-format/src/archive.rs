//! The archive of an image: what is kept of it elsewhere, compressed.
//!
//! A valid seekable zstd file: a header, one frame for each window that has DATA, an index, and the
//! standard seek table. See `FORMAT.md`.

mod frame;
mod index;
mod layout;
mod open;
mod read;
mod write;

use crate::map::Map;
use crate::read_at::ReadAt;

pub use frame::{DecodeFrameError, Decoder, Frame, ZstdError};
pub use index::{Index, IndexError};
pub use layout::HeaderError;
pub use open::{CheckHeaderError, OpenArchiveError};
pub use read::{ReadWindowError, UnpackError, VerifyArchiveError};
pub use write::{PackError, PackOptions, Packed, pack};

/// An archive that is open: its index is in memory and right, its frames are not looked at yet.
#[derive(Debug)]
pub struct Archive<R> {
    source: R,
    index: Index,
    size: u64,
}

impl<R: ReadAt> Archive<R> {
    /// Reads the end of an archive: seek table and index. One read of 1 MiB, and another where the
    /// index is larger. What is allocated is bounded by the file's size, and by two bits for each page of the image.
    pub fn open(source: R) -> Result<Self, OpenArchiveError> {
        let index = open::open(&source)?;
        let size = source.size().map_err(|source| OpenArchiveError::Read { offset: 0, source })?;
        Ok(Self { source, index, size })
    }

    /// The map of the image in it, with checksums and working set.
    pub fn map(&self) -> &Map {
        self.index.map()
    }

    /// The map alone, once nothing else is wanted.
    pub fn into_map(self) -> Map {
        self.index.into_map()
    }

    /// What it holds, and where.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The index alone: for whoever fetches the frames in another way.
    pub fn into_index(self) -> Index {
        self.index
    }

    /// How many bytes it has.
    pub fn size(&self) -> u64 {
        self.size
    }
}

/// Whether `start`, the first bytes of a file (12 are enough), are those of an archive.
pub fn is_archive(start: &[u8]) -> bool {
    start.get(..4) == Some(&layout::HEADER_FRAME.to_le_bytes())
        && start.get(8..16).is_none_or(|magic| magic == layout::HEADER_MAGIC)
        && start.len() >= 12
}
