//! Pages, their states, and windows.

use std::fmt;
use std::ops::Range;

use crate::bits;

/// The size of a page in bytes: the unit in which guests map memory on every CPU that we run on,
/// and the smallest block that the common filesystems can give back.
pub const PAGE: u64 = 4096;

/// The binary logarithm of [`PAGE`], as files say it.
pub(crate) const PAGE_SHIFT: u8 = PAGE.trailing_zeros() as u8;

/// What an image knows of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageState {
    /// Its bytes are in this image.
    Data,
    /// It is all zeros.
    Zero,
    /// In a layer over another image: it is as it was there.
    Parent,
}

impl PageState {
    /// The word in output for people and programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Zero => "zero",
            Self::Parent => "parent",
        }
    }
}

/// A page that lies behind the image's end. It is an error, never zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the map knows pages 0 to {pages} (not included), and not page {page}")]
pub struct UnknownPage {
    /// The page that was asked for.
    pub page: u64,
    /// How many pages there are.
    pub pages: u64,
}

/// How many pages are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages whose bytes are in the image.
    pub data: u64,
    /// Pages of zeros.
    pub zero: u64,
    /// Pages that are the parent's.
    pub parent: u64,
}

/// The most windows that an image may have, whatever their size: what is kept for each of them, at
/// some 50 bytes, stays small beside a process's memory.
pub const MAX_WINDOWS: u64 = 1 << 20;

/// The size of a window: 256 KiB unless an image says otherwise.
///
/// At 256 KiB frames compress within 4 % of 2 MiB frames, a cold fault decodes in 0.3 ms, and
/// eight windows are one huge page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WindowSize(u8);

/// A number that no [`WindowSize`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a window is a power of two from 64 KiB (shift 16) to 4 MiB (shift 22), not of shift {0}")]
pub struct WindowSizeError(pub u8);

impl WindowSize {
    /// 256 KiB.
    pub const DEFAULT: Self = Self(18);
    /// 64 KiB.
    pub const MIN: Self = Self(16);
    /// 4 MiB.
    pub const MAX: Self = Self(22);

    /// The window of 2^`shift` bytes.
    pub fn from_shift(shift: u8) -> Result<Self, WindowSizeError> {
        if (Self::MIN.0..=Self::MAX.0).contains(&shift) {
            Ok(Self(shift))
        } else {
            Err(WindowSizeError(shift))
        }
    }

    /// The binary logarithm of the size.
    pub fn shift(self) -> u8 {
        self.0
    }

    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        1 << self.0
    }

    /// The size in pages.
    pub fn pages(self) -> u64 {
        self.bytes() / PAGE
    }

    /// The size for an image of `mem_size` bytes: the default, or the smallest larger one with
    /// which the image has no more than [`MAX_WINDOWS`].
    pub fn for_image(mem_size: u64) -> Self {
        (Self::DEFAULT.0..Self::MAX.0)
            .map(Self)
            .find(|window| window.count(mem_size) <= MAX_WINDOWS)
            .unwrap_or(Self::MAX)
    }

    /// How many windows an image of `mem_size` bytes has; the last may be cut short.
    pub fn count(self, mem_size: u64) -> u64 {
        mem_size.div_ceil(self.bytes())
    }

    /// The pages of `window` in an image of `mem_size` bytes; none behind its end.
    pub fn pages_of(self, window: u64, mem_size: u64) -> Range<u64> {
        let all = mem_size.div_ceil(PAGE);
        let start = window.saturating_mul(self.pages()).min(all);
        start..start.saturating_add(self.pages()).min(all)
    }
}

impl Default for WindowSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Debug for WindowSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowSize({} KiB)", self.bytes() / 1024)
    }
}

/// The state of each page of an image of `mem_size` bytes. A last page that is cut short by the
/// image's end is a page like any other. A bit per page in memory, two in a layer.
pub struct PageStates {
    mem_size: u64,
    // Bits behind the last page are clear.
    data: Vec<u64>,
    rest: Rest,
}

/// What the pages are that are not DATA.
enum Rest {
    /// ZERO, all of them: a whole image.
    Zero,
    /// ZERO where a bit is set, which excludes DATA; PARENT elsewhere.
    Bits(Vec<u64>),
}

/// Pages side by side that are all in the same state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The pages.
    pub pages: Range<u64>,
    /// Their state.
    pub state: PageState,
}

