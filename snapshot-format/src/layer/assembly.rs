//! A chain of images read as one, window by window.

use std::hash::Hasher;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use twox_hash::XxHash3_64;

use super::chain::{Chain, Owned};
use super::merge::MergeError;
use super::output::Output;
use super::source::{Source, unit};
use crate::id::ImageId;
use crate::map::{Map, TooManyWindows};
use crate::packed::{EMPTY_CHECKSUM, bytes_of};
use crate::units::{PAGE, PageState, PageStates, WindowSize};
use crate::work::{Work, parallel};
use crate::working_set::{FirstTouch, WorkingSet};
use crate::zero::is_zero;

/// What the images of a chain are together.
pub(super) struct Assembly<'a> {
    /// From the bottom up.
    sources: &'a [Source<'a>],
    chain: Chain<'a>,
    states: PageStates,
    window: WindowSize,
    /// What a thread takes at once, in pages: whole windows of all images.
    unit: u64,
}

/// What one thread keeps: of each image the DATA pages of a unit.
type Held = Vec<Vec<u8>>;

impl<'a> Assembly<'a> {
    /// `sources` from the bottom up, at least one.
    pub(super) fn new(sources: &'a [Source<'a>]) -> Result<Self, MergeError> {
        let chain = Chain::new(sources.iter().map(Source::states).collect());
        let mut states = chain.states();
        let unit = unit(sources.iter().map(|source| source.map));
        for (layer, state, bytes) in chain.cuts() {
            if state != PageState::Data {
                continue;
            }
            // What made it DATA may be what was cut off.
            let (source, page) = (&sources[layer], bytes.start / PAGE);
            let loaded = page / unit * unit;
            let mut packed = Vec::new();
            source.load(loaded..loaded + unit, &mut packed)?;
            let place = source.place(loaded, &(page..page + 1));
            let part = &packed[place][..(bytes.end - bytes.start) as usize];
            if is_zero(part) {
                states.set(page, PageState::Zero).expect("a page that is seen is there");
            }
        }
        Self::of(sources, chain, states, unit)
    }

    /// [`Self::new`] where the states are known: `sources` may be gone in part.
    pub(super) fn resumed(
        sources: &'a [Source<'a>],
        states: PageStates,
    ) -> Result<Self, MergeError> {
        let chain = Chain::new(sources.iter().map(Source::states).collect());
        let unit = unit(sources.iter().map(|source| source.map));
        Self::of(sources, chain, states, unit)
    }

    fn of(
        sources: &'a [Source<'a>],
        chain: Chain<'a>,
        states: PageStates,
        unit: u64,
    ) -> Result<Self, MergeError> {
        let mem_size = chain.mem_size();
        let bottom = sources.first().map_or(WindowSize::DEFAULT, |source| source.map.window_size());
        // It may have grown out of the bottom's windows.
        let window = match TooManyWindows::check(bottom, mem_size) {
            Ok(()) => bottom,
            Err(_) => WindowSize::for_image(mem_size),
        };
        let unit = unit.max(window.pages());
        Ok(Self { sources, chain, states, window, unit })
    }

    pub(super) fn chain(&self) -> &Chain<'a> {
        &self.chain
    }

    /// The map of it all.
    pub(super) fn map(
        &self,
        image_id: ImageId,
        parent: Option<ImageId>,
        checksums: Vec<u64>,
    ) -> Result<Map, MergeError> {
        Ok(Map::new(image_id, parent, self.window, self.states.clone())?
            .with_checksums(checksums)
            .with_working_set(self.working_set()))
    }

    /// The newest that there is.
    fn working_set(&self) -> WorkingSet {
        let newest = self.sources.iter().rev().find(|source| !source.map.working_set().is_empty());
        newest.map_or_else(WorkingSet::new, |source| {
            let (map, mem_size) = (source.map, self.chain.mem_size());
            resized(map.working_set(), map.window_size(), self.window, mem_size)
        })
    }

    /// Reads what has to be read, once, and checks it: DATA that comes from the images with the
    /// number `from` or a higher one, which is then written, and what it takes to have the checksum
    /// of each window, if they are `wanted`. Returns these, and how many bytes were written.
    pub(super) fn run(
        &self,
        work: &Work<'_>,
        wanted: bool,
        from: usize,
        output: Option<&Output<'_>>,
    ) -> Result<(Vec<u64>, u64), MergeError> {
        let mem_size = self.chain.mem_size();
        work.expect(mem_size);
        let mut checksums = vec![EMPTY_CHECKSUM; self.window.count(mem_size) as usize];
        let written = AtomicU64::new(0);
        let per_unit = (self.unit / self.window.pages()) as usize;
        // Of each image what a thread holds at once.
        let held = self.unit * PAGE * self.sources.len() as u64;
        let threads = work.threads_within(checksums.len().div_ceil(per_unit), held);
        let jobs = checksums.chunks_mut(per_unit).enumerate().filter_map(|(number, checksums)| {
            let start = number as u64 * self.unit;
            let pages = start..start + self.unit;
            if self.states.data_in(pages.clone()) > 0 {
                return Some(Ok::<_, MergeError>((pages, checksums)));
            }
            // Nothing is read or written: on to the next.
            work.advance(self.bytes(&pages)).err().map(|cancelled| Err(cancelled.into()))
        });
        let held = || vec![Vec::new(); self.sources.len()];
        parallel(threads, jobs, held, |held, (pages, checksums)| {
            let wanted = wanted.then_some(checksums);
            written.fetch_add(self.unit(&pages, held, wanted, from, output)?, Ordering::Relaxed);
            Ok(work.advance(self.bytes(&pages))?)
        })?;
        Ok((checksums, written.into_inner()))
    }

    /// Makes zeros of the pages that images from the second on say are so, where the bottom may
    /// have others.
    pub(super) fn zero(&self, output: &Output<'_>) -> Result<(), MergeError> {
        let Some(bottom) = self.sources.first() else { return Ok(()) };
        for owned in self.chain.runs().filter(|owned| owned.layer > 0) {
            for run in self.states.runs_in(owned.pages) {
                let there = bottom.states().data_in(run.pages.clone()) > 0;
                if run.state == PageState::Zero && there {
                    output.zero(bytes_of(&run.pages, self.chain.mem_size()))?;
                }
            }
        }
        Ok(())
    }

    /// The number of bytes that `pages` have.
    fn bytes(&self, pages: &Range<u64>) -> u64 {
        let bytes = bytes_of(pages, self.chain.mem_size());
        bytes.end - bytes.start
    }

    /// The runs of DATA among `pages` and whose they are.
    fn data(&self, pages: Range<u64>) -> impl Iterator<Item = Owned> {
        self.chain.runs_in(pages).filter(|owned| owned.state == PageState::Data).flat_map(|owned| {
            let data = self.states.runs_in(owned.pages).filter(|run| run.state == PageState::Data);
            data.map(move |run| Owned { pages: run.pages, ..owned })
        })
    }

    fn unit(
        &self,
        pages: &Range<u64>,
        held: &mut Held,
        checksums: Option<&mut [u64]>,
        from: usize,
        output: Option<&Output<'_>>,
    ) -> Result<u64, MergeError> {
        let mut needed = vec![false; self.sources.len()];
        let mut open = Vec::new();
        for (number, checksum) in checksums.into_iter().flatten().enumerate() {
            let window = pages.start / self.window.pages() + number as u64;
            match self.kept_checksum(window) {
                Some(kept) => *checksum = kept,
                None => open.push((window, checksum)),
            }
        }
        for (window, _) in &open {
            self.data(self.pages_of(*window)).for_each(|run| needed[run.layer] = true);
        }
        let moved = || self.data(pages.clone()).filter(|run| run.layer >= from);
        moved().for_each(|run| needed[run.layer] = true);
        for (layer, source) in self.sources.iter().enumerate().filter(|(n, _)| needed[*n]) {
            source.load(pages.clone(), &mut held[layer])?;
        }

        for (window, checksum) in open {
            let mut hasher = XxHash3_64::with_seed(0);
            for run in self.data(self.pages_of(window)) {
                let bytes = self.seen_bytes(pages.start, &run, held);
                hasher.write(bytes);
                // A page that was cut and has grown again.
                let rest = self.bytes(&run.pages) as usize - bytes.len();
                hasher.write(&[0; PAGE as usize][..rest]);
            }
            *checksum = hasher.finish();
        }
        let mut written = 0;
        if let Some(output) = output {
            for run in moved() {
                let bytes = self.seen_bytes(pages.start, &run, held);
                output.write(bytes, run.pages.start * PAGE)?;
                written += bytes.len() as u64;
            }
        }
        Ok(written)
    }

    /// The bytes of DATA pages that were loaded, as far as they are still seen.
    fn seen_bytes<'h>(&self, loaded: u64, run: &Owned, held: &'h Held) -> &'h [u8] {
        let place = self.sources[run.layer].place(loaded, &run.pages);
        let seen = bytes_of(&run.pages, self.chain.seen(run.layer));
        &held[run.layer][place][..(seen.end - seen.start) as usize]
    }

    fn pages_of(&self, window: u64) -> Range<u64> {
        self.window.pages_of(window, self.chain.mem_size())
    }

    /// The checksum of a window that is all of one image, and the same as there.
    fn kept_checksum(&self, window: u64) -> Option<u64> {
        let pages = self.pages_of(window);
        let mut runs = self.data(pages.clone());
        let Some(first) = runs.next() else { return Some(EMPTY_CHECKSUM) };
        let source = &self.sources[first.layer];
        let end = pages.end * PAGE;
        let as_long = end <= self.chain.seen(first.layer)
            || source.map.mem_size() == self.chain.mem_size()
                && self.chain.seen(first.layer) == self.chain.mem_size();
        let same = runs.all(|run| run.layer == first.layer)
            && source.map.window_size() == self.window
            && source.map.window_data_pages(window) == self.states.data_in(pages)
            && as_long;
        if same { source.map.checksum(window) } else { None }
    }
}

/// A working set for windows of another size.
fn resized(set: &WorkingSet, from: WindowSize, to: WindowSize, mem_size: u64) -> WorkingSet {
    if from == to {
        return set.clone();
    }
    let wakes: Vec<_> = set.wakes().collect();
    let mut resized = WorkingSet::new();
    // Oldest first, as they were recorded.
    for wake in wakes.into_iter().rev() {
        let mut touched = FirstTouch::new(to, mem_size);
        let offsets = wake.iter().flat_map(|window| {
            let start = u64::from(*window) * from.bytes();
            (start..start + from.bytes()).step_by(WindowSize::MIN.bytes() as usize)
        });
        offsets.for_each(|offset| touched.touch(offset));
        resized.record(touched.into_order(), to);
    }
    resized
}
