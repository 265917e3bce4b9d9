//! What has changed, and nothing else.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};

use nix::errno::Errno;

use super::*;
use crate::sparsify::refresh::refresh_by;

/// What a guest does to its memory: so many bytes at a place become these, a hole (as a balloon
/// makes) or zeros that occupy blocks.
#[derive(Clone, Debug)]
struct Write {
    at: prop::sample::Index,
    part: Part,
    length: usize,
    /// By how much more is said to be written, before and behind.
    more: (u64, u64),
}

fn any_writes() -> impl Strategy<Value = Vec<Write>> {
    let part = prop_oneof![
        Just(Part::Zeros),
        Just(Part::Hole),
        (1..=u8::MAX).prop_map(Part::Noise),
        (1..=u8::MAX, any::<usize>()).prop_map(|(byte, at)| Part::Byte(byte, at)),
    ];
    let length = prop_oneof![1_usize..100, 1_usize..20_000, 1_usize..2_000_000];
    let more = prop_oneof![Just(0), 0_u64..100, 0_u64..300_000];
    let write = (any::<prop::sample::Index>(), part, length, (more.clone(), more))
        .prop_map(|(at, part, length, more)| Write { at, part, length, more });
    prop::collection::vec(write, 0..10)
}

/// Does the writes, to `bytes` as well, and says where.
fn change(path: &Path, bytes: &mut [u8], writes: &[Write]) -> Vec<Range<u64>> {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut ranges = Vec::new();
    let writes = if bytes.is_empty() { &[] } else { writes };
    for write in writes {
        let start = write.at.index(bytes.len());
        let end = (start + write.length).min(bytes.len());
        let part = &mut bytes[start..end];
        match write.part {
            Part::Noise(byte) => part.fill(byte),
            Part::Byte(byte, at) => part[at % (end - start)] = byte,
            Part::Zeros | Part::Hole => part.fill(0),
        }
        let (start, end) = (start as u64, end as u64);
        match write.part {
            Part::Hole => drop(punch(&file, start..end).unwrap()),
            _ => file.write_all_at(part, start).unwrap(),
        }
        ranges.push(start.saturating_sub(write.more.0)..end.saturating_add(write.more.1));
    }
    ranges
}

/// How many bytes lie in windows that any of `ranges` touches.
fn bytes_touched(ranges: &[Range<u64>], window: WindowSize, mem_size: u64) -> u64 {
    let starts = (0..mem_size).step_by(window.bytes() as usize);
    let windows = starts.map(|start| start..(start + window.bytes()).min(mem_size));
    let touched =
        windows.filter(|w| ranges.iter().any(|r| r.start.max(w.start) < r.end.min(w.end)));
    touched.map(|window| window.end - window.start).sum()
}

fn sparsified(path: &Path, window: Option<WindowSize>) -> Map {
    sparsify(path, &SparsifyOptions { window, ..quick() }).unwrap().into_map(ImageId::random())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn it_finds_what_a_look_at_everything_finds(
        parts in any_image(),
        writes in any_writes(),
        beside in prop::collection::vec((any::<u64>(), 0_u64..1 << 20), 0..3),
        threads in 1_usize..4,
        window in any_window(),
        dry_run in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.img");
        let mut bytes = build(&path, &parts);
        let mem_size = bytes.len() as u64;
        let map = sparsified(&path, Some(window));
        let mut written = change(&path, &mut bytes, &writes);
        // And some where nothing was written, within the image or behind it.
        written.extend(beside.into_iter().map(|(at, length)| {
            let start = at % (mem_size + PIECE);
            start..start + length
        }));
        let copy = dir.path().join("copy.img");
        fs::copy(&path, &copy).unwrap();

        let work = on_threads(threads);
        let options = SparsifyOptions { work, dry_run, ..quick() };
        let known = Known { map: &map, written: &written };
        let found = refresh(&path, Some(known), &options).unwrap();
        prop_assert!(fs::read(&path).unwrap() == bytes, "the image's bytes changed");
        prop_assert!(found.read_bytes <= bytes_touched(&written, window, mem_size));
        let most = if dry_run { 0 } else { found.read_bytes };
        prop_assert!(found.punched_bytes <= most, "{} punched", found.punched_bytes);

        let id = ImageId::random();
        let punching = found.punching;
        let refreshed = found.into_map(id);
        let whole = SparsifyOptions { window: Some(window), ..quick() };
        prop_assert_eq!(&refreshed, &sparsify(&copy, &whole).unwrap().into_map(id));
        // What was left elsewhere was punched before.
        let again = refresh(&path, None, &whole).unwrap();
        prop_assert!(punching != Punching::Done || again.punched_bytes == 0);
        prop_assert_eq!(&again.into_map(id), &refreshed);
    }
}

