//! Every way to merge gives the same.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use proptest::prelude::*;
use rouse_snapshot_format::{
    Image, MAX_DEPTH, Map, MergeError, PAGE, PageState, PageStates, VmmDiffOptions, WindowSize,
    vmm_diff,
};

use crate::common::{
    P, flat, id, image, make_layer, merge, merge_there, open, place, scan, states,
};

/// What is done to a page from one image to the next.
#[derive(Clone, Copy, Debug)]
enum Edit {
    Zero,
    Fill(u8),
    /// Zeros but for one byte.
    Byte(u16, u8),
    /// One byte is another.
    Touch(u16),
}

fn any_size() -> impl Strategy<Value = usize> {
    // Around pages and windows of 16 pages, and any between.
    prop_oneof![
        0_usize..3,
        0..60 * P,
        (0_usize..60, 0_usize..3).prop_map(|(pages, n)| (pages * P + n).saturating_sub(1)),
    ]
}

fn any_edits() -> impl Strategy<Value = Vec<(usize, Edit)>> {
    let edit = prop_oneof![
        Just(Edit::Zero),
        (1..=u8::MAX).prop_map(Edit::Fill),
        (0..PAGE as u16, 1..=u8::MAX).prop_map(|(at, byte)| Edit::Byte(at, byte)),
        (0..PAGE as u16).prop_map(Edit::Touch),
    ];
    // Many, or few.
    let pages = (0_usize..60, edit);
    prop_oneof![prop::collection::vec(pages.clone(), 0..6), prop::collection::vec(pages, 0..80)]
}

/// How large an image is, if not as the one before, and what changed.
type Change = (Option<usize>, Vec<(usize, Edit)>);

/// Images one after the other; most keep their size.
fn any_changes(most: usize) -> impl Strategy<Value = Vec<Change>> {
    let first = (any_size().prop_map(Some), any_edits());
    let size = prop_oneof![3 => Just(None), 1 => any_size().prop_map(Some)];
    let rest = prop::collection::vec((size, any_edits()), 1..=most);
    (first, rest).prop_map(|(first, rest)| std::iter::once(first).chain(rest).collect())
}

/// The bytes of each.
fn images(changes: &[Change]) -> Vec<Vec<u8>> {
    let mut images: Vec<Vec<u8>> = Vec::new();
    for (size, edits) in changes {
        let before = images.last().map_or(&[][..], Vec::as_slice);
        images.push(edited(before, *size, edits));
    }
    images
}

fn edited(from: &[u8], size: Option<usize>, edits: &[(usize, Edit)]) -> Vec<u8> {
    let mut bytes = from.to_vec();
    bytes.resize(size.unwrap_or(from.len()), 0);
    for (page, edit) in edits {
        let Some(page) = bytes.chunks_mut(P).nth(*page) else { continue };
        let length = page.len();
        match *edit {
            Edit::Zero => page.fill(0),
            Edit::Fill(byte) => page.fill(byte),
            Edit::Byte(at, byte) => {
                page.fill(0);
                page[usize::from(at) % length] = byte;
            }
            Edit::Touch(at) => page[usize::from(at) % length] ^= 1,
        }
    }
    bytes
}

