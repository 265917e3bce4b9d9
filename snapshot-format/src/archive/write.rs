//! From an image to an archive, as a stream.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use zeekstd::SeekTable;

use super::frame::{Encoder, ZstdError};
use super::index::{Columns, Draft};
use super::layout::{HEADER_FRAME, Header, INDEX_FRAME, SKIPPABLE, skippable};
use crate::image::Image;
use crate::map::{MAX_MEM_SIZE, Map, TooManyWindows};
use crate::packed;
use crate::units::PAGE;
use crate::verify::{ZeroError, check_zeros};
use crate::work::{Cancelled, MEMORY, Work, ordered};

/// How many bytes of DATA one job compresses, unless a window is larger: enough that handing jobs
/// over costs nothing, and little enough that several for each thread fit in memory.
const JOB: u64 = 1024 * 1024;

/// How to go about [`pack()`].
#[derive(Clone, Copy, Debug)]
pub struct PackOptions<'a> {
    /// zstd's level, 1 to 19. 1 is fastest, and on a guest's memory within 8 % of the size of 3.
    pub level: i32,
    /// Who does it and who watches; progress is in bytes of DATA.
    pub work: Work<'a>,
}

impl Default for PackOptions<'_> {
    fn default() -> Self {
        Self { level: 1, work: Work::default() }
    }
}

/// What [`pack()`] wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// How many frames.
    pub frames: u64,
    /// How many bytes in all.
    pub bytes: u64,
    /// BLAKE3 of the index: what a manifest keeps of an archive.
    pub index_blake3: [u8; 32],
}

