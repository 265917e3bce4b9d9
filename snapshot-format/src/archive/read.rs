//! From an archive to windows, and to an image.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::Archive;
use super::frame::{DecodeFrameError, Decoder, Frame, ZstdError};
use super::open::{CheckHeaderError, check_header};
use crate::packed;
use crate::read_at::ReadAt;
use crate::units::{PAGE, PageState};
use crate::work::{Cancelled, Work, parallel};

/// The most bytes of frames that one thread reads at once.
const MAX_READ: usize = 8 * 1024 * 1024;

/// What a decoder takes besides, in bytes: zstd's `ZSTD_estimateDCtxSize` is 160 KiB.
const DECODER: u64 = 256 * 1024;

/// Why a window can't be had from an archive.
#[derive(Debug, thiserror::Error)]
pub enum ReadWindowError {
    /// The image has no such window.
    #[error("the image has windows 0 to {windows} (not included), and not {window}")]
    Unknown {
        /// The window that was asked for.
        window: u64,
        /// How many there are.
        windows: u64,
    },
    /// The frame can't be read.
    #[error("the archive can't be read at offset {offset}: {source}")]
    Read {
        /// Where, in bytes.
        offset: u64,
        /// What reading it said.
        source: io::Error,
    },
    /// The frame is not what the index says.
    #[error(transparent)]
    Frame(#[from] DecodeFrameError),
}

/// Why an archive is not what its index says.
#[derive(Debug, thiserror::Error)]
pub enum VerifyArchiveError {
    /// Its start is wrong.
    #[error(transparent)]
    Header(#[from] CheckHeaderError),
    /// A part can't be read.
    #[error("the archive can't be read at offset {offset}: {source}")]
    Read {
        /// Where, in bytes.
        offset: u64,
        /// What reading it said.
        source: io::Error,
    },
    /// A frame is wrong.
    #[error(transparent)]
    Frame(#[from] DecodeFrameError),
    /// There is no memory for a decoder.
    #[error(transparent)]
    Zstd(#[from] ZstdError),
    /// It was ended from outside.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// Why an image could not be restored from an archive.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The archive can't be read.
    #[error("the archive can't be read at offset {offset}: {source}")]
    Read {
        /// Where, in bytes.
        offset: u64,
        /// What reading it said.
        source: io::Error,
    },
    /// A frame is wrong.
    #[error(transparent)]
    Frame(#[from] DecodeFrameError),
    /// There is no memory for a decoder.
    #[error(transparent)]
    Zstd(#[from] ZstdError),
    /// The file has something in it, which would shine through where the image has zeros.
    #[error("the file to unpack into has {0} bytes and must be empty")]
    NotEmpty(u64),
    /// The image can't be written.
    #[error("the image can't be written at offset {offset}: {source}")]
    Write {
        /// Where, in bytes.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// It was ended from outside.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// What reading frames in bulk can meet, for whoever does something with them.
trait BulkError: From<DecodeFrameError> + From<ZstdError> + From<Cancelled> + Send {
    fn read(offset: u64, source: io::Error) -> Self;
}

impl BulkError for VerifyArchiveError {
    fn read(offset: u64, source: io::Error) -> Self {
        Self::Read { offset, source }
    }
}

impl BulkError for UnpackError {
    fn read(offset: u64, source: io::Error) -> Self {
        Self::Read { offset, source }
    }
}

impl<R: ReadAt> Archive<R> {
    /// Reads and checks everything: the header at the start, every frame's BLAKE3, that it
    /// decompresses, and the checksum of what it holds. Progress is in bytes of DATA.
    pub fn verify(&self, work: Work<'_>) -> Result<(), VerifyArchiveError> {
        check_header(&self.source, &self.index)?;
        self.each_frame(work, |_, _| Ok(()))
    }

    /// Restores the image into `file`, which must be empty: makes it as large as the image and writes the
    /// DATA pages, on several threads, each frame verified before it is decompressed. ZERO and
    /// PARENT pages are left as holes. Syncing is up to the caller, and after an error the file is
    /// good for nothing.
    pub fn unpack(&self, file: &File, work: Work<'_>) -> Result<(), UnpackError> {
        let states = self.map().states();
        let failed = |offset| move |source| UnpackError::Write { offset, source };
        let there = file.metadata().map_err(failed(0))?.len();
        if there != 0 {
            return Err(UnpackError::NotEmpty(there));
        }
        file.set_len(states.mem_size()).map_err(failed(0))?;
        self.each_frame(work, |frame, packed| {
            for (bytes, place) in packed::runs(states, self.map().pages_of(frame.window.into())) {
                file.write_all_at(&packed[place], bytes.start).map_err(failed(bytes.start))?;
            }
            Ok(())
        })
    }

    /// Fills `out` with `window`: DATA pages from the archive, ZERO pages with zeros; PARENT pages
    /// stay as they are in `out`, for a layer is read over what it lies on. `out` has the window's
    /// size, the last window's may be cut short.
    ///
    /// # Panics
    /// When `out` has another length than [`Map::window_bytes`](crate::Map::window_bytes) says.
    pub fn read_window(
        &self,
        window: u64,
        decoder: &mut Decoder,
        out: &mut [u8],
    ) -> Result<(), ReadWindowError> {
        let map = self.map();
        if window >= map.windows() {
            return Err(ReadWindowError::Unknown { window, windows: map.windows() });
        }
        let bytes = map.window_bytes(window);
        assert_eq!(out.len() as u64, bytes.end - bytes.start, "a window's bytes");
        let states = map.states();
        for run in states.runs_in(map.pages_of(window)).filter(|r| r.state == PageState::Zero) {
            let zeros = packed::bytes_of(&run.pages, states.mem_size());
            out[(zeros.start - bytes.start) as usize..(zeros.end - bytes.start) as usize].fill(0);
        }
        let Some(frame) = self.index.frame_of(window).and_then(|n| self.index.frame(n)) else {
            return Ok(());
        };
        let mut compressed = vec![0; frame.length as usize];
        self.source
            .read_exact_at(&mut compressed, frame.offset)
            .map_err(|source| ReadWindowError::Read { offset: frame.offset, source })?;
        let packed = decoder.decode(&frame, &compressed)?;
        for (data, place) in packed::runs(states, map.pages_of(window)) {
            let start = (data.start - bytes.start) as usize;
            out[start..start + place.len()].copy_from_slice(&packed[place]);
        }
        Ok(())
    }

    /// Decodes all frames, several threads at a time, in about the order of the file.
    fn each_frame<E: BulkError>(
        &self,
        work: Work<'_>,
        each: impl Fn(&Frame, &[u8]) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        work.expect(self.map().counts().data * PAGE);
        let groups = Groups { archive: self, next: 0 };
        let window = self.map().window_size().bytes();
        let held = self.source.preferred_read().min(MAX_READ) as u64 + window + DECODER;
        let threads = work.threads_within(self.index.frames(), held);
        let state = || (None, Vec::new());
        parallel(threads, groups.map(Ok), state, |(decoder, buffer), group: Group| {
            let decoder = match decoder {
                Some(decoder) => decoder,
                none => none.insert(Decoder::new()?),
            };
            buffer.resize(group.length, 0);
            self.source
                .read_exact_at(buffer, group.offset)
                .map_err(|source| E::read(group.offset, source))?;
            for number in group.frames {
                let frame = self.index.frame(number).expect("groups are of frames that there are");
                let start = (frame.offset - group.offset) as usize;
                let packed =
                    decoder.decode(&frame, &buffer[start..start + frame.length as usize])?;
                each(&frame, packed)?;
                work.advance(packed.len() as u64)?;
            }
            Ok(())
        })
    }
}

/// Frames side by side that are read at once.
struct Group {
    frames: std::ops::Range<usize>,
    offset: u64,
    length: usize,
}

struct Groups<'a, R> {
    archive: &'a Archive<R>,
    next: usize,
}

impl<R: ReadAt> Iterator for Groups<'_, R> {
    type Item = Group;

    fn next(&mut self) -> Option<Group> {
        let first = self.next;
        let start = self.archive.index.frame(first)?;
        let most = self.archive.source.preferred_read().min(MAX_READ);
        let mut length = start.length as usize;
        self.next += 1;
        while let Some(frame) = self.archive.index.frame(self.next)
            && length + frame.length as usize <= most
        {
            length += frame.length as usize;
            self.next += 1;
        }
        Some(Group { frames: first..self.next, offset: start.offset, length })
    }
}
