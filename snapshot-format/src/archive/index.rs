//! What an archive holds, and where.

use std::io::{self, Read, Write};
use std::ops::Range;

use super::frame::Frame;
use super::layout::{
    COLUMNS, HASH, Header, HeaderError, INDEX_FIXED, INDEX_MAGIC, INDEX_SLACK, MAX_HEADER,
    SKIPPABLE, index_at,
};
use crate::bitmaps::{Bitmaps, BitmapsError};
use crate::bits;
use crate::bytes::{each_words, put, u32_at, u64_at};
use crate::map::{Map, WithoutParent};
use crate::packed::{self, EMPTY_CHECKSUM};
use crate::units::{Counts, MAX_WINDOWS, PAGE, PageStates};
use crate::working_set::WorkingSet;

/// The level at which the page states are compressed. They are small whatever it is.
const STATES_LEVEL: i32 = 3;
/// The binary logarithm of how far the states' frame may refer back, and so of what a reader of a
/// hostile one allocates.
const STATES_WINDOW_LOG: u32 = 20;

/// Where the frames are and what they must be, with the map of what they hold.
#[derive(Debug)]
pub struct Index {
    /// The archive's header, as it is in the index.
    header: Vec<u8>,
    map: Map,
    /// For each frame in the order of the file: its window.
    windows: Vec<u32>,
    /// For each frame where it starts, and where the last ends.
    offsets: Vec<u64>,
    /// For each window the number of its frame, or `NO_FRAME`.
    frame_of: Vec<u32>,
    working_set_frames: u32,
    /// The BLAKE3 of each frame, one behind the other.
    hashes: Vec<u8>,
    blake3: [u8; HASH],
}

const NO_FRAME: u32 = u32::MAX;

/// Why an index is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// It does not start with an index's magic bytes.
    #[error("there is no index where the seek table says")]
    NotAnIndex,
    /// It ends before what it says that it holds.
    #[error("the index has {there} bytes and needs {needed}")]
    Truncated {
        /// How many it needs.
        needed: u64,
        /// How many there are.
        there: u64,
    },
    /// It is longer than what it says that it holds.
    #[error("the index has {there} bytes and what it speaks of takes {needed}")]
    TooLong {
        /// How many it accounts for.
        needed: u64,
        /// How many there are.
        there: u64,
    },
    /// A part of it has a length that none of this image can have.
    #[error("the index's {part} can't have {length} bytes")]
    PartLength {
        /// The part's name in `FORMAT.md`.
        part: &'static str,
        /// Its length by the index, in bytes.
        length: u64,
    },
    /// It is not what was written.
    #[error("the BLAKE3 of the index is wrong")]
    Blake3,
    /// The copy of the header in it is none.
    #[error("in the index: {0}")]
    Header(#[from] HeaderError),
    /// The page states are no zstd frame of the size that the image asks for.
    #[error("the index's page states can't be decompressed: {0}")]
    StatesFrame(io::Error),
    /// The bitmaps reach behind the last page or give a page two states.
    #[error("the index's bitmaps contradict each other or reach behind the last page")]
    States,
    /// The index counts other pages than its bitmaps.
    #[error("the index counts {counted:?} and its bitmaps {bitmaps:?}")]
    Counts {
        /// What the index says.
        counted: Counts,
        /// What is so.
        bitmaps: Counts,
    },
    /// Pages are as in a parent, and there is none.
    #[error(transparent)]
    WithoutParent(#[from] WithoutParent),
    /// The frames are not one for each window with DATA, in the right order.
    #[error("frame {frame} of the index is of window {window}, {what}")]
    Order {
        /// The frame's number.
        frame: usize,
        /// The window.
        window: u32,
        /// What is wrong with that.
        what: &'static str,
    },
    /// There are more or fewer frames than windows with DATA.
    #[error("the index has {frames} frames for {windows} windows with data")]
    FrameCount {
        /// How many frames.
        frames: u64,
        /// How many windows with DATA.
        windows: u64,
    },
    /// A frame has a length that none of its window can have.
    #[error("frame {frame} of the index can't have {length} bytes")]
    FrameLength {
        /// The frame's number.
        frame: usize,
        /// Its length by the index, in bytes.
        length: u32,
    },
    /// The frames do not fill the space between header and index.
    #[error("the frames end at offset {frames_end} and the index starts at {index_start}")]
    Gap {
        /// Where the last frame ends.
        frames_end: u64,
        /// Where the index starts.
        index_start: u64,
    },
}

/// What is noted of each frame while an archive is written, column by column.
#[derive(Debug, Default)]
pub(super) struct Columns {
    pub(super) windows: Vec<u32>,
    pub(super) lengths: Vec<u32>,
    pub(super) hashes: Vec<[u8; HASH]>,
    pub(super) checksums: Vec<u64>,
}

/// The index of an archive that is being written: how long it will be, then its bytes.
pub(super) struct Draft<'a> {
    fixed: Vec<u8>,
    states: Vec<u8>,
    working_set: Vec<u8>,
    columns: &'a Columns,
}

