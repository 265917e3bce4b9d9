//! Whether an image is what its map says.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::extents::extents;
use crate::image::Image;
use crate::packed;
use crate::units::{PAGE, PageState};
use crate::work::{Cancelled, Work, parallel};
use crate::zero;

/// What is read at once, in bytes.
const PIECE: u64 = 256 * 1024;

/// A page that the map calls ZERO is not, or can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ZeroError {
    /// It can't be read.
    #[error("the image can't be read at offset {offset}: {source}")]
    Read {
        /// Where, in bytes.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// It holds something: the map is an older one, or the image is damaged.
    #[error(
        "the image has data at offset {offset}, where its map says zeros; make the map anew, or restore the image"
    )]
    NotZero {
        /// Where the page starts, in bytes.
        offset: u64,
    },
    /// It was ended from outside.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// Why an image is not what its map says.
#[derive(Debug, thiserror::Error)]
pub enum VerifyImageError {
    /// A part can't be read.
    #[error("the image can't be read at offset {offset}: {source}")]
    Read {
        /// Where, in bytes.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A window's data is not that of which the map has the checksum.
    #[error("the checksum of window {window}, at offset {offset}, is wrong")]
    Checksum {
        /// The window.
        window: u64,
        /// Where it starts, in bytes.
        offset: u64,
    },
    /// A ZERO page is none.
    #[error(transparent)]
    Zeros(#[from] ZeroError),
    /// It was ended from outside.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// What [`verify_image()`] looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedImage {
    /// How many bytes of DATA were read and are those of which the map has the checksums; 0 when it
    /// has none.
    pub checked_bytes: u64,
}

/// Compares an image with its map: every window's DATA with its checksum, where the map has them,
/// and that ZERO pages are zeros. PARENT pages are not looked at. Progress is in bytes of DATA.
pub fn verify_image(image: &Image, work: Work<'_>) -> Result<VerifiedImage, VerifyImageError> {
    check_zeros(image, work)?;
    let map = image.map();
    if !map.has_checksums() {
        return Ok(VerifiedImage { checked_bytes: 0 });
    }
    work.expect(map.counts().data * PAGE);
    let windows = (0..map.windows()).filter(|window| map.window_data_pages(*window) > 0);
    let threads = work.threads_within(usize::MAX, map.window_size().bytes());
    parallel(threads, windows.map(Ok), Vec::new, |packed, window| {
        packed::gather(image.file(), map.states(), map.pages_of(window), packed)
            .map_err(|(offset, source)| VerifyImageError::Read { offset, source })?;
        if map.checksum(window) != Some(packed::checksum(packed)) {
            let offset = window * map.window_size().bytes();
            return Err(VerifyImageError::Checksum { window, offset });
        }
        Ok(work.advance(packed.len() as u64)?)
    })?;
    Ok(VerifiedImage { checked_bytes: data_bytes(image) })
}

fn data_bytes(image: &Image) -> u64 {
    let states = image.map().states();
    packed::runs(states, 0..states.pages()).map(|(bytes, _)| bytes.end - bytes.start).sum()
}

/// Whether all pages that the map calls ZERO are. Holes are, and are not read.
pub(crate) fn check_zeros(image: &Image, work: Work<'_>) -> Result<(), ZeroError> {
    if image.zeros_are_known() {
        return Ok(());
    }
    let (file, states) = (image.file(), image.map().states());
    let pieces = extents(file, states.mem_size()).flat_map(|extent| match extent {
        Ok(extent) => Pieces::Some(cut(extent)),
        Err(error) => Pieces::Error(Some(error)),
    });
    let pieces =
        pieces.map(|piece| piece.map_err(|(offset, source)| ZeroError::Read { offset, source }));
    let is_zero = zero::fastest();
    let threads = work.threads_within(usize::MAX, PIECE);
    parallel(threads, pieces, Vec::new, |buffer, piece| {
        work.advance(0)?;
        let pages = piece.start / PAGE..piece.end.div_ceil(PAGE);
        for run in states.runs_in(pages).filter(|run| run.state == PageState::Zero) {
            let bytes = packed::bytes_of(&run.pages, states.mem_size());
            buffer.resize((bytes.end - bytes.start) as usize, 0);
            file.read_exact_at(buffer, bytes.start)
                .map_err(|source| ZeroError::Read { offset: bytes.start, source })?;
            for (page, bytes) in run.pages.zip(buffer.chunks(PAGE as usize)) {
                if !is_zero(bytes) {
                    return Err(ZeroError::NotZero { offset: page * PAGE });
                }
            }
        }
        Ok(())
    })
}

/// An extent in pieces that end where a multiple of [`PIECE`] does.
fn cut(extent: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = extent.start;
    std::iter::from_fn(move || {
        let start = at;
        at = (start / PIECE + 1).saturating_mul(PIECE).min(extent.end);
        (start < extent.end).then_some(start..at)
    })
}

/// The pieces of one extent, or the error that was met instead of it.
enum Pieces<I> {
    Some(I),
    Error(Option<(u64, io::Error)>),
}

impl<I: Iterator<Item = Range<u64>>> Iterator for Pieces<I> {
    type Item = Result<Range<u64>, (u64, io::Error)>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Some(pieces) => pieces.next().map(Ok),
            Self::Error(error) => error.take().map(Err),
        }
    }
}
