//! What the tests of layers have in common, and what needs the insides.

use std::fs::{self, File};
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
    let options = LayerOptions { sync: true, replace: true, ..LayerOptions::default() };
    let draft = Draft::create(&old).unwrap();
    let nowhere = dir.path().join("none").join("map");
    assert!(publish(draft, open(&new).map(), &nowhere, &options).is_err());
    assert_eq!(fs::read(&old).unwrap(), pages(&[1]));
    assert_eq!(open(&old).map().image_id(), ImageId::from_bytes([1; 16]).unwrap());
    // The image can't have its name: the old map is gone, and the new one not there.
    let draft = Draft::create(&dir.path().join("taken")).unwrap();
    fs::create_dir(dir.path().join("taken")).unwrap();
    assert!(publish(draft, open(&new).map(), &map, &options).is_err());
    assert!(!map.exists());

    // A map that came meanwhile stays, and the image that it is not of goes.
    let (out, map) = (dir.path().join("out.img"), dir.path().join("out.map"));
    let drafts = [&out, &map].map(|path| Draft::claim(path, false).unwrap());
    fs::write(&map, "theirs").unwrap();
    let [draft, map_draft] = drafts;
    let refused = name(draft, map_draft, &LayerOptions::default()).unwrap_err();
    assert!(matches!(&refused, WriteFileError::Exists(path) if *path == map), "{refused}");
    assert!(!out.exists() && fs::read(&map).unwrap() == b"theirs");
}

#[test]
fn what_is_there_is_replaced_only_if_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let base = image(dir.path(), "base.img", &pages(&[1, 2]), 1);
    let new = image(dir.path(), "new.img", &pages(&[1, 3]), 2);
    let path = layer(dir.path(), "layer.img", &base, &new);
    let (base, new, layer) = (open(&base), open(&new), open(&path));
    let (out, map) = (dir.path().join("out.img"), dir.path().join("out.map"));
    for (there, free) in [(&out, &map), (&map, &out)] {
        fs::write(there, "mine").unwrap();
        let options = LayerOptions::default();
        let errors = [
            merge_copy(&base, &[&layer], &out, &map, &options).unwrap_err().to_string(),
            flatten(&[&layer], &out, &map, &options).unwrap_err().to_string(),
            diff(&base, &new, &out, &map, &options).unwrap_err().to_string(),
        ];
        for error in errors {
            assert!(error.contains(&format!("{there:?} is there already")), "{error}");
        }
        assert!(fs::read(there).unwrap() == b"mine" && !free.exists());
        let options = LayerOptions { replace: true, ..options };
        merge_copy(&base, &[&layer], &out, &map, &options).unwrap();
        assert_eq!(fs::read(&out).unwrap(), pages(&[1, 3]));
        fs::remove_file(&out).unwrap();
        fs::remove_file(&map).unwrap();
    }
}

#[test]
fn an_image_that_shares_the_blocks_of_its_base_is_the_same() {
    use std::os::unix::fs::FileExt;

    // Few filesystems can: what it looks like where one can.
    fn shared(to: &File, from: &File) -> io::Result<bool> {
        let mut bytes = vec![0; from.metadata()?.len() as usize];
        from.read_exact_at(&mut bytes, 0)?;
        to.write_all_at(&bytes, 0)?;
        Ok(true)
    }

    let dir = tempfile::tempdir().unwrap();
    // Cut within a page and grown again; DATA that becomes zeros, other DATA and what it was.
    let mut first = pages(&[1, 2, 0, 4, 5, 6, 7]);
    first.extend([8; 100]);
    let second = &first[..5 * PAGE as usize + 10];
    let mut third = pages(&[1, 0, 3, 4, 5]);
    third.extend([6; 10]);
    third.resize(9 * PAGE as usize - 7, 0);
    third[8 * PAGE as usize..].fill(9);
    let paths = [(&first[..], 1), (second, 2), (&third, 3)]
        .map(|(bytes, id)| image(dir.path(), &format!("{id}.img"), bytes, id));
    let layers = [(0, 1), (1, 2)].map(|(base, new)| {
        open(&layer(dir.path(), &format!("layer-{new}.img"), &paths[base], &paths[new]))
    });
    let base = open(&paths[0]);
    for layers in [&[&layers[0]][..], &[&layers[0], &layers[1]]] {
        let merged = |name: &str, reflink| {
            let out = dir.path().join(name);
            let options = LayerOptions { replace: true, ..LayerOptions::default() };
            let map = Image::map_path(&out);
            let merged = merge::copy_with(&base, layers, &out, &map, &options, reflink).unwrap();
            (fs::read(out).unwrap(), merged)
        };
        let (copied, copy) = merged("copied.img", |_, _| Ok(false));
        let (shared, share) = merged("shared.img", shared);
        assert_eq!((copy.base, share.base), (BaseBytes::Copied, BaseBytes::Reflinked));
        assert!(copied == shared && copy.map == share.map);
        assert!(share.written_bytes < copy.written_bytes);
        assert!(copied == fs::read(&paths[layers.len()]).unwrap());
    }
}
