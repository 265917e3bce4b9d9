//! Where what stands in an archive; `FORMAT.md` in code. All numbers are little-endian.

use crate::bytes::{id_at, put, u16_at, u32_at, u64_at};
use crate::id::ImageId;
use crate::map::{MAX_MEM_SIZE, TooManyWindows};
use crate::units::{PAGE_SHIFT, WindowSize, WindowSizeError};

/// The skippable frames' magic numbers: RFC 8878, section 3.1.2, leaves 0x184D2A50 to 0x184D2A5F
/// to applications.
pub(super) const HEADER_FRAME: u32 = 0x184D_2A50;
pub(super) const INDEX_FRAME: u32 = 0x184D_2A51;
/// Magic number and length in front of a skippable frame's bytes.
pub(super) const SKIPPABLE: usize = 8;

pub(super) const HEADER_MAGIC: [u8; 8] = *b"ROUSEARC";
pub(super) const INDEX_MAGIC: [u8; 8] = *b"ROUSEIDX";
/// A reader refuses any other.
pub(super) const MAJOR: u16 = 1;
/// What the writer knows; a reader takes any.
pub(super) const MINOR: u16 = 0;
/// Feature bits without which a file can't be read rightly, and that we know: none so far.
pub(super) const KNOWN_INCOMPAT: u64 = 0;
/// Feature bits without which a file can't be rewritten rightly, and that we know: none so far.
pub(super) const KNOWN_RO_COMPAT: u64 = 0;
/// The frames are zstd's (RFC 8878).
const CODEC_ZSTD: u8 = 1;

/// The header's fields without its checksum.
const HEADER_FIXED: usize = 88;
const CRC: usize = 4;
/// The longest header, in bytes: room for fields of later minor versions.
pub(super) const MAX_HEADER: usize = 4096;

/// The index's fields in front of the copy of the header.
pub(super) const INDEX_FIXED: usize = 64;
/// What an index may have besides what this version knows, in bytes: fields of later minor versions.
pub(super) const INDEX_SLACK: u64 = 64 * 1024;
/// What the columns hold for each frame: window, length, BLAKE3, checksum.
pub(super) const COLUMNS: usize = 4 + 4 + HASH + 8;
/// A BLAKE3 hash's length.
pub(super) const HASH: usize = 32;

/// Where in the header a field starts.
mod at {
    pub(super) const MAJOR: usize = 8;
    pub(super) const MINOR: usize = 10;
    pub(super) const HEADER_LEN: usize = 12;
    pub(super) const INCOMPAT: usize = 16;
    pub(super) const RO_COMPAT: usize = 24;
    pub(super) const COMPAT: usize = 32;
    pub(super) const PAGE_SHIFT: usize = 40;
    pub(super) const WINDOW_SHIFT: usize = 41;
    pub(super) const CODEC: usize = 42;
    pub(super) const MEM_SIZE: usize = 48;
    pub(super) const IMAGE_ID: usize = 56;
    pub(super) const PARENT_ID: usize = 72;
}

/// Where in the index a field starts.
pub(super) mod index_at {
    pub(in crate::archive) const HEADER_LEN: usize = 8;
    pub(in crate::archive) const FRAMES: usize = 12;
    pub(in crate::archive) const WORKING_SET_FRAMES: usize = 16;
    pub(in crate::archive) const STATES_LEN: usize = 20;
    pub(in crate::archive) const WORKING_SET_LEN: usize = 24;
    pub(in crate::archive) const DATA_PAGES: usize = 32;
    pub(in crate::archive) const ZERO_PAGES: usize = 40;
    pub(in crate::archive) const PARENT_PAGES: usize = 48;
}

/// What stands first in an archive, and once more in its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) mem_size: u64,
    pub(super) image_id: ImageId,
    pub(super) parent: Option<ImageId>,
    pub(super) window: WindowSize,
    /// Features unknown to us under which the archive must not be rewritten.
    pub(super) foreign_ro: u64,
}

