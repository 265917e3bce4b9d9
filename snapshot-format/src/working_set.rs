//! Which windows a wake touches first, in which order.

use std::collections::HashMap;

use crate::units::WindowSize;

/// How many wakes are remembered: a window that only one of them touched was an accident of that
/// visit.
const TRACES: usize = 3;

/// The most bytes of an image that one trace may name. More than a working set that was ever
/// reported (99 MB, REAP, ASPLOS '21): who prefetches more prefetches the image.
const MAX_BYTES: u64 = 128 << 20;

/// The windows that an app's last wakes touched until their first byte. It is advice: a wrong one
/// makes a wake slower, and never changes a byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkingSet {
    /// Newest first, each without repetition, in order of first touch.
    traces: Vec<Vec<u32>>,
}

impl WorkingSet {
    /// The most bytes that one takes in a file: wakes of the most windows of the smallest size.
    pub(crate) const MAX_LENGTH: u64 =
        4 * (1 + TRACES as u64 * (1 + MAX_BYTES / WindowSize::MIN.bytes()));

    /// Nothing known.
    pub fn new() -> Self {
        Self::default()
    }

    /// The most windows of one wake that are kept.
    pub fn limit(window: WindowSize) -> usize {
        (MAX_BYTES / window.bytes()) as usize
    }

    /// Adds the newest wake: the windows that it touched, in that order. Repetitions and what is
    /// over [`Self::limit`] are dropped, and the oldest wake of more than three is forgotten. A wake
    /// that touched nothing says nothing.
    pub fn record(&mut self, touched: impl IntoIterator<Item = u32>, window: WindowSize) {
        let mut seen = std::collections::HashSet::new();
        let trace: Vec<_> = touched
            .into_iter()
            .filter(|window| seen.insert(*window))
            .take(Self::limit(window))
            .collect();
        if !trace.is_empty() {
            self.traces.insert(0, trace);
            self.traces.truncate(TRACES);
        }
    }

    /// Each of the last wakes, newest first: the windows it touched in that order.
    pub fn wakes(&self) -> impl Iterator<Item = &[u32]> {
        self.traces.iter().map(Vec::as_slice)
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.traces.is_empty()
    }

    /// What to fetch before anything else, in this order: of three wakes the windows that at least
    /// two touched, of fewer all; ordered by how early they were touched on average. No more than
    /// [`Self::limit`].
    pub fn order(&self, window: WindowSize) -> Vec<u32> {
        let needed = if self.traces.len() == TRACES { 2 } else { 1 };
        let mut ranks: HashMap<u32, (u64, u64)> = HashMap::new();
        for trace in &self.traces {
            for (rank, window) in trace.iter().enumerate() {
                let (sum, wakes) = ranks.entry(*window).or_default();
                *sum += rank as u64;
                *wakes += 1;
            }
        }
        let mut order: Vec<_> = ranks
            .into_iter()
            .filter(|(_, (_, wakes))| *wakes >= needed)
            // Six is what one, two and three wakes divide, so that averages stay whole.
            .map(|(window, (sum, wakes))| (sum * 6 / wakes, window))
            .collect();
        order.sort_unstable();
        order.truncate(Self::limit(window));
        order.into_iter().map(|(_, window)| window).collect()
    }

    /// Drops what can't stand in the map of an image of so many windows of this size.
    pub(crate) fn fit(&mut self, window: WindowSize, windows: u64) {
        for trace in &mut self.traces {
            trace.retain(|window| u64::from(*window) < windows);
            trace.truncate(Self::limit(window));
        }
        self.traces.retain(|trace| !trace.is_empty());
    }

    /// As it stands in a map: how many wakes, then for each how many windows and these.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut words = vec![self.traces.len() as u32];
        for trace in &self.traces {
            words.push(trace.len() as u32);
            words.extend(trace);
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// What [`Self::to_bytes`] wrote, for an image of so many windows; none if it could not have.
    pub(crate) fn from_bytes(bytes: &[u8], window: WindowSize, windows: u64) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<4>() else { return None };
        let mut words = words.iter().map(|word| u32::from_le_bytes(*word));
        let count = words.next().filter(|count| *count as usize <= TRACES)?;
        let mut traces = Vec::new();
        for _ in 0..count {
            let length = words.next()? as usize;
            if length == 0 || length > Self::limit(window).min(words.len()) {
                return None;
            }
            let trace: Vec<_> = words.by_ref().take(length).collect();
            let mut sorted = trace.clone();
            sorted.sort_unstable();
            let repeated = sorted.windows(2).any(|pair| pair[0] == pair[1]);
            if repeated || sorted.last().is_some_and(|last| u64::from(*last) >= windows) {
                return None;
            }
            traces.push(trace);
        }
        words.next().is_none().then_some(Self { traces })
    }
}

