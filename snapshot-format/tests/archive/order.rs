//! The working set comes first.

use rouse_snapshot_format::{Archive, WindowSize};

use crate::images::{Fixture, WINDOW, WINDOW_BYTES, unpacked};

/// Twenty windows, of which every fifth is zeros.
fn image() -> Fixture {
    let mut bytes = vec![0; 20 * WINDOW_BYTES];
    for (number, window) in bytes.chunks_mut(WINDOW_BYTES).enumerate() {
        if number % 5 != 0 {
            window[4096..9000].fill(number as u8);
        }
    }
    Fixture::new(bytes, WINDOW)
}

fn order(archive: &Archive<&Vec<u8>>) -> Vec<u32> {
    let index = archive.index();
    (0..index.frames()).map(|number| index.frame(number).unwrap().window).collect()
}

#[test]
fn first_touch_then_ascending() {
    let image = image().with_working_set(&[17, 3, 10, 4, 99]);
    let file = image.pack();
    let archive = Archive::open(&file).unwrap();
    // Window 10 has no data, and 99 there is not.
    assert_eq!(archive.index().working_set_frames(), 3);
    let ascending = [1, 2, 6, 7, 8, 9, 11, 12, 13, 14, 16, 18, 19];
    assert_eq!(order(&archive), [&[17, 3, 4][..], &ascending].concat());
    let offsets: Vec<_> =
        (0..16).map(|number| archive.index().frame(number).unwrap().offset).collect();
    assert!(offsets.is_sorted());
    assert_eq!(archive.map().working_set(), image.map.working_set());
    assert!(unpacked(&archive) == image.bytes);
}

#[test]
fn a_wrong_working_set_changes_no_byte() {
    let plain = image();
    let file = plain.pack();
    let wanted = unpacked(&Archive::open(&file).unwrap());
    for set in [vec![], vec![0, 5, 15], (0..20).rev().collect(), vec![7; 9], vec![u32::MAX]] {
        let file = image().with_working_set(&set).pack();
        let archive = Archive::open(&file).unwrap();
        assert!(unpacked(&archive) == wanted, "{set:?}");
        let mut windows = order(&archive);
        windows.sort_unstable();
        assert_eq!(windows.len(), 16);
        assert!(windows.iter().all(|window| window % 5 != 0));
    }
}

#[test]
fn several_wakes_are_merged() {
    let mut image = image();
    let mut set = rouse_snapshot_format::WorkingSet::new();
    for wake in [[9, 1, 2], [1, 2, 13], [2, 1, 14]] {
        set.record(wake, WindowSize::MIN);
    }
    image.map = image.map.clone().with_working_set(set);
    let file = image.pack();
    let archive = Archive::open(&file).unwrap();
    assert_eq!(archive.index().working_set_frames(), 2);
    assert_eq!(order(&archive)[..3], [1, 2, 3]);
    assert_eq!(archive.map().working_set().wakes().count(), 3);
}
