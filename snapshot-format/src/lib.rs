//! Sparse VM images on disk: which pages hold data, and the file that says so.
//!
//! A **page** is 4 KiB and is `DATA`, `ZERO` or `PARENT`; a **window** is what is checksummed and
//! fetched at once. The [`Map`] beside an image (`memory.map` beside `memory.img`) tells the
//! state of every page and binds memory, VM state and disk of one generation by an [`ImageId`].
//! [`sparsify()`] finds an image's zero pages, gives their blocks back to the filesystem and
//! yields its map.
//!
//! The map's bytes are described in `FORMAT.md`. Nothing here is async, opens a socket, or knows
//! of apps or VMMs.
#![forbid(unsafe_code)]

mod bits;
mod id;
mod map;
mod sparsify;
mod units;

pub use id::{ImageId, ImageIdError};
pub use map::{MAX_MEM_SIZE, Map, OpenMapError, WithoutParent, WriteMapError};
pub use sparsify::{Punching, Sparsified, SparsifyError, SparsifyOptions, sparsify};
pub use units::{
    Counts, PAGE, PageState, PageStates, Run, Runs, UnknownPage, WindowSize, WindowSizeError,
};
