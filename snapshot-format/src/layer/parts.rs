//! The states and checksums of a layer while several threads find them out.

use std::ops::Range;

use crate::bits;
use crate::id::ImageId;
use crate::map::Map;
use crate::packed::{EMPTY_CHECKSUM, bytes_of};
use crate::units::{PAGE, PageState, PageStates, WindowSize};

/// All of them; PARENT at first.
pub(super) struct Parts {
    mem_size: u64,
    window: WindowSize,
    data: Vec<u64>,
    zero: Vec<u64>,
    checksums: Vec<u64>,
}

/// Those of some pages.
pub(super) struct Part<'a> {
    /// Whole windows and whole words, but for the image's end.
    pub(super) pages: Range<u64>,
    /// One for each window.
    pub(super) checksums: &'a mut [u64],
    mem_size: u64,
    window: WindowSize,
    data: &'a mut [u64],
    zero: &'a mut [u64],
}

impl Parts {
    pub(super) fn new(mem_size: u64, window: WindowSize) -> Self {
        let words = bits::words(mem_size.div_ceil(PAGE)) as usize;
        let checksums = vec![EMPTY_CHECKSUM; window.count(mem_size) as usize];
        Self { mem_size, window, data: vec![0; words], zero: vec![0; words], checksums }
    }

    /// Parts of `unit` pages: a multiple of the window and of 64.
    pub(super) fn split(&mut self, unit: u64) -> impl ExactSizeIterator<Item = Part<'_>> {
        let (mem_size, window) = (self.mem_size, self.window);
        let (words, windows) = ((unit / 64) as usize, (unit / window.pages()) as usize);
        let data = self.data.chunks_mut(words).zip(self.zero.chunks_mut(words));
        let parts = data.zip(self.checksums.chunks_mut(windows)).enumerate();
        parts.map(move |(number, ((data, zero), checksums))| {
            let start = number as u64 * unit;
            let pages = start..(start + unit).min(mem_size.div_ceil(PAGE));
            Part { pages, checksums, mem_size, window, data, zero }
        })
    }

    /// The map of a layer over `parent`.
    pub(super) fn into_map(self, image_id: ImageId, parent: ImageId) -> Map {
        let states = PageStates::from_bitmaps(self.mem_size, self.data, self.zero)
            .expect("a page gets one state, and only those that there are");
        Map::new(image_id, Some(parent), self.window, states)
            .expect("a layer has a parent")
            .with_checksums(self.checksums)
    }
}

impl Part<'_> {
    /// How many bytes of the image its pages have.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = bytes_of(&self.pages, self.mem_size);
        bytes.end - bytes.start
    }

    /// The pages of the window whose checksum is at `number`.
    pub(super) fn pages_of(&self, number: usize) -> Range<u64> {
        self.window.pages_of(self.pages.start / self.window.pages() + number as u64, self.mem_size)
    }

    /// Sets the state of `page`, which is one of its pages and was not set before.
    pub(super) fn set(&mut self, page: u64, state: PageState) {
        match state {
            PageState::Data => bits::put(self.data, page - self.pages.start, true),
            PageState::Zero => bits::put(self.zero, page - self.pages.start, true),
            PageState::Parent => {}
        }
    }
}

/// Sets the bits of `range`, which are within the words.
pub(super) fn fill(words: &mut [u64], range: Range<u64>) {
    let mut at = range.start;
    while at < range.end {
        let end = (at / 64 + 1).saturating_mul(64).min(range.end);
        let bits = (u64::MAX >> (64 - (end - at))) << (at % 64);
        words[(at / 64) as usize] |= bits;
        at = end;
    }
}
