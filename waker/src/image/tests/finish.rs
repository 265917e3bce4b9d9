//! Is a sleep that was cut off an image only when every byte is as the map says?

use super::*;

/// Settled, and then the node died.
fn cut_off() -> Place {
    let place = Place::new();
    let live = place.first_life();
    place.settle(&live).unwrap();
    place
}

#[test]
fn a_whole_one_becomes_the_generation_that_it_was_to_be() {
    let mut place = cut_off();
    place.crash();
    assert_eq!(place.dir.next_generation(), Generation(2));
    let live = place.consume().unwrap();
    assert!(live.path().join(CONSUMED).exists());
    assert_eq!(read(&live.memory(), 5 * PAGE + 1, 6), b"memory");
    assert_eq!(fs::read(live.state()).unwrap(), SAVED);
    verified(&live);
    assert!(matches!(place.consume(), Err(ImageRefusal::None)), "used twice");
}

#[test]
fn without_a_run_record_its_number_is_not_used_again() {
    let mut place = cut_off();
    fs::remove_file(place.path(RUN)).unwrap();
    place.crash();
    assert_eq!(place.dir.next_generation(), Generation(2));
}

#[test]
fn one_that_does_not_fit_any_more_is_refused_and_not_spent() {
    let mut place = cut_off();
    place.crash();
    let vmm = VmmIdentity { version: "10.0".into(), ..identity() };
    assert_eq!(place.dir.consume(&place.machine, &vmm).unwrap_err().reason(), "VMM version");
    place.consume().unwrap();
}

#[test]
fn one_byte_that_moved_on_makes_it_none() {
    type Spoil = (&'static str, &'static str, fn(&Path));
    let spoils: [Spoil; 11] = [
        ("data", "damaged", |p| write(&p.join(MEMORY), 5 * PAGE + 1, b"M")),
        ("the rest of a page", "damaged", |p| write(&p.join(MEMORY), 6 * PAGE - 1, b"M")),
        ("a hole", "damaged", |p| write(&p.join(MEMORY), 900 * PAGE, b"M")),
        ("less memory", "damaged", |p| File::create(p.join(MEMORY)).unwrap().set_len(1).unwrap()),
        ("map", "damaged", |p| write(&p.join(MAP), 40, b"M")),
        ("state", "damaged", |p| write(&p.join(STATE), 0, b"D")),
        ("no state", "read", |p| fs::remove_file(p.join(STATE)).unwrap()),
        ("manifest", "manifest", |p| write(&p.join(MANIFEST), 0, b"[")),
        ("disk", "disk's last write", |p| write(&p.join(DISK), 200_000, b"D")),
        ("the disk's begin", "disk's last write", |p| write(&p.join(DISK), 0, b"D")),
        ("another disk", "disk size", |p| {
            OpenOptions::new().write(true).open(p.join(DISK)).unwrap().set_len(512).unwrap();
        }),
    ];
    for (what, reason, spoil) in spoils {
        let mut place = cut_off();
        let live = place.path(LIVE);
        spoil(&live);
        let (disk, bytes) = (inode(&live.join(DISK)), fs::read(live.join(DISK)).unwrap());
        for _ in 0..2 {
            place.crash();
            let refusal = place.consume().unwrap_err();
            assert_eq!(refusal.reason(), reason, "{what}: {refusal}");
        }
        let live = place.boot();
        assert_eq!(inode(&live.disk().unwrap()), disk, "{what}");
        assert!(fs::read(live.disk().unwrap()).unwrap() == bytes, "{what}: the disk has changed");
        assert!(place.path(REFUSED).join(MANIFEST).exists(), "{what}");
        assert!(matches!(place.consume(), Err(ImageRefusal::None)), "{what}");
    }
}

#[test]
fn without_a_manifest_there_is_nothing_to_finish() {
    let mut place = cut_off();
    fs::remove_file(place.path(LIVE).join(MANIFEST)).unwrap();
    place.crash();
    assert!(matches!(place.consume(), Err(ImageRefusal::None)));
    assert_eq!(names(&place.path(LIVE)), [DISK, DISK_ID]);
}

#[test]
fn a_cold_boot_that_is_asked_for_keeps_it_for_a_look() {
    let mut place = cut_off();
    place.crash();
    let live = place.boot();
    assert_eq!(read(&live.disk().unwrap(), 100_000, 4), b"disk");
    assert_eq!(names(&place.path(REFUSED)), [MANIFEST, MEMORY, MAP, STATE]);
}