/// Why a header is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// It does not start with an archive's magic bytes.
    #[error("this is no archive")]
    NotAnArchive,
    /// It was written to a layout that this version does not know.
    #[error("the archive's major version is {found}, and this program reads version {known}")]
    UnknownMajor {
        /// The version in the file.
        found: u16,
        /// Ours.
        known: u16,
    },
    /// It says a length that no header has, or another than there is.
    #[error("the archive's header can't have {0} bytes")]
    Length(u32),
    /// It is not what was written.
    #[error("the checksum of the archive's header is wrong")]
    Checksum,
    /// It can't be understood without features that this version does not know.
    #[error("the archive needs features that this program does not know (bits {bits:#x})")]
    UnknownFeatures {
        /// Their bits.
        bits: u64,
    },
    /// The frames are compressed by something that this version does not know.
    #[error("the archive's codec is number {0}, and this program knows 1 (zstd)")]
    UnknownCodec(u8),
    /// Its pages are not of 4 KiB.
    #[error("the archive's pages are of 2^{0} bytes, and this program knows 2^12")]
    PageSize(u8),
    /// Its windows have no size that windows may have.
    #[error(transparent)]
    WindowSize(#[from] WindowSizeError),
    /// The image is larger than any that we take.
    #[error("the image has {mem_size} bytes, more than the {MAX_MEM_SIZE} that are allowed")]
    TooLarge {
        /// The image's size in bytes.
        mem_size: u64,
    },
    /// Its windows are too small for the image.
    #[error(transparent)]
    TooManyWindows(#[from] TooManyWindows),
    /// The image id is zero.
    #[error("the archive names no image")]
    NoImageId,
}

impl HeaderError {
    /// Whether the archive may be as good as ever, for a later program.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(
            self,
            Self::UnknownMajor { .. } | Self::UnknownFeatures { .. } | Self::UnknownCodec(_)
        )
    }
}

impl Header {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let length = HEADER_FIXED + CRC;
        let mut bytes = vec![0; length];
        put(&mut bytes, 0, &HEADER_MAGIC);
        put(&mut bytes, at::MAJOR, &MAJOR.to_le_bytes());
        put(&mut bytes, at::MINOR, &MINOR.to_le_bytes());
        put(&mut bytes, at::HEADER_LEN, &(length as u32).to_le_bytes());
        put(&mut bytes, at::INCOMPAT, &0_u64.to_le_bytes());
        put(&mut bytes, at::RO_COMPAT, &0_u64.to_le_bytes());
        put(&mut bytes, at::COMPAT, &0_u64.to_le_bytes());
        bytes[at::PAGE_SHIFT] = PAGE_SHIFT;
        bytes[at::WINDOW_SHIFT] = self.window.shift();
        bytes[at::CODEC] = CODEC_ZSTD;
        put(&mut bytes, at::MEM_SIZE, &self.mem_size.to_le_bytes());
        put(&mut bytes, at::IMAGE_ID, &self.image_id.to_bytes());
        put(&mut bytes, at::PARENT_ID, &self.parent.map_or([0; 16], ImageId::to_bytes));
        let crc = crc32c::crc32c(&bytes[..HEADER_FIXED]);
        put(&mut bytes, HEADER_FIXED, &crc.to_le_bytes());
        bytes
    }

    /// What comes first of all: whether these first bytes of a header are of a version whose other
    /// bytes we know. They are at their places in every version.
    pub(super) fn check_version(bytes: &[u8]) -> Result<(), HeaderError> {
        if bytes.get(..HEADER_MAGIC.len()) != Some(&HEADER_MAGIC) || bytes.len() < at::INCOMPAT {
            return Err(HeaderError::NotAnArchive);
        }
        match u16_at(bytes, at::MAJOR) {
            MAJOR => Ok(()),
            found => Err(HeaderError::UnknownMajor { found, known: MAJOR }),
        }
    }

    /// `bytes` are all of a header, and nothing else.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        Self::check_version(bytes)?;
        let length = u32_at(bytes, at::HEADER_LEN);
        let there = bytes.len();
        if length as usize != there || !(HEADER_FIXED + CRC..=MAX_HEADER).contains(&there) {
            return Err(HeaderError::Length(length));
        }
        let (rest, crc) = bytes.split_at(there - CRC);
        if crc32c::crc32c(rest) != u32_at(crc, 0) {
            return Err(HeaderError::Checksum);
        }
        let bits = u64_at(bytes, at::INCOMPAT) & !KNOWN_INCOMPAT;
        if bits != 0 {
            return Err(HeaderError::UnknownFeatures { bits });
        }
        if bytes[at::CODEC] != CODEC_ZSTD {
            return Err(HeaderError::UnknownCodec(bytes[at::CODEC]));
        }
        if bytes[at::PAGE_SHIFT] != PAGE_SHIFT {
            return Err(HeaderError::PageSize(bytes[at::PAGE_SHIFT]));
        }
        let mem_size = u64_at(bytes, at::MEM_SIZE);
        if mem_size > MAX_MEM_SIZE {
            return Err(HeaderError::TooLarge { mem_size });
        }
        let window = WindowSize::from_shift(bytes[at::WINDOW_SHIFT])?;
        TooManyWindows::check(window, mem_size)?;
        Ok(Self {
            mem_size,
            image_id: id_at(bytes, at::IMAGE_ID).ok_or(HeaderError::NoImageId)?,
            parent: id_at(bytes, at::PARENT_ID),
            window,
            foreign_ro: u64_at(bytes, at::RO_COMPAT) & !KNOWN_RO_COMPAT,
        })
    }
}

