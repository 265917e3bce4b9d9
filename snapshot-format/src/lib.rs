//! Sparse VM images on disk: which pages hold data, and the file that says so.
//!
//! A **page** is 4 KiB and is `DATA`, `ZERO` or `PARENT`; a **window** is what is checksummed and
//! fetched at once. The [`Map`] beside an image (`memory.map` beside `memory.img`) tells the
//! state of every page and binds memory, VM state and disk of one generation by an [`ImageId`].
//! [`sparsify()`] finds an image's zero pages, gives their blocks back to the filesystem and
//! yields its map; [`refresh()`] brings that up to date where the image was written to, beside a
//! stopped VM that has it mapped; [`verify_image`] tells whether the two still belong together.
//!
//! [`pack()`] writes the [`Archive`] of an [`Image`], a seekable zstd file with the [`WorkingSet`]
//! first, and [`Archive::unpack`] restores it. [`diff()`] makes a layer of what changed, which
//! [`merge_copy`], [`merge_in_place`] and [`flatten`] apply.
//!
//! The bytes of maps, archives and journals are described in `FORMAT.md`. Nothing here is async,
//! opens a socket, or knows of apps or VMMs.
#![deny(unsafe_code)]

mod archive;
mod bitmap;
mod bitmaps;
mod bits;
mod bytes;
mod checksums;
mod draft;
mod extents;
mod id;
mod image;
mod layer;
mod map;
mod packed;
mod read_at;
mod sparsify;
mod states;
mod units;
mod verify;
mod work;
mod working_set;
mod zero;

pub use archive::{
    Archive, CheckHeaderError, DecodeFrameError, Decoder, Frame, HeaderError, Index, IndexError,
    OpenArchiveError, PackError, PackOptions, Packed, ReadWindowError, UnpackError,
    VerifyArchiveError, ZstdError, is_archive, pack,
};
pub use draft::WriteFileError;
pub use id::{ImageId, ImageIdError};
pub use image::{Image, OpenImageError};
pub use layer::{
    BaseBytes, ChainError, DiffError, Diffed, JournalError, LayerOptions, MAX_DEPTH, MergeError,
    MergeInPlaceError, Merged, MergedInPlace, ReadImageError, VmmDiffError, VmmDiffOptions,
    WriteImageError, diff, flatten, journal_path, merge_copy, merge_in_place, vmm_diff,
};
pub use map::{
    MAX_MEM_SIZE, Map, OpenMapError, StackError, Stacked, TooManyWindows, WithoutParent,
    WriteMapError,
};
pub use read_at::ReadAt;
pub use sparsify::{
    Known, Punching, RefreshError, Sparsified, SparsifyError, SparsifyOptions, ToCopy, ToPunch,
    refresh, sparsify, sparsify_to,
};
pub use units::{
    Counts, MAX_WINDOWS, PAGE, PageState, PageStates, Run, Runs, UnknownPage, WindowSize,
    WindowSizeError,
};
pub use verify::{VerifiedImage, VerifyImageError, ZeroError, verify_image};
pub use work::{Cancelled, Progress, Work};
pub use working_set::{FirstTouch, WorkingSet};
