//! What a file is, by what is in it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rouse_snapshot_format::{Archive, Image, Map, OpenMapError, is_archive, journal_path};

use crate::failure::{About, Exit, Failure};

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Map,
    Archive,
    /// Whatever is neither: an image has no mark of its own.
    Image,
}

/// The first bytes of a map, from `FORMAT.md`.
const MAP: &[u8] = b"ROUSEMAP";

impl Kind {
    /// Looks at the first bytes of the file.
    pub(crate) fn of(path: &Path) -> Result<Self, Failure> {
        // Looked at before it is opened: to open a pipe is to wait for who writes to it.
        if !fs::metadata(path).about(path)?.is_file() {
            return Err(Failure::new(Exit::BadInput, "this is no regular file")).about(path);
        }
        let mut start = Vec::new();
        File::open(path).and_then(|file| file.take(16).read_to_end(&mut start)).about(path)?;
        Ok(if start.starts_with(MAP) {
            Self::Map
        } else if is_archive(&start) {
            Self::Archive
        } else {
            Self::Image
        })
    }
}

/// An archive, its index read.
pub(crate) fn open_archive(path: &Path) -> Result<Archive<File>, Failure> {
    if Kind::of(path)? != Kind::Archive {
        return Err(Failure::new(Exit::BadInput, "this is no archive")).about(path);
    }
    Archive::open(File::open(path).about(path)?).about(path)
}

/// An image with its map, locked.
pub(crate) fn open_image(path: &Path, map: Option<&Path>) -> Result<Image, Failure> {
    require_image(path)?;
    match map {
        Some(map) => Image::open(path, map).about(path),
        None => {
            let map = Image::map_path(path);
            if !map.exists() {
                return Err(no_map(&map)).about(path);
            }
            Image::open(path, map).about(path)
        }
    }
}

/// Refuses what can't be meant as an image.
pub(crate) fn require_image(path: &Path) -> Result<(), Failure> {
    let why = match Kind::of(path)? {
        Kind::Image => return Ok(()),
        Kind::Map => "this is a map; name its image",
        Kind::Archive => "this is an archive; unpack it first",
    };
    Err(Failure::new(Exit::BadInput, why)).about(path)
}

/// Refuses an image of which only a part was merged: it has no map, and is not to get one by which it
/// would pass for whole.
pub(crate) fn refuse_half_merged(image: &Path, map: &Path) -> Result<(), Failure> {
    let journal = journal_path(map);
    if !journal.exists() {
        return Ok(());
    }
    let why = format!(
        "a merge into this image was begun and not ended ({} is there); end it with the same `merge \
         --in-place`",
        journal.display()
    );
    Err(Failure::new(Exit::BadInput, why)).about(image)
}

/// The map of an image, and where it is. Takes no lock: what is said of an image is not the image.
pub(crate) fn map_of_image(image: &Path, map: Option<&Path>) -> Result<(PathBuf, Map), Failure> {
    let path = map.map_or_else(|| Image::map_path(image), Path::to_owned);
    match Map::open(&path) {
        Err(OpenMapError::Io(e)) if map.is_none() && e.kind() == io::ErrorKind::NotFound => {
            Err(no_map(&path)).about(image)
        }
        map => {
            let map = map.about(&path)?;
            Ok((path, map))
        }
    }
}

fn no_map(map: &Path) -> Failure {
    let why = format!(
        "this is neither a map nor an archive, and for an image its map {} is missing; name that \
         with --map, or make one with `sparsify`",
        map.display()
    );
    Failure::new(Exit::BadInput, why)
}
