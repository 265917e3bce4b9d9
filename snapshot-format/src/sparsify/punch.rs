//! Blocks back to the filesystem.

use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statfs::fstatfs;

use super::scan::Target;
use super::{PIECE, SparsifyError};
use crate::units::PAGE;

/// Whether blocks could be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Punching {
    /// All that was to be punched is.
    Done,
    /// The filesystem does not know how to; the image is as good, and larger.
    Unsupported,
    /// It was not asked for: a dry run, or a copy, in which zeros have no blocks to begin with.
    Off,
}

/// Makes a hole in a file.
pub(super) type Punch = fn(&File, Range<u64>) -> Result<(), Errno>;

/// [`Punch`] by fallocate(2). The file's size stays what it is.
pub(super) fn punch_hole(file: &File, hole: Range<u64>) -> Result<(), Errno> {
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    // No overflow: the file is no larger than `MAX_MEM_SIZE`.
    fallocate(file, mode, hole.start as i64, (hole.end - hole.start) as i64)
}

/// Makes a hole of `hole`, of which parts of blocks become zeros. False where the filesystem does not
/// know how to.
pub(crate) fn punch(file: &File, hole: Range<u64>) -> Result<bool, Errno> {
    punch_by(punch_hole, file, hole)
}

fn punch_by(punch: Punch, file: &File, hole: Range<u64>) -> Result<bool, Errno> {
    loop {
        match punch(file, hole.clone()) {
            Ok(()) => return Ok(true),
            Err(Errno::EINTR) => {}
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => return Ok(false),
            Err(errno) => return Err(errno),
        }
    }
}

/// Punches one file, from several threads.
pub(super) struct Puncher<'a> {
    file: &'a File,
    file_size: u64,
    /// The filesystem's block in bytes, a power of two.
    block: u64,
    punch: Punch,
    unsupported: AtomicBool,
    punched: AtomicU64,
}

impl<'a> Puncher<'a> {
    pub(super) fn new(file: &'a File, file_size: u64, punch: Punch) -> Self {
        Self {
            file,
            file_size,
            block: block_size(file),
            punch,
            unsupported: AtomicBool::new(false),
            punched: AtomicU64::new(0),
        }
    }

    pub(super) fn outcome(&self) -> Punching {
        if self.unsupported.load(Ordering::Relaxed) {
            Punching::Unsupported
        } else {
            Punching::Done
        }
    }

    pub(super) fn punched_bytes(&self) -> u64 {
        self.punched.load(Ordering::Relaxed)
    }
}

impl Target for Puncher<'_> {
    /// Punches the whole blocks of `zeros`.
    fn zeros(&self, zeros: Range<u64>) -> Result<(), SparsifyError> {
        if self.unsupported.load(Ordering::Relaxed) {
            return Ok(());
        }
        let start = zeros.start.next_multiple_of(self.block);
        // The file's last block holds nothing behind the file's end.
        let end = if zeros.end == self.file_size {
            zeros.end.next_multiple_of(self.block)
        } else {
            zeros.end & !(self.block - 1)
        };
        if start >= end {
            return Ok(());
        }
        let punched = punch_by(self.punch, self.file, start..end)
            .map_err(|errno| SparsifyError::Punch { offset: start, source: errno.into() })?;
        if !punched {
            self.unsupported.store(true, Ordering::Relaxed);
            return Ok(());
        }
        self.punched.fetch_add(end.min(self.file_size) - start, Ordering::Relaxed);
        Ok(())
    }
}

/// What the filesystem says, where that is a block at all; never less than a page, as we know no
/// smaller runs of zeros. It only saves work: punching a part of a block writes zeros over zeros.
fn block_size(file: &File) -> u64 {
    let said = fstatfs(file).ok().and_then(|fs| u64::try_from(fs.block_size()).ok());
    said.filter(|block| block.is_power_of_two() && *block <= PIECE).unwrap_or(PAGE).max(PAGE)
}
