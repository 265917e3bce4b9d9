//! Which pages hold data, read by several threads.

use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{panic, thread};

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

use super::punch::Puncher;
use super::zero::is_zero;
use super::{BUFFER, PIECE, SparsifyError};
use crate::bits;
use crate::units::PAGE;

/// Words of the bitmap that one piece fills.
const PIECE_WORDS: usize = (PIECE / PAGE / 64) as usize;

/// Sets the bit of every page that is not all zeros, and has the others punched. `data` is clear.
pub(super) fn image(
    file: &File,
    file_size: u64,
    threads: Option<NonZeroUsize>,
    puncher: &Puncher<'_>,
    data: &mut [u64],
) -> Result<(), SparsifyError> {
    let pieces = data.len().div_ceil(PIECE_WORDS);
    let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = threads.map_or_else(cores, NonZeroUsize::get).min(pieces);

    let queue = Mutex::new(data.chunks_mut(PIECE_WORDS).enumerate());
    let stop = AtomicBool::new(false);
    let work = || {
        let mut buffer = vec![0; BUFFER];
        while !stop.load(Ordering::Relaxed) {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((number, words)) = next else { break };
            let start = number as u64 * PIECE;
            let mut piece = Piece { file, puncher, words, start, zeros: start..start };
            let done = piece.scan(start..(start + PIECE).min(file_size), &mut buffer);
            if done.is_err() {
                stop.store(true, Ordering::Relaxed);
                return done;
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        // A thread that can't be had is one fewer; this one works too.
        let others: Vec<_> = (1..threads)
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        let mut done = work();
        for other in others {
            done = done.and(other.join().unwrap_or_else(|panic| panic::resume_unwind(panic)));
        }
        done
    })
}

/// A part of the image that starts at a piece's border.
struct Piece<'a> {
    file: &'a File,
    puncher: &'a Puncher<'a>,
    words: &'a mut [u64],
    /// Where the piece starts in the file.
    start: u64,
    /// Zeros that were read and not yet punched.
    zeros: Range<u64>,
}

impl Piece<'_> {
    fn scan(&mut self, range: Range<u64>, buffer: &mut [u8]) -> Result<(), SparsifyError> {
        let mut at = range.start;
        while at < range.end
            && let Some(extent) = next_extent(self.file, at..range.end)?
        {
            // An extent may end within a page; the page is looked at as a whole, and once.
            let start = (extent.start & !(PAGE - 1)).max(at);
            let end = extent.end.next_multiple_of(PAGE).min(range.end);
            self.extent(start..end, buffer)?;
            at = end;
        }
        Ok(())
    }

    fn extent(&mut self, extent: Range<u64>, buffer: &mut [u8]) -> Result<(), SparsifyError> {
        self.zeros = extent.start..extent.start;
        let mut at = extent.start;
        while at < extent.end {
            let length = (extent.end - at).min(buffer.len() as u64);
            let part = &mut buffer[..length as usize];
            self.file
                .read_exact_at(part, at)
                .map_err(|source| SparsifyError::Read { offset: at, source })?;
            for page in part.chunks(PAGE as usize) {
                let end = at + page.len() as u64;
                if is_zero(page) {
                    self.zeros.end = end;
                } else {
                    bits::put(self.words, (at - self.start) / PAGE, true);
                    self.punch_zeros()?;
                    self.zeros = end..end;
                }
                at = end;
            }
        }
        self.punch_zeros()
    }

    fn punch_zeros(&self) -> Result<(), SparsifyError> {
        if self.zeros.is_empty() { Ok(()) } else { self.puncher.punch(self.zeros.clone()) }
    }
}

/// The first data in `range` and where it ends; none when only a hole is left. A filesystem that
/// knows of no holes calls everything data.
fn next_extent(file: &File, range: Range<u64>) -> Result<Option<Range<u64>>, SparsifyError> {
    let seek = |at: u64, whence| match lseek(file, at as i64, whence) {
        Ok(found) => Ok(Some(found as u64)),
        Err(Errno::ENXIO) => Ok(None),
        Err(errno) => Err(SparsifyError::Read { offset: at, source: errno.into() }),
    };
    let Some(start) = seek(range.start, Whence::SeekData)?.filter(|start| *start < range.end)
    else {
        return Ok(None);
    };
    let end = seek(start, Whence::SeekHole)?.unwrap_or(range.end).min(range.end);
    Ok(Some(start..end))
}
