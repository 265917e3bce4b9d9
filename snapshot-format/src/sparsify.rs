//! Finds an image's zero pages: gives their blocks back in place, or leaves them out of a copy.

mod copy;
mod plan;
mod punch;
mod refresh;
mod scan;
mod source;
mod walk;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::draft::{Draft, WriteFileError};
use crate::id::ImageId;
use crate::image::{Access, Image, OpenImageError};
use crate::map::{MAX_MEM_SIZE, Map, TooManyWindows};
use crate::units::{PAGE, PageStates, WindowSize};
use crate::work::{Cancelled, Work};

use plan::Plan;
use source::{Source, allocated};

pub use punch::Punching;
pub(crate) use punch::punch;
pub use refresh::{Known, RefreshError, refresh};

/// How to go about [`sparsify()`], [`sparsify_to`] and [`refresh()`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SparsifyOptions<'a> {
    /// Threads, of which there are never more than pieces of 16 MiB, and progress in bytes of the
    /// image, holes and all.
    pub work: Work<'a>,
    /// Only look; no file is changed or made.
    pub dry_run: bool,
    /// The windows of the map; none: [`WindowSize::for_image`]. A [`refresh()`] of a [`Known`] map keeps
    /// that one's.
    pub window: Option<WindowSize>,
    /// Have the image, or the copy, durable before returning. A map must never be more durable
    /// than what it speaks of, so whoever writes one and does not ask for this syncs the image
    /// before.
    pub sync: bool,
    /// Put the copy in the place of what is there. Without, it is only written under a name that is
    /// free ([`WriteFileError::Exists`]).
    pub replace: bool,
}

/// What [`sparsify()`], [`sparsify_to`] or [`refresh()`] found and did.
#[derive(Clone, Debug)]
pub struct Sparsified {
    found: scan::Found,
    /// Whether blocks could be given back.
    pub punching: Punching,
    /// How many bytes of the image were read: no holes, and nothing that was known before.
    pub read_bytes: u64,
    /// How many bytes of zeros that occupied blocks were punched out.
    pub punched_bytes: u64,
    /// What the image occupied on disk before, in bytes.
    pub allocated_before: u64,
    /// What it occupies now, or its copy, in bytes.
    pub allocated_after: u64,
}

