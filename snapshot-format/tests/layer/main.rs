//! Layers: made, merged in every way, and refused.
#![allow(clippy::unwrap_used)]

mod common;
mod equal;
mod refused;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rouse_snapshot_format::{
    Cancelled, Counts, Image, ImageId, LayerOptions, Map, PAGE, PageState, PageStates, Progress,
    VmmDiffOptions, WindowSize, Work, WorkingSet, diff, flatten, merge_copy, vmm_diff,
};

use common::{P, id, image, make_layer, merge, merge_there, open, pages, place, scan, small};

#[test]
fn a_layer_holds_only_what_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (_, lower, upper) = small(dir.path());
    assert_eq!(open(&lower).map().counts(), Counts { data: 2, zero: 0, parent: 2 });
    assert_eq!(open(&upper).map().counts(), Counts { data: 1, zero: 1, parent: 2 });
    assert_eq!(fs::read(&upper).unwrap(), pages(&[0, 0, 5, 0]));
    assert_eq!(fs::metadata(&upper).unwrap().blocks() * 512, PAGE);
    assert_eq!(open(&upper).map().parent(), Some(id(2)));
}

#[test]
fn large_images_take_as_long_as_their_data() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let sparse = |name: &str, id: ImageId, size: u64, bytes: &[(u64, u8)]| {
        let path = dir.join(name);
        let file = File::create(&path).unwrap();
        file.set_len(size).unwrap();
        for (at, byte) in bytes {
            file.write_all_at(&[*byte; P], *at).unwrap();
        }
        scan(&path, id, WindowSize::DEFAULT).write_unsynced(Image::map_path(&path)).unwrap();
        path
    };
    let (five, nine) = (5_u64 << 30, 9_u64 << 30);
    let base = sparse("base.img", id(1), nine, &[(0, 1), (five, 2), (nine - PAGE, 3)]);
    let new = sparse("new.img", id(2), 64 << 30, &[(0, 1), (five, 4), (nine + PAGE, 5)]);
    let layer = make_layer(dir, "layer.img", &base, &new);
    assert_eq!(open(&layer).map().counts().data, 2);
    assert_eq!(open(&layer).map().counts().zero, 1);
    let wanted = Map::open(Image::map_path(&new)).unwrap();
    let read = |path: &Path, at: u64| {
        let mut page = vec![9; P];
        File::open(path).unwrap().read_exact_at(&mut page, at).unwrap();
        page
    };
    let check = |path: &Path, map: &Map| {
        assert_eq!(*map, wanted);
        for (at, byte) in [(0, 1), (five, 4), (nine - PAGE, 0), (nine, 0), (nine + PAGE, 5)] {
            assert!(read(path, at) == [byte; P], "at {at}");
        }
    };
    let (out, merged) = merge(dir, "out.img", &base, std::slice::from_ref(&layer));
    check(&out, &merged.map);
    check(&base, &merge_there(&base, &[layer]).unwrap());
    assert!(fs::metadata(&out).unwrap().blocks() * 512 <= 64 * PAGE);
}

#[test]
fn windows_and_working_sets_of_another_size() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let base = image(dir, "base.img", &pages(&[1; 200]), id(1));
    let new = image(dir, "new.img", &pages(&[1; 200]), id(2));
    let set = |windows: &[u32]| {
        let mut set = WorkingSet::new();
        set.record(windows.iter().copied(), WindowSize::MIN);
        set
    };
    // Nothing changed: an empty layer, which passes on the working set that is there.
    let map = Map::open(Image::map_path(&base)).unwrap().with_working_set(set(&[3, 1]));
    map.write_unsynced(Image::map_path(&base)).unwrap();
    let layer = make_layer(dir, "layer.img", &base, &new);
    assert_eq!(open(&layer).map().counts().parent, 200);
    let (_, merged) = merge(dir, "out.img", &base, std::slice::from_ref(&layer));
    assert_eq!(merged.map.working_set(), &set(&[3, 1]));
    assert_eq!(merged.written_bytes % PAGE, 0);

    // The layer has larger windows, and a working set of its own.
    let large = WindowSize::DEFAULT;
    let states = PageStates::all(200 * PAGE, PageState::Parent);
    let mut own = WorkingSet::new();
    own.record([2, 0], large);
    Map::new(id(2), Some(id(1)), large, states)
        .unwrap()
        .with_working_set(own)
        .write_unsynced(Image::map_path(&layer))
        .unwrap();
    let (_, merged) = merge(dir, "out.img", &base, std::slice::from_ref(&layer));
    assert_eq!(merged.map.window_size(), WindowSize::MIN);
    assert_eq!(merged.map.working_set(), &set(&[8, 9, 10, 11, 0, 1, 2, 3]));
    let scanned = scan(&dir.join("out.img"), id(2), WindowSize::MIN);
    assert_eq!(merged.map.with_working_set(WorkingSet::new()), scanned);
}

#[test]
fn progress_is_told_and_a_word_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (base, lower, upper) = small(dir);
    let (out, map) = place(dir, "out.img");
    let (base, lower, upper) = (open(&base), open(&lower), open(&upper));
    let second = open(&dir.join("second.img"));
    for cancelled in [false, true] {
        let run = |total: u64, operation: &dyn Fn(&LayerOptions<'_>) -> Result<(), String>| {
            let progress = Progress::new();
            if cancelled {
                progress.cancel();
            }
            let work = Work { progress: Some(&progress), ..Work::default() };
            let done = operation(&LayerOptions { work, sync: true, replace: true });
            assert_eq!(progress.total(), total);
            match done {
                Ok(()) => assert_eq!((cancelled, progress.done()), (false, total)),
                Err(error) => assert_eq!((cancelled, error), (true, Cancelled.to_string())),
            }
            assert_eq!(out.exists(), map.exists());
        };
        let said = |error: &dyn std::error::Error| error.to_string();
        let size = base.map().mem_size();
        run(size, &|options| {
            let merged = merge_copy(&base, &[&lower, &upper], &out, &map, options);
            merged.map(drop).map_err(|error| said(&error))
        });
        run(size, &|options| {
            let merged = flatten(&[&lower, &upper], &out, &map, options);
            merged.map(drop).map_err(|error| said(&error))
        });
        run(size, &|options| {
            diff(&base, &second, &out, &map, options).map(drop).map_err(|error| said(&error))
        });
        run(size, &|options| {
            let options = VmmDiffOptions { work: options.work, window: None };
            let read = vmm_diff(lower.path(), id(7), id(1), &options);
            read.map(drop).map_err(|error| said(&error))
        });
        fs::remove_file(&out).ok();
        fs::remove_file(&map).ok();
    }
}
