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
/// What a map may have besides what this version would write, in bytes.
const SLACK: u64 = 64 * 1024;

impl Kind {
    /// Looks at the first bytes of the file, and whether a map of just this file lies beside it: the
    /// first bytes of an image are a guest's to write.
    pub(crate) fn of(path: &Path) -> Result<Self, Failure> {
        // Looked at before it is opened: to open a pipe is to wait for who writes to it.
        let meta = fs::metadata(path).about(path)?;
        if !meta.is_file() {
            return Err(Failure::new(Exit::BadInput, "this is no regular file")).about(path);
        }
        let beside = Image::map_path(path);
        if beside != path && Map::open(beside).is_ok_and(|map| map.mem_size() == meta.len()) {
            return Ok(Self::Image);
        }
        let mut start = Vec::new();
        File::open(path).and_then(|file| file.take(16).read_to_end(&mut start)).about(path)?;
        Ok(if start.starts_with(MAP) && is_all_map(path, meta.len()) {
            Self::Map
        } else if is_archive(&start) {
            Self::Archive
        } else {
            Self::Image
        })
    }
}

/// Whether a file that starts as a map is nothing else: a map is no longer than what it speaks of. A
/// damaged one is known by its name.
fn is_all_map(path: &Path, length: u64) -> bool {
    match Map::open(path) {
        Ok(map) => length <= map.max_file_size() + SLACK,
        // One of a later version is as long as that has it.
        Err(OpenMapError::UnknownMajor { .. } | OpenMapError::UnknownFeatures { .. }) => true,
        Err(_) => path.extension().is_some_and(|ending| ending == "map"),
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

/// Refuses an image of which only a part was merged, as a journal beside one of `maps` says: it has
/// no map, and is not to get one by which it would pass for whole.
pub(crate) fn refuse_half_merged(image: &Path, maps: &[&Path]) -> Result<(), Failure> {
    let Some(journal) = maps.iter().map(journal_path).find(|journal| journal.exists()) else {
        return Ok(());
    };
    let why = format!(
        "a merge into this image was begun and not ended ({} is there); end it with the same `merge \
         --in-place`",
        journal.display()
    );
    Err(Failure::new(Exit::BadInput, why)).about(image)
}

/// Refuses an image of `mem_size` bytes whose own map, the one `beside` it, says that it is a layer,
/// where another map is named for it. A map that can't be read says nothing, and one of another size
/// is not of this image.
pub(crate) fn refuse_layer(image: &Path, beside: &Path, mem_size: u64) -> Result<(), Failure> {
    match Map::open(beside) {
        Ok(map) if map.parent().is_some() && map.mem_size() == mem_size => {
            Err(a_layer()).about(image)
        }
        _ => Ok(()),
    }
}

/// Why a layer is not taken for a whole image.
pub(crate) fn a_layer() -> Failure {
    let why =
        "the image is a layer over another one, where a hole means \"unchanged\"; merge it first";
    Failure::new(Exit::BadInput, why)
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