/// The states of the layer that makes `new` of `old`, the plain way.
fn plain_diff(old: &[u8], new: &[u8]) -> Vec<PageState> {
    let of = |(page, bytes): (usize, &[u8])| {
        let before = old.chunks(P).nth(page).unwrap_or_default();
        let grown = !before.is_empty() && before.len() < bytes.len();
        let mut before = before.to_vec();
        before.resize(P, 0);
        let zero = bytes.iter().all(|byte| *byte == 0);
        // What is cut off was there to be seen.
        let cut = zero && before.iter().any(|byte| *byte != 0);
        match bytes == &before[..bytes.len()] && !grown && !cut {
            true => PageState::Parent,
            false if zero => PageState::Zero,
            false => PageState::Data,
        }
    };
    new.chunks(P).enumerate().map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_way_to_merge_gives_the_new_image(changes in any_changes(MAX_DEPTH)) {
        let images = images(&changes);
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let paths: Vec<_> = images.iter().enumerate()
            .map(|(n, bytes)| image(dir, &format!("{n}.img"), bytes, id(n + 1)))
            .collect();
        let layers: Vec<_> = paths.windows(2).enumerate()
            .map(|(n, pair)| make_layer(dir, &format!("layer-{n}.img"), &pair[0], &pair[1]))
            .collect();
        for (layer, pair) in layers.iter().zip(images.windows(2)) {
            prop_assert_eq!(states(open(layer).map()), plain_diff(&pair[0], &pair[1]));
        }
        let wanted = images.last().unwrap();
        let wanted_map = Map::open(Image::map_path(paths.last().unwrap())).unwrap();

        let (all, merged) = merge(dir, "all.img", &paths[0], &layers);
        prop_assert!(fs::read(&all).unwrap() == *wanted);
        prop_assert_eq!(&merged.map, &wanted_map);

        let mut one = paths[0].clone();
        for (n, layer) in layers.iter().enumerate() {
            one = merge(dir, &format!("one-{n}.img"), &one, std::slice::from_ref(layer)).0;
            prop_assert!(fs::read(&one).unwrap() == images[n + 1]);
        }
        prop_assert_eq!(&Map::open(Image::map_path(&one)).unwrap(), &wanted_map);

        let flattened = flat(dir, "flat.img", &layers).unwrap();
        let flattened_parent = open(&flattened).map().parent();
        prop_assert_eq!(flattened_parent, Some(id(1)));
        let (after, merged) = merge(dir, "after.img", &paths[0], &[flattened]);
        prop_assert!(fs::read(&after).unwrap() == *wanted);
        prop_assert_eq!(&merged.map, &wanted_map);

        prop_assert_eq!(merge_there(&paths[0], &layers).unwrap(), wanted_map);
        prop_assert!(fs::read(&paths[0]).unwrap() == *wanted);
    }

    /// Layers as others may write them: any state anywhere, and no checksums.
    #[test]
    fn layers_of_others_are_applied_as_their_maps_say(
        base in (any_size(), any_edits()),
        layers in prop::collection::vec(
            (any_size(), prop::collection::vec(0_u8..3, 60), any_edits()), 1..5),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut model = edited(&[], Some(base.0), &base.1);
        let base = image(dir, "base.img", &model, id(1));
        let mut paths = Vec::new();
        for (n, (size, said, edits)) in layers.iter().enumerate() {
            let bytes = edited(&vec![n as u8 + 1; *size], None, edits);
            let mut states = PageStates::all(*size as u64, PageState::Parent);
            let (path, map) = place(dir, &format!("layer-{n}.img"));
            let file = File::create(&path).unwrap();
            file.set_len(*size as u64).unwrap();
            model.resize(*size, 0);
            for (page, (content, model)) in bytes.chunks(P).zip(model.chunks_mut(P)).enumerate() {
                let zero = content.iter().all(|byte| *byte == 0);
                match said[page] {
                    0 => continue,
                    1 if !zero => {
                        states.set(page as u64, PageState::Data).unwrap();
                        file.write_all_at(content, (page * P) as u64).unwrap();
                        model.copy_from_slice(content);
                    }
                    _ => {
                        states.set(page as u64, PageState::Zero).unwrap();
                        model.fill(0);
                    }
                }
            }
            let window = if n % 2 == 0 { WindowSize::DEFAULT } else { WindowSize::MIN };
            Map::new(id(n + 2), Some(id(n + 1)), window, states).unwrap()
                .write_unsynced(map).unwrap();
            paths.push(path);
        }
        let top = id(layers.len() + 1);
        let wanted = dir.join("wanted.img");
        fs::write(&wanted, &model).unwrap();
        let wanted_map = scan(&wanted, top, WindowSize::MIN);

        let (out, merged) = merge(dir, "out.img", &base, &paths);
        prop_assert!(fs::read(&out).unwrap() == model);
        prop_assert_eq!(&merged.map, &wanted_map);
        match flat(dir, "flat.img", &paths) {
            Err(MergeError::Torn { page }) => prop_assert!(page < 60),
            Err(error) => panic!("{error}"),
            Ok(flat) => {
                let (out, merged) = merge(dir, "out-2.img", &base, &[flat]);
                prop_assert!(fs::read(&out).unwrap() == model);
                prop_assert_eq!(merged.map.states(), wanted_map.states());
            }
        }
        // Nor is a draft left, also of what was refused.
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> =
            names.filter(|name| name.to_string_lossy().ends_with(".tmp")).collect();
        prop_assert!(left.is_empty(), "{:?}", left);
        prop_assert_eq!(merge_there(&base, &paths).unwrap(), wanted_map);
        prop_assert!(fs::read(&base).unwrap() == model);
    }

    #[test]
    fn what_a_vmm_wrote_is_laid_over_its_base(
        size in (1_usize..60).prop_map(|pages| pages * P),
        base in any_edits(),
        extents in prop::collection::vec((0_usize..60, 1_usize..8, any_edits()), 0..6),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let mut wanted = edited(&[], Some(size), &base);
        let base = image(dir, "base.img", &wanted, id(1));
        let (layer, map_path) = place(dir, "diff.img");
        let file = File::create(&layer).unwrap();
        file.set_len(size as u64).unwrap();
        let mut said = vec![PageState::Parent; size / P];
        for (start, pages, edits) in extents {
            let range = start.min(size / P) * P..((start + pages) * P).min(size);
            if range.is_empty() {
                continue;
            }
            let bytes = edited(&vec![0; range.len()], None, &edits);
            file.write_all_at(&bytes, range.start as u64).unwrap();
            for (page, bytes) in (range.start / P..).zip(bytes.chunks(P)) {
                let zero = bytes.iter().all(|byte| *byte == 0);
                said[page] = if zero { PageState::Zero } else { PageState::Data };
            }
            wanted[range].copy_from_slice(&bytes);
        }
        let before = fs::metadata(&layer).unwrap().blocks();
        let options = VmmDiffOptions { window: Some(WindowSize::MIN), ..Default::default() };
        let map = vmm_diff(&layer, id(2), id(1), &options).unwrap();
        prop_assert_eq!(fs::metadata(&layer).unwrap().blocks(), before);
        prop_assert_eq!(states(&map), said);
        prop_assert!(map.has_checksums());
        map.write_unsynced(map_path).unwrap();

        let (out, merged) = merge(dir, "out.img", &base, &[layer]);
        prop_assert!(fs::read(&out).unwrap() == wanted);
        prop_assert_eq!(&merged.map, &scan(&out, id(2), WindowSize::MIN));
    }
}
