//! Images and layers to test with.

use std::fs;
use std::path::{Path, PathBuf};

use rouse_snapshot_format::{
    Image, ImageId, LayerOptions, Map, MergeError, MergeInPlaceError, Merged, PAGE, PageState,
    SparsifyOptions, WindowSize, Work, diff, flatten, merge_copy, merge_in_place, sparsify,
};

pub(crate) const P: usize = PAGE as usize;

pub(crate) fn id(n: usize) -> ImageId {
    ImageId::from_bytes([n as u8; 16]).unwrap()
}

pub(crate) fn open(path: &Path) -> Image {
    Image::open(path, Image::map_path(path)).unwrap()
}

/// The map that a whole image of what is at `path` has.
pub(crate) fn scan(path: &Path, id: ImageId, window: WindowSize) -> Map {
    let options = SparsifyOptions { window: Some(window), ..SparsifyOptions::default() };
    sparsify(path, &options).unwrap().into_map(id)
}

/// A whole image of these bytes, with its map beside it.
pub(crate) fn image(dir: &Path, name: &str, bytes: &[u8], id: ImageId) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    scan(&path, id, WindowSize::MIN).write_unsynced(Image::map_path(&path)).unwrap();
    path
}

/// `name` in `dir`, and the name of its map.
pub(crate) fn place(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
    let path = dir.join(name);
    let map = Image::map_path(&path);
    (path, map)
}

pub(crate) fn make_layer(dir: &Path, name: &str, base: &Path, new: &Path) -> PathBuf {
    let (out, map) = place(dir, name);
    let made = diff(&open(base), &open(new), &out, &map, &options()).unwrap();
    assert_eq!(Map::open(&map).unwrap(), made.map);
    out
}

/// Names are used again.
fn options<'a>() -> LayerOptions<'a> {
    LayerOptions { replace: true, ..LayerOptions::default() }
}

pub(crate) fn opened(paths: &[PathBuf]) -> Vec<Image> {
    paths.iter().map(|path| open(path)).collect()
}

pub(crate) fn merge(dir: &Path, name: &str, base: &Path, layers: &[PathBuf]) -> (PathBuf, Merged) {
    let (out, map) = place(dir, name);
    let layers = opened(layers);
    let layers: Vec<_> = layers.iter().collect();
    let merged = merge_copy(&open(base), &layers, &out, &map, &options()).unwrap();
    assert_eq!(Map::open(&map).unwrap(), merged.map);
    (out, merged)
}

pub(crate) fn flat(dir: &Path, name: &str, layers: &[PathBuf]) -> Result<PathBuf, MergeError> {
    let (out, map) = place(dir, name);
    let layers = opened(layers);
    let flattened = flatten(&layers.iter().collect::<Vec<_>>(), &out, &map, &options())?;
    assert_eq!(Map::open(&map).unwrap(), flattened.map);
    Ok(out)
}

pub(crate) fn merge_there(path: &Path, layers: &[PathBuf]) -> Result<Map, MergeInPlaceError> {
    let layers = opened(layers);
    let layers: Vec<_> = layers.iter().collect();
    let merged = merge_in_place(path, &Image::map_path(path), &layers, &Work::default())?;
    Ok(merged.map)
}

/// The state of each page.
pub(crate) fn states(map: &Map) -> Vec<PageState> {
    map.runs().flat_map(|run| run.pages.map(move |_| run.state)).collect()
}

/// Pages of these bytes.
pub(crate) fn pages(of: &[u8]) -> Vec<u8> {
    of.iter().flat_map(|byte| [*byte; P]).collect()
}

/// A base, a layer over it, and a layer over that.
pub(crate) fn small(dir: &Path) -> (PathBuf, PathBuf, PathBuf) {
    let base = image(dir, "base.img", &pages(&[1, 2, 0, 4]), id(1));
    let second = image(dir, "second.img", &pages(&[1, 3, 3, 4]), id(2));
    let third = image(dir, "third.img", &pages(&[1, 3, 5, 0]), id(3));
    let lower = make_layer(dir, "lower.img", &base, &second);
    let upper = make_layer(dir, "upper.img", &second, &third);
    (base, lower, upper)
}
