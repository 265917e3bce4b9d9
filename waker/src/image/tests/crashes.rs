//! Is there a way back from every step, and never an image whose memory moved on?

use std::error::Error;

use super::layer::{is_merged, layered};
use super::*;

/// What there is to wake to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WayBack {
    Image,
    Disk,
}

use WayBack::{Disk, Image};

/// Every point that the directory passes, and what there is after a crash at it.
const WAYS: [(&str, WayBack); 14] = [
    ("fresh", Disk),
    ("disk", Disk),
    ("settle-sync", Disk),
    ("settle-memory", Disk),
    ("settle-map", Disk),
    ("settle-manifest", Disk),
    // From here on the VM stands, and does not run again.
    ("settled", Image),
    ("publish", Image),
    ("published", Image),
    ("consume", Image),
    ("consumed", Disk),
    // Not taken back, and run on all the same.
    ("undo", Disk),
    ("finish", Image),
    ("finished", Image),
];

/// Has the point fail once, after it was passed so many times.
fn arm(point: &str, passed: usize) {
    let skip = if passed == 0 { String::new() } else { format!("{passed}*off->") };
    fail::cfg(point, &format!("{skip}1*return(eio)")).unwrap();
}

/// What the guest has, by itself.
#[derive(Default)]
struct Guest {
    wrote: u64,
    memory: Vec<u8>,
    disk: Option<Vec<u8>>,
}

impl Guest {
    fn goes_on(&mut self, place: &Place, live: &Live) {
        self.wrote += 1;
        let text = format!("write {}", self.wrote);
        write(&live.memory(), (40 * self.wrote) * PAGE + 7, text.as_bytes());
        write(&live.memory(), 5 * PAGE, text.as_bytes());
        place.write_disk(live, 90_000, text.as_bytes());
        self.memory = fs::read(live.memory()).unwrap();
        self.disk = Some(fs::read(live.disk().unwrap()).unwrap());
    }
}

/// Lives that pass every point, until one fails.
fn lives(place: &mut Place, guest: &mut Guest) -> Result<(), Box<dyn Error>> {
    let generation = place.dir.next_generation();
    let live = place.dir.fresh(&place.machine)?;
    place.begin(generation);
    guest.goes_on(place, &live);
    place.settle(&live)?;
    place.dir.publish(live)?;

    let live = place.wake()?;
    guest.goes_on(place, &live);
    place.settle(&live)?;
    let taken_back = place.dir.undo();
    guest.goes_on(place, &live);
    taken_back?;
    place.settle(&live)?;
    place.dir.publish(live)?;

    let live = place.wake()?;
    guest.goes_on(place, &live);
    place.settle(&live)?;
    drop(live);
    place.crash();
    place.wake()?;
    Ok(())
}

/// The node is back; what is there?
fn way_back(place: &mut Place, guest: &Guest, context: &str) -> WayBack {
    place.crash();
    let (live, way) = match place.wake() {
        Ok(live) => {
            assert!(fs::read(live.memory()).unwrap() == guest.memory, "{context}: old memory");
            assert_eq!(fs::read(live.state()).unwrap(), SAVED, "{context}");
            verified(&live);
            (live, Image)
        }
        Err(_) => {
            let live = place.boot();
            let memory = fs::read(live.memory()).unwrap();
            assert!(memory.iter().all(|&byte| byte == 0), "{context}: old memory");
            (live, Disk)
        }
    };
    let disk = fs::read(live.disk().unwrap()).unwrap();
    assert!(guest.disk.as_ref().is_none_or(|was| *was == disk), "{context}: another disk");
    // And it goes on from there.
    place.sleep(live);
    verified(&place.wake().unwrap());
    way
}

#[test]
fn after_a_crash_at_any_step_there_is_a_way_back() {
    for (point, expected) in WAYS {
        assert!(fault::POINTS.contains(&point), "{point}");
        let mut passed = 0;
        loop {
            let (mut place, mut guest) = (Place::new(), Guest::default());
            arm(point, passed);
            if lives(&mut place, &mut guest).is_ok() {
                break;
            }
            let context = format!("{point}, passed {passed} times");
            assert_eq!(way_back(&mut place, &guest, &context), expected, "{context}");
            passed += 1;
        }
        assert!(passed > 0, "{point} is not passed");
    }
}

#[test]
fn a_settle_that_failed_is_taken_back_and_done_again() {
    for point in ["settle-sync", "settle-memory", "settle-map", "settle-manifest", "settled"] {
        for passed in 0.. {
            let (place, mut guest) = (Place::new(), Guest::default());
            place.sleep_once();
            let live = place.wake().unwrap();
            guest.goes_on(&place, &live);
            arm(point, passed);
            let failed = place.settle(&live).is_err();
            fail::remove(point);
            place.dir.undo().unwrap();
            assert!(!live.path().join(MANIFEST).exists(), "{point}, passed {passed} times");
            guest.goes_on(&place, &live);
            place.sleep(live);
            let live = place.wake().unwrap();
            assert!(fs::read(live.memory()).unwrap() == guest.memory, "{point}: old memory");
            verified(&live);
            if !failed {
                assert!(passed > 0, "{point} is not passed");
                break;
            }
        }
    }
}

#[test]
fn a_wake_that_failed_spends_no_image() {
    let mut place = Place::new();
    place.sleep_once();
    arm("consume", 0);
    assert_eq!(place.consume().unwrap_err().reason(), "consume");
    arm("fresh", 0);
    assert!(place.dir.fresh(&place.machine).is_err());
    // Not durable: no VM may have it, and so it is put back.
    arm("consumed", 0);
    let live = place.consume().unwrap();
    assert!(place.dir.sync_consumed().is_err());
    place.dir.put_back(live).unwrap();
    place.crash();
    verified(&place.consume().unwrap());
}

#[test]
fn a_disk_that_could_not_be_made_is_made_the_next_time() {
    let place = Place::new();
    arm("disk", 0);
    assert!(matches!(place.dir.fresh(&place.machine), Err(FreshError::Disk(_))));
    assert!(place.boot().disk().is_some());
}

#[test]
fn after_a_crash_with_a_layer_there_is_a_way_back() {
    let ways = [
        ("settle-sync", 0, Disk),
        ("settle-sync", 1, Disk),
        ("settle-sync", 2, Disk),
        ("settle-map", 0, Disk),
        ("settle-manifest", 0, Disk),
        // In the merge.
        ("settle-manifest", 1, Image),
        ("settled", 0, Image),
        ("publish", 0, Image),
        ("published", 0, Image),
        ("consume", 0, Image),
        ("consumed", 0, Disk),
    ];
    for (point, passed, expected) in ways {
        let mut place = Place::new();
        let (live, memory) = layered(&place);
        let disk = fs::read(live.disk().unwrap()).unwrap();
        arm(point, passed);
        let sleeps_and_wakes = || -> Result<(), Box<dyn Error>> {
            place.settle_by(&live, SavedMemory::Layer, unknown(), &Progress::new())?;
            place.dir.publish(live)?;
            place.wake()?;
            Ok(())
        };
        assert!(sleeps_and_wakes().is_err(), "{point} is not passed more than {passed} times");
        place.crash();
        let (live, way) = match place.wake() {
            Ok(live) => {
                is_merged(&live, &memory);
                (live, Image)
            }
            Err(_) => (place.boot(), Disk),
        };
        assert_eq!(way, expected, "{point}, passed {passed} times");
        assert!(fs::read(live.disk().unwrap()).unwrap() == disk, "{point}: another disk");
    }
}
