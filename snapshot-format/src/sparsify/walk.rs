//! Where an image has data, as jobs for the threads that read it.

use std::io;
use std::ops::Range;
use std::slice::ChunksMut;

use super::{PIECE, SparsifyError};
use crate::units::{PAGE, WindowSize};
use crate::work::Work;

/// Words of the bitmap that one piece fills.
const PIECE_WORDS: usize = (PIECE / PAGE / 64) as usize;

/// An extent, or where and why none could be found.
type Extent = Result<Range<u64>, (u64, io::Error)>;

/// A part of the image that holds data, with what is to be found out about it.
pub(super) struct Piece<'a> {
    /// Where it starts in the image.
    pub(super) start: u64,
    /// Its length in bytes; the image's last may be shorter than the others.
    pub(super) length: u64,
    /// Where in the image its data lies, in whole pages, ascending; never empty.
    pub(super) extents: Vec<Range<u64>>,
    /// Its part of the DATA bitmap.
    pub(super) data: &'a mut [u64],
    /// The checksums of its windows.
    pub(super) checksums: &'a mut [u64],
}

/// Cuts an image's extents into pieces, from the first to the last. It looks for an extent when all
/// before it are handed out, and never at what is: whoever works on a piece may punch holes into it.
pub(super) struct Walker<'a, I> {
    extents: I,
    mem_size: u64,
    work: Work<'a>,
    /// Data that was found and not yet handed out.
    extent: Range<u64>,
    /// The end of the piece that was handed out last. What is left of the bitmap and the checksums
    /// starts here.
    reached: u64,
    data: ChunksMut<'a, u64>,
    checksums: ChunksMut<'a, u64>,
}

impl<'a, I: Iterator<Item = Extent>> Walker<'a, I> {
    /// `extents` are those of the image as [`crate::extents::extents_in`] finds them, `data` and
    /// `checksums` are as long as it is.
    pub(super) fn new(
        extents: I,
        mem_size: u64,
        work: Work<'a>,
        window: WindowSize,
        data: &'a mut [u64],
        checksums: &'a mut [u64],
    ) -> Self {
        let windows = (PIECE / window.bytes()) as usize;
        Self {
            extents,
            mem_size,
            work,
            extent: 0..0,
            reached: 0,
            data: data.chunks_mut(PIECE_WORDS),
            checksums: checksums.chunks_mut(windows),
        }
    }

    fn step(&mut self) -> Result<Option<Piece<'a>>, SparsifyError> {
        if self.extent.is_empty() {
            self.seek()?;
        }
        let last = self.extent.is_empty();
        let start = if last { self.mem_size } else { self.extent.start & !(PIECE - 1) };
        let skipped = start - self.reached;
        self.work.advance(skipped)?;
        self.reached = start;
        if last {
            return Ok(None);
        }

        let skipped = (skipped / PIECE) as usize;
        let data = self.data.nth(skipped).expect("the bitmap is as long as the image");
        let checksums = self.checksums.nth(skipped).expect("all windows have a checksum");
        self.reached = (start + PIECE).min(self.mem_size);
        let mut extents = Vec::new();
        while self.extent.start < self.reached {
            let part = self.extent.start..self.extent.end.min(self.reached);
            self.extent.start = part.end;
            extents.push(part);
            if self.extent.is_empty() {
                self.seek()?;
            }
        }
        Ok(Some(Piece { start, length: self.reached - start, extents, data, checksums }))
    }

    /// Goes to the next data behind the extent that was handed out, in whole pages: a page in which
    /// one extent ends and another starts is looked at once. What is found is empty, and at the
    /// image's end, when there is none.
    fn seek(&mut self) -> Result<(), SparsifyError> {
        let from = self.extent.end;
        self.extent = self.mem_size..self.mem_size;
        for found in self.extents.by_ref() {
            let found = found.map_err(|(offset, source)| SparsifyError::Read { offset, source })?;
            let start = (found.start & !(PAGE - 1)).max(from);
            let end = found.end.next_multiple_of(PAGE).min(self.mem_size);
            if start < end {
                self.extent = start..end;
                break;
            }
        }
        Ok(())
    }
}

impl<'a, I: Iterator<Item = Extent>> Iterator for Walker<'a, I> {
    type Item = Result<Piece<'a>, SparsifyError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_have_the_pages_of_the_extents_once(
            lengths in prop::collection::vec((1..3 * PIECE, 1..3 * PIECE, 0..3_u8), 0..8),
            tail in 0..2 * PIECE,
        ) {
            // Holes and data in turn: of any length, of less than a page, or a piece to the byte.
            let length = |long: u64, kind| match kind {
                0 => long,
                1 => long % PAGE + 1,
                _ => PIECE,
            };
            let mut end = 0;
            let mut extents = Vec::new();
            for (hole, data, kind) in lengths {
                let start = end + length(hole, kind);
                end = start + length(data, kind);
                extents.push(start..end);
            }
            let mem_size = end + tail;
            let pages = mem_size.div_ceil(PAGE);
            let mut wanted = vec![0; pages as usize];
            for extent in &extents {
                wanted[(extent.start / PAGE) as usize..extent.end.div_ceil(PAGE) as usize].fill(1);
            }

            let window = WindowSize::DEFAULT;
            let mut data = vec![0; pages.div_ceil(64) as usize];
            let mut sums = vec![0; window.count(mem_size) as usize];
            let found = extents.into_iter().map(Ok);
            let walker =
                Walker::new(found, mem_size, Work::default(), window, &mut data, &mut sums);
            let mut seen = vec![0; pages as usize];
            for piece in walker {
                let piece = piece.unwrap();
                let all = piece.start..piece.start + piece.length;
                prop_assert!(piece.start.is_multiple_of(PIECE) && !piece.extents.is_empty());
                prop_assert_eq!(piece.length, PIECE.min(mem_size - piece.start));
                prop_assert_eq!(piece.data.len() as u64, piece.length.div_ceil(64 * PAGE));
                prop_assert_eq!(piece.checksums.len() as u64, window.count(piece.length));
                piece.data.fill(1 + piece.start / PIECE);
                piece.checksums.fill(1 + piece.start / PIECE);
                for extent in piece.extents {
                    prop_assert!(extent.start.is_multiple_of(PAGE));
                    prop_assert!(all.start <= extent.start && extent.end <= all.end);
                    for page in extent.start / PAGE..extent.end.div_ceil(PAGE) {
                        seen[page as usize] += 1;
                    }
                }
            }
            prop_assert_eq!(seen, wanted);
            // Every piece had its own part of both.
            let own = |parts: &[u64], size| parts.iter().enumerate().all(|(at, piece)| {
                *piece == 0 || *piece == 1 + at as u64 * size / PIECE
            });
            prop_assert!(own(&data, 64 * PAGE) && own(&sums, window.bytes()));
        }
    }

    #[test]
    fn what_the_filesystem_says_is_passed_on() {
        let extents = [Ok(0..PAGE), Err((7 * PIECE, io::Error::other("broken")))];
        let (mut data, mut sums) = (vec![0; 4096], vec![0; 1024]);
        let mut walker = Walker::new(
            extents.into_iter(),
            16 * PIECE,
            Work::default(),
            WindowSize::DEFAULT,
            &mut data,
            &mut sums,
        );
        let failed = walker.find_map(Result::err).unwrap();
        assert!(
            matches!(failed, SparsifyError::Read { offset, .. } if offset == 7 * PIECE),
            "{failed}"
        );
    }
}
