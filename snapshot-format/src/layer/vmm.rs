//! The sparse file that a VMM writes of what changed, read as a layer.

use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use super::parts::{Part, Parts, fill};
use super::probe::holes_are_pages;
use crate::bits;
use crate::extents::extents;
use crate::id::ImageId;
use crate::image::{Access, OpenImageError, open_file};
use crate::map::{MAX_MEM_SIZE, Map, TooManyWindows};
use crate::packed;
use crate::units::{PAGE, PageState, PageStates, WindowSize};
use crate::work::{Cancelled, Work, parallel};
use crate::zero::is_zero;

/// How to go about [`vmm_diff`].
#[derive(Clone, Copy, Debug, Default)]
pub struct VmmDiffOptions<'a> {
    /// Threads, and progress in bytes of the image, holes and all.
    pub work: Work<'a>,
    /// The layer's windows: best those of the image that it is over. None:
    /// [`WindowSize::for_image`].
    pub window: Option<WindowSize>,
}

/// Why a VMM's file can't be taken for a layer. It is as it was.
#[derive(Debug, thiserror::Error)]
pub enum VmmDiffError {
    /// The file could not be opened.
    #[error(transparent)]
    Open(#[from] OpenImageError),
    /// It is larger than any image that we take.
    #[error("{path:?} has {mem_size} bytes, more than the {MAX_MEM_SIZE} that are allowed")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        mem_size: u64,
    },
    /// Its windows would be too small.
    #[error(transparent)]
    TooManyWindows(#[from] TooManyWindows),
    /// It would be a layer over itself.
    #[error("the layer and the image that it is over are both called {0}")]
    SameImage(ImageId),
    /// A part could not be read.
    #[error("{path:?} can't be read at offset {offset}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// What its filesystem makes of holes could not be tried out.
    #[error("no file can be made beside {path:?}, to see what holes are there: {source}")]
    Probe {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its filesystem has no holes, or none as small as a page: a page without a hole may be
    /// unchanged, and zeros there are not the guest's.
    #[error(
        "{0:?} is on a filesystem where a hole can't be one page of 4 KiB; have the VMM write it \
         to another (ext4, XFS, Btrfs, tmpfs without huge pages)"
    )]
    NoHoles(PathBuf),
    /// A hole begins or ends within a page, so that it is neither changed nor unchanged.
    #[error("{path:?} has a hole that ends within a page, at offset {offset}; no VMM wrote that")]
    Unaligned {
        /// The file.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
    },
    /// It was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// The map of the layer that a VMM wrote as a sparse file (Firecracker's `Diff` snapshot): what it
/// wrote changed, and a hole is a page that is as in `parent`. Pages that it wrote and that are all
/// zeros are ZERO in the map and stay what they are in the file, which is only read.
///
/// **The file must be as the VMM wrote it.** A hole means "zeros" in a whole image and "unchanged"
/// here, so nobody may have dug holes into it, or copied it with a tool that does (or that fills
/// them). That can't be seen; a file without any hole is taken for one where all has changed, since
/// that may be. What can be seen is whether the filesystem keeps holes of one page: that is tried
/// out with a file without name in the same directory, and the diff refused otherwise.
pub fn vmm_diff(
    path: &Path,
    image_id: ImageId,
    parent: ImageId,
    options: &VmmDiffOptions<'_>,
) -> Result<Map, VmmDiffError> {
    let file = open_file(path, Access::Read)?;
    let read = |offset| move |source| VmmDiffError::Read { path: path.to_owned(), offset, source };
    let mem_size = file.metadata().map_err(read(0))?.len();
    if mem_size > MAX_MEM_SIZE {
        return Err(VmmDiffError::TooLarge { path: path.to_owned(), mem_size });
    }
    let window = options.window.unwrap_or_else(|| WindowSize::for_image(mem_size));
    TooManyWindows::check(window, mem_size)?;
    if image_id == parent {
        return Err(VmmDiffError::SameImage(image_id));
    }
    let probed = holes_are_pages(path, &file)
        .map_err(|source| VmmDiffError::Probe { path: path.to_owned(), source })?;
    if !probed {
        return Err(VmmDiffError::NoHoles(path.to_owned()));
    }
    Changes { path, file: &file, written: written(path, &file, mem_size)?, window }.map(
        image_id,
        parent,
        options.work,
    )
}

/// The pages of `file` that are no hole, as DATA.
fn written(path: &Path, file: &File, mem_size: u64) -> Result<PageStates, VmmDiffError> {
    let mut words = vec![0; bits::words(mem_size.div_ceil(PAGE)) as usize];
    for extent in extents(file, mem_size) {
        let extent = extent.map_err(|(offset, source)| VmmDiffError::Read {
            path: path.to_owned(),
            offset,
            source,
        })?;
        let within = |offset: &u64| !offset.is_multiple_of(PAGE) && *offset != mem_size;
        if let Some(offset) = [extent.start, extent.end].into_iter().find(within) {
            return Err(VmmDiffError::Unaligned { path: path.to_owned(), offset });
        }
        fill(&mut words, extent.start / PAGE..extent.end.div_ceil(PAGE));
    }
    Ok(PageStates::of_full_image(mem_size, words))
}

struct Changes<'a> {
    path: &'a Path,
    file: &'a File,
    written: PageStates,
    window: WindowSize,
}

impl Changes<'_> {
    fn map(&self, id: ImageId, parent: ImageId, work: Work<'_>) -> Result<Map, VmmDiffError> {
        let mut parts = Parts::new(self.written.mem_size(), self.window);
        work.expect(self.written.mem_size());
        let all = parts.split(self.window.pages().max(64));
        let threads = work.threads_for(all.len());
        let jobs = all.filter_map(|part| {
            if self.written.data_in(part.pages.clone()) > 0 {
                return Some(Ok(part));
            }
            work.advance(part.bytes()).err().map(|cancelled| Err(cancelled.into()))
        });
        parallel(threads, jobs, Vec::new, |held, part| {
            let bytes = part.bytes();
            self.part(part, held)?;
            Ok::<_, VmmDiffError>(work.advance(bytes)?)
        })?;
        Ok(parts.into_map(id, parent))
    }

    fn part(&self, mut part: Part<'_>, held: &mut Vec<u8>) -> Result<(), VmmDiffError> {
        packed::gather(self.file, &self.written, part.pages.clone(), held).map_err(
            |(offset, source)| VmmDiffError::Read { path: self.path.to_owned(), offset, source },
        )?;
        let mut held = held.chunks(PAGE as usize);
        for number in 0..part.checksums.len() {
            let mut hasher = XxHash3_64::with_seed(0);
            let runs = self.written.runs_in(part.pages_of(number));
            let written = runs.filter(|run| run.state == PageState::Data).flat_map(|run| run.pages);
            // The pages first: a zip that takes from `held` and finds no page would lose one.
            for (page, bytes) in written.zip(&mut held) {
                if is_zero(bytes) {
                    part.set(page, PageState::Zero);
                } else {
                    part.set(page, PageState::Data);
                    hasher.write(bytes);
                }
            }
            part.checksums[number] = hasher.finish();
        }
        Ok(())
    }
}
