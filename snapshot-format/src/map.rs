//! The map beside an image.

mod layout;
mod read;
mod whole_windows;
mod write;

use std::io;
use std::path::Path;

use crate::checksums::Checksums;
use crate::id::ImageId;
use crate::packed::EMPTY_CHECKSUM;
use crate::read_at::ReadAt;
use crate::units::{Counts, MAX_WINDOWS, PageState, PageStates, Runs, UnknownPage, WindowSize};
use crate::working_set::WorkingSet;

pub use read::OpenMapError;
pub use whole_windows::{StackError, Stacked};
pub use write::WriteMapError;

/// The largest image, in bytes, whose map is written or read: 1 TiB, whose two bitmaps are
/// 64 MiB. More than the largest VM that anybody lets sleep, and small enough that a page's number
/// fits 32 bits.
pub const MAX_MEM_SIZE: u64 = 1 << 40;

/// What is known of an image: whose it is, how large, the state of every page, checksums of what
/// its windows hold, and what a wake touches first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    image_id: ImageId,
    parent: Option<ImageId>,
    window: WindowSize,
    states: PageStates,
    /// One for each window.
    checksums: Option<Checksums>,
    working_set: WorkingSet,
    /// The file had a working set, and it was no good.
    working_set_dropped: bool,
    /// Features of the file that it came from, unknown to us, under which it must not be
    /// rewritten.
    foreign_ro: u64,
}

/// Pages are said to be as in a parent, and there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pages} pages are as in a parent, and the image has none")]
pub struct WithoutParent {
    /// How many.
    pub pages: u64,
}

/// An image has more windows than a map may hold checksums for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the image has {windows} windows, more than the {MAX_WINDOWS} that are allowed; make them larger"
)]
pub struct TooManyWindows {
    /// How many.
    pub windows: u64,
}

impl TooManyWindows {
    pub(crate) fn check(window: WindowSize, mem_size: u64) -> Result<(), Self> {
        let windows = window.count(mem_size);
        if windows > MAX_WINDOWS { Err(Self { windows }) } else { Ok(()) }
    }
}

impl Map {
    /// The map of a whole image, or with `parent` of a layer over that one.
    pub fn new(
        image_id: ImageId,
        parent: Option<ImageId>,
        window: WindowSize,
        states: PageStates,
    ) -> Result<Self, WithoutParent> {
        let pages = states.counts().parent;
        if parent.is_none() && pages > 0 {
            return Err(WithoutParent { pages });
        }
        Ok(Self {
            image_id,
            parent,
            window,
            states,
            checksums: None,
            working_set: WorkingSet::new(),
            working_set_dropped: false,
            foreign_ro: 0,
        })
    }