/// Turns the places that a wake touches into a trace for [`WorkingSet::record`].
#[derive(Clone, Debug)]
pub struct FirstTouch {
    window: WindowSize,
    mem_size: u64,
    seen: Vec<u64>,
    order: Vec<u32>,
}

impl FirstTouch {
    /// For an image of `mem_size` bytes. A bit per window is kept.
    pub fn new(window: WindowSize, mem_size: u64) -> Self {
        let words = crate::bits::words(window.count(mem_size)) as usize;
        Self { window, mem_size, seen: vec![0; words], order: Vec::new() }
    }

    /// The byte at `offset` was touched. One behind the image's end, or behind the working set's
    /// limit, is ignored.
    pub fn touch(&mut self, offset: u64) {
        let window = offset / self.window.bytes();
        if offset >= self.mem_size
            || self.order.len() >= WorkingSet::limit(self.window)
            || crate::bits::get(&self.seen, window)
        {
            return;
        }
        if let Ok(number) = u32::try_from(window) {
            crate::bits::put(&mut self.seen, window, true);
            self.order.push(number);
        }
    }

    /// The windows in the order of their first touch.
    pub fn into_order(self) -> Vec<u32> {
        self.order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: WindowSize = WindowSize::DEFAULT;

    fn of(traces: &[&[u32]]) -> WorkingSet {
        let mut set = WorkingSet::new();
        for trace in traces.iter().rev() {
            set.record(trace.iter().copied(), WINDOW);
        }
        set
    }

    #[test]
    fn one_wake_is_taken_as_it_is_and_three_are_voted_on() {
        assert_eq!(of(&[]).order(WINDOW), [0_u32; 0]);
        assert_eq!(of(&[&[7, 3, 7, 9]]).order(WINDOW), [7, 3, 9]);
        // Two wakes may differ for any reason; nothing is dropped yet.
        assert_eq!(of(&[&[1, 2], &[1, 3]]).order(WINDOW), [1, 2, 3]);
        assert_eq!(of(&[&[5, 1, 2], &[1, 5, 8], &[5, 2, 1]]).order(WINDOW), [5, 1, 2]);
        // A fourth pushes the oldest out.
        let mut set = of(&[&[1, 2], &[1, 2], &[1, 3]]);
        set.record([3, 1], WINDOW);
        assert_eq!(set.order(WINDOW), [1, 2]);
        set.record([], WINDOW);
        assert_eq!(set.wakes().next(), Some(&[3, 1][..]));
    }

    #[test]
    fn the_limit_holds() {
        let limit = WorkingSet::limit(WINDOW);
        assert_eq!(limit, 512);
        let mut set = WorkingSet::new();
        for start in [0, 10_000, 20_000] {
            set.record(start..start + 5000, WINDOW);
            assert!(set.wakes().all(|wake| wake.len() == limit));
            assert!(set.order(WINDOW).len() <= limit);
        }
    }

    #[test]
    fn touches_become_windows_once() {
        let mut touch = FirstTouch::new(WINDOW, 3 * WINDOW.bytes() + 1);
        for offset in [600_000, 5, 524_288, 3 << 18, (3 << 18) + 1, u64::MAX, 0] {
            touch.touch(offset);
        }
        assert_eq!(touch.into_order(), [2, 0, 3]);
    }

    #[test]
    fn what_could_not_have_been_written_is_not_read() {
        let word = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
        let read = |words: &[u32]| WorkingSet::from_bytes(&word(words), WINDOW, 10);
        assert_eq!(read(&[0]), Some(WorkingSet::new()));
        assert_eq!(read(&[1, 2, 9, 0]), Some(of(&[&[9, 0]])));
        for bad in [
            &[][..],
            &[4, 1, 1, 1, 1, 1, 1, 1, 1],
            &[1],
            &[1, 0],
            &[1, 3, 1, 2],
            &[1, 2, 1, 1],
            &[1, 1, 10],
            &[1, 1, 1, 0],
            &[1, u32::MAX, 1],
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        assert_eq!(WorkingSet::from_bytes(&[0, 0, 0, 0, 0], WINDOW, 10), None);
    }

    proptest! {
        #[test]
        fn bytes_come_back(
            traces in prop::collection::vec(prop::collection::vec(0_u32..600, 0..900), 0..5),
        ) {
            let mut set = WorkingSet::new();
            for trace in traces {
                set.record(trace, WINDOW);
            }
            prop_assert_eq!(WorkingSet::from_bytes(&set.to_bytes(), WINDOW, 600), Some(set.clone()));
            set.fit(WINDOW, 300);
            prop_assert!(set.wakes().flatten().all(|window| *window < 300));
        }
    }
}
