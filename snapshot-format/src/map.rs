//! The map beside an image.

mod layout;
mod read;
mod write;

use std::path::Path;

use crate::id::ImageId;
use crate::units::{Counts, PageState, PageStates, Runs, UnknownPage, WindowSize};

pub use read::OpenMapError;
pub use write::WriteMapError;

/// The largest image, in bytes, whose map is written or read: 1 TiB, whose two bitmaps are
/// 64 MiB. More than the largest VM that anybody lets sleep, and small enough that a page's number
/// fits 32 bits.
pub const MAX_MEM_SIZE: u64 = 1 << 40;

/// What is known of an image: whose it is, how large, and the state of every page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    image_id: ImageId,
    parent: Option<ImageId>,
    window: WindowSize,
    states: PageStates,
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
        Ok(Self { image_id, parent, window, states, foreign_ro: 0 })
    }

    /// Reads a map. Everything in it is checked; what is allocated is never more than the file
    /// holds.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenMapError> {
        read::open(path.as_ref())
    }

    /// [`Self::open`] for the bytes of a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, OpenMapError> {
        read::read(&bytes)
    }

    /// Writes the map so that there is either all of it under `path`, durable, or what was there
    /// before: under another name in the same directory, synced, renamed, the directory synced.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), WriteMapError> {
        write::write(self, path.as_ref())
    }

    /// The bytes that [`Self::write`] writes.
    pub fn to_bytes(&self) -> Result<Vec<u8>, WriteMapError> {
        write::bytes(self)
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
        self.mem_size().div_ceil(self.window.bytes())
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
