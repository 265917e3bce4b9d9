//! DATA into another file.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::SparsifyError;
use super::scan::Target;

/// Writes DATA where it lies in the image; the file has the image's size and is all hole.
pub(super) struct Copier<'a>(pub(super) &'a File);

impl Target for Copier<'_> {
    fn data(&self, offset: u64, bytes: &[u8]) -> Result<(), SparsifyError> {
        self.0.write_all_at(bytes, offset).map_err(|source| SparsifyError::Write { offset, source })
    }
}