impl<'a> Draft<'a> {
    pub(super) fn new(
        header: &[u8],
        map: &Map,
        columns: &'a Columns,
        working_set_frames: usize,
    ) -> io::Result<Self> {
        let states = compress_states(map.states())?;
        let working_set = map.working_set().to_bytes();
        let counts = map.counts();
        let mut fixed = vec![0; INDEX_FIXED];
        put(&mut fixed, 0, &INDEX_MAGIC);
        put(&mut fixed, index_at::HEADER_LEN, &(header.len() as u32).to_le_bytes());
        put(&mut fixed, index_at::FRAMES, &(columns.windows.len() as u32).to_le_bytes());
        let first = working_set_frames as u32;
        put(&mut fixed, index_at::WORKING_SET_FRAMES, &first.to_le_bytes());
        put(&mut fixed, index_at::STATES_LEN, &(states.len() as u32).to_le_bytes());
        put(&mut fixed, index_at::WORKING_SET_LEN, &(working_set.len() as u32).to_le_bytes());
        put(&mut fixed, index_at::DATA_PAGES, &counts.data.to_le_bytes());
        put(&mut fixed, index_at::ZERO_PAGES, &counts.zero.to_le_bytes());
        put(&mut fixed, index_at::PARENT_PAGES, &counts.parent.to_le_bytes());
        fixed.extend(header);
        Ok(Self { fixed, states, working_set, columns })
    }

    pub(super) fn length(&self) -> u32 {
        let columns = self.columns.windows.len() * COLUMNS;
        (self.fixed.len() + self.states.len() + self.working_set.len() + columns + HASH) as u32
    }

    /// Writes the index, and says its BLAKE3.
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<[u8; HASH]> {
        let mut hasher = blake3::Hasher::new();
        let mut part = |bytes: &[u8]| {
            hasher.update(bytes);
            to.write_all(bytes)
        };
        part(&self.fixed)?;
        part(&self.states)?;
        part(&self.working_set)?;
        for column in [&self.columns.windows, &self.columns.lengths] {
            for some in column.chunks(4096) {
                part(&some.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())?;
            }
        }
        for some in self.columns.hashes.chunks(1024) {
            part(some.as_flattened())?;
        }
        each_words(self.columns.checksums.iter().copied(), &mut part)?;
        let blake3 = *hasher.finalize().as_bytes();
        to.write_all(&blake3)?;
        Ok(blake3)
    }
}

fn compress_states(states: &PageStates) -> io::Result<Vec<u8>> {
    let mut zstd = zstd::stream::write::Encoder::new(Vec::new(), STATES_LEVEL)?;
    zstd.window_log(STATES_WINDOW_LOG)?;
    each_words(states.data_words(), |part| zstd.write_all(part))?;
    each_words(states.zero_words(), |part| zstd.write_all(part))?;
    zstd.finish()
}

