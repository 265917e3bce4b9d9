//! What changed from one image to the next.

use std::hash::Hasher;
use std::ops::Range;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use super::output::{Output, WriteImageError};
use super::parts::{Part, Parts};
use super::source::{ReadImageError, Source, unit};
use super::{ChainError, LayerOptions, check_whole, over_input, publish};
use crate::draft::{Draft, WriteFileError, check_free};
use crate::image::Image;
use crate::map::{Map, WriteMapError};
use crate::units::{PAGE, PageState};
use crate::work::{Cancelled, Work, parallel};
use crate::zero::is_zero;

/// What [`diff()`] found.
#[derive(Clone, Debug)]
pub struct Diffed {
    /// The map that was written beside the layer.
    pub map: Map,
}

/// Why there is no layer. What had its name has it still, unless it is said otherwise.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// One of the images is a layer itself.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// Both images are called the same, and no image can be a layer over itself.
    #[error("both images are called {0}; one of the two has the wrong map")]
    SameImage(crate::id::ImageId),
    /// One of them can't be read, or is damaged.
    #[error(transparent)]
    Read(#[from] ReadImageError),
    /// The layer can't be written: the disk may be full.
    #[error(transparent)]
    Write(#[from] WriteImageError),
    /// It can't be made, or get its name.
    #[error("the layer {0}")]
    File(#[from] WriteFileError),
    /// Its map can't be written.
    #[error(transparent)]
    Map(#[from] WriteMapError),
    /// It would be written over one of the images.
    #[error("{0:?} is one of the images that are compared; give the layer another name")]
    OverInput(PathBuf),
    /// It was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// Writes a layer at `out`, with its map at `out_map`, that makes `new` of `base`: pages whose
/// bytes are the same in both are PARENT, and only other DATA of `new` is in its file. It has the
/// name, size, windows and working set of `new`.
///
/// Both are whole images. Their sizes may differ: pages that `base` does not have count as zeros
/// there. Its last page, where `new` has more of that page, is never PARENT, so that layers can be
/// flattened without their base. What is ZERO in both is not read; what is read is checked against
/// the maps.
pub fn diff(
    base: &Image,
    new: &Image,
    out: &Path,
    out_map: &Path,
    options: &LayerOptions<'_>,
) -> Result<Diffed, DiffError> {
    check_whole(base.map())?;
    check_whole(new.map())?;
    if base.map().image_id() == new.map().image_id() {
        return Err(DiffError::SameImage(new.map().image_id()));
    }
    if let Some(path) = over_input(out, out_map, &[base, new]) {
        return Err(DiffError::OverInput(path));
    }
    check_free(out_map, options.replace).map_err(WriteMapError::from)?;
    let draft = Draft::claim(out, options.replace)?;
    let output = Output { path: out, file: draft.file(), before: &|_| Ok(()) };
    output.resize(0, new.map().mem_size())?;
    let map = Comparison { base: base.into(), new: new.into(), output }.run(options.work)?;
    publish(draft, &map, out_map, options)?;
    Ok(Diffed { map })
}

/// What one thread keeps: the DATA pages of a part, of both images.
#[derive(Default)]
struct Held {
    old: Vec<u8>,
    new: Vec<u8>,
}

struct Comparison<'a> {
    base: Source<'a>,
    new: Source<'a>,
    output: Output<'a>,
}

impl Comparison<'_> {
    fn run(&self, work: Work<'_>) -> Result<Map, DiffError> {
        let map = self.new.map;
        let mut parts = Parts::new(map.mem_size(), map.window_size());
        let unit = unit([self.base.map, map].into_iter());
        work.expect(map.mem_size());
        let all = parts.split(unit);
        let threads = work.threads_within(all.len(), unit * PAGE * 2);
        let jobs = all.filter_map(|part| {
            if self.to_read(&part.pages) {
                return Some(Ok(part));
            }
            // PARENT, and no byte was read.
            work.advance(part.bytes()).err().map(|cancelled| Err(cancelled.into()))
        });
        parallel(threads, jobs, Held::default, |held, part| {
            let (bytes, pages) = (part.bytes(), part.pages.start..part.pages.start + unit);
            self.base.load(pages.clone(), &mut held.old)?;
            self.new.load(pages, &mut held.new)?;
            self.part(part, held)?;
            Ok::<_, DiffError>(work.advance(bytes)?)
        })?;
        let working_set = map.working_set().clone();
        let layer = parts.into_map(map.image_id(), self.base.map.image_id());
        Ok(layer.with_working_set(working_set))
    }

    /// Whether any of `pages` may have changed.
    fn to_read(&self, pages: &Range<u64>) -> bool {
        let data = |source: &Source<'_>| source.states().data_in(pages.clone()) > 0;
        let grown = self.grown_page().is_some_and(|page| pages.contains(&page));
        data(&self.base) || data(&self.new) || grown
    }

    /// The base's last page, if the new image has more of it.
    fn grown_page(&self) -> Option<u64> {
        let end = self.base.map.mem_size();
        (!end.is_multiple_of(PAGE) && end < self.new.map.mem_size()).then_some(end / PAGE)
    }

    fn part(&self, mut part: Part<'_>, held: &Held) -> Result<(), DiffError> {
        let loaded = part.pages.start;
        for number in 0..part.checksums.len() {
            let mut hasher = XxHash3_64::with_seed(0);
            let mut put = |run: Range<u64>| {
                let bytes = &held.new[self.new.place(loaded, &run)];
                hasher.write(bytes);
                self.output.write(bytes, run.start * PAGE)
            };
            // DATA side by side, to be written at once.
            let mut run = 0..0;
            for page in part.pages_of(number) {
                let state = self.state(page, loaded, held);
                part.set(page, state);
                if state != PageState::Data {
                    continue;
                }
                if !run.is_empty() && run.end != page {
                    put(run.clone())?;
                    run = 0..0;
                }
                run = if run.is_empty() { page } else { run.start }..page + 1;
            }
            if !run.is_empty() {
                put(run)?;
            }
            part.checksums[number] = hasher.finish();
        }
        Ok(())
    }

    /// The state of `page` in the layer; what is held was loaded from page `loaded` on.
    fn state(&self, page: u64, loaded: u64, held: &Held) -> PageState {
        let old = bytes(&self.base, page, loaded, &held.old);
        let new = bytes(&self.new, page, loaded, &held.new);
        compare(old, new, self.grown_page() == Some(page))
    }
}

/// The bytes of `page`; none where it is ZERO or behind the image's end.
fn bytes<'h>(source: &Source<'_>, page: u64, loaded: u64, held: &'h [u8]) -> Option<&'h [u8]> {
    let page = page..page + 1;
    let data = source.states().data_in(page.clone()) > 0;
    data.then(|| &held[source.place(loaded, &page)])
}

/// The state in the layer of a page whose bytes are `old` and `new`, none for zeros; `grown` when
/// the old image ends within it and the new one does not.
fn compare(old: Option<&[u8]>, new: Option<&[u8]>, grown: bool) -> PageState {
    let new = new.filter(|bytes| !is_zero(bytes));
    let same = match (old, new) {
        // What the new image has no place for is gone.
        (Some(old), Some(new)) => old.get(..new.len()) == Some(new),
        (Some(old), None) => is_zero(old),
        (None, new) => new.is_none(),
    };
    match new {
        _ if same && !grown => PageState::Parent,
        Some(_) => PageState::Data,
        None => PageState::Zero,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_what_changed_in_it() {
        use PageState::{Data, Parent, Zero};
        let (one, two, zeros) = ([1; 9].as_slice(), [2; 9].as_slice(), [0; 9].as_slice());
        for (old, new, grown, wanted) in [
            (None, None, false, Parent),
            (None, None, true, Zero),
            (None, Some(one), false, Data),
            (Some(one), None, false, Zero),
            (Some(one), Some(two), false, Data),
            (Some(one), Some(one), false, Parent),
            (Some(one), Some(one), true, Data),
            // The new image ends within the page, or the old one did.
            (Some(one), Some(&one[..3]), false, Parent),
            (Some(&one[..3]), Some(one), true, Data),
            // Zeros that are called DATA.
            (None, Some(zeros), false, Parent),
            (Some(zeros), None, false, Parent),
            (Some(one), Some(zeros), false, Zero),
            (Some(zeros), Some(zeros), true, Zero),
        ] {
            assert_eq!(compare(old, new, grown), wanted, "{old:?} {new:?} {grown}");
        }
    }
}
