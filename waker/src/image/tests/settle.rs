//! From a standing VM to a generation: what makes it one, what takes it back, and what is looked at?

use std::ops::Range;

use proptest::prelude::*;
use rouse_snapshot_format::PageState;

use super::*;

/// 64 windows' worth would be slow to try out; 4 MiB are enough to have some.
const PAGES: u64 = (MIB as u64) << 8;

fn pages(written: &[u64]) -> Touched {
    let mut written = written.to_vec();
    written.sort_unstable();
    written.dedup();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for page in written {
        let range = page * PAGE..(page + 1) * PAGE;
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    Touched::Ranges(ranges)
}

fn checksums(map: &Map) -> Vec<Option<u64>> {
    (0..map.windows()).map(|window| map.checksum(window)).collect()
}

#[test]
fn the_map_tells_the_pages_of_the_image() {
    let place = Place::new();
    place.sleep_once();
    let gen1 = place.path("gen-1");
    let map = Map::open(gen1.join(MAP)).unwrap();
    let data: Vec<_> = (0..PAGES).filter(|&p| map.state(p).unwrap() == PageState::Data).collect();
    assert_eq!(data, [5]);
}

#[test]
fn what_is_taken_back_is_never_an_image() {
    let mut place = Place::new();
    let live = place.first_life();
    place.settle(&live).unwrap();
    assert!(live.path().join(MANIFEST).exists());
    place.dir.undo().unwrap();
    // The VM runs on, and ends with its node.
    write(&live.memory(), 0, b"moved on");
    drop(live);
    place.crash();
    assert!(matches!(place.consume(), Err(ImageRefusal::None)));
    assert_eq!(read(&place.boot().disk().unwrap(), 100_000, 4), b"disk");
    // There is nothing to take back twice.
    place.dir.undo().unwrap();
}

#[test]
fn what_is_taken_back_can_be_settled_again() {
    let place = Place::new();
    let live = place.first_life();
    place.settle(&live).unwrap();
    place.dir.undo().unwrap();
    write(&live.memory(), 9 * PAGE, b"moved on");
    place.write_disk(&live, 0, b"and so did its disk");
    place.settle(&live).unwrap();
    place.dir.publish(live).unwrap();
    let live = place.consume().unwrap();
    verified(&live);
    assert_eq!(read(&live.memory(), 9 * PAGE, 8), b"moved on");
}

#[test]
fn nothing_is_published_that_was_not_settled() {
    let place = Place::new();
    let live = place.first_life();
    let refused = place.dir.publish(live).unwrap_err();
    assert!(refused.to_string().contains(LIVE), "{refused}");
    assert!(matches!(place.consume(), Err(ImageRefusal::None)));
}

#[test]
fn without_a_device_state_nothing_is_settled() {
    let place = Place::new();
    let live = place.first_life();
    let record = place.dir.run_record().unwrap();
    let refused = place.dir.settle(Settle {
        live: live.path().to_owned(),
        record: &record,
        memory: SavedMemory::InPlace,
        touched: unknown(),
        woken_by: vec![],
        progress: &Progress::new(),
    });
    assert!(matches!(&refused, Err(SettleError::Write { path, .. }) if *path == live.state()));
    assert!(!live.path().join(MANIFEST).exists());
}

#[test]
fn a_visitor_ends_a_settle_and_the_next_looks_at_what_was_touched_since_the_life_began() {
    let place = Place::new();
    place.sleep_once();
    let live = place.wake().unwrap();
    let progress = Progress::new();
    progress.cancel();
    let ended = place.settle_by(&live, SavedMemory::InPlace, pages(&[]), &progress);
    assert!(matches!(ended, Err(SettleError::Cancelled)), "{ended:?}");
    assert!(!live.path().join(MANIFEST).exists());
    assert!(live.path().join(MAP).exists(), "nothing was punched: it is as good as before");

    write(&live.memory(), 700 * PAGE, b"told");
    place.settle_by(&live, SavedMemory::InPlace, pages(&[700]), &Progress::new()).unwrap();
    place.dir.publish(live).unwrap();
    let live = place.consume().unwrap();
    assert_eq!(verified(&live).state(700).unwrap(), PageState::Data);
}

#[test]
fn only_what_was_touched_is_looked_at() {
    let place = Place::new();
    place.sleep_once();
    let live = place.wake().unwrap();
    let before = checksums(&Map::open(live.path().join(MAP)).unwrap());
    write(&live.memory(), 70 * PAGE, b"told");
    write(&live.memory(), 700 * PAGE, b"not told");
    place.settle_by(&live, SavedMemory::InPlace, pages(&[70]), &Progress::new()).unwrap();
    let map = Map::open(live.path().join(MAP)).unwrap();
    assert_eq!(map.state(70).unwrap(), PageState::Data);
    assert_eq!(map.state(700).unwrap(), PageState::Zero, "it was looked at");
    let changed: Vec<_> = (0..map.windows())
        .filter(|&window| map.checksum(window) != before[window as usize])
        .map(|window| map.pages_of(window))
        .collect();
    assert!(changed.len() == 1 && changed[0].contains(&70), "{changed:?}");
}

#[test]
fn a_sleep_tells_what_it_wrote_out() {
    let place = Place::new();
    let live = place.boot();
    write(&live.memory(), 0, &vec![1; 1 << 20]);
    let first = place.settle(&live).unwrap();
    assert!(first.written_bytes >= 1 << 20, "{first:?}");
    place.dir.publish(live).unwrap();

    let live = place.wake().unwrap();
    write(&live.memory(), 700 * PAGE, b"a page");
    let next = place.settle(&live).unwrap();
    assert!(next.written_bytes >= PAGE && next.written_bytes < 1 << 20, "{next:?}");
}

#[test]
fn a_pair_is_kept_whole_or_not_at_all() {
    let mut place = Place::new();
    place.keep_pair = true;
    place.sleep_once();
    let gen1 = place.path("gen-1");
    // It depends on the file system.
    if !gen1.join(PAIR).exists() {
        assert!(files::reflink(&gen1.join(DISK), &gen1.join("copy")).unwrap().is_none());
        return;
    }
    for name in [MANIFEST, MEMORY, MAP, STATE, DISK, DISK_ID] {
        let (one, other) = (fs::read(gen1.join(name)), fs::read(gen1.join(PAIR).join(name)));
        assert!(one.unwrap() == other.unwrap(), "{name}");
    }
}

/// Pages that a life writes: where, and with what.
fn writes() -> impl Strategy<Value = Vec<(u64, u8)>> {
    prop::collection::vec((0..PAGES, prop_oneof![Just(0), any::<u8>()]), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_was_touched_makes_the_map_that_all_of_memory_makes(
        first in writes(),
        second in writes(),
        only_read in prop::collection::vec(0..PAGES, 0..20),
    ) {
        let place = Place::without_disk();
        let live = place.boot();
        for (page, byte) in first {
            write(&live.memory(), page * PAGE, &[byte; PAGE as usize]);
        }
        place.sleep(live);
        let live = place.wake().unwrap();
        let mut touched = only_read;
        for (page, byte) in second {
            write(&live.memory(), page * PAGE, &[byte; PAGE as usize]);
            touched.push(page);
        }
        let memory = fs::read(live.memory()).unwrap();
        place.settle_by(&live, SavedMemory::InPlace, pages(&touched), &Progress::new()).unwrap();
        let by_ranges = verified(&live);

        place.dir.undo().unwrap();
        fs::remove_file(live.path().join(MAP)).unwrap();
        place.settle(&live).unwrap();
        let by_all = verified(&live);
        prop_assert_eq!(by_ranges.states(), by_all.states());
        prop_assert_eq!(checksums(&by_ranges), checksums(&by_all));
        prop_assert!(fs::read(live.memory()).unwrap() == memory, "settling changed the memory");
        place.dir.publish(live).unwrap();
        place.consume().unwrap();
    }
}