#[test]
fn what_is_not_said_to_be_written_is_neither_read_nor_punched() {
    let dir = tempfile::tempdir().unwrap();
    let window = WindowSize::MIN.bytes();
    let mut bytes = vec![1; 2 * PIECE as usize + 3 * window as usize];
    let path = holder(&dir, &bytes);
    let map = sparsified(&path, Some(WindowSize::MIN));
    // Zeros at the end of window 2 of the second piece, and all over the first piece, the first
    // window of the second, and the one behind.
    let zeros = PIECE + 3 * window - PAGE..PIECE + 3 * window;
    let unsaid = [0..PIECE + window, PIECE + 3 * window..PIECE + 4 * window];
    let file = File::options().write(true).open(&path).unwrap();
    for place in unsaid.iter().chain([&zeros]) {
        let part = &mut bytes[place.start as usize..place.end as usize];
        part.fill(0);
        file.write_all_at(part, place.start).unwrap();
    }
    static PUNCHED: Mutex<Vec<Range<u64>>> = Mutex::new(Vec::new());
    let note: punch::Punch = |_, hole| {
        PUNCHED.lock().unwrap().push(hole);
        Ok(())
    };
    let written = [zeros.end - 1..zeros.end, zeros.start..zeros.start + 1];
    let known = Known { map: &map, written: &written };
    let found = refresh_by(&path, Some(known), &quick(), note).unwrap();
    assert_eq!((found.read_bytes, found.punched_bytes), (window, PAGE));
    assert_eq!(*PUNCHED.lock().unwrap(), slice::from_ref(&zeros));
    let (zero_page, changed) = (zeros.start / PAGE, PIECE / window + 2);
    let refreshed = found.into_map(ImageId::random());
    for page in 0..map.pages() {
        let wanted = if page == zero_page { PageState::Zero } else { PageState::Data };
        assert_eq!(refreshed.state(page), Ok(wanted), "page {page}");
    }
    for number in 0..map.windows() {
        let same = refreshed.checksum(number) == map.checksum(number);
        assert_eq!(same, number != changed, "window {number}");
    }

    // Nothing was written: nothing is read.
    let known = Known { map: &map, written: &[] };
    let found = refresh(&path, Some(known), &quick()).unwrap();
    assert_eq!((found.read_bytes, found.punched_bytes), (0, 0));
    assert_eq!(found.into_map(map.image_id()), map);
}

#[test]
fn progress_comes_to_its_end_whatever_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = holder(&dir, &vec![1; 3 * PIECE as usize + 5]);
    let map = sparsified(&path, None);
    let places = [PIECE + 5..PIECE + 6, 0..1, 3 * PIECE..u64::MAX];
    for written in [&places[..0], &places[..1], &places[1..]] {
        let progress = Progress::new();
        let work = Work { progress: Some(&progress), ..on_threads(2) };
        let known = Known { map: &map, written };
        refresh(&path, Some(known), &SparsifyOptions { work, ..quick() }).unwrap();
        assert_eq!((progress.done(), progress.total()), (map.mem_size(), map.mem_size()));
    }
}

#[test]
fn nobody_hears_of_zeros_after_the_end_was_asked_for() {
    struct Ender<'a>(&'a Progress, AtomicU64);
    impl scan::Target for Ender<'_> {
        fn zeros(&self, _: Range<u64>) -> Result<(), SparsifyError> {
            self.1.fetch_add(1, Ordering::SeqCst);
            self.0.cancel();
            Ok(())
        }
    }
    // Every second page is zeros, so that there are many in one read.
    let bytes: Vec<u8> = (0..4 * PIECE).map(|at| (at / PAGE % 2) as u8).collect();
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    for threads in [1, 2, 4] {
        let progress = Progress::new();
        let ender = Ender(&progress, AtomicU64::new(0));
        let work = Work { progress: Some(&progress), ..on_threads(threads) };
        let plan = Plan::all(4 * PIECE, WindowSize::DEFAULT).unwrap();
        let ended = scan::image(&file, plan, work, &ender).unwrap_err();
        assert!(matches!(ended, SparsifyError::Cancelled(_)), "{ended}");
        // Each thread at most of what it was about to say.
        let heard = ender.1.into_inner();
        assert!((1..=threads as u64).contains(&heard), "{heard} by {threads} threads");
    }
}

