//! One window ↔ one zstd frame.

use zstd::bulk::{Compressor, Decompressor};

use crate::packed;

/// Makes frames; one for each thread, as its tables are some MiB.
pub(super) struct Encoder {
    zstd: Compressor<'static>,
    scratch: Vec<u8>,
}

/// What zstd said; it has no other form than words.
#[derive(Debug, thiserror::Error)]
#[error("zstd: {0}")]
pub struct ZstdError(#[from] std::io::Error);

impl Encoder {
    pub(super) fn new(level: i32) -> Result<Self, ZstdError> {
        let mut zstd = Compressor::new(level)?;
        // So that zstd's own tools see damage, too. Costs 2 % of the time and four bytes a frame.
        zstd.include_checksum(true)?;
        Ok(Self { zstd, scratch: Vec::new() })
    }

    /// What an encoder takes in memory for windows of `window` bytes, the windows and all.
    pub(super) fn bytes(level: i32, window: u64) -> Result<u64, ZstdError> {
        let mut encoder = Self::new(level)?;
        // zstd makes its tables by the size of what it is given.
        encoder.encode(&vec![0; window as usize])?;
        let tables = encoder.zstd.context_mut().sizeof() + encoder.scratch.len();
        Ok(tables as u64 + window)
    }

    /// The frame of the packed bytes of a window.
    pub(super) fn encode(&mut self, packed: &[u8]) -> Result<&[u8], ZstdError> {
        let bound = zstd::zstd_safe::compress_bound(packed.len());
        if self.scratch.len() < bound {
            self.scratch.resize(bound, 0);
        }
        let length = self.zstd.compress_to_buffer(packed, self.scratch.as_mut_slice())?;
        Ok(&self.scratch[..length])
    }
}

/// What a frame must be, by the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The window that it holds.
    pub window: u32,
    /// Where in the archive it starts, in bytes.
    pub offset: u64,
    /// Its length in the archive, in bytes.
    pub length: u32,
    /// The length of the window's DATA pages, in bytes.
    pub raw_length: u32,
    /// BLAKE3 of its bytes in the archive.
    pub blake3: [u8; 32],
    /// XXH3 (64 bits, seed 0) of the window's DATA pages.
    pub checksum: u64,
}

/// Why a frame is not what the index says.
#[derive(Debug, thiserror::Error)]
pub enum DecodeFrameError {
    /// Its bytes are not those that were written.
    #[error("the BLAKE3 of the frame at offset {offset} (window {window}) is wrong")]
    Blake3 {
        /// Where in the archive, in bytes.
        offset: u64,
        /// The window that it should hold.
        window: u32,
    },
    /// Its bytes are those that were written, and are no frame.
    #[error("the frame at offset {offset} (window {window}) can't be decompressed: {source}")]
    Zstd {
        /// Where in the archive, in bytes.
        offset: u64,
        /// The window that it should hold.
        window: u32,
        /// What zstd said.
        source: ZstdError,
    },
    /// It holds fewer bytes than the window's DATA pages are.
    #[error(
        "the frame at offset {offset} (window {window}) holds {there} bytes and should hold {raw_length}"
    )]
    Length {
        /// Where in the archive, in bytes.
        offset: u64,
        /// The window that it should hold.
        window: u32,
        /// How many bytes it holds.
        there: usize,
        /// How many it should.
        raw_length: u32,
    },
    /// What came out is not what went in.
    #[error("the checksum of window {window}, from the frame at offset {offset}, is wrong")]
    Checksum {
        /// Where in the archive, in bytes.
        offset: u64,
        /// The window that it should hold.
        window: u32,
    },
}

/// Reads frames; one for each thread.
pub struct Decoder {
    zstd: Decompressor<'static>,
    packed: Vec<u8>,
}

impl Decoder {
    /// A decoder without anything decoded.
    pub fn new() -> Result<Self, ZstdError> {
        Ok(Self { zstd: Decompressor::new()?, packed: Vec::new() })
    }

    /// The packed DATA pages of a window from its frame. Nothing is decompressed before its BLAKE3
    /// is right, and what is allocated is what `frame` says, at most a window.
    pub fn decode(&mut self, frame: &Frame, bytes: &[u8]) -> Result<&[u8], DecodeFrameError> {
        let Frame { window, offset, raw_length, .. } = *frame;
        if *blake3::hash(bytes).as_bytes() != frame.blake3 {
            return Err(DecodeFrameError::Blake3 { offset, window });
        }
        let needed = raw_length as usize;
        if self.packed.len() < needed {
            self.packed.resize(needed, 0);
        }
        let there = self
            .zstd
            .decompress_to_buffer(bytes, &mut self.packed[..needed])
            .map_err(|error| DecodeFrameError::Zstd { offset, window, source: error.into() })?;
        if there != needed {
            return Err(DecodeFrameError::Length { offset, window, there, raw_length });
        }
        let packed = &self.packed[..needed];
        if packed::checksum(packed) != frame.checksum {
            return Err(DecodeFrameError::Checksum { offset, window });
        }
        Ok(packed)
    }
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}
