use std::fs;
use std::time::{Duration, Instant};

use super::*;
use crate::{ShareError, Shared, TakeError, Use};

#[test]
fn a_shared_file_is_the_same_bytes_and_says_how_it_came_there() {
    let place = Place::new();
    let cache = place.open(large(), 0);
    let pinned = put(&cache, 1, 0);
    let source = fs::metadata(pinned.path("memory.img").unwrap()).unwrap();
    for how in [Use::Writable, Use::ReadOnly] {
        let to = place.beside(&format!("{how:?}"));
        let shared = pinned.share("memory.img", &to, how).unwrap();
        let found = fs::metadata(&to).unwrap();
        assert_eq!((found.len(), found.mode() & 0o7777), (source.len(), 0o600));
        check_memory(&File::open(&to).unwrap(), 1);
        let same = found.ino() == source.ino();
        match (shared, how) {
            (Shared::Reflink, _) => assert!(!same),
            (Shared::HardLink, Use::ReadOnly) => assert!(same),
            (Shared::Copy { bytes }, Use::Writable) => {
                assert_eq!(bytes, DATA);
                assert!(!same && found.blocks() * 512 <= DATA + PAGE, "a hole was filled");
            }
            other => panic!("{other:?}"),
        }
        let again = pinned.share("memory.img", &to, how);
        assert!(matches!(again, Err(ShareError::File { .. })), "{again:?}");
        assert!(to.exists(), "what was there is gone");
    }
    // Written to, the copy alone is another.
    File::options()
        .write(true)
        .open(place.beside("Writable"))
        .unwrap()
        .write_all_at(b"x", 0)
        .unwrap();
    check(&pinned, 1);
    let none = pinned.share("../lock", &place.beside("none"), Use::Writable);
    assert!(matches!(none, Err(ShareError::NoFile(_))), "{none:?}");
    assert!(!place.beside("none").exists());
    let nowhere = pinned.share("memory.img", &place.beside("no/where"), Use::Writable);
    assert!(matches!(nowhere, Err(ShareError::File { .. })), "{nowhere:?}");
}

#[test]
fn a_file_is_copied_with_its_holes_to_another_file_system() {
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else { return };
    let place = Place::new();
    let cache = place.open(large(), 0);
    let pinned = put(&cache, 1, 0);
    for how in [Use::Writable, Use::ReadOnly] {
        let to = other.path().join(format!("{how:?}"));
        let shared = pinned.share("memory.img", &to, how).unwrap();
        check_memory(&File::open(&to).unwrap(), 1);
        let (here, there) = (place.directory.path(), other.path());
        if fs::metadata(here).unwrap().dev() != fs::metadata(there).unwrap().dev() {
            assert_eq!(shared, Shared::Copy { bytes: DATA });
            assert!(fs::metadata(&to).unwrap().blocks() * 512 <= DATA + PAGE);
        }
    }
}

#[test]
fn a_base_under_two_entries_counts_once() {
    let place = Place::new();
    let cache = place.open(large(), 0);
    let base = put(&cache, 1, 0);
    let draft = cache.reserve(PAGE, 0).unwrap();
    fs::hard_link(base.path("memory.img").unwrap(), draft.path().join("base.img")).unwrap();
    draft.create("vm.state").unwrap().write_all_at(b"x", 0).unwrap();
    let over = draft.publish(&id(2), 0).unwrap();
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
    assert!(cache.stats().allocated_bytes < 2 * DATA);
    // Neither is taken, since whoever writes to it writes to both.
    drop((base, over));
    for number in [1, 2] {
        let refused = cache.take(&id(number));
        assert!(matches!(refused, Err(TakeError::Shared { .. })), "{refused:?}");
    }
    drop(cache);
    let cache = place.open(budget(DATA, 0), 9);
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
    // Only with the second is the base gone.
    assert!(cache.evict(1, 9).unwrap().bytes < DATA);
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
    assert!(cache.evict(1, 9).unwrap().bytes >= DATA);
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
}

#[test]
fn an_entry_is_taken_once_and_by_nobody_while_others_use_it() {
    let place = Place::new();
    let cache = place.open(large(), 0);
    let pinned = put(&cache, 1, 0);
    assert!(matches!(cache.take(&id(1)), Err(TakeError::Pinned(_))));
    assert!(matches!(cache.take(&id(2)), Err(TakeError::Absent(_))));
    let second = cache.get(&id(1), 0).unwrap();
    assert!(matches!(second.take(), Err(TakeError::Pinned(_))));
    let lease = pinned.lease().unwrap();
    assert!(matches!(pinned.take(), Err(TakeError::Pinned(_))));
    drop(lease);
    // A process that another test is just starting may still have a duplicate of the lease.
    let patience = Instant::now() + Duration::from_secs(30);
    let mut taken = loop {
        match cache.get(&id(1), 0).unwrap().take() {
            Err(TakeError::Pinned(_)) if Instant::now() < patience => std::thread::yield_now(),
            taken => break taken.unwrap(),
        }
    };
    assert!(matches!(cache.take(&id(1)), Err(TakeError::Absent(_))));
    assert!(!cache.contains(&id(1)));
    // It counts until it has left.
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
    fs::create_dir(place.beside("full")).unwrap();
    assert!(taken.move_to(&place.beside("full")).is_err());
    taken.move_to(&place.beside("app")).unwrap();
    drop(taken);
    check_memory(&File::open(place.beside("app").join("memory.img")).unwrap(), 1);
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
    assert_eq!(cache.stats().taken, 1);
}

#[test]
fn what_was_taken_may_be_renamed_by_its_taker_and_goes_when_it_is_not() {
    let place = Place::new();
    let cache = place.open(large(), 0);
    (1..=2).for_each(|number| drop(put(&cache, number, 0)));
    let taken = cache.take(&id(1)).unwrap();
    fs::rename(taken.path(), place.beside("app")).unwrap();
    drop(taken);
    assert!(place.beside("app").join("memory.img").exists());
    drop(cache.take(&id(2)).unwrap());
    assert_eq!(names(&place.root()), [""; 0]);
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
}
