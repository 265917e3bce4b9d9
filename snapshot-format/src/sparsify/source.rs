//! The image that is looked at.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::plan::Plan;
use super::punch::Punching;
use super::{Sparsified, SparsifyError, SparsifyOptions, scan};
use crate::image::{Access, OpenImageError, open_file};
use crate::map::MAX_MEM_SIZE;
use crate::units::WindowSize;
use crate::work::Work;

/// An image that is open, locked and within our limits.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) mem_size: u64,
    before: Metadata,
}

impl Source {
    pub(super) fn open(path: &Path, access: Access) -> Result<Self, SparsifyError> {
        let file = open_file(path, access)?;
        // Only now: before we had the lock the file may have grown.
        let before = file
            .metadata()
            .map_err(|source| OpenImageError::Open { path: path.to_owned(), source })?;
        let mem_size = before.len();
        if mem_size > MAX_MEM_SIZE {
            return Err(SparsifyError::TooLarge { mem_size });
        }
        Ok(Self { path: path.to_owned(), file, mem_size, before })
    }

    pub(super) fn is(&self, other: &Metadata) -> bool {
        (self.before.dev(), self.before.ino()) == (other.dev(), other.ino())
    }

    /// To look at all of it.
    pub(super) fn plan(&self, options: &SparsifyOptions<'_>) -> Result<Plan, SparsifyError> {
        let window = options.window.unwrap_or_else(|| WindowSize::for_image(self.mem_size));
        Ok(Plan::all(self.mem_size, window)?)
    }

    pub(super) fn scan(
        &self,
        plan: Plan,
        work: Work<'_>,
        target: &impl scan::Target,
    ) -> Result<scan::Found, SparsifyError> {
        scan::image(&self.file, plan, work, target)
    }

    pub(super) fn look(&self, plan: Plan, work: Work<'_>) -> Result<Sparsified, SparsifyError> {
        self.scan(plan, work, &scan::Looker).map(|found| self.unchanged(found))
    }

    /// `found`, and nothing done.
    pub(super) fn unchanged(&self, found: scan::Found) -> Sparsified {
        let allocated = allocated(&self.before);
        Sparsified {
            read_bytes: found.read_bytes,
            found,
            punching: Punching::Off,
            punched_bytes: 0,
            allocated_before: allocated,
            allocated_after: allocated,
        }
    }
}

pub(super) fn allocated(meta: &Metadata) -> u64 {
    // POSIX leaves the unit open; on Linux it is 512 bytes on every filesystem.
    meta.blocks() * 512
}