#[test]
fn what_is_left_of_one_that_was_ended_is_found_later() {
    let dir = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..2 * PIECE).map(|at| (at / PAGE % 2) as u8).collect();
    let path = holder(&dir, &bytes);
    static PROGRESS: LazyLock<Progress> = LazyLock::new(Progress::new);
    let last: punch::Punch = |file, hole| {
        PROGRESS.cancel();
        punch::punch_hole(file, hole)
    };
    let work = Work { progress: Some(&*PROGRESS), ..on_threads(1) };
    let options = SparsifyOptions { work, sync: true, ..quick() };
    let ended = refresh_by(&path, None, &options, last).unwrap_err();
    assert!(matches!(ended, RefreshError::Cancelled(_)), "{ended}");
    assert!(fs::read(&path).unwrap() == bytes);

    // All but the one page that was punched.
    let found = refresh(&path, None, &quick()).unwrap();
    assert_eq!(found_states(&found), states_of(&bytes));
    assert_eq!(found.punched_bytes, PIECE - PAGE);
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn what_does_not_fit_the_image_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = [&[1; 2 * PAGE as usize][..], &[0; 2 * PAGE as usize]].concat();
    let path = holder(&dir, &bytes);
    let blocks = || fs::metadata(&path).unwrap().blocks();
    let before = blocks();
    let written = [0..PAGE, PAGE..4 * PAGE];
    let refused = |map: &Map| {
        let known = Known { map, written: &written };
        let refused = refresh(&path, Some(known), &quick()).unwrap_err();
        assert_eq!(blocks(), before);
        refused
    };
    let of = |mem_size, parent, state| {
        let states = PageStates::all(mem_size, state);
        Map::new(ImageId::random(), parent, WindowSize::DEFAULT, states).unwrap()
    };

    let parent = ImageId::random();
    for state in [PageState::Parent, PageState::Data] {
        let layer = refused(&of(4 * PAGE, Some(parent), state));
        assert!(
            matches!(&layer, RefreshError::Layer { path: p, parent: over } if *p == path && *over == parent),
            "{layer}"
        );
    }
    for size in [0, 4 * PAGE - 1, 4 * PAGE + 1, 1 << 40] {
        let other = refused(&of(size, None, PageState::Data));
        assert!(
            matches!(&other, RefreshError::Size { there, mem_size, .. }
                if *there == 4 * PAGE && *mem_size == size),
            "{other}"
        );
    }
    let without = refused(&of(4 * PAGE, None, PageState::Data));
    assert!(matches!(&without, RefreshError::NoChecksums(p) if *p == path), "{without}");

    let file = File::open(&path).unwrap();
    file.lock().unwrap();
    let used = refresh(&path, None, &quick()).unwrap_err();
    assert!(
        matches!(&used, RefreshError::Sparsify(SparsifyError::Open(OpenImageError::InUse(p))) if *p == path),
        "{used}"
    );
    assert_eq!(blocks(), before);
}

#[test]
fn a_hole_that_fails_says_where_and_one_that_can_not_be_costs_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = holder(&dir, &[0; 8 * PAGE as usize]);
    let written = [0..PAGE, PAGE..2 * PAGE];
    let known = |map| Some(Known { map, written: &written });
    let map = {
        let looked = refresh(&path, None, &SparsifyOptions { dry_run: true, ..quick() }).unwrap();
        looked.into_map(ImageId::random())
    };
    let failed = refresh_by(&path, known(&map), &quick(), |_, _| Err(Errno::EIO)).unwrap_err();
    assert!(
        matches!(&failed, RefreshError::Sparsify(SparsifyError::Punch { offset: 0, .. })),
        "{failed}"
    );
    let found = refresh_by(&path, known(&map), &quick(), |_, _| Err(Errno::EOPNOTSUPP)).unwrap();
    assert_eq!((found.punching, found.punched_bytes), (Punching::Unsupported, 0));
    assert_eq!(found.into_map(map.image_id()), map);
}
