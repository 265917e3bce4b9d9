//! Layers and what they are over made one, in a new file.

use std::path::{Path, PathBuf};

use super::assembly::Assembly;
use super::output::{Output, Reflink, WriteImageError, reflink};
use super::source::{ReadImageError, Source};
use super::{ChainError, LayerOptions, check_layers, check_whole, over_input, publish};
use crate::draft::{Draft, WriteFileError, check_free};
use crate::image::Image;
use crate::map::{Map, WithoutParent, WriteMapError};
use crate::work::Cancelled;

/// What a merge made.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The map that was written beside the image.
    pub map: Map,
    /// How the image came to the base's bytes.
    pub base: BaseBytes,
    /// How many bytes of DATA were written.
    pub written_bytes: u64,
}

/// How a merged image came to the bytes of its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseBytes {
    /// It shares the base's blocks; the filesystem copies those that change.
    Reflinked,
    /// The pages that no layer overlays were copied.
    Copied,
    /// There are none: layers became a layer.
    None,
}

/// Why layers could not be merged. What had the new image's name has it still, unless it is said
/// otherwise.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The images don't lie upon each other.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// One of them can't be read, or is damaged.
    #[error(transparent)]
    Read(#[from] ReadImageError),
    /// The new image can't be written: the disk may be full.
    #[error(transparent)]
    Write(#[from] WriteImageError),
    /// It can't be made, or get its name.
    #[error("the image {0}")]
    File(#[from] WriteFileError),
    /// Its map can't be written.
    #[error(transparent)]
    Map(#[from] WriteMapError),
    /// An image would be written over one that it is made of.
    #[error("{0:?} is one of the images that are merged; give the new one another name")]
    OverInput(PathBuf),
    /// A layer leaves a page to what lies below, and one under it cuts that page: what is there can
    /// only be said of the whole image.
    #[error("page {page} is only in part as below the layers; merge them into their base instead")]
    Torn {
        /// The page.
        page: u64,
    },
    /// There are PARENT pages where there is no parent.
    #[error(transparent)]
    WithoutParent(#[from] WithoutParent),
    /// It was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// Writes `base` with `layers`, from the bottom up, applied to it as a new whole image at `out`,
/// with its map at `out_map`. Each page is written once, whatever lies below it.
///
/// The image is called as the topmost layer; it has the windows of the base (larger ones if it
/// outgrew these), and the newest working set that there is. Every window that is read is checked
/// against its image's map before anything of it is used, and so are those of the base that a
/// layer changes a part of. Windows that come whole from one image keep its checksum.
///
/// Where the filesystem can, the image shares the base's blocks, and no more of the base is read
/// than layers change a part of.
pub fn merge_copy(
    base: &Image,
    layers: &[&Image],
    out: &Path,
    out_map: &Path,
    options: &LayerOptions<'_>,
) -> Result<Merged, MergeError> {
    copy_with(base, layers, out, out_map, options, reflink)
}

/// [`merge_copy`] on a filesystem where `reflink` is what is done.
pub(super) fn copy_with(
    base: &Image,
    layers: &[&Image],
    out: &Path,
    out_map: &Path,
    options: &LayerOptions<'_>,
    reflink: Reflink,
) -> Result<Merged, MergeError> {
    check_whole(base.map())?;
    let top = check_layers(base.map().image_id(), layers)?;
    let images: Vec<_> = [base].into_iter().chain(layers.iter().copied()).collect();
    if let Some(path) = over_input(out, out_map, &images) {
        return Err(MergeError::OverInput(path));
    }

    let sources: Vec<Source<'_>> = images.into_iter().map(Source::from).collect();
    let assembly = Assembly::new(&sources)?;
    check_free(out_map, options.replace).map_err(WriteMapError::from)?;
    let draft = Draft::claim(out, options.replace)?;
    let output = Output { path: out, file: draft.file(), before: &|_| Ok(()) };
    let mem_size = assembly.chain().mem_size();
    let shared = reflink(draft.file(), base.file()).map_err(|source| draft.failed(source))?;
    if shared {
        output.resize(assembly.chain().seen(0), mem_size)?;
        assembly.zero(&output)?;
    } else {
        output.resize(0, mem_size)?;
    }
    let from = usize::from(shared);
    let (checksums, written_bytes) = assembly.run(&options.work, true, from, Some(&output))?;
    let map = assembly.map(top.map().image_id(), None, checksums)?;
    publish(draft, &map, out_map, options)?;
    let base = if shared { BaseBytes::Reflinked } else { BaseBytes::Copied };
    Ok(Merged { map, base, written_bytes })
}

/// Writes `layers`, from the bottom up, as one layer at `out` over what the first is over, with its
/// map at `out_map`: applied to that it gives what they give one after the other.
///
/// The layer is called as the topmost; windows, working set and checks are as in [`merge_copy`],
/// with the first layer in the place of the base.
pub fn flatten(
    layers: &[&Image],
    out: &Path,
    out_map: &Path,
    options: &LayerOptions<'_>,
) -> Result<Merged, MergeError> {
    let bottom = layers.first().ok_or(ChainError::NoLayers)?.map();
    let parent = bottom.parent().ok_or(ChainError::NotALayer(bottom.image_id()))?;
    let top = check_layers(parent, layers)?;
    if let Some(path) = over_input(out, out_map, layers) {
        return Err(MergeError::OverInput(path));
    }

    let sources: Vec<Source<'_>> = layers.iter().map(|layer| Source::from(*layer)).collect();
    let assembly = Assembly::new(&sources)?;
    if let Some(page) = assembly.chain().torn() {
        return Err(MergeError::Torn { page });
    }
    check_free(out_map, options.replace).map_err(WriteMapError::from)?;
    let draft = Draft::claim(out, options.replace)?;
    let output = Output { path: out, file: draft.file(), before: &|_| Ok(()) };
    output.resize(0, assembly.chain().mem_size())?;
    let (checksums, written_bytes) = assembly.run(&options.work, true, 0, Some(&output))?;
    let map = assembly.map(top.map().image_id(), Some(parent), checksums)?;
    publish(draft, &map, out_map, options)?;
    Ok(Merged { map, base: BaseBytes::None, written_bytes })
}
