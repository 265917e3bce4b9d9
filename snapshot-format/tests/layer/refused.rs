//! What is no chain, no diff, or damaged.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rouse_snapshot_format::{
    ChainError, Counts, DiffError, Image, LayerOptions, MergeError, MergeInPlaceError, PAGE,
    ReadImageError, VmmDiffError, VmmDiffOptions, WindowSize, WriteMapError, diff, flatten,
    merge_copy, vmm_diff,
};

use crate::common::{flat, id, merge, merge_there, open, pages, place, small};

#[test]
fn images_that_are_no_chain_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (base, lower, upper) = small(dir);
    let (base, lower, upper) = (open(&base), open(&lower), open(&upper));
    let (out, map) = place(dir, "out.img");
    let refused = |base: &Image, layers: &[&Image]| match merge_copy(
        base,
        layers,
        &out,
        &map,
        &LayerOptions::default(),
    ) {
        Err(MergeError::Chain(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&base, &[]), ChainError::NoLayers);
    let not_whole = ChainError::NotWhole { image: id(2), parent: id(1) };
    assert_eq!(refused(&lower, &[&upper]), not_whole);
    let wrong = |layer, expected, found| ChainError::WrongParent { layer, expected, found };
    assert_eq!(refused(&base, &[&upper]), wrong(id(3), id(1), Some(id(2))));
    assert_eq!(refused(&base, &[&upper, &lower]), wrong(id(3), id(1), Some(id(2))));
    assert_eq!(refused(&base, &[&lower, &lower]), wrong(id(2), id(2), Some(id(1))));
    let whole = refused(&base, &[&base]);
    assert_eq!(whole, wrong(id(1), id(1), None));
    assert!(whole.to_string().contains("whole"), "{whole}");
    assert_eq!(refused(&base, &[&lower; 9]), ChainError::TooDeep { depth: 9 });

    let options = LayerOptions::default();
    let flat = |layers: &[&Image]| flatten(layers, &out, &map, &options).unwrap_err();
    assert!(matches!(flat(&[]), MergeError::Chain(ChainError::NoLayers)));
    let error = flat(&[&base, &lower]);
    assert!(
        matches!(error, MergeError::Chain(ChainError::NotALayer(image)) if image == id(1)),
        "{error}"
    );
    assert!(matches!(
        flat(&[&upper, &lower]),
        MergeError::Chain(ChainError::WrongParent { found: Some(found), .. }) if found == id(1)
    ));
    let diffed = |base, new| diff(base, new, &out, &map, &options).unwrap_err();
    assert!(
        matches!(diffed(&base, &lower), DiffError::Chain(error) if error == not_whole),
        "a layer can't be compared"
    );
    assert!(matches!(diffed(&lower, &base), DiffError::Chain(error) if error == not_whole));
    assert!(matches!(diffed(&base, &base), DiffError::SameImage(_)));
    let there = merge_there(base.path(), &[upper.path().to_owned()]).unwrap_err();
    // It is open here, and so locked.
    assert!(matches!(there, MergeInPlaceError::Open(_)), "{there}");
    let path = base.path().to_owned();
    drop(base);
    let there = merge_there(&path, &[upper.path().to_owned()]).unwrap_err();
    assert!(
        matches!(
            there,
            MergeInPlaceError::Merge(MergeError::Chain(ChainError::WrongParent { .. }))
        ),
        "{there}"
    );
    assert!(!out.exists() && !map.exists());
}

#[test]
fn nothing_is_written_over_what_it_is_made_of() {
    let dir = tempfile::tempdir().unwrap();
    let (base, lower, _) = small(dir.path());
    let before = fs::read(&base).unwrap();
    let (base, lower) = (open(&base), open(&lower));
    let (out, map) = place(dir.path(), "out.img");
    let options = LayerOptions::default();
    let link = dir.path().join("link.img");
    fs::hard_link(base.path(), &link).unwrap();
    let base_map = Image::map_path(base.path());
    for (out, map) in [(base.path(), &*map), (&link, &map), (&out, lower.path()), (&out, &base_map)]
    {
        let merged = merge_copy(&base, &[&lower], out, map, &options).unwrap_err();
        assert!(matches!(merged, MergeError::OverInput(_)), "{merged}");
    }
    let second = open(&dir.path().join("second.img"));
    let diffed = diff(&base, &second, base.path(), &map, &options).unwrap_err();
    assert!(matches!(diffed, DiffError::OverInput(_)), "{diffed}");
    assert!(fs::read(base.path()).unwrap() == before && base_map.exists());
}

