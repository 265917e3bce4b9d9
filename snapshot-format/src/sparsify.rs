//! Gives the blocks of an image's zero pages back to the filesystem, in place.

mod punch;
mod scan;
mod zero;

use std::fs::{OpenOptions, TryLockError};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::bits;
use crate::id::ImageId;
use crate::map::{MAX_MEM_SIZE, Map};
use crate::units::{PAGE, PageStates, WindowSize};

pub use punch::Punching;

/// How to go about [`sparsify()`].
#[derive(Clone, Debug, Default)]
pub struct SparsifyOptions {
    /// How many threads read the image; none: one per core, and never more than there are pieces
    /// of 16 MiB.
    pub threads: Option<NonZeroUsize>,
    /// Only look; the file is read and not changed.
    pub dry_run: bool,
}

/// What [`sparsify()`] found and did.
#[derive(Clone, Debug)]
pub struct Sparsified {
    states: PageStates,
    /// Whether blocks could be given back.
    pub punching: Punching,
    /// How many bytes of zeros that occupied blocks were punched out.
    pub punched_bytes: u64,
    /// What the file occupied on disk before, in bytes.
    pub allocated_before: u64,
    /// What it occupies now, in bytes.
    pub allocated_after: u64,
}

/// Why an image could not be sparsified. Its bytes are what they were: what is punched were zeros.
#[derive(Debug, thiserror::Error)]
pub enum SparsifyError {
    /// The file could not be opened for reading and writing, or looked at.
    #[error("the image {path:?} can't be opened: {source}")]
    Open {
        /// The image.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is a directory, a device or a pipe.
    #[error("the image {0:?} is no regular file")]
    NotAFile(PathBuf),
    /// Somebody holds a lock on it: a VM has it mapped, or it is being sparsified already.
    #[error("the image {0:?} is in use")]
    InUse(PathBuf),
    /// It is larger than any image that we take.
    #[error("the image has {mem_size} bytes, more than the {MAX_MEM_SIZE} that are allowed")]
    TooLarge {
        /// Its size in bytes.
        mem_size: u64,
    },
    /// A part could not be read.
    #[error("the image can't be read at offset {offset}: {source}")]
    Read {
        /// Where, in bytes.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A part could not be punched, on a filesystem that knows how to.
    #[error("the image can't be punched at offset {offset}: {source}")]
    Punch {
        /// Where, in bytes.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
}

impl Sparsified {
    /// The image's size in bytes.
    pub fn mem_size(&self) -> u64 {
        self.states.mem_size()
    }

    /// Pages that are not all zeros.
    pub fn data_pages(&self) -> u64 {
        self.states.counts().data
    }

    /// Pages that are, among them those that were holes before.
    pub fn zero_pages(&self) -> u64 {
        self.states.counts().zero
    }

    /// The state of each page, DATA or ZERO.
    pub fn states(&self) -> &PageStates {
        &self.states
    }

    /// The map to write beside the image, which is a whole one and is called `image_id`.
    pub fn into_map(self, image_id: ImageId) -> Map {
        Map::new(image_id, None, WindowSize::DEFAULT, self.states)
            .expect("a scan finds only DATA and ZERO")
    }
}

/// Finds the zero pages of the image `file` and punches those that occupy blocks out of it. The
/// image's bytes stay the same; what was a hole already is not touched.
///
/// The file is locked (`flock`, exclusive) meanwhile, and nobody else may hold a lock on it: who
/// has an image mapped keeps a shared one. Memory used is 1 MiB per thread and a bit per page.
/// Where the filesystem can't punch holes, that is said in [`Sparsified::punching`] and costs
/// nothing but space. Syncing the file is up to the caller.
///
/// Not for a layer over another image: there a hole means "unchanged", not "zeros".
pub fn sparsify(file: &Path, options: &SparsifyOptions) -> Result<Sparsified, SparsifyError> {
    let open_failed = |source| SparsifyError::Open { path: file.to_owned(), source };
    let image = OpenOptions::new().read(true).write(true).open(file).map_err(open_failed)?;
    if !image.metadata().map_err(open_failed)?.is_file() {
        return Err(SparsifyError::NotAFile(file.to_owned()));
    }
    match image.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(SparsifyError::InUse(file.to_owned())),
        Err(TryLockError::Error(source)) => return Err(open_failed(source)),
    }
    // Only now: before we had the lock the file may have grown.
    let before = image.metadata().map_err(open_failed)?;
    let mem_size = before.len();
    if mem_size > MAX_MEM_SIZE {
        return Err(SparsifyError::TooLarge { mem_size });
    }

    let mut data = vec![0; bits::words(mem_size.div_ceil(PAGE)) as usize];
    let puncher = punch::Puncher::new(&image, mem_size, options.dry_run);
    scan::image(&image, mem_size, options.threads, &puncher, &mut data)?;

    Ok(Sparsified {
        states: PageStates::of_full_image(mem_size, data),
        punching: puncher.outcome(),
        punched_bytes: puncher.punched_bytes(),
        allocated_before: allocated(&before),
        allocated_after: allocated(&image.metadata().map_err(open_failed)?),
    })
}

fn allocated(meta: &std::fs::Metadata) -> u64 {
    // POSIX leaves the unit open; on Linux it is 512 bytes on every filesystem.
    meta.blocks() * 512
}

/// What is read at once, in bytes: large enough that a system call is nothing beside the copy, and
/// small enough to stay in a core's cache until it has been compared.
const BUFFER: usize = 1024 * 1024;

/// What one thread takes at once, in bytes. A multiple of 64 pages, so that no two threads share a
/// word of the bitmap, and of every filesystem's block.
const PIECE: u64 = 16 * 1024 * 1024;

const _: () = assert!(PIECE.is_multiple_of(64 * PAGE) && PIECE.is_multiple_of(BUFFER as u64));

#[cfg(test)]
mod tests;