impl PageStates {
    /// All pages in one state.
    pub fn all(mem_size: u64, state: PageState) -> Self {
        let words = bits::words(mem_size.div_ceil(PAGE)) as usize;
        let none = || vec![0; words];
        let (data, rest) = match state {
            PageState::Data => (bits::full(mem_size.div_ceil(PAGE)), Rest::Zero),
            PageState::Zero => (none(), Rest::Zero),
            PageState::Parent => (none(), Rest::Bits(none())),
        };
        Self { mem_size, data, rest }
    }

    /// Pages of `data` are DATA and all others ZERO. There are as many words as the pages need,
    /// and bits behind the last page are clear.
    pub(crate) fn of_full_image(mem_size: u64, data: Vec<u64>) -> Self {
        debug_assert!(bits::fit(&data, mem_size.div_ceil(PAGE)));
        Self { mem_size, data, rest: Rest::Zero }
    }

    /// The states in two bitmaps, if they are of the right length, clear behind the last page,
    /// and no page is in both.
    pub(crate) fn from_bitmaps(mem_size: u64, data: Vec<u64>, zero: Vec<u64>) -> Option<Self> {
        let pages = mem_size.div_ceil(PAGE);
        let apart = data.iter().zip(&zero).all(|(data, zero)| data & zero == 0);
        if !bits::fit(&data, pages) || !bits::fit(&zero, pages) || !apart {
            return None;
        }
        let whole = bits::count(&data) + bits::count(&zero) == pages;
        Some(Self { mem_size, data, rest: if whole { Rest::Zero } else { Rest::Bits(zero) } })
    }

    /// Whether no page is PARENT.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.rest, Rest::Zero)
    }

    /// The words of the DATA bitmap.
    pub(crate) fn data_words(&self) -> &[u64] {
        &self.data
    }

    /// The words of the ZERO bitmap.
    pub(crate) fn zero_words(&self) -> impl Iterator<Item = u64> {
        (0..self.data.len()).map(|word| self.zero_word(word))
    }

    fn zero_word(&self, word: usize) -> u64 {
        match &self.rest {
            Rest::Bits(zero) => zero[word],
            Rest::Zero if word + 1 == self.data.len() => {
                !self.data[word] & bits::last_mask(self.pages())
            }
            Rest::Zero => !self.data[word],
        }
    }

    /// The image's size in bytes.
    pub fn mem_size(&self) -> u64 {
        self.mem_size
    }

    /// How many pages the image has; the last may be cut short.
    pub fn pages(&self) -> u64 {
        self.mem_size.div_ceil(PAGE)
    }

    /// The state of `page`.
    pub fn state(&self, page: u64) -> Result<PageState, UnknownPage> {
        self.known(page)?;
        Ok(if bits::get(&self.data, page) {
            PageState::Data
        } else if self.zero_word((page / 64) as usize) >> (page % 64) & 1 == 1 {
            PageState::Zero
        } else {
            PageState::Parent
        })
    }

    /// Sets the state of `page`.
    pub fn set(&mut self, page: u64, state: PageState) -> Result<(), UnknownPage> {
        self.known(page)?;
        if state == PageState::Parent && matches!(self.rest, Rest::Zero) {
            self.rest = Rest::Bits(self.zero_words().collect());
        }
        bits::put(&mut self.data, page, state == PageState::Data);
        if let Rest::Bits(zero) = &mut self.rest {
            bits::put(zero, page, state == PageState::Zero);
        }
        Ok(())
    }

    /// How many pages are in which state.
    pub fn counts(&self) -> Counts {
        let data = bits::count(&self.data);
        let zero = match &self.rest {
            Rest::Zero => self.pages() - data,
            Rest::Bits(zero) => bits::count(zero),
        };
        Counts { data, zero, parent: self.pages() - data - zero }
    }

    /// How many of `pages` are DATA.
    pub fn data_in(&self, pages: Range<u64>) -> u64 {
        bits::count_in(&self.data, pages)
    }

    /// The pages in runs of one state, from the first to the last.
    pub fn runs(&self) -> Runs<'_> {
        self.runs_in(0..self.pages())
    }

    /// [`Self::runs`] of those `pages` that the image has, cut at their borders.
    pub fn runs_in(&self, pages: Range<u64>) -> Runs<'_> {
        Runs { states: self, page: pages.start, end: pages.end.min(self.pages()) }
    }

    fn known(&self, page: u64) -> Result<(), UnknownPage> {
        let pages = self.pages();
        if page < pages { Ok(()) } else { Err(UnknownPage { page, pages }) }
    }
}

impl Clone for PageStates {
    fn clone(&self) -> Self {
        let rest = match &self.rest {
            Rest::Zero => Rest::Zero,
            Rest::Bits(zero) => Rest::Bits(bits::copy(zero)),
        };
        Self { mem_size: self.mem_size, data: bits::copy(&self.data), rest }
    }
}

