//! Which pages hold data, read by several threads.

use std::fs::File;
use std::hash::Hasher as _;
use std::mem;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use twox_hash::xxhash3_64::Hasher;

use super::walk::{Piece, Walker};
use super::{BUFFER, PIECE, SparsifyError};
use crate::bits;
use crate::extents::extents;
use crate::packed::EMPTY_CHECKSUM;
use crate::units::{PAGE, PageStates, WindowSize};
use crate::work::{Work, parallel};
use crate::zero::{self, IsZero};

/// What is done with what is found, on several threads at once; nothing unless it says otherwise.
pub(super) trait Target: Sync {
    /// `bytes` from whole pages, none of which is all zeros, lie at `offset`.
    fn data(&self, _offset: u64, _bytes: &[u8]) -> Result<(), SparsifyError> {
        Ok(())
    }

    /// `zeros` are zeros that were read, in whole pages: as many as lie side by side in a piece.
    fn zeros(&self, _zeros: Range<u64>) -> Result<(), SparsifyError> {
        Ok(())
    }
}

/// Changes nothing: for a dry run.
pub(super) struct Looker;

impl Target for Looker {}

/// What was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// DATA or ZERO.
    pub(super) states: PageStates,
    pub(super) window: WindowSize,
    /// One for each window, as [`crate::packed::checksum`] has it.
    pub(super) checksums: Vec<u64>,
}

/// Looks at every page of an image of `mem_size` bytes.
pub(super) fn image(
    file: &File,
    mem_size: u64,
    window: WindowSize,
    work: Work<'_>,
    target: &impl Target,
) -> Result<Found, SparsifyError> {
    let mut data = vec![0; bits::words(mem_size.div_ceil(PAGE)) as usize];
    let mut checksums = vec![EMPTY_CHECKSUM; window.count(mem_size) as usize];
    work.expect(mem_size);
    let pieces = mem_size.div_ceil(PIECE) as usize;
    let walker =
        Walker::new(extents(file, mem_size), mem_size, work, window, &mut data, &mut checksums);
    let is_zero = zero::fastest();
    parallel(
        work.threads_for(pieces),
        walker,
        || vec![0; BUFFER],
        |buffer, piece| {
            let length = piece.length;
            Scan::new(file, target, is_zero, window, piece).run(buffer)?;
            Ok(work.advance(length)?)
        },
    )?;
    Ok(Found { states: PageStates::of_full_image(mem_size, data), window, checksums })
}

/// One piece being looked at.
struct Scan<'a, T> {
    file: &'a File,
    target: &'a T,
    is_zero: IsZero,
    /// Where the piece starts in the image.
    start: u64,
    extents: Vec<Range<u64>>,
    data: &'a mut [u64],
    checksums: Checksums<'a>,
    /// Zeros that were read and that the target has not been told of.
    zeros: Range<u64>,
}

impl<'a, T: Target> Scan<'a, T> {
    fn new(
        file: &'a File,
        target: &'a T,
        is_zero: IsZero,
        window: WindowSize,
        piece: Piece<'a>,
    ) -> Self {
        let Piece { start, length: _, extents, data, checksums } = piece;
        let checksums = Checksums::new(window, checksums);
        Self { file, target, is_zero, start, extents, data, checksums, zeros: 0..0 }
    }

    fn run(mut self, buffer: &mut [u8]) -> Result<(), SparsifyError> {
        for extent in mem::take(&mut self.extents) {
            self.zeros = extent.start..extent.start;
            let mut at = extent.start;
            while at < extent.end {
                let length = (extent.end - at).min(buffer.len() as u64);
                let part = &mut buffer[..length as usize];
                self.file
                    .read_exact_at(part, at)
                    .map_err(|source| SparsifyError::Read { offset: at, source })?;
                self.part(at, part)?;
                at += length;
            }
            self.end_of_zeros()?;
        }
        self.checksums.close();
        Ok(())
    }

    /// Looks at `part` of an extent, which lies at `offset` in the image.
    fn part(&mut self, offset: u64, part: &[u8]) -> Result<(), SparsifyError> {
        let mut data = 0..0;
        for (number, page) in part.chunks(PAGE as usize).enumerate() {
            let start = number * PAGE as usize;
            let end = start + page.len();
            if (self.is_zero)(page) {
                self.end_of_data(offset, part, mem::replace(&mut data, end..end))?;
                self.zeros.end = offset + end as u64;
            } else {
                self.end_of_zeros()?;
                self.zeros = offset + end as u64..offset + end as u64;
                bits::put(self.data, (offset + start as u64 - self.start) / PAGE, true);
                data.end = end;
            }
        }
        self.end_of_data(offset, part, data)
    }

    /// `data` of `part` is a run of DATA, and still in the cache.
    fn end_of_data(
        &mut self,
        offset: u64,
        part: &[u8],
        data: Range<usize>,
    ) -> Result<(), SparsifyError> {
        if data.is_empty() {
            return Ok(());
        }
        let offset = offset + data.start as u64;
        let bytes = &part[data];
        self.checksums.add(offset - self.start, bytes);
        self.target.data(offset, bytes)
    }

    fn end_of_zeros(&self) -> Result<(), SparsifyError> {
        if self.zeros.is_empty() { Ok(()) } else { self.target.zeros(self.zeros.clone()) }
    }
}

/// The checksums of a piece's windows, in the making: the piece starts where a window does.
struct Checksums<'a> {
    window: WindowSize,
    checksums: &'a mut [u64],
    /// The window that is being hashed.
    open: usize,
    hasher: Hasher,
}

impl<'a> Checksums<'a> {
    fn new(window: WindowSize, checksums: &'a mut [u64]) -> Self {
        Self { window, checksums, open: 0, hasher: Hasher::new() }
    }

    /// DATA pages at `offset` in the piece, behind all that came before.
    fn add(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let window = (offset / self.window.bytes()) as usize;
            if window != self.open {
                self.close();
                self.open = window;
            }
            let room = self.window.bytes() - offset % self.window.bytes();
            let (here, rest) = bytes.split_at(bytes.len().min(room as usize));
            self.hasher.write(here);
            offset += here.len() as u64;
            bytes = rest;
        }
    }

    /// Nothing more comes for the open window. One that nothing came for has the checksum of nothing.
    fn close(&mut self) {
        self.checksums[self.open] = mem::take(&mut self.hasher).finish();
    }
}