/// Why an image could not be packed. What was written so far is no archive.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The image can't be read.
    #[error("the image can't be read at offset {offset}: {source}")]
    Read {
        /// Where, in bytes.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The image is not what its map says, so one of the two is stale or damaged.
    #[error(
        "the image's window {window}, at offset {offset}, is not what its map says; make the map anew, or restore the image"
    )]
    Changed {
        /// The window.
        window: u64,
        /// Where it starts, in bytes.
        offset: u64,
    },
    /// The map calls a page ZERO that holds something, or the page can't be read.
    #[error(transparent)]
    Zeros(#[from] ZeroError),
    /// The image is larger than any that we take.
    #[error("the image has {mem_size} bytes, more than the {MAX_MEM_SIZE} that are allowed")]
    TooLarge {
        /// The image's size in bytes.
        mem_size: u64,
    },
    /// Its windows are too small for it.
    #[error(transparent)]
    TooManyWindows(#[from] TooManyWindows),
    /// The map has features that this version does not know, and would lose.
    #[error("the map has features that this program can't write (bits {bits:#x})")]
    ReadOnly {
        /// Their bits.
        bits: u64,
    },
    /// zstd failed.
    #[error(transparent)]
    Zstd(#[from] ZstdError),
    /// The archive can't be written.
    #[error("the archive can't be written at offset {offset}: {source}")]
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

/// Writes the archive of an image, as a stream: the header, the frames with the working set's
/// first, the index, the seek table. Memory used is some 32 MiB for what is on its way, as much for the encoders (or one
/// encoder, if that is larger), 48 bytes per frame, and at most a bit or two per page.
///
/// The image must be what its map says: checksums, where the map has them, are compared, and so are
/// zeros. PARENT pages are not looked at.
pub fn pack(
    image: &Image,
    out: impl Write,
    options: &PackOptions<'_>,
) -> Result<Packed, PackError> {
    let map = image.map();
    if map.mem_size() > MAX_MEM_SIZE {
        return Err(PackError::TooLarge { mem_size: map.mem_size() });
    }
    TooManyWindows::check(map.window_size(), map.mem_size())?;
    if map.foreign_ro() != 0 {
        return Err(PackError::ReadOnly { bits: map.foreign_ro() });
    }
    options.work.expect(map.counts().data * PAGE);
    check_zeros(image, options.work)?;

    let mut out = Counting { out, written: 0 };
    let header = Header {
        mem_size: map.mem_size(),
        image_id: map.image_id(),
        parent: map.parent(),
        window: map.window_size(),
        foreign_ro: 0,
    };
    let header = header.to_bytes();
    out.put(&skippable(HEADER_FRAME, header.len() as u32))?;
    out.put(&header)?;

    let mut columns = Columns::default();
    let first = working_set(map);
    frames(image, &first, options, &mut columns, &mut out)?;

    let index = Draft::new(&header, map, &columns, first.len());
    let index = index.map_err(|e| PackError::Zstd(e.into()))?;
    out.put(&skippable(INDEX_FRAME, index.length()))?;
    let index_blake3 =
        index.write(&mut out).map_err(|source| PackError::Write { offset: out.written, source })?;

    let mut table = SeekTable::new();
    let mut log = |length: usize, raw: usize| {
        table.log_frame(length as u32, raw as u32).expect("there are no more frames than windows")
    };
    log(SKIPPABLE + header.len(), 0);
    for (window, length) in columns.windows.iter().zip(&columns.lengths) {
        let raw = packed::length(map.states(), map.pages_of((*window).into()));
        log(*length as usize, raw);
    }
    log(SKIPPABLE + index.length() as usize, 0);
    let frames = columns.windows.len() as u64;
    drop(columns);
    let copied = io::copy(&mut table.into_serializer(), &mut out);
    copied
        .and_then(|_| out.flush())
        .map_err(|source| PackError::Write { offset: out.written, source })?;
    Ok(Packed { frames, bytes: out.written, index_blake3 })
}

/// The windows of the working set that have DATA, in their order.
fn working_set(map: &Map) -> Vec<u32> {
    let mut order = map.working_set().order(map.window_size());
    order.retain(|window| map.window_data_pages((*window).into()) > 0);
    order
}

/// Some windows that are compressed by one thread.
struct Job {
    windows: Vec<u32>,
}

/// What became of a [`Job`].
struct Done {
    columns: Columns,
    frames: Vec<u8>,
    raw: u64,
}

fn frames(
    image: &Image,
    first: &[u32],
    options: &PackOptions<'_>,
    columns: &mut Columns,
    out: &mut Counting<impl Write>,
) -> Result<(), PackError> {
    let map = image.map();
    let in_flight = MEMORY / JOB.max(map.window_size().bytes());
    let encoder = Encoder::bytes(options.level, map.window_size().bytes())?;
    let threads = options.work.threads_within(in_flight as usize / 2, encoder);
    let depth = in_flight.min(threads as u64 * 4);
    // Buffers go round, so that the system need not clear new memory for every job.
    let buffers = Mutex::new(Vec::new());
    let pool = || buffers.lock().unwrap_or_else(PoisonError::into_inner);

    let state = || (None, Vec::new());
    ordered(
        threads,
        depth,
        Jobs::new(map, first).map(Ok),
        state,
        |(encoder, packed), job| {
            let encoder = match encoder {
                Some(encoder) => encoder,
                none => none.insert(Encoder::new(options.level)?),
            };
            let frames = pool().pop().unwrap_or_default();
            let done = compress(image, &job, encoder, packed, frames)?;
            options.work.advance(done.raw)?;
            Ok(done)
        },
        |mut done| {
            out.put(&done.frames)?;
            columns.windows.append(&mut done.columns.windows);
            columns.lengths.append(&mut done.columns.lengths);
            columns.hashes.append(&mut done.columns.hashes);
            columns.checksums.append(&mut done.columns.checksums);
            done.frames.clear();
            pool().push(done.frames);
            Ok(())
        },
    )
}

fn compress(
    image: &Image,
    job: &Job,
    encoder: &mut Encoder,
    packed: &mut Vec<u8>,
    mut frames: Vec<u8>,
) -> Result<Done, PackError> {
    let map = image.map();
    let mut columns = Columns::default();
    let mut raw = 0;
    for window in &job.windows {
        let number = u64::from(*window);
        packed::gather(image.file(), map.states(), map.pages_of(number), packed)
            .map_err(|(offset, source)| PackError::Read { offset, source })?;
        let checksum = packed::checksum(packed);
        if map.checksum(number).is_some_and(|known| known != checksum) {
            let offset = number * map.window_size().bytes();
            return Err(PackError::Changed { window: number, offset });
        }
        let frame = encoder.encode(packed)?;
        columns.windows.push(*window);
        columns.lengths.push(frame.len() as u32);
        columns.hashes.push(*blake3::hash(frame).as_bytes());
        columns.checksums.push(checksum);
        frames.extend_from_slice(frame);
        raw += packed.len() as u64;
    }
    Ok(Done { columns, frames, raw })
}

/// The windows with DATA, some at a time: the working set in its order, then the others ascending.
struct Jobs<'a> {
    map: &'a Map,
    first: std::slice::Iter<'a, u32>,
    /// A bit for each window that is in `first`.
    taken: Vec<u64>,
    next: u64,
}

impl<'a> Jobs<'a> {
    fn new(map: &'a Map, first: &'a [u32]) -> Self {
        let mut taken = vec![0; crate::bits::words(map.windows()) as usize];
        for window in first {
            crate::bits::put(&mut taken, (*window).into(), true);
        }
        Self { map, first: first.iter(), taken, next: 0 }
    }

    fn window(&mut self) -> Option<u32> {
        if let Some(window) = self.first.next() {
            return Some(*window);
        }
        while self.next < self.map.windows() {
            let window = self.next;
            self.next += 1;
            if !crate::bits::get(&self.taken, window) && self.map.window_data_pages(window) > 0 {
                return Some(window as u32);
            }
        }
        None
    }
}

impl Iterator for Jobs<'_> {
    type Item = Job;

    fn next(&mut self) -> Option<Job> {
        let mut windows = Vec::new();
        let mut bytes = 0;
        while bytes < JOB
            && let Some(window) = self.window()
        {
            windows.push(window);
            bytes += self.map.window_data_pages(window.into()) * PAGE;
        }
        (!windows.is_empty()).then_some(Job { windows })
    }
}

/// A writer that knows how far it is.
struct Counting<W> {
    out: W,
    written: u64,
}

impl<W: Write> Counting<W> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), PackError> {
        let offset = self.written;
        self.write_all(bytes).map_err(|source| PackError::Write { offset, source })
    }
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