fn decompress_states(bytes: &[u8], header: &Header) -> Result<PageStates, IndexError> {
    let mut bitmaps = Bitmaps::new(header.mem_size, header.parent.is_none());
    let mut zstd =
        zstd::stream::read::Decoder::with_buffer(bytes).map_err(IndexError::StatesFrame)?;
    zstd.window_log_max(STATES_WINDOW_LOG).map_err(IndexError::StatesFrame)?;
    let mut buffer = [0; 8192];
    let mut left = bitmaps.length() * 2;
    while left > 0 {
        let some = left.min(buffer.len() as u64) as usize;
        zstd.read_exact(&mut buffer[..some]).map_err(IndexError::StatesFrame)?;
        bitmaps.take(&buffer[..some]);
        left -= some as u64;
    }
    match zstd.read(&mut [0]) {
        Ok(0) => Ok(bitmaps.finish()?),
        Ok(_) => Err(IndexError::StatesFrame(io::Error::other("it holds more than the bitmaps"))),
        Err(error) => Err(IndexError::StatesFrame(error)),
    }
}

impl From<BitmapsError> for IndexError {
    fn from(error: BitmapsError) -> Self {
        match error {
            BitmapsError::Clash => Self::States,
            BitmapsError::WithoutParent(without) => Self::WithoutParent(without),
        }
    }
}

/// Where the parts of an index are, by its fixed fields.
struct Places {
    frames: u64,
    header: Range<usize>,
    states: Range<usize>,
    working_set: Range<usize>,
    windows: Range<usize>,
    lengths: Range<usize>,
    hashes: Range<usize>,
    checksums: Range<usize>,
    /// Where the index ends, with its own BLAKE3, if nothing else is in it.
    end: u64,
}

impl Places {
    /// `start` has the fixed fields. None overflows: each place is a sum of a few 32-bit numbers, times
    /// at most 48.
    fn of(start: &[u8]) -> Self {
        let field = |at| u64::from(u32_at(start, at));
        let frames = field(index_at::FRAMES);
        let mut end = INDEX_FIXED as u64;
        let mut part = |length: u64| {
            let start = end;
            end += length;
            start as usize..end as usize
        };
        Self {
            frames,
            header: part(field(index_at::HEADER_LEN)),
            states: part(field(index_at::STATES_LEN)),
            working_set: part(field(index_at::WORKING_SET_LEN)),
            windows: part(frames * 4),
            lengths: part(frames * 4),
            hashes: part(frames * HASH as u64),
            checksums: part(frames * 8),
            end: end + HASH as u64,
        }
    }
}

impl Index {
    /// How much of an index [`Self::check_start`] wants to see, if there is as much, in bytes.
    pub(super) const START: u64 = (INDEX_FIXED + MAX_HEADER) as u64;

    /// Looks at the first bytes of an index of so many bytes, in an archive of so many frames: whether
    /// it is one of ours, and no longer than what it speaks of, so that the rest may be read.
    pub(super) fn check_start(start: &[u8], there: u64, frames: u64) -> Result<(), IndexError> {
        if start.get(..INDEX_MAGIC.len()) != Some(&INDEX_MAGIC) {
            return Err(IndexError::NotAnIndex);
        }
        // In every version the header is there, and starts so.
        Header::check_version(start.get(INDEX_FIXED..).unwrap_or_default())?;
        let places = Places::of(start);
        let header = start
            .get(places.header.clone())
            .ok_or(IndexError::Truncated { needed: places.end, there })?;
        let header = Header::parse(header)?;
        let bitmap = bits::words(header.mem_size.div_ceil(PAGE)) * 8;
        let most = zstd::zstd_safe::compress_bound(bitmap as usize * 2) as u64;
        for (part, range, most) in [
            ("states", &places.states, most),
            ("working set", &places.working_set, WorkingSet::MAX_LENGTH),
        ] {
            let length = (range.end - range.start) as u64;
            if length > most {
                return Err(IndexError::PartLength { part, length });
            }
        }
        if places.frames != frames {
            return Err(IndexError::FrameCount { frames: places.frames, windows: frames });
        }
        if places.end > there {
            return Err(IndexError::Truncated { needed: places.end, there });
        }
        if there > places.end + INDEX_SLACK {
            return Err(IndexError::TooLong { needed: places.end, there });
        }
        Ok(())
    }

