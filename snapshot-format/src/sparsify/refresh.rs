//! Brings a map up to date where its image has changed.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::plan::Plan;
use super::source::Source;
use super::{Sparsified, SparsifyError, SparsifyOptions, ToPunch, punch};
use crate::id::ImageId;
use crate::image::Access;
use crate::map::Map;
use crate::work::Cancelled;

/// What [`refresh()`] may rely on.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// A map of the image as it was once: of a whole image, with checksums.
    pub map: &'a Map,
    /// Where the image may have been written to since, in bytes, in any order; they may overlap, and
    /// what of them lies behind the image's end counts for nothing. Rather too much than too little: a
    /// window without any of it is taken to be as the map says.
    pub written: &'a [Range<u64>],
}

/// Why a map could not be brought up to date. The image's bytes are what they were, and nobody works
/// on it any more.
#[derive(Debug, thiserror::Error)]
pub enum RefreshError {
    /// The map is of a layer. There a hole is no zeros, and a layer is never written to.
    #[error(
        "the map of {path:?} is that of a layer over {parent}; only a whole image can be refreshed"
    )]
    Layer {
        /// The image.
        path: PathBuf,
        /// What the layer is over.
        parent: ImageId,
    },
    /// The map is of another image, or the image was cut or grew.
    #[error(
        "the image {path:?} has {there} bytes, and the map of what is known says {mem_size}; make the map \
         anew"
    )]
    Size {
        /// The image.
        path: PathBuf,
        /// The file's size in bytes.
        there: u64,
        /// The map's.
        mem_size: u64,
    },
    /// The map has no checksums that could be kept.
    #[error("the map of {0:?} has no checksums; make it anew")]
    NoChecksums(PathBuf),
    /// Somebody had it end.
    #[error(transparent)]
    Cancelled(Cancelled),
    /// The image could not be looked at, punched or synced. Never [`SparsifyError::Cancelled`].
    #[error(transparent)]
    Sparsify(SparsifyError),
}

impl From<SparsifyError> for RefreshError {
    fn from(error: SparsifyError) -> Self {
        match error {
            SparsifyError::Cancelled(cancelled) => Self::Cancelled(cancelled),
            other => Self::Sparsify(other),
        }
    }
}

impl Known<'_> {
    fn plan(self, source: &Source) -> Result<Plan, RefreshError> {
        let path = || source.path.clone();
        let (there, mem_size) = (source.mem_size, self.map.mem_size());
        // Without a parent, no page is PARENT.
        if let Some(parent) = self.map.parent() {
            return Err(RefreshError::Layer { path: path(), parent });
        }
        if there != mem_size {
            return Err(RefreshError::Size { path: path(), there, mem_size });
        }
        Plan::written(self.map, self.written).ok_or_else(|| RefreshError::NoChecksums(path()))
    }
}

/// Does to an image that a stopped VM has mapped what [`sparsify()`](super::sparsify()) does, and only
/// where it was written to: finds the zero pages of the windows that [`Known::written`] touches and
/// punches those that occupy blocks. No other window is read or punched, and all others have the states
/// and checksums of the [`Known`] map. Without one, all of the image is looked at. The working set
/// is not taken over; [`Map::with_working_set`] does that.
///
/// The file is locked `flock`, shared, so others may have it mapped and keep a shared lock of their own.
/// It is for the caller to see to it that **nobody writes to it meanwhile**: the VM's vCPUs and devices
/// stand still. Else a page could be written between the look at it and the punch, and lost. The bytes
/// never change, in the file or in a mapping: a page that is punched was zeros and reads as zeros.
///
/// It can therefore be ended at any moment by [`Progress::cancel`](crate::Progress::cancel): it returns
/// [`RefreshError::Cancelled`] after at most one read of 256 KiB or one punch of 16 MiB per
/// thread, and the VM may go on at once. Only a sync that has begun is waited for; whoever can't wait so
/// long calls this without [`SparsifyOptions::sync`] and syncs the image apart. Some zeros may have
/// been punched by then; nothing is known that was not before, so what was written still counts as
/// written.
///
/// Best done when the image has just been synced: ext4 can't divide what its page cache holds as one (up
/// to 2 MiB) until that is written back, and the next write to a page of it then brings back the blocks
/// of those that were punched.
///
/// Memory used is 256 KiB per thread, a bit per page, eight bytes per window and sixteen per range.
/// **Never for a layer over another image:** there a hole means "unchanged", not "zeros".
pub fn refresh(
    path: &Path,
    known: Option<Known<'_>>,
    options: &SparsifyOptions<'_>,
) -> Result<Sparsified, RefreshError> {
    refresh_by(path, known, options, punch::punch_hole)
}

pub(super) fn refresh_by(
    path: &Path,
    known: Option<Known<'_>>,
    options: &SparsifyOptions<'_>,
    punch: punch::Punch,
) -> Result<Sparsified, RefreshError> {
    // Locked otherwise than by `ToPunch::open`.
    let image = ToPunch(Source::open(path, Access::Punch)?);
    let plan = match known {
        Some(known) => known.plan(&image.0)?,
        None => image.0.plan(options)?,
    };
    Ok(image.punch_by(plan, options, punch)?)
}
