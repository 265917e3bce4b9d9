//! Which image of a chain a page comes from.

use std::ops::Range;

use crate::bitmap::Builder;
use crate::units::{PAGE, PageState, PageStates, Run};

/// The states of images upon each other, from the bottom up. As large as the topmost.
#[derive(Clone, Debug)]
pub(super) struct Chain<'a> {
    states: Vec<&'a PageStates>,
    /// For each, up to which byte it is still to be seen from the top: the least size of those from
    /// there on.
    seen: Vec<u64>,
}

/// Pages that come from the same image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) pages: Range<u64>,
    /// Whose word it is; 0 is the bottom.
    pub(super) layer: usize,
    /// What it says. PARENT only where all of them do, and then the bottom has it to say.
    pub(super) state: PageState,
}

impl<'a> Chain<'a> {
    pub(super) fn new(states: Vec<&'a PageStates>) -> Self {
        let mut seen: Vec<_> = states.iter().map(|states| states.mem_size()).collect();
        let mut least = u64::MAX;
        for size in seen.iter_mut().rev() {
            least = least.min(*size);
            *size = least;
        }
        Self { states, seen }
    }

    /// The size of what is seen from the top, in bytes.
    pub(super) fn mem_size(&self) -> u64 {
        self.states.last().map_or(0, |states| states.mem_size())
    }

    /// How many bytes of `layer` are still to be seen from the top, as far as nothing overlays
    /// them. Those behind are zeros.
    pub(super) fn seen(&self, layer: usize) -> u64 {
        self.seen[layer]
    }

    /// Who owns which of `pages`, in runs. Two side by side may be alike only where an image ends:
    /// its own zeros, and those behind it.
    pub(super) fn runs_in(&self, pages: Range<u64>) -> OwnedRuns<'_> {
        let nothing = Run { pages: 0..0, state: PageState::Parent };
        let end = pages.end.min(self.mem_size().div_ceil(PAGE));
        OwnedRuns { chain: self, page: pages.start, end, at: vec![nothing; self.states.len()] }
    }

    /// Who owns all of the pages.
    pub(super) fn runs(&self) -> OwnedRuns<'_> {
        self.runs_in(0..u64::MAX)
    }

    /// The states as they are from the top. A page of which only a part is still seen counts as
    /// the whole would.
    pub(super) fn states(&self) -> PageStates {
        let pages = self.mem_size().div_ceil(PAGE);
        let mut data = Builder::new(pages);
        // Over a whole image nothing is PARENT, and ZERO need not be kept.
        let mut zero = match self.states.first() {
            Some(bottom) if bottom.is_whole() => None,
            _ => Some(Builder::new(pages)),
        };
        for run in self.runs() {
            let length = run.pages.end - run.pages.start;
            data.run(length, run.state == PageState::Data);
            if let Some(zero) = &mut zero {
                zero.run(length, run.state == PageState::Zero);
            }
        }
        match zero {
            None => PageStates::whole(self.mem_size(), data.finish()),
            Some(zero) => PageStates::layer(self.mem_size(), data.finish(), zero.finish()),
        }
    }

    /// Where an image above ends within a page that it leaves to one below, and so cuts it: the
    /// owner, what that says of the page, and the bytes of it that are still seen.
    pub(super) fn cuts(&self) -> impl Iterator<Item = (usize, PageState, Range<u64>)> {
        self.seen.iter().enumerate().filter_map(|(layer, end)| {
            let page = end / PAGE;
            let owner = self.runs_in(page..page + 1).next()?;
            let cut = !end.is_multiple_of(PAGE) && *end < self.states[layer].mem_size();
            (cut && owner.layer == layer).then_some((layer, owner.state, page * PAGE..*end))
        })
    }

    /// The first page that is as in what lies below the bottom, but only up to a byte within it: no
    /// one state can say that.
    pub(super) fn torn(&self) -> Option<u64> {
        let end = *self.seen.first()?;
        let page = end / PAGE;
        let owner = self.runs_in(page..page + 1).next()?;
        let whole = self.mem_size().min((page + 1) * PAGE);
        let torn = !end.is_multiple_of(PAGE) && end < whole && owner.state == PageState::Parent;
        torn.then_some(page)
    }
}

/// What [`Chain::runs_in`] walks.
#[derive(Clone, Debug)]
pub(super) struct OwnedRuns<'a> {
    chain: &'a Chain<'a>,
    page: u64,
    end: u64,
    /// The run of each image that was looked at last. Kept, so that no run is walked twice.
    at: Vec<Run>,
}

