//! Which pages hold data, read by several threads.

use std::fs::File;
use std::hash::Hasher as _;
use std::mem;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use twox_hash::xxhash3_64::Hasher;

use super::plan::Plan;
use super::walk::{Piece, Walker};
use super::{BUFFER, PIECE, SparsifyError};
use crate::bits;
use crate::extents::extents_in;
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
    /// How many bytes were read.
    pub(super) read_bytes: u64,
}

/// Looks at the pages of an image that its plan has to be looked at. When it has ended, in whatever
/// way, the target hears of nothing more; and of next to nothing after somebody has had it end.
pub(super) fn image(
    file: &File,
    plan: Plan,
    work: Work<'_>,
    target: &impl Target,
) -> Result<Found, SparsifyError> {
    let Plan { mem_size, window, mut data, mut checksums, places } = plan;
    work.expect(mem_size);
    let pieces = mem_size.div_ceil(PIECE) as usize;
    let extents = extents_in(file, mem_size, places);
    let walker = Walker::new(extents, mem_size, work, window, &mut data, &mut checksums);
    let shared =
        Shared { file, target, work, is_zero: zero::fastest(), read_bytes: AtomicU64::new(0) };
    parallel(
        work.threads_for(pieces),
        walker,
        || vec![0; BUFFER],
        |buffer, piece| {
            let length = piece.length;
            Scan::new(&shared, window, piece).run(buffer)?;
            Ok(work.advance(length)?)
        },
    )?;
    let read_bytes = shared.read_bytes.into_inner();
    Ok(Found { states: PageStates::of_full_image(mem_size, data), window, checksums, read_bytes })
}

/// What all threads have in common.
struct Shared<'a, T> {
    file: &'a File,
    target: &'a T,
    work: Work<'a>,
    is_zero: IsZero,
    read_bytes: AtomicU64,
}

/// One piece being looked at.
struct Scan<'a, T> {
    shared: &'a Shared<'a, T>,
    /// Where the piece starts in the image.
    start: u64,
    extents: Vec<Range<u64>>,
    data: &'a mut [u64],
    checksums: Checksums<'a>,
    /// Zeros that were read and that the target has not been told of.
    zeros: Range<u64>,
}

impl<'a, T: Target> Scan<'a, T> {
    fn new(shared: &'a Shared<'a, T>, window: WindowSize, piece: Piece<'a>) -> Self {
        let Piece { start, length: _, extents, data, checksums } = piece;
        let checksums = Checksums::new(window, checksums);
        Self { shared, start, extents, data, checksums, zeros: 0..0 }
    }

    fn run(mut self, buffer: &mut [u8]) -> Result<(), SparsifyError> {
        for extent in mem::take(&mut self.extents) {
            self.zeros = extent.start..extent.start;
            let mut at = extent.start;
            while at < extent.end {
                let length = (extent.end - at).min(buffer.len() as u64);
                let part = &mut buffer[..length as usize];
                self.shared.work.check()?;
                self.shared
                    .file
                    .read_exact_at(part, at)
                    .map_err(|source| SparsifyError::Read { offset: at, source })?;
                self.shared.read_bytes.fetch_add(length, Ordering::Relaxed);
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
            if (self.shared.is_zero)(page) {
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
        self.shared.target.data(offset, bytes)
    }

    fn end_of_zeros(&self) -> Result<(), SparsifyError> {
        if self.zeros.is_empty() {
            return Ok(());
        }
        self.shared.work.check()?;
        self.shared.target.zeros(self.zeros.clone())
    }
}

/// The checksums of a piece's windows, in the making: the piece starts where a window does. Those of
/// windows that nothing comes for stay as they are.
struct Checksums<'a> {
    window: WindowSize,
    checksums: &'a mut [u64],
    /// The window that is being hashed.
    open: Option<usize>,
    hasher: Hasher,
}

impl<'a> Checksums<'a> {
    fn new(window: WindowSize, checksums: &'a mut [u64]) -> Self {
        Self { window, checksums, open: None, hasher: Hasher::new() }
    }

    /// DATA pages at `offset` in the piece, behind all that came before.
    fn add(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let window = (offset / self.window.bytes()) as usize;
            if self.open != Some(window) {
                self.close();
                self.open = Some(window);
            }
            let room = self.window.bytes() - offset % self.window.bytes();
            let (here, rest) = bytes.split_at(bytes.len().min(room as usize));
            self.hasher.write(here);
            offset += here.len() as u64;
            bytes = rest;
        }
    }

    /// Nothing more comes for the open window.
    fn close(&mut self) {
        if let Some(window) = self.open.take() {
            self.checksums[window] = mem::take(&mut self.hasher).finish();
        }
    }
}