    /// Reads the bytes of an index that starts at `index_start` in its file, counted with the eight
    /// bytes in front of it; [`Self::check_start`] has seen them. What is allocated is at most what the
    /// bytes hold, and two bits for each page of the image.
    pub(super) fn parse(payload: Vec<u8>, index_start: u64) -> Result<Self, IndexError> {
        let there = payload.len() as u64;
        if payload.len() < INDEX_FIXED + HASH {
            return Err(IndexError::Truncated { needed: (INDEX_FIXED + HASH) as u64, there });
        }
        let (body, blake3) = payload.split_at(payload.len() - HASH);
        let blake3: [u8; HASH] = blake3.try_into().expect("it was split off at this length");
        if *blake3::hash(body).as_bytes() != blake3 {
            return Err(IndexError::Blake3);
        }
        let places = Places::of(body);
        if places.end > there {
            return Err(IndexError::Truncated { needed: places.end, there });
        }
        let Places { header, states, working_set, windows, lengths, hashes, checksums, .. } =
            places;

        let header_bytes = body[header].to_vec();
        let header_length = header_bytes.len() as u64;
        let header = Header::parse(&header_bytes)?;
        let states = decompress_states(&body[states], &header)?;
        let counted = Counts {
            data: u64_at(body, index_at::DATA_PAGES),
            zero: u64_at(body, index_at::ZERO_PAGES),
            parent: u64_at(body, index_at::PARENT_PAGES),
        };
        if states.counts() != counted {
            return Err(IndexError::Counts { counted, bitmaps: states.counts() });
        }
        let map = Map::new(header.image_id, header.parent, header.window, states)?;
        let column = |range: Range<usize>| {
            body[range].as_chunks().0.iter().map(|word| u32::from_le_bytes(*word))
        };
        let windows: Vec<u32> = column(windows).collect();
        let working_set_frames = u32_at(body, index_at::WORKING_SET_FRAMES);
        let frame_of = order(&map, &windows, working_set_frames)?;
        let offsets = offsets(&map, &windows, column(lengths), SKIPPABLE as u64 + header_length)?;
        let frames_end = offsets.last().copied().unwrap_or_default();
        if frames_end != index_start {
            return Err(IndexError::Gap { frames_end, index_start });
        }

        let mut dense = vec![EMPTY_CHECKSUM; frame_of.len()];
        for (window, checksum) in windows.iter().zip(body[checksums].as_chunks().0) {
            dense[*window as usize] = u64::from_le_bytes(*checksum);
        }
        let map = map.with_checksums(dense);
        let set = WorkingSet::from_bytes(&body[working_set], header.window, map.windows());
        let map = match set {
            Some(set) => map.with_working_set(set),
            None => map.without_damaged_working_set(),
        };
        let map = map.with_foreign_ro(header.foreign_ro);
        // Of all that was read only this is still needed, and is not copied.
        let mut hash_bytes = payload;
        hash_bytes.truncate(hashes.end);
        hash_bytes.drain(..hashes.start);
        hash_bytes.shrink_to_fit();
        Ok(Self {
            header: header_bytes,
            map,
            windows,
            offsets,
            frame_of,
            working_set_frames,
            hashes: hash_bytes,
            blake3,
        })
    }