    /// Reads a map. Everything in it is checked; what is allocated is never more than the file
    /// holds.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenMapError> {
        read::open(path.as_ref())
    }

    /// [`Self::open`] for the bytes of a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, OpenMapError> {
        read::read(bytes)
    }

    /// [`Self::open`] for a file that lies anywhere.
    pub fn read(source: &(impl ReadAt + ?Sized)) -> Result<Self, OpenMapError> {
        read::read(source)
    }

    /// With the checksum of each window: XXH3 (64 bits, seed 0) of its DATA pages one after the other.
    /// As many as there are windows; those without DATA have that of nothing.
    pub(crate) fn with_checksums(mut self, checksums: Vec<u64>) -> Self {
        debug_assert_eq!(checksums.len() as u64, self.windows());
        debug_assert!((0..self.windows()).all(|window| {
            self.window_data_pages(window) > 0 || checksums[window as usize] == EMPTY_CHECKSUM
        }));
        self.checksums = Some(checksums.into_iter().collect());
        self
    }

    /// The same image under another id.
    pub fn with_image_id(mut self, image_id: ImageId) -> Self {
        self.image_id = image_id;
        self
    }

    /// With another working set; windows that the image does not have, and what is over
    /// [`WorkingSet::limit`], are dropped from it.
    pub fn with_working_set(mut self, mut working_set: WorkingSet) -> Self {
        working_set.fit(self.window, self.windows());
        self.working_set = working_set;
        self.working_set_dropped = false;
        self
    }

    /// Writes the map so that there is either all of it under `path`, durable, or what was there
    /// before: under another name in the same directory, synced, renamed, the directory synced.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), WriteMapError> {
        write::write(self, path.as_ref(), true)
    }

    /// [`Self::write`] without syncing: for a map that may be lost with the power.
    pub fn write_unsynced(&self, path: impl AsRef<Path>) -> Result<(), WriteMapError> {
        write::write(self, path.as_ref(), false)
    }

    /// Writes the bytes of [`Self::write`] to `to`, without ever having all of them in memory.
    pub fn write_to(&self, to: impl io::Write) -> Result<(), WriteMapError> {
        write::write_to(self, to)
    }

    /// Refuses what [`Self::write`] would refuse, whatever the disk.
    ///
    /// For a file whose features this version does not know and that is about to be replaced.
    pub fn check_writable(&self) -> Result<(), WriteMapError> {
        write::check(self)
    }

    /// The bytes that [`Self::write`] writes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, WriteMapError> {
        write::bytes(self)
    }

    /// A working set came with the map and was no good.
    pub(crate) fn without_damaged_working_set(mut self) -> Self {
        self.working_set_dropped = true;
        self
    }

    /// Under these features, unknown to us, the map must not be written anew.
    pub(crate) fn with_foreign_ro(mut self, bits: u64) -> Self {
        self.foreign_ro = bits;
        self
    }

    /// The features, unknown to us, under which the map must not be written anew; 0 for none.
    pub(crate) fn foreign_ro(&self) -> u64 {
        self.foreign_ro
    }

    /// The most bytes that a map of such an image has in a file of this version.
    pub fn max_file_size(&self) -> u64 {
        write::max_size(self)
    }

    /// What binds memory, VM state and disk.
    pub fn image_id(&self) -> ImageId {
        self.image_id
    }

    /// The image that this one is a layer over; none for a whole image.
    pub fn parent(&self) -> Option<ImageId> {
        self.parent
    }

    /// The image's size in bytes.
    pub fn mem_size(&self) -> u64 {
        self.states.mem_size()
    }

    /// How many pages the image has.
    pub fn pages(&self) -> u64 {
        self.states.pages()
    }

    /// The size of a window.
    pub fn window_size(&self) -> WindowSize {
        self.window
    }

    /// How many windows the image has; the last may be cut short.
    pub fn windows(&self) -> u64 {
        self.window.count(self.mem_size())
    }

    /// The pages of `window`; none behind the image's end.
    pub fn pages_of(&self, window: u64) -> std::ops::Range<u64> {
        self.window.pages_of(window, self.mem_size())
    }

    /// Where `window` lies in the image, in bytes; nowhere behind its end.
    pub fn window_bytes(&self, window: u64) -> std::ops::Range<u64> {
        crate::packed::bytes_of(&self.pages_of(window), self.mem_size())
    }

    /// The runs of DATA in `window`: where each lies in the image, and where in the window's packed
    /// bytes, as [`Decoder::decode`](crate::Decoder::decode) yields them; both in bytes.
    pub fn data_runs(
        &self,
        window: u64,
    ) -> impl Iterator<Item = (std::ops::Range<u64>, std::ops::Range<usize>)> {
        crate::packed::runs(&self.states, self.pages_of(window))
    }

    /// How many DATA pages `window` has.
    pub fn window_data_pages(&self, window: u64) -> u64 {
        self.states.data_in(self.pages_of(window))
    }

    /// The checksum of `window`: XXH3 (64 bits, seed 0) of its DATA pages one after the other, the
    /// image's last page as short as it is. None where the map has none, or not the window.
    pub fn checksum(&self, window: u64) -> Option<u64> {
        self.checksums.as_ref()?.get(window)
    }

    /// Whether the map has its windows' checksums.
    pub fn has_checksums(&self) -> bool {
        self.checksums.is_some()
    }

    /// Those of all windows, where the map has them.
    pub(crate) fn checksums(&self) -> Option<impl Iterator<Item = u64>> {
        self.checksums.as_ref().map(Checksums::iter)
    }

    /// What a wake touches first.
    pub fn working_set(&self) -> &WorkingSet {
        &self.working_set
    }

    /// Whether the file that the map came from had a working set that was damaged and so left out.
    /// The map is as good without; the next wake records another.
    pub fn working_set_dropped(&self) -> bool {
        self.working_set_dropped
    }

    /// The state of `page`, counted from 0.
    pub fn state(&self, page: u64) -> Result<PageState, UnknownPage> {
        self.states.state(page)
    }

    /// The states of all pages.
    pub fn states(&self) -> &PageStates {
        &self.states
    }

    /// The pages in runs of one state.
    pub fn runs(&self) -> Runs<'_> {
        self.states.runs()
    }

    /// How many pages are in which state.
    pub fn counts(&self) -> Counts {
        self.states.counts()
    }
}