impl PartialEq for PageStates {
    fn eq(&self, other: &Self) -> bool {
        // A layer without PARENT is as good as a whole image.
        self.mem_size == other.mem_size
            && self.data == other.data
            && self.zero_words().eq(other.zero_words())
    }
}

impl Eq for PageStates {}

impl fmt::Debug for PageStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageStates")
            .field("mem_size", &self.mem_size)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// What [`PageStates::runs`] walks.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    states: &'a PageStates,
    page: u64,
    end: u64,
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let (start, pages) = (self.page, self.end);
        if start >= pages {
            return None;
        }
        let state = self.states.state(start).ok()?;
        // A word at a time: an image of zeros has a million pages and one run.
        while self.page < pages {
            let (word, bit) = ((self.page / 64) as usize, self.page % 64);
            let same = match state {
                PageState::Data => self.states.data[word],
                PageState::Zero => self.states.zero_word(word),
                PageState::Parent => !(self.states.data[word] | self.states.zero_word(word)),
            };
            let more = u64::from((same >> bit).trailing_ones());
            self.page += more;
            if bit + more < 64 {
                break;
            }
        }
        self.page = self.page.min(pages);
        Some(Run { pages: start..self.page, state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn window_sizes_have_limits() {
        for shift in 0..=255 {
            assert_eq!(WindowSize::from_shift(shift).is_ok(), (16..=22).contains(&shift));
        }
        assert_eq!(WindowSize::default().bytes(), 256 * 1024);
        for (size, shift) in [(0, 18), (256 << 30, 18), ((256 << 30) + 1, 19), (1 << 40, 20)] {
            let window = WindowSize::for_image(size);
            assert_eq!(window.shift(), shift);
            assert!(window.count(size) <= MAX_WINDOWS);
        }
        assert_eq!(WindowSize::DEFAULT.pages_of(1, (256 << 10) + 1), 64..65);
        assert_eq!(WindowSize::DEFAULT.pages_of(2, (256 << 10) + 1), 65..65);
        assert_eq!(WindowSize::DEFAULT.pages_of(u64::MAX, 1), 1..1);
    }

    #[test]
    fn a_page_behind_the_end_is_an_error() {
        for (size, pages) in [(0, 0), (1, 1), (PAGE, 1), (PAGE + 1, 2), (64 * PAGE, 64)] {
            let mut states = PageStates::all(size, PageState::Zero);
            assert_eq!(states.counts(), Counts { zero: pages, ..Counts::default() });
            for page in [pages, pages + 64, u64::MAX] {
                assert_eq!(states.state(page), Err(UnknownPage { page, pages }));
                assert_eq!(states.set(page, PageState::Data), Err(UnknownPage { page, pages }));
            }
        }
    }

    fn any_state() -> impl Strategy<Value = PageState> {
        prop_oneof![Just(PageState::Data), Just(PageState::Zero), Just(PageState::Parent)]
    }

    proptest! {
        #[test]
        fn states_runs_and_counts_agree(
            runs in prop::collection::vec((any_state(), 1_usize..150), 0..20),
            fill in any_state(),
        ) {
            let wanted: Vec<_> =
                runs.into_iter().flat_map(|(state, n)| std::iter::repeat_n(state, n)).collect();
            let mut states = PageStates::all(wanted.len() as u64 * PAGE, fill);
            for (page, state) in wanted.iter().enumerate() {
                states.set(page as u64, *state).unwrap();
            }
            let mut walked = Vec::new();
            let mut last = None;
            for run in states.runs() {
                prop_assert_ne!(last, Some(run.state));
                prop_assert_eq!(run.pages.start, walked.len() as u64);
                last = Some(run.state);
                walked.extend(run.pages.map(|_| run.state));
            }
            prop_assert_eq!(&walked, &wanted);
            let cut = states.pages() / 3..states.pages() / 2 + 1;
            let part: Vec<_> =
                states.runs_in(cut.clone()).flat_map(|r| r.pages.map(move |_| r.state)).collect();
            let within = cut.start as usize..(cut.end as usize).min(wanted.len());
            prop_assert_eq!(&part[..], &wanted[within.clone()]);
            let data = wanted[within].iter().filter(|s| **s == PageState::Data).count();
            prop_assert_eq!(states.data_in(cut), data as u64);
            let of = |s| wanted.iter().filter(|w| **w == s).count() as u64;
            prop_assert_eq!(states.counts(), Counts {
                data: of(PageState::Data), zero: of(PageState::Zero), parent: of(PageState::Parent),
            });
        }
    }
}
