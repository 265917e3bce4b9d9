//! The sparse file behind the lazy one.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use fuser::{Errno, ReplyData, ReplyWrite};
use rustix::fs::{FallocateFlags, fallocate};

use crate::known::Known;

/// What every request needs.
pub(crate) struct Backed {
    pub(crate) file: File,
    pub(crate) size: u64,
    pub(crate) known: Known,
}

impl Backed {
    /// The bytes of a request, which are cut at the end of the file. None: there are none.
    pub(crate) fn bytes(&self, offset: u64, length: u64) -> Option<Range<u64>> {
        let end = offset.saturating_add(length).min(self.size);
        (offset < end).then_some(offset..end)
    }

    /// Answers a read of bytes that are there.
    pub(crate) fn answer(&self, bytes: &Range<u64>, reply: ReplyData) {
        thread_local!(static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
        BUFFER.with_borrow_mut(|buffer| {
            let length = (bytes.end - bytes.start) as usize;
            if buffer.len() < length {
                buffer.resize(length, 0);
            }
            let buffer = &mut buffer[..length];
            // Never fewer bytes than were asked for: the kernel would have zeros in their place.
            match self.file.read_exact_at(buffer, bytes.start) {
                Ok(()) => reply.data(buffer),
                Err(error) => reply.error(failed("read", &error)),
            }
        });
    }

    /// Answers a write to bytes that are there.
    pub(crate) fn put(&self, offset: u64, data: &[u8], reply: ReplyWrite) {
        match self.file.write_all_at(data, offset) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(failed("written", &error)),
        }
    }

    /// Makes a hole of bytes as soon as they are there.
    pub(crate) fn punch(&self, bytes: &Range<u64>) -> Result<(), Errno> {
        self.known.wait(bytes).map_err(|_| Errno::EIO)?;
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, mode, bytes.start, bytes.end - bytes.start)
            .map_err(|error| Errno::from_i32(error.raw_os_error()))
    }
}

/// What to answer when the backing file fails, which is logged.
pub(crate) fn failed(what: &str, error: &io::Error) -> Errno {
    tracing::error!(%error, "the backing file of a memory file can't be {what}");
    error.raw_os_error().map_or(Errno::EIO, Errno::from_i32)
}
