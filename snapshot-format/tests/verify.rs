//! Is an image what its map says?
#![allow(clippy::unwrap_used)]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use proptest::prelude::*;
use rouse_snapshot_format::{
    Image, ImageId, Map, OpenImageError, PAGE, PageState, PageStates, Progress, SparsifyOptions,
    VerifyImageError, WindowSize, Work, ZeroError, sparsify, verify_image,
};
use tempfile::TempDir;

/// An image of so many bytes of which every third page is data, sparsified, with its map.
fn image(size: usize) -> (TempDir, PathBuf, Map) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory.img");
    let mut bytes = vec![0; size];
    for (number, page) in bytes.chunks_mut(PAGE as usize).enumerate().step_by(3) {
        page.fill(number as u8 | 1);
    }
    fs::write(&path, &bytes).unwrap();
    let options = SparsifyOptions { window: Some(WindowSize::MIN), ..Default::default() };
    let map = sparsify(&path, &options).unwrap().into_map(ImageId::random());
    map.write(Image::map_path(&path)).unwrap();
    (dir, path, map)
}

fn verified(path: &PathBuf) -> Result<u64, VerifyImageError> {
    let image = Image::open(path, Image::map_path(path)).unwrap();
    verify_image(&image, Work::default()).map(|verified| verified.checked_bytes)
}

fn flip(path: &PathBuf, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_changed_byte_is_found(size in 1_usize..300_000, at in any::<prop::sample::Index>()) {
        let (_dir, path, map) = image(size);
        let checked = verified(&path).unwrap();
        prop_assert!(checked <= map.counts().data * PAGE && checked + PAGE > map.counts().data * PAGE);

        let at = at.index(size) as u64;
        flip(&path, at);
        let error = verified(&path).unwrap_err();
        let right = match (map.state(at / PAGE).unwrap(), &error) {
            (PageState::Data, VerifyImageError::Checksum { window, offset }) => {
                *window == at >> 16 && *offset == window << 16
            }
            (PageState::Zero, VerifyImageError::Zeros(ZeroError::NotZero { offset })) => {
                *offset == at / PAGE * PAGE
            }
            _ => false,
        };
        prop_assert!(right, "byte {at}: {error}");
    }
}

#[test]
fn a_map_without_checksums_leaves_the_zeros_to_check() {
    let (_dir, path, map) = image(100_000);
    let bare = Map::new(map.image_id(), None, WindowSize::MIN, map.states().clone()).unwrap();
    bare.write(Image::map_path(&path)).unwrap();
    assert_eq!(verified(&path).unwrap(), 0);
    flip(&path, 0);
    assert_eq!(verified(&path).unwrap(), 0);
    flip(&path, PAGE);
    assert!(matches!(verified(&path), Err(VerifyImageError::Zeros(_))));
}

#[test]
fn what_a_layer_leaves_to_its_parent_is_not_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("layer.img");
    fs::write(&path, [7; 3 * PAGE as usize]).unwrap();
    let mut states = PageStates::all(3 * PAGE, PageState::Parent);
    states.set(1, PageState::Data).unwrap();
    let layer = |states| {
        Map::new(ImageId::random(), Some(ImageId::random()), WindowSize::MIN, states).unwrap()
    };
    let image = Image::with_map(&path, layer(states.clone())).unwrap();
    verify_image(&image, Work::default()).unwrap();
    states.set(2, PageState::Zero).unwrap();
    let image = Image::with_map(&path, layer(states)).unwrap();
    let error = verify_image(&image, Work::default()).unwrap_err();
    assert!(
        matches!(error, VerifyImageError::Zeros(ZeroError::NotZero { offset: 8192 })),
        "{error}"
    );
}

#[test]
fn an_image_and_a_map_that_do_not_belong_together() {
    let (_dir, path, map) = image(100_000);
    let open = || Image::open(&path, Image::map_path(&path)).unwrap_err();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(99_999).unwrap();
    assert!(matches!(open(), OpenImageError::Size { there: 99_999, mem_size: 100_000, .. }));
    fs::write(Image::map_path(&path), "no map").unwrap();
    assert!(matches!(open(), OpenImageError::Map { .. }));
    fs::remove_file(&path).unwrap();
    assert!(matches!(open(), OpenImageError::Open { .. }));
    fs::create_dir(&path).unwrap();
    assert!(matches!(Image::with_map(&path, map), Err(OpenImageError::NotAFile(_))));
}

#[test]
fn it_can_be_cancelled() {
    let (_dir, path, map) = image(1_000_000);
    let image = Image::with_map(&path, map).unwrap();
    let progress = Progress::new();
    progress.cancel();
    let work = Work { threads: None, progress: Some(&progress) };
    let error = verify_image(&image, work).unwrap_err();
    assert!(error.to_string().contains("cancelled"), "{error}");
}