    /// The bytes of the header, without what is around them.
    pub(super) fn header(&self) -> &[u8] {
        &self.header
    }

    pub(super) fn into_map(self) -> Map {
        self.map
    }

    /// The map of the image in the archive, with checksums and working set.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// How many frames there are: one for each window with DATA.
    pub fn frames(&self) -> usize {
        self.windows.len()
    }

    /// How many of the frames, from the first on, are the working set.
    pub fn working_set_frames(&self) -> usize {
        self.working_set_frames as usize
    }

    /// BLAKE3 of the index (without the hash itself, which is its end). It covers everything that the archive says of the image and the
    /// BLAKE3 of every frame: who knows it from elsewhere knows every byte of the image.
    pub fn blake3(&self) -> [u8; 32] {
        self.blake3
    }

    /// The frame with this number, counted from 0 in the order of the file.
    pub fn frame(&self, number: usize) -> Option<Frame> {
        let window = *self.windows.get(number)?;
        let offset = self.offsets[number];
        let hash = &self.hashes[number * HASH..][..HASH];
        Some(Frame {
            window,
            offset,
            length: (self.offsets[number + 1] - offset) as u32,
            raw_length: raw_length(&self.map, window),
            blake3: hash.try_into().expect("a slice of this length"),
            checksum: self.map.checksum(window.into()).unwrap_or(EMPTY_CHECKSUM),
        })
    }

    /// The number of the frame that holds `window`; none when it has no DATA or there is no such
    /// window.
    pub fn frame_of(&self, window: u64) -> Option<usize> {
        let number = *self.frame_of.get(usize::try_from(window).ok()?)?;
        (number != NO_FRAME).then_some(number as usize)
    }
}

fn raw_length(map: &Map, window: u32) -> u32 {
    packed::length(map.states(), map.pages_of(window.into())) as u32
}

/// The number of each window's frame, if there is one frame for each window with DATA, the working
/// set's first in any order and the others ascending.
fn order(map: &Map, windows: &[u32], working_set_frames: u32) -> Result<Vec<u32>, IndexError> {
    let all = map.windows().min(MAX_WINDOWS);
    let with_data = (0..all).filter(|window| map.window_data_pages(*window) > 0).count() as u64;
    if windows.len() as u64 != with_data || u64::from(working_set_frames) > with_data {
        return Err(IndexError::FrameCount { frames: windows.len() as u64, windows: with_data });
    }
    let mut frame_of = vec![NO_FRAME; all as usize];
    let mut last = None;
    for (frame, window) in windows.iter().enumerate() {
        let wrong = |what| IndexError::Order { frame, window: *window, what };
        let place = frame_of
            .get_mut(*window as usize)
            .ok_or_else(|| wrong("which the image does not have"))?;
        if *place != NO_FRAME {
            return Err(wrong("which came before"));
        }
        if map.window_data_pages((*window).into()) == 0 {
            return Err(wrong("which has no data"));
        }
        if frame >= working_set_frames as usize {
            if last.is_some_and(|last| *window < last) {
                return Err(wrong("which should have come earlier"));
            }
            last = Some(*window);
        }
        *place = frame as u32;
    }
    Ok(frame_of)
}

/// Where each frame starts, and where the last ends.
fn offsets(
    map: &Map,
    windows: &[u32],
    lengths: impl Iterator<Item = u32>,
    start: u64,
) -> Result<Vec<u64>, IndexError> {
    let mut offsets = Vec::with_capacity(windows.len() + 1);
    let mut at = start;
    offsets.push(at);
    for (frame, (window, length)) in windows.iter().zip(lengths).enumerate() {
        let most = zstd::zstd_safe::compress_bound(raw_length(map, *window) as usize);
        if length == 0 || length as usize > most {
            return Err(IndexError::FrameLength { frame, length });
        }
        at += u64::from(length);
        offsets.push(at);
    }
    Ok(offsets)
}