impl Iterator for OwnedRuns<'_> {
    type Item = Owned;

    fn next(&mut self) -> Option<Owned> {
        if self.page >= self.end {
            return None;
        }
        let start = self.page;
        let mut end = self.end;
        for (layer, states) in self.chain.states.iter().enumerate().rev() {
            let at = &mut self.at[layer];
            if at.pages.end <= start {
                // None behind its end: the image above grew, with zeros.
                *at = states
                    .runs_in(start..self.end)
                    .next()
                    .unwrap_or(Run { pages: start..self.end, state: PageState::Zero });
            }
            end = end.min(at.pages.end);
            if at.state != PageState::Parent || layer == 0 {
                self.page = end;
                return Some(Owned { pages: start..end, layer, state: at.state });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_states(max_pages: usize) -> impl Strategy<Value = PageStates> {
        let state =
            prop_oneof![Just(PageState::Data), Just(PageState::Zero), Just(PageState::Parent)];
        let runs = prop::collection::vec((state, 1..max_pages / 4 + 2), 0..8);
        (runs, 0..PAGE).prop_map(move |(runs, cut)| {
            let pages: Vec<_> =
                runs.into_iter().flat_map(|(state, n)| std::iter::repeat_n(state, n)).collect();
            let size = (pages.len() as u64 * PAGE).saturating_sub(cut);
            let mut states = PageStates::all(size, PageState::Parent);
            for (page, state) in (0..states.pages()).zip(pages) {
                states.set(page, state).unwrap();
            }
            states
        })
    }

    /// The owner of a page, asked for from the top down.
    fn owner(states: &[PageStates], page: u64) -> (usize, PageState) {
        let top_down = states.iter().enumerate().rev();
        let mut said = top_down.map(|(layer, s)| (layer, s.state(page).unwrap_or(PageState::Zero)));
        said.find(|(layer, state)| *layer == 0 || *state != PageState::Parent).unwrap()
    }

    proptest! {
        #[test]
        fn runs_are_those_of_the_plain_way(
            states in prop::collection::vec(any_states(150), 1..6),
            (from, to) in (0_u64..300, 0_u64..300),
        ) {
            let chain = Chain::new(states.iter().collect());
            let pages = states.last().unwrap().pages();
            let mut walked = Vec::new();
            let mut last = None;
            for run in chain.runs() {
                prop_assert_eq!(run.pages.start, walked.len() as u64);
                prop_assert!(!run.pages.is_empty());
                let alike = last.replace((run.layer, run.state)) == Some((run.layer, run.state));
                prop_assert!(!alike || run.pages.start == states[run.layer].pages());
                walked.extend(run.pages.map(|_| (run.layer, run.state)));
            }
            let wanted: Vec<_> = (0..pages).map(|page| owner(&states, page)).collect();
            prop_assert_eq!(&walked, &wanted);

            let part: Vec<_> = chain.runs_in(from..to)
                .flat_map(|run| run.pages.map(move |page| (page, (run.layer, run.state))))
                .collect();
            let wanted_part: Vec<_> =
                (from..to.min(pages)).map(|page| (page, wanted[page as usize])).collect();
            prop_assert_eq!(part, wanted_part);

            let merged = chain.states();
            for page in 0..pages {
                prop_assert_eq!(merged.state(page).unwrap(), wanted[page as usize].1);
            }
        }

        #[test]
        fn what_is_seen_is_the_least_size_above(
            states in prop::collection::vec(any_states(6), 1..5),
        ) {
            let chain = Chain::new(states.iter().collect());
            for layer in 0..states.len() {
                let least = states[layer..].iter().map(PageStates::mem_size).min().unwrap();
                prop_assert_eq!(chain.seen(layer), least);
            }
            for (layer, state, bytes) in chain.cuts() {
                let page = bytes.start / PAGE;
                prop_assert_eq!((layer, state), owner(&states, page));
                prop_assert!(bytes.end == chain.seen(layer) && bytes.end / PAGE == page);
                prop_assert!(bytes.end < states[layer].mem_size());
            }
        }
    }

    #[test]
    fn a_page_that_is_cut_and_grown_again() {
        let of = |size, state| PageStates::all(size, state);
        let base = of(2 * PAGE, PageState::Data);
        let (short, long) = (of(100, PageState::Parent), of(3 * PAGE, PageState::Parent));
        let chain = Chain::new(vec![&base, &short, &long]);
        let runs: Vec<_> = chain.runs().map(|r| (r.pages, r.layer, r.state)).collect();
        // Page 1 of the base is gone with the layer that ends before it.
        assert_eq!(runs, [(0..1, 0, PageState::Data), (1..3, 1, PageState::Zero)]);
        assert_eq!(chain.cuts().collect::<Vec<_>>(), [(0, PageState::Data, 0..100)]);
        assert_eq!(chain.torn(), None);
        assert_eq!(Chain::new(vec![&short, &long]).torn(), Some(0));
        assert_eq!(Chain::new(vec![&long, &short]).torn(), None);
        assert_eq!(Chain::new(vec![&of(0, PageState::Data)]).runs().next(), None);
    }
}
