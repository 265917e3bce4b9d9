//! The state of every page of an image.

use std::fmt;
use std::ops::Range;

use crate::bitmap::Bitmap;
use crate::bits;
use crate::units::{Counts, PAGE, PageState, Run, UnknownPage};

/// The state of each page of an image of `mem_size` bytes. A last page that is cut short by the
/// image's end is a page like any other. In memory at most a bit per page, two in a layer, and much
/// less where pages side by side are alike.
#[derive(Clone)]
pub struct PageStates {
    mem_size: u64,
    data: Bitmap,
    rest: Rest,
}

/// What the pages are that are not DATA.
#[derive(Clone)]
enum Rest {
    /// ZERO, all of them: a whole image.
    Zero,
    /// ZERO where a bit is set, which excludes DATA; PARENT elsewhere.
    Bits(Bitmap),
}

impl PageStates {
    /// All pages in one state.
    pub fn all(mem_size: u64, state: PageState) -> Self {
        let pages = mem_size.div_ceil(PAGE);
        let rest = match state {
            PageState::Parent => Rest::Bits(Bitmap::all(pages, false)),
            PageState::Data | PageState::Zero => Rest::Zero,
        };
        Self { mem_size, data: Bitmap::all(pages, state == PageState::Data), rest }
    }

    /// Pages of `data` are DATA and all others ZERO. There are as many words as the pages need,
    /// and bits behind the last page are clear.
    pub(crate) fn of_full_image(mem_size: u64, data: Vec<u64>) -> Self {
        Self::whole(mem_size, Bitmap::from_words(mem_size.div_ceil(PAGE), data))
    }

    /// Pages of `data` are DATA and all others ZERO.
    pub(crate) fn whole(mem_size: u64, data: Bitmap) -> Self {
        Self { mem_size, data, rest: Rest::Zero }
    }

    /// Pages of `data` are DATA, those of `zero` ZERO, and all others PARENT. No page is in both.
    pub(crate) fn layer(mem_size: u64, data: Bitmap, zero: Bitmap) -> Self {
        debug_assert!(data.words().zip(zero.words()).all(|(data, zero)| data & zero == 0));
        let whole = data.count() + zero.count() == mem_size.div_ceil(PAGE);
        Self { mem_size, data, rest: if whole { Rest::Zero } else { Rest::Bits(zero) } }
    }

    /// The states in two bitmaps, if they are of the right length, clear behind the last page,
    /// and no page is in both.
    pub(crate) fn from_bitmaps(mem_size: u64, data: Vec<u64>, zero: Vec<u64>) -> Option<Self> {
        let pages = mem_size.div_ceil(PAGE);
        let apart = data.iter().zip(&zero).all(|(data, zero)| data & zero == 0);
        if !bits::fit(&data, pages) || !bits::fit(&zero, pages) || !apart {
            return None;
        }
        // One after the other, so that no more than one is there twice.
        let data = Bitmap::from_words(pages, data);
        Some(Self::layer(mem_size, data, Bitmap::from_words(pages, zero)))
    }

    /// Whether no page is PARENT.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.rest, Rest::Zero)
    }

    /// The words of the DATA bitmap.
    pub(crate) fn data_words(&self) -> impl Iterator<Item = u64> {
        self.data.words()
    }

    /// The words of the ZERO bitmap.
    pub(crate) fn zero_words(&self) -> impl Iterator<Item = u64> {
        (0..self.data.len_words()).map(|word| self.zero_word(word))
    }

    fn zero_word(&self, word: usize) -> u64 {
        match &self.rest {
            Rest::Bits(zero) => zero.word(word),
            Rest::Zero if word + 1 == self.data.len_words() => {
                !self.data.word(word) & bits::last_mask(self.pages())
            }
            Rest::Zero => !self.data.word(word),
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
        Ok(if self.data.get(page) {
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
            let zero = self.zero_words().collect();
            self.rest = Rest::Bits(Bitmap::from_words(self.pages(), zero));
        }
        self.data.put(page, state == PageState::Data);
        if let Rest::Bits(zero) = &mut self.rest {
            zero.put(page, state == PageState::Zero);
        }
        Ok(())
    }

    /// How many pages are in which state.
    pub fn counts(&self) -> Counts {
        let data = self.data.count();
        let zero = match &self.rest {
            Rest::Zero => self.pages() - data,
            Rest::Bits(zero) => zero.count(),
        };
        Counts { data, zero, parent: self.pages() - data - zero }
    }

    /// How many of `pages` are DATA.
    pub fn data_in(&self, pages: Range<u64>) -> u64 {
        self.data.count_in(pages)
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
                PageState::Data => self.states.data.word(word),
                PageState::Zero => self.states.zero_word(word),
                PageState::Parent => !(self.states.data.word(word) | self.states.zero_word(word)),
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
