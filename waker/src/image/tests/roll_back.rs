//! Do memory and disk of one generation come back together, or not at all?

use super::*;

/// Copies as `settle` makes them where the file system shares blocks, here byte by byte.
fn make_pair(directory: &Path) {
    let pair = directory.join(PAIR);
    if pair.exists() {
        return;
    }
    fs::create_dir(&pair).unwrap();
    for name in [MANIFEST, MEMORY, MAP, STATE, DISK, DISK_ID] {
        let from = directory.join(name);
        fs::copy(&from, pair.join(name)).unwrap();
        let when = fs::metadata(&from).unwrap().modified().unwrap();
        let copy = OpenOptions::new().write(true).open(pair.join(name)).unwrap();
        copy.set_modified(when).unwrap();
    }
}

/// `gen-1` with a pair, woken, and its memory and disk moved on; then the node died.
fn moved_on() -> Place {
    let mut place = Place::new();
    place.sleep_once();
    make_pair(&place.path("gen-1"));
    let live = place.wake().unwrap();
    write(&live.memory(), 5 * PAGE + 1, b"MOVED ON");
    place.write_disk(&live, 100_000, b"DISK");
    drop(live);
    place.crash();
    place
}

fn is_as_it_slept(live: &Live) {
    assert_eq!(read(&live.memory(), 5 * PAGE + 1, 8), b"memory\0\0");
    assert_eq!(read(&live.disk().unwrap(), 100_000, 4), b"disk");
    assert_eq!(fs::read(live.state()).unwrap(), SAVED);
    verified(live);
}

#[test]
fn memory_and_disk_of_one_generation_come_back_together() {
    let place = moved_on();
    assert!(matches!(place.consume(), Err(ImageRefusal::None)), "it goes back unasked");
    assert!(place.dir.roll_back().unwrap());
    assert_eq!(fs::read_link(place.path(CURRENT)).unwrap(), Path::new("gen-1"));
    // What was written since is kept.
    assert_eq!(read(&place.path(REFUSED).join(DISK), 100_000, 4), b"DISK");
    assert!(!place.path(LIVE).exists());
    assert_eq!(place.dir.next_generation(), Generation(3), "life 2 has had its number");
    let live = place.wake().unwrap();
    is_as_it_slept(&live);
    assert_eq!(place.sleep(live).generation, Generation(3));
}

#[test]
fn an_image_that_is_refused_goes_back_to_its_pair() {
    let place = Place::new();
    place.sleep_once();
    make_pair(&place.path("gen-1"));
    write(&place.path("gen-1").join(DISK), 100_000, b"DISK");
    assert_eq!(place.consume().unwrap_err().reason(), "disk's last write");
    assert!(place.dir.roll_back().unwrap());
    assert_eq!(read(&place.path(REFUSED).join(DISK), 100_000, 4), b"DISK");
    is_as_it_slept(&place.consume().unwrap());
}

#[test]
fn a_way_back_outlives_cold_boots() {
    let mut place = moved_on();
    drop(place.boot());
    place.crash();
    assert!(place.dir.roll_back().unwrap());
    is_as_it_slept(&place.consume().unwrap());
}

#[test]
fn a_way_back_is_cut_off_anywhere_and_taken_again() {
    // After the pair has the generation's name, and before the newer disk is set aside.
    let mut place = moved_on();
    fs::rename(place.path(LIVE).join(PAIR), place.path("gen-1")).unwrap();
    place.crash();
    assert_eq!(read(&place.path(REFUSED).join(DISK), 100_000, 4), b"DISK");
    is_as_it_slept(&place.consume().unwrap());

    // After a refused generation was moved, and before its pair was.
    drop(place);
    let mut place = Place::new();
    place.sleep_once();
    make_pair(&place.path("gen-1"));
    write(&place.path("gen-1").join(DISK), 100_000, b"DISK");
    fs::rename(place.path("gen-1"), place.path(LIVE)).unwrap();
    place.crash();
    assert_eq!(place.consume().unwrap_err().reason(), "disk's last write");
    assert!(place.dir.roll_back().unwrap());
    is_as_it_slept(&place.consume().unwrap());
}

#[test]
fn without_a_whole_pair_nothing_is_touched() {
    type Spoil = (&'static str, fn(&Path));
    let spoils: [Spoil; 3] = [
        ("no pair", |p| fs::remove_dir_all(p).unwrap()),
        // The sleep that it is of was called off.
        ("no manifest", |p| fs::remove_file(p.join(MANIFEST)).unwrap()),
        ("no manifest of ours", |p| fs::write(p.join(MANIFEST), b"{}").unwrap()),
    ];
    for (what, spoil) in spoils {
        let place = moved_on();
        spoil(&place.path(LIVE).join(PAIR));
        let before = names(&place.path(LIVE));
        assert!(!place.dir.roll_back().unwrap(), "{what}");
        assert_eq!(names(&place.path(LIVE)), before, "{what}");
        assert_eq!(read(&place.boot().disk().unwrap(), 100_000, 4), b"DISK", "{what}");
    }
}

#[test]
fn where_there_was_no_life_there_is_no_way_back() {
    assert!(!Place::new().dir.roll_back().unwrap());
}

#[test]
fn a_sleep_that_is_called_off_keeps_the_way_back() {
    let mut place = Place::new();
    place.keep_pair = true;
    place.sleep_once();
    make_pair(&place.path("gen-1"));
    let live = place.wake().unwrap();
    place.write_disk(&live, 100_000, b"DISK");
    place.settle(&live).unwrap();
    place.dir.undo().unwrap();
    drop(live);
    place.crash();
    assert!(place.dir.roll_back().unwrap(), "the pair of the sleep before is gone");
    is_as_it_slept(&place.consume().unwrap());
}

#[test]
fn a_pair_goes_when_its_app_sleeps_without_one() {
    let place = Place::new();
    place.sleep_once();
    make_pair(&place.path("gen-1"));
    let live = place.wake().unwrap();
    place.write_disk(&live, 100_000, b"DISK");
    place.sleep(live);
    assert!(!place.dir.roll_back().unwrap(), "it goes back behind a newer sleep");
    assert_eq!(read(&place.consume().unwrap().disk().unwrap(), 100_000, 4), b"DISK");
}