#[test]
fn a_damaged_page_is_found_and_not_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (base, lower, upper) = small(dir);
    let flip = |path: &Path, at: u64| {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
    };
    let options = LayerOptions::default();
    let (out, map) = place(dir, "out.img");
    // A page of the base that stays, one of the lower layer that is overlaid, and one on top.
    for (path, at) in [(&base, 0), (&lower, 2 * PAGE + 7), (&upper, 3 * PAGE - 1)] {
        flip(path, at);
        let (base, lower, upper) = (open(&base), open(&lower), open(&upper));
        let error = merge_copy(&base, &[&lower, &upper], &out, &map, &options).unwrap_err();
        assert!(
            matches!(
                &error,
                MergeError::Read(ReadImageError::Checksum { path: p, window: 0, offset: 0 })
                    if p == path
            ),
            "{error}"
        );
        assert!(!out.exists() && !map.exists());
        flip(path, at);
    }
    flip(&lower, PAGE);
    let error = flat(dir, "flat.img", &[lower.clone(), upper]).unwrap_err();
    assert!(matches!(error, MergeError::Read(ReadImageError::Checksum { .. })), "{error}");
    flip(&lower, PAGE);
    flip(&base, 3 * PAGE);
    let second = dir.join("second.img");
    let error = diff(&open(&base), &open(&second), &out, &map, &options).unwrap_err();
    assert!(matches!(error, DiffError::Read(ReadImageError::Checksum { .. })), "{error}");
    // No draft is left behind either.
    let left = fs::read_dir(dir)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".tmp"));
    assert_eq!(left.count(), 0);
}

#[test]
fn what_can_be_no_diff_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("diff.img");
    let options = VmmDiffOptions::default();
    let read = |path: &Path| vmm_diff(path, id(2), id(1), &options);
    assert!(matches!(read(&path), Err(VmmDiffError::Open(_))));
    assert!(matches!(read(dir.path()), Err(VmmDiffError::Open(_))));
    let file = File::create(&path).unwrap();
    file.set_len((1 << 40) + 1).unwrap();
    assert!(matches!(read(&path), Err(VmmDiffError::TooLarge { .. })));
    file.set_len(1 << 40).unwrap();
    let small = VmmDiffOptions { window: Some(WindowSize::MIN), ..options };
    let refused = vmm_diff(&path, id(2), id(1), &small).unwrap_err();
    assert!(matches!(refused, VmmDiffError::TooManyWindows(_)), "{refused}");
    file.set_len(0).unwrap();
    assert_eq!(read(&path).unwrap().pages(), 0);
    assert!(matches!(vmm_diff(&path, id(1), id(1), &options), Err(VmmDiffError::SameImage(_))));
    // All of it written: that may be, and is believed.
    fs::write(&path, pages(&[1, 0, 3])).unwrap();
    assert_eq!(read(&path).unwrap().counts(), Counts { data: 2, zero: 1, parent: 0 });
    // Who has it open for writing has it locked.
    let vm = File::open(&path).unwrap();
    vm.lock().unwrap();
    assert!(matches!(read(&path), Err(VmmDiffError::Open(_))));
}

#[test]
fn a_map_that_we_would_spoil_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (base, lower, _) = small(dir.path());
    let map = Image::map_path(&base);
    // A read-only feature that we do not know (`FORMAT.md`, ro_compat).
    let mut bytes = fs::read(&map).unwrap();
    bytes[24] = 2;
    let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let crc = crc32c::crc32c(&bytes[..length - 4]).to_le_bytes();
    bytes[length - 4..length].copy_from_slice(&crc);
    fs::write(&map, &bytes).unwrap();
    let before = fs::read(&base).unwrap();
    let error = merge_there(&base, std::slice::from_ref(&lower)).unwrap_err();
    assert!(
        matches!(error, MergeInPlaceError::Write(WriteMapError::ReadOnly { bits: 2 })),
        "{error}"
    );
    assert!(fs::read(&base).unwrap() == before && fs::read(&map).unwrap() == bytes);
    // A copy is another image, and may do without.
    let (out, _) = merge(dir.path(), "out.img", &base, &[lower]);
    assert_eq!(fs::read(out).unwrap(), pages(&[1, 3, 3, 4]));
}
