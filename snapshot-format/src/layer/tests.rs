//! What the tests of layers have in common, and what needs the insides.

use std::fs;
use std::num::NonZeroUsize;

use super::*;
use crate::sparsify::{SparsifyOptions, sparsify};
use crate::units::{PAGE, WindowSize};

/// One after the other, so that steps come in the same order each time.
pub(super) fn one_thread<'a>() -> Work<'a> {
    Work { threads: NonZeroUsize::new(1), ..Work::default() }
}

/// A whole image of these bytes, and its map beside it, in windows of 16 pages.
pub(super) fn image(dir: &Path, name: &str, bytes: &[u8], id: u8) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    let window = Some(WindowSize::MIN);
    let options = SparsifyOptions { window, ..SparsifyOptions::default() };
    let map = sparsify(&path, &options).unwrap().into_map(ImageId::from_bytes([id; 16]).unwrap());
    map.write_unsynced(Image::map_path(&path)).unwrap();
    path
}

pub(super) fn open(path: &Path) -> Image {
    Image::open(path, Image::map_path(path)).unwrap()
}

/// A layer at `name` that makes `new` of `base`.
pub(super) fn layer(dir: &Path, name: &str, base: &Path, new: &Path) -> PathBuf {
    let path = dir.join(name);
    let options = LayerOptions { work: one_thread(), ..LayerOptions::default() };
    diff(&open(base), &open(new), &path, &Image::map_path(&path), &options).unwrap();
    path
}

/// Pages of these bytes.
pub(super) fn pages(of: &[u8]) -> Vec<u8> {
    of.iter().flat_map(|byte| [*byte; PAGE as usize]).collect()
}

#[test]
fn an_image_never_has_the_map_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) =
        (image(dir.path(), "old.img", &pages(&[1]), 1), image(dir.path(), "new.img", &[2], 2));
    let map = Image::map_path(&old);
    // The map can't be written: nothing has changed.
    let draft = Draft::create(&old).unwrap();
    let nowhere = dir.path().join("none").join("map");
    assert!(publish(draft, open(&new).map(), &nowhere, false).is_err());
    assert_eq!(fs::read(&old).unwrap(), pages(&[1]));
    assert_eq!(open(&old).map().image_id(), ImageId::from_bytes([1; 16]).unwrap());
    // The image can't have its name: the old map is gone, and the new one not there.
    let draft = Draft::create(&dir.path().join("taken")).unwrap();
    fs::create_dir(dir.path().join("taken")).unwrap();
    assert!(publish(draft, open(&new).map(), &map, true).is_err());
    assert!(!map.exists());
}
