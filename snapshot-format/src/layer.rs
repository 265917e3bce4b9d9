//! Layers: what changed between an image and the next, and how the two become one again.
//!
//! A layer is an image of its own, with a map whose parent is the image below it. Only its DATA
//! pages are in its file: a hole there is ZERO or PARENT, as the map says, so that nobody may dig
//! holes into a layer, or take one for a whole image.
//!
//! Sizes may differ along a chain. A page that an image below does not have is zeros, since the
//! image grew there and new memory is zeros; and bytes behind the end of any image of the chain
//! are gone for all that lie upon it.

mod assembly;
mod chain;
mod diff;
mod in_place;
mod journal;
mod merge;
mod output;
mod parts;
mod probe;
mod source;
mod vmm;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::draft::{Draft, WriteFileError, sync_directory};
use crate::id::ImageId;
use crate::image::Image;
use crate::map::{Map, WriteMapError};
use crate::work::Work;

pub use diff::{DiffError, Diffed, diff};
pub use in_place::{MergeInPlaceError, MergedInPlace, merge_in_place};
pub use journal::{JournalError, journal_path};
pub use merge::{BaseBytes, MergeError, Merged, flatten, merge_copy};
pub use output::WriteImageError;
pub use source::ReadImageError;
pub use vmm::{VmmDiffError, VmmDiffOptions, vmm_diff};

/// The most layers that may lie upon each other. Each costs an open file and a look at every page
/// that is not its own; and of many, most of what is stored is overlaid by later ones. E2B and
/// others end at the same depth and merge.
pub const MAX_DEPTH: usize = 8;

/// How to go about [`diff()`], [`merge_copy`] and [`flatten`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerOptions<'a> {
    /// Threads, of which each keeps a window of every image in memory, and progress in bytes of
    /// the image that is made, holes and all.
    pub work: Work<'a>,
    /// Have what is written durable before returning.
    pub sync: bool,
    /// Put image and map in the place of what is there. Without, they are only written under names
    /// that are free ([`WriteFileError::Exists`]).
    pub replace: bool,
}

/// Why images are no chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// There is none.
    #[error("there is no layer to merge")]
    NoLayers,
    /// There are too many.
    #[error(
        "{depth} layers lie upon each other, more than the {MAX_DEPTH} that are allowed; flatten \
         some first"
    )]
    TooDeep {
        /// How many there are.
        depth: usize,
    },
    /// What was to be a whole image is a layer.
    #[error("the image {image} is a layer over {parent}; merge it into that one first")]
    NotWhole {
        /// The image.
        image: ImageId,
        /// What it is a layer over.
        parent: ImageId,
    },
    /// What was to be the lowest of some layers is a whole image.
    #[error("the image {0} is whole, and no layer; it can only be the base of a merge")]
    NotALayer(ImageId),
    /// A layer is over another image than the one that it was put upon.
    #[error(
        "the layer {layer} is over {}, and not over {expected}",
        .found.map_or_else(|| "nothing: it is a whole image".into(), |id| id.to_string())
    )]
    WrongParent {
        /// The layer.
        layer: ImageId,
        /// The image below it.
        expected: ImageId,
        /// Its parent; none when it is a whole image.
        found: Option<ImageId>,
    },
}

/// A whole image is over nothing.
fn check_whole(map: &Map) -> Result<(), ChainError> {
    match map.parent() {
        None => Ok(()),
        Some(parent) => Err(ChainError::NotWhole { image: map.image_id(), parent }),
    }
}

/// Whether each of `layers`, from the bottom up, is over the one below it and the first over
/// `bottom`. Returns the topmost.
fn check_layers<'a>(bottom: ImageId, layers: &[&'a Image]) -> Result<&'a Image, ChainError> {
    let top = layers.last().ok_or(ChainError::NoLayers)?;
    if layers.len() > MAX_DEPTH {
        return Err(ChainError::TooDeep { depth: layers.len() });
    }
    let mut expected = bottom;
    for map in layers.iter().map(|layer| layer.map()) {
        let (layer, found) = (map.image_id(), map.parent());
        if found != Some(expected) {
            return Err(ChainError::WrongParent { layer, expected, found });
        }
        expected = layer;
    }
    Ok(top)
}

/// The one of two new files that would take the name of an image that it is made of, or of the map
/// beside one: between the old map's going and the new one's coming, that image would be without.
fn over_input(out: &Path, out_map: &Path, images: &[&Image]) -> Option<PathBuf> {
    let file = |path: &Path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    let taken: Vec<_> = images
        .iter()
        .flat_map(|image| [file(image.path()), file(&Image::map_path(image.path()))])
        .flatten()
        .collect();
    let over = |path: &&Path| file(path).is_some_and(|file| taken.contains(&file));
    [out, out_map].into_iter().find(over).map(Path::to_owned)
}

/// Gives an image and its map their names. A map that had the name goes first, so that at no time
/// there is an image with the map of another; one that was not to be replaced has the image go
/// again.
fn publish(
    image: Draft,
    map: &Map,
    map_path: &Path,
    options: &LayerOptions<'_>,
) -> Result<(), WriteMapError> {
    // Written before anything has changed: the disk may be full.
    let draft = Draft::claim(map_path, options.replace)?;
    map.write_to(draft.file())?;
    Ok(name(image, draft, options)?)
}

fn name(image: Draft, map: Draft, options: &LayerOptions<'_>) -> Result<(), WriteFileError> {
    let &LayerOptions { sync, replace, .. } = options;
    if replace {
        let path = map.path();
        match fs::remove_file(path) {
            Ok(()) if sync => sync_directory(path)?,
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(WriteFileError::Io { path: path.to_owned(), source });
            }
            _ => {}
        }
    }
    let path = image.path().to_owned();
    image.publish(sync)?;
    let named = map.publish(sync);
    if let Err(WriteFileError::Exists(_)) = named {
        // The name was free, so what has it is ours.
        let _ = fs::remove_file(path);
    }
    named
}

#[cfg(test)]
mod tests;
