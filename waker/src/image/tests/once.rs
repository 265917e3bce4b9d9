//! Is an image used once, and what is left of it afterwards?

use super::*;

#[test]
fn a_generation_is_consumed_once_and_comes_back_as_the_next() {
    let place = Place::new();
    assert!(matches!(place.consume(), Err(ImageRefusal::None)));
    for n in 1..=3 {
        let published =
            if n == 1 { place.sleep_once() } else { place.sleep(place.wake().unwrap()) };
        assert_eq!(published.generation, Generation(n));
        assert!(published.image_bytes < 64 * 1024, "{published:?} tells more than its data");
        assert_eq!(fs::read_link(place.path(CURRENT)).unwrap(), Path::new(&format!("gen-{n}")));
    }
    let live = place.consume().unwrap();
    assert_eq!(fs::read(live.state()).unwrap(), SAVED);
    assert_eq!(read(&live.memory(), 5 * PAGE + 1, 6), b"memory");
    assert_eq!(read(&live.disk().unwrap(), 100_000, 4), b"disk");
    assert!(live.path().join(CONSUMED).exists() && !live.path().join(MANIFEST).exists());
    assert!(!place.path("gen-3").exists() && fs::symlink_metadata(place.path(CURRENT)).is_err());
    assert!(matches!(place.consume(), Err(ImageRefusal::None)), "used twice");
}

#[test]
fn of_a_life_that_ended_without_a_sleep_the_disk_is_left() {
    let mut place = Place::new();
    place.sleep_once();
    let live = place.wake().unwrap();
    place.write_disk(&live, 50_000, b"newer");
    let disk = inode(&live.disk().unwrap());
    drop(live);

    place.crash();
    assert_eq!(names(&place.path(LIVE)), [DISK, DISK_ID]);
    assert!(matches!(place.consume(), Err(ImageRefusal::None)));
    assert_eq!(place.dir.next_generation(), Generation(3), "a number is used twice");

    let live = place.boot();
    assert_eq!(inode(&live.disk().unwrap()), disk);
    assert_eq!(read(&live.disk().unwrap(), 50_000, 5), b"newer");
    assert_eq!(read(&live.memory(), 5 * PAGE, PAGE as usize), [0; PAGE as usize]);
    assert_eq!(place.sleep(live).generation, Generation(3));
}

#[test]
fn without_a_disk_nothing_is_left_of_it() {
    let mut place = Place::without_disk();
    place.sleep_once();
    drop(place.wake().unwrap());
    place.crash();
    assert!(!place.path(LIVE).exists());
    assert_eq!(place.boot().disk(), None);
}

#[test]
fn a_life_is_discarded_but_for_its_disk_and_what_was_to_be_an_image() {
    let place = Place::new();
    let live = place.first_life();
    place.settle(&live).unwrap();
    place.dir.discard_live().unwrap();
    assert!(live.memory().exists(), "settled, and thrown away");
    place.dir.undo().unwrap();
    place.dir.discard_live().unwrap();
    assert_eq!(names(&place.path(LIVE)), [DISK, DISK_ID]);
    place.dir.discard_live().unwrap();
}

#[test]
fn what_no_vmm_has_mapped_is_put_back() {
    let mut place = Place::new();
    place.sleep_once();
    for _ in 0..2 {
        let live = place.consume().unwrap();
        place.dir.sync_consumed().unwrap();
        place.dir.put_back(live).unwrap();
        assert_eq!(fs::read_link(place.path(CURRENT)).unwrap(), Path::new("gen-1"));
        assert!(!place.path(LIVE).exists());
        place.crash();
    }
    let live = place.consume().unwrap();
    assert_eq!(read(&live.memory(), 5 * PAGE + 1, 6), b"memory");
    verified(&live);
}

#[test]
fn a_cold_life_is_no_image_to_put_back() {
    let place = Place::new();
    place.dir.put_back(place.first_life()).unwrap();
    assert!(matches!(place.consume(), Err(ImageRefusal::None)));
}

#[test]
fn an_image_that_somebody_works_on_waits() {
    let place = Place::new();
    place.sleep_once();
    let other = lock_exclusively(&place.path("gen-1").join(MEMORY)).unwrap().unwrap();
    assert_eq!(place.consume().unwrap_err().reason(), "busy");
    drop(other);
    place.consume().unwrap();
}

#[test]
fn nobody_works_on_memory_that_is_in_use() {
    let place = Place::new();
    let live = place.first_life();
    let vmm = live.memory_lock().unwrap();
    drop(live);
    let memory = place.path(LIVE).join(MEMORY);
    assert!(lock_exclusively(&memory).unwrap().is_none(), "the VMM's duplicate does not hold");
    // A waker that adopts the VM shares it.
    drop(place.dir.live().unwrap());
    drop(vmm);
    assert!(lock_exclusively(&memory).unwrap().is_some());
}

#[test]
fn an_adopted_vm_is_not_settled_any_more() {
    let place = Place::new();
    let live = place.first_life();
    place.settle(&live).unwrap();
    let _vmm = live.memory_lock().unwrap();
    drop(live);
    let adopted = place.dir.live().unwrap();
    assert!(adopted.path().join(MANIFEST).exists(), "it may yet turn out to have ended");
    place.dir.undo().unwrap();
    assert!(!adopted.path().join(MANIFEST).exists());
    assert_eq!(place.sleep(adopted).generation, Generation(1));
}

#[test]
fn the_lock_lives_as_long_as_any_duplicate_of_it() {
    let place = Place::new();
    place.sleep_once();
    let (found, lock) = place.dir.look().unwrap();
    assert!(matches!(found, Found::Asleep(Some(Generation(1)))), "{found:?}");
    let vmm = lock.as_ref().unwrap().try_clone().unwrap();
    drop(lock);
    let (found, none) = place.dir.look().unwrap();
    assert!(matches!(found, Found::Running(Some(_))) && none.is_none(), "{found:?}");
    drop(vmm);
    assert!(matches!(place.dir.look().unwrap().0, Found::Asleep(_)));
}

#[test]
fn a_crash_after_the_rename_loses_no_generation() {
    let place = Place::new();
    place.sleep_once();
    fs::remove_file(place.path(CURRENT)).unwrap();
    fs::create_dir(place.path("gen-0")).unwrap();
    let (found, _lock) = place.dir.look().unwrap();
    assert!(matches!(found, Found::Asleep(Some(Generation(1)))), "{found:?}");
    assert_eq!(fs::read_link(place.path(CURRENT)).unwrap(), Path::new("gen-1"));
    assert!(!place.path("gen-0").exists());
    place.consume().unwrap();
}

#[test]
fn an_old_generation_with_a_disk_is_nobodys_to_remove() {
    let mut place = Place::new();
    place.sleep_once();
    fs::create_dir(place.path("gen-0")).unwrap();
    fs::write(place.path("gen-0").join(DISK), b"somebody's").unwrap();
    place.crash();
    assert_eq!(fs::read(place.path("gen-0").join(DISK)).unwrap(), b"somebody's");
}

#[test]
fn the_key_is_made_once() {
    let place = Place::new();
    let key = place.dir.key().unwrap();
    assert_eq!(place.dir.key().unwrap(), key);
    let mode = fs::metadata(place.path("key")).unwrap().mode();
    assert_eq!(mode & 0o077, 0);
    fs::write(place.path("key"), "no key").unwrap();
    assert!(place.dir.key().is_err());
    // Two apps, two keys.
    let other = AppDir::open(place.root.path(), &"other".parse().unwrap()).unwrap();
    assert_ne!(other.key().unwrap(), key);
}