/// The eight bytes in front of a skippable frame of `length` bytes.
pub(super) fn skippable(magic: u32, length: u32) -> [u8; SKIPPABLE] {
    let mut bytes = [0; SKIPPABLE];
    put(&mut bytes, 0, &magic.to_le_bytes());
    put(&mut bytes, 4, &length.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            mem_size: 5_000_000,
            image_id: ImageId::from_bytes([1; 16]).unwrap(),
            parent: ImageId::from_bytes([2; 16]),
            window: WindowSize::DEFAULT,
            foreign_ro: 0,
        }
    }

    fn with(change: impl FnOnce(&mut Vec<u8>)) -> Result<Header, HeaderError> {
        let mut bytes = header().to_bytes();
        change(&mut bytes);
        let end = bytes.len() - CRC;
        let crc = crc32c::crc32c(&bytes[..end]);
        put(&mut bytes, end, &crc.to_le_bytes());
        Header::parse(&bytes)
    }

    #[test]
    fn a_header_comes_back_and_every_changed_byte_is_found() {
        let bytes = header().to_bytes();
        assert_eq!(Header::parse(&bytes).unwrap(), header());
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut wrong = bytes.clone();
                wrong[at] ^= flip;
                assert!(Header::parse(&wrong).is_err(), "byte {at}");
            }
            assert!(Header::parse(&bytes[..at]).is_err());
        }
    }

    #[test]
    fn versions_features_and_limits() {
        assert!(matches!(
            with(|b| b[at::MAJOR] = 2),
            Err(HeaderError::UnknownMajor { found: 2, known: 1 })
        ));
        assert_eq!(with(|b| b[at::MINOR] = 9).unwrap(), header());
        assert_eq!(with(|b| b[at::COMPAT] = 9).unwrap(), header());
        assert_eq!(with(|b| b[at::RO_COMPAT] = 9).unwrap().foreign_ro, 9);
        assert!(matches!(
            with(|b| b[at::INCOMPAT] = 4),
            Err(HeaderError::UnknownFeatures { bits: 4 })
        ));
        assert!(matches!(with(|b| b[at::CODEC] = 2), Err(HeaderError::UnknownCodec(2))));
        assert!(matches!(with(|b| b[at::PAGE_SHIFT] = 16), Err(HeaderError::PageSize(16))));
        assert!(matches!(with(|b| b[at::WINDOW_SHIFT] = 30), Err(HeaderError::WindowSize(_))));
        assert!(matches!(with(|b| b[at::MEM_SIZE + 7] = 1), Err(HeaderError::TooLarge { .. })));
        assert!(matches!(
            with(|b| b[at::MEM_SIZE + 4] = 0xff),
            Err(HeaderError::TooManyWindows(_))
        ));
        assert!(matches!(with(|b| b[at::IMAGE_ID..][..16].fill(0)), Err(HeaderError::NoImageId)));
        // A later minor version may have more fields.
        let longer = with(|b| {
            b.splice(HEADER_FIXED..HEADER_FIXED, [7; 20]);
            put(b, at::HEADER_LEN, &112_u32.to_le_bytes());
        });
        assert_eq!(longer.unwrap(), header());
    }
}
