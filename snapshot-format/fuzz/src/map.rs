//! Any bytes as a map.

use rouse_snapshot_format::{Map, WorkingSet, WriteMapError};

use super::seal;

/// The bit of the first byte that says that checksums are made right.
pub const SEALED: u8 = 1;
/// And so are the numbers of pages.
pub const COUNTED: u8 = 2;

/// The first byte says how, the others are the map.
pub fn run(data: &[u8]) {
    let Some((mode, bytes)) = data.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if mode & SEALED != 0 {
        seal::map(&mut bytes, mode & COUNTED != 0);
    }
    match Map::from_bytes(&bytes) {
        Ok(map) => {
            assert!(map.pages() <= bytes.len() as u64 * 8, "more pages than bits");
            check(&map);
            comes_back(map);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Whether `map` keeps what its functions promise.
pub fn check(map: &Map) {
    let counts = map.counts();
    assert_eq!(counts.data + counts.zero + counts.parent, map.pages());
    assert!(map.parent().is_some() || counts.parent == 0, "PARENT pages without a parent");
    for page in [map.pages(), u64::MAX] {
        assert!(map.state(page).is_err(), "page {page} is none");
    }

    let (mut next, mut last) = (0, None);
    for run in map.runs() {
        assert!(run.pages.start == next && next < run.pages.end, "runs lie side by side");
        assert_ne!(last.replace(run.state), Some(run.state), "runs are as long as they can be");
        assert_eq!(map.state(run.pages.end - 1), Ok(run.state));
        next = run.pages.end;
    }
    assert_eq!(next, map.pages());

    let windows = map.windows();
    let in_windows: u64 = (0..windows).map(|window| map.window_data_pages(window)).sum();
    assert_eq!(in_windows, counts.data);
    assert_eq!(map.checksum(0).is_some(), map.has_checksums() && windows > 0);
    assert_eq!(map.checksum(windows), None);
    assert_eq!(map.window_data_pages(windows), 0);

    let set = map.working_set();
    assert!(set.is_empty() || !map.working_set_dropped());
    let order = set.order(map.window_size());
    assert!(order.len() <= WorkingSet::limit(map.window_size()));
    for window in set.wakes().flatten().chain(&order) {
        assert!(u64::from(*window) < windows, "the working set has window {window}");
    }
}

/// Whether what is written of `map` is read as the same.
pub fn comes_back(map: Map) {
    // What was left out is not written, so that the file has nothing to be left out.
    let map = match map.working_set_dropped() {
        true => map.with_working_set(WorkingSet::new()),
        false => map,
    };
    match map.to_bytes() {
        Ok(bytes) => assert_eq!(Map::from_bytes(&bytes).unwrap(), map),
        Err(WriteMapError::ReadOnly { bits }) => assert_ne!(bits, 0),
        Err(other) => panic!("{other}"),
    }
}
