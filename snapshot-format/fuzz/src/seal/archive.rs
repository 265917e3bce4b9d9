//! An archive around an index and frames that may be anything.

use std::ops::Range;

use rouse_snapshot_format::{PAGE, PageState, PageStates, WindowSize};
use twox_hash::XxHash3_64;

use super::super::frame::decompressed;
use super::{counts, crc_at_end, put, u32_at, u64_at};

/// The most bytes of frames that are made up.
const MAX_FRAMES: usize = 1 << 20;

/// What is made right besides the checksums of header and index, and what lies around them.
#[derive(Clone, Copy, Debug)]
pub struct Right {
    /// What the index says of each frame.
    pub frames: bool,
    /// The numbers of pages.
    pub counts: bool,
}

/// The archive with this index (without its BLAKE3) and these frames, zeros where they end too
/// early. Its header is the one in the index.
pub fn archive(index: &[u8], frames: &[u8], right: Right) -> Vec<u8> {
    let mut index = Index::new(index.to_vec());
    put(&mut index.body, 0, b"ROUSEIDX");
    let header = index.seal_header();
    let states = index.states(right.counts);

    let mut entries = vec![(8 + header.len(), 0)];
    let mut frames = frames.to_vec();
    let mut at = 0;
    for number in 0..index.frames {
        let (window, length) = (index.number(0, number), index.number(LENGTHS, number));
        let raw = states.as_ref().map_or(0, |(states, size)| data_bytes(states, *size, window));
        entries.push((length, raw));
        if at + length <= MAX_FRAMES {
            frames.resize(frames.len().max(at + length), 0);
            if right.frames {
                index.put_frame(number, &frames[at..at + length], raw);
            }
            at += length;
        }
    }
    frames.truncate(at);
    let hash = *blake3::hash(&index.body).as_bytes();
    index.body.extend(hash);
    entries.push((8 + index.body.len(), 0));
    [
        skippable(0x184D_2A50, &header),
        frames,
        skippable(0x184D_2A51, &index.body),
        skippable(0x184D_2A5E, &seek_table(&entries)),
    ]
    .concat()
}

fn data_bytes(states: &PageStates, size: WindowSize, window: usize) -> u64 {
    let end = |page: u64| (page * PAGE).min(states.mem_size());
    let runs = states.runs_in(size.pages_of(window as u64, states.mem_size()));
    let data = runs.filter(|run| run.state == PageState::Data);
    data.map(|run| end(run.pages.end) - end(run.pages.start)).sum()
}

fn skippable(magic: u32, bytes: &[u8]) -> Vec<u8> {
    [&magic.to_le_bytes(), &(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

/// Of lengths in the archive and of what comes out.
fn seek_table(entries: &[(usize, u64)]) -> Vec<u8> {
    let words = entries.iter().flat_map(|(length, raw)| [*length as u32, *raw as u32]);
    let mut table: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    table.extend((entries.len() as u32).to_le_bytes());
    table.push(0);
    table.extend(0x8F92_EAB1_u32.to_le_bytes());
    table
}

/// What is known of an index that may be wrong in every way.
struct Index {
    body: Vec<u8>,
    /// How many frames it has room for.
    frames: usize,
    columns: usize,
    header: Range<usize>,
    states: Range<usize>,
}

/// The offset of each column from where they begin, for one frame.
const LENGTHS: usize = 4;
const HASHES: usize = 8;
const CHECKSUMS: usize = 40;
const COLUMNS: usize = 48;

impl Index {
    fn new(body: Vec<u8>) -> Self {
        let field = |at| u32_at(&body, at).unwrap_or(0) as usize;
        let header = 64..64 + field(8);
        let states = header.end..header.end + field(20);
        let columns = states.end + field(24);
        let room = body.len().saturating_sub(columns) / COLUMNS;
        Self { frames: if field(12) > room { 0 } else { field(12) }, columns, header, states, body }
    }

    /// A number of the frame `number`, where all have one of `size` bytes.
    fn place(&self, column: usize, size: usize, number: usize) -> usize {
        self.columns + column * self.frames + size * number
    }

    fn number(&self, column: usize, frame: usize) -> usize {
        u32_at(&self.body, self.place(column, 4, frame)).unwrap_or(0) as usize
    }

    /// The page states, if there are not too many, with the size of a window.
    fn states(&mut self, counted: bool) -> Option<(PageStates, WindowSize)> {
        const MOST: u64 = 1 << 30;
        let header = self.body.get(self.header.clone())?;
        let mem_size = u64_at(header, 48).filter(|size| *size <= MOST)?;
        let window = WindowSize::from_shift(*header.get(41)?).ok()?;
        let bitmap = mem_size.div_ceil(PAGE).div_ceil(64) as usize * 8;
        let bitmaps = decompressed(self.body.get(self.states.clone())?, 2 * bitmap as u32)?;
        let (data, zero) = bitmaps.split_at(bitmap);
        if counted {
            for (number, count) in counts(mem_size, data, zero).into_iter().enumerate() {
                put(&mut self.body, 32 + number * 8, &count.to_le_bytes());
            }
        }
        let mut states = PageStates::all(mem_size, PageState::Zero);
        for page in 0..states.pages() {
            if data[page as usize / 8] >> (page % 8) & 1 == 1 {
                states.set(page, PageState::Data).unwrap();
            }
        }
        Some((states, window))
    }

    /// Makes right what stands in the index of the frame `number`, whose bytes are `frame`.
    fn put_frame(&mut self, number: usize, frame: &[u8], raw_length: u64) {
        let raw = decompressed(frame, raw_length as u32);
        let checksum = raw.as_deref().map_or(0, XxHash3_64::oneshot);
        let (hashes, sums) = (self.place(HASHES, 32, number), self.place(CHECKSUMS, 8, number));
        put(&mut self.body, hashes, blake3::hash(frame).as_bytes());
        put(&mut self.body, sums, &checksum.to_le_bytes());
    }

    /// The header in it, made right.
    fn seal_header(&mut self) -> Vec<u8> {
        let mut header = self.body.get(self.header.clone()).unwrap_or_default().to_vec();
        put(&mut header, 0, b"ROUSEARC\x01\0");
        let length = (header.len() as u32).to_le_bytes();
        put(&mut header, 12, &length);
        crc_at_end(&mut header);
        put(&mut self.body, 64, &header);
        header
    }
}