/// Why an image could not be sparsified. Its bytes are what they were: what is punched were zeros.
/// There is no copy, except after [`WriteFileError::NotDurable`].
#[derive(Debug, thiserror::Error)]
pub enum SparsifyError {
    /// The image can't be used, or somebody else uses it.
    #[error(transparent)]
    Open(#[from] OpenImageError),
    /// It is larger than any image that we take.
    #[error("the image has {mem_size} bytes, more than the {MAX_MEM_SIZE} that are allowed")]
    TooLarge {
        /// Its size in bytes.
        mem_size: u64,
    },
    /// The windows that were asked for are too small for it.
    #[error(transparent)]
    TooManyWindows(#[from] TooManyWindows),
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
    /// What was done in place could not be made durable, or looked at.
    #[error("the image {path:?} can't be synced: {source}")]
    Sync {
        /// The image.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The copy would get the image's own name.
    #[error("a copy of the image {0:?} can't take its place; name another file")]
    OntoItself(PathBuf),
    /// The copy could not be made, synced or named.
    #[error(transparent)]
    File(#[from] WriteFileError),
    /// A part of the copy could not be written.
    #[error("the copy can't be written at offset {offset}: {source}")]
    Write {
        /// Where, in bytes.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody had it end.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl Sparsified {
    /// The image's size in bytes.
    pub fn mem_size(&self) -> u64 {
        self.states().mem_size()
    }

    /// Pages that are not all zeros.
    pub fn data_pages(&self) -> u64 {
        self.states().counts().data
    }

    /// Pages that are, among them those that were holes before.
    pub fn zero_pages(&self) -> u64 {
        self.states().counts().zero
    }

    /// The state of each page, DATA or ZERO.
    pub fn states(&self) -> &PageStates {
        &self.found.states
    }

    /// The map to write beside the image, or beside its copy: of a whole image that is called
    /// `image_id`, with the checksums of its windows.
    pub fn into_map(self, image_id: ImageId) -> Map {
        let scan::Found { states, window, checksums, read_bytes: _ } = self.found;
        Map::new(image_id, None, window, states)
            .expect("a scan finds only DATA and ZERO")
            .with_checksums(checksums)
    }
}

/// Finds the zero pages of the image at `path` and punches those that occupy blocks out of it. The
/// image's bytes stay the same; what was a hole already is neither read nor touched.
///
/// The file is locked (`flock`, exclusive) meanwhile, and nobody else may hold a lock on it: who
/// has an image mapped keeps a shared one. Memory used is 256 KiB per thread, a bit per page and
/// eight bytes per window. Where the filesystem can't punch holes, that is said in
/// [`Sparsified::punching`] and costs nothing but space.
///
/// **Never for a layer over another image:** there a hole means "unchanged", not "zeros", and
/// punching destroys the difference for good. The file itself does not tell; whoever calls this
/// knows, or asks the map beside it ([`Map::parent`]).
pub fn sparsify(path: &Path, options: &SparsifyOptions<'_>) -> Result<Sparsified, SparsifyError> {
    ToPunch::open(path)?.punch(options)
}

/// Copies the image at `path` to `out` without its zero pages, which are holes there, whatever the
/// filesystem of either can do. The same is found as by [`sparsify()`]; the image is not changed.
///
/// Like [`sparsify()`] it locks the image, but shared: others may read it. A VM that has the image
/// mapped to write into it also holds a shared lock, so the caller sees to it that there is none.
/// The copy appears under its name when it is whole, with mode 0600. A dry run makes none. Not for a layer over another image, for the same reason.
pub fn sparsify_to(
    path: &Path,
    out: &Path,
    options: &SparsifyOptions<'_>,
) -> Result<Sparsified, SparsifyError> {
    let image = ToCopy::open(path)?;
    if fs::metadata(out).is_ok_and(|there| image.0.is(&there)) {
        return Err(SparsifyError::OntoItself(path.to_owned()));
    }
    if options.dry_run {
        return image.look(options);
    }
    let copy = Draft::claim(out, options.replace)?;
    // Not synced twice.
    let found = image.copy_to(copy.file(), &SparsifyOptions { sync: false, ..*options })?;
    copy.publish(options.sync)?;
    Ok(found)
}

/// An image to be sparsified in place, locked (`flock`, exclusive) as long as this value lives:
/// [`sparsify()`] for those who also read the map beside it before, and write it after.
#[derive(Debug)]
pub struct ToPunch(Source);

impl ToPunch {
    /// Opens the image at `path` and locks it.
    pub fn open(path: &Path) -> Result<Self, SparsifyError> {
        Source::open(path, Access::Write).map(Self)
    }

    /// The image's size in bytes.
    pub fn mem_size(&self) -> u64 {
        self.0.mem_size
    }

    /// Does what [`sparsify()`] does.
    pub fn punch(&self, options: &SparsifyOptions<'_>) -> Result<Sparsified, SparsifyError> {
        self.punch_by(self.0.plan(options)?, options, punch::punch_hole)
    }

    fn punch_by(
        &self,
        plan: Plan,
        options: &SparsifyOptions<'_>,
        punch: punch::Punch,
    ) -> Result<Sparsified, SparsifyError> {
        let source = &self.0;
        if options.dry_run {
            return source.look(plan, options.work);
        }
        let puncher = punch::Puncher::new(&source.file, source.mem_size, punch);
        let found = source.scan(plan, options.work, &puncher)?;
        let failed = |error| SparsifyError::Sync { path: source.path.clone(), source: error };
        if options.sync {
            options.work.check()?;
            source.file.sync_data().map_err(failed)?;
        }
        Ok(Sparsified {
            punching: puncher.outcome(),
            punched_bytes: puncher.punched_bytes(),
            allocated_after: allocated(&source.file.metadata().map_err(failed)?),
            ..source.unchanged(found)
        })
    }
}

/// An image to be copied, locked (`flock`, shared) as long as this value lives: [`sparsify_to`] for
/// those who also read the map beside it before, and name the copy themselves.
#[derive(Debug)]
pub struct ToCopy(Source);

impl ToCopy {
    /// Opens the image at `path` and locks it.
    pub fn open(path: &Path) -> Result<Self, SparsifyError> {
        Source::open(path, Access::Read).map(Self)
    }

    /// The image's size in bytes.
    pub fn mem_size(&self) -> u64 {
        self.0.mem_size
    }

    /// Only looks, as a dry run does.
    pub fn look(&self, options: &SparsifyOptions<'_>) -> Result<Sparsified, SparsifyError> {
        self.0.look(self.0.plan(options)?, options.work)
    }

    /// The image with the map of what was found in it, under the same lock: it need not be looked at
    /// once more for zeros.
    pub fn into_image(self, found: Sparsified, image_id: ImageId) -> Image {
        Image::scanned(self.0.path, self.0.file, found.into_map(image_id))
    }

    /// Copies the image into `copy` as [`sparsify_to`] does. What was in that file is gone, unless
    /// it is a dry run.
    pub fn copy_to(
        &self,
        copy: &File,
        options: &SparsifyOptions<'_>,
    ) -> Result<Sparsified, SparsifyError> {
        let source = &self.0;
        if options.dry_run {
            return self.look(options);
        }
        let failed = |offset| move |error| SparsifyError::Write { offset, source: error };
        let there = copy.metadata().map_err(failed(0))?;
        if source.is(&there) {
            return Err(SparsifyError::OntoItself(source.path.clone()));
        }
        // Not for nothing: a file that is cut to nothing is written back by ext4 when it is closed.
        if there.len() > 0 {
            copy.set_len(0).map_err(failed(0))?;
        }
        copy.set_len(source.mem_size).map_err(failed(source.mem_size))?;
        let found = source.scan(source.plan(options)?, options.work, &copy::Copier(copy))?;
        if options.sync {
            copy.sync_all().map_err(failed(0))?;
        }
        let allocated_after = allocated(&copy.metadata().map_err(failed(0))?);
        Ok(Sparsified { allocated_after, ..source.unchanged(found) })
    }
}

/// What is read at once, in bytes: large enough that a system call is nothing beside the copy, and
/// small enough to stay in a core's own cache until it has been compared and hashed.
const BUFFER: usize = 256 * 1024;

/// What one thread takes at once, in bytes. A multiple of the largest window, of 64 pages, so that no
/// two threads share a word of the bitmap, and of every filesystem's block.
const PIECE: u64 = 16 * 1024 * 1024;

const _: () = assert!(PIECE.is_power_of_two() && PIECE >= 64 * PAGE && PIECE >= 4 << 20);

#[cfg(test)]
mod tests;
