//! Is there a block for whatever a guest may write, and does a sleeping app keep only those it needs?

#[cfg(feature = "failpoints")]
use std::{
    sync::{Mutex, atomic::Ordering, mpsc},
    time::Instant,
};

use super::super::room::{TrimError, Trimmed};
use super::*;

#[cfg(feature = "failpoints")]
const PATIENCE: Duration = Duration::from_secs(60);

fn blocks(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

fn bytes() -> u64 {
    u64::from(MIB) << 20
}

/// A life with room for all it may write.
fn roomy(place: &Place) -> Live {
    let live = place.first_life();
    live.reserve().unwrap();
    live
}

#[test]
fn a_life_has_a_block_for_each_page_until_its_vm_is_gone() {
    let place = Place::new();
    let live = roomy(&place);
    assert!(blocks(&live.memory()) >= bytes());
    assert_eq!(read(&live.memory(), 5 * PAGE + 1, 6), b"memory", "it is what it was");
    place.settle(&live).unwrap();
    assert!(blocks(&live.memory()) >= bytes(), "it may go on");
    place.dir.undo().unwrap();
    assert!(blocks(&live.memory()) >= bytes(), "and does");
    let published = place.sleep(live);
    assert_eq!(published.image_bytes, {
        let gen1 = place.path("gen-1");
        PAGE + blocks(&gen1.join(MAP)) + blocks(&gen1.join(STATE))
    });
}

#[test]
fn a_trimmed_image_has_the_blocks_of_its_data() {
    let place = Place::new();
    place.sleep(roomy(&place));
    let memory = place.path("gen-1").join(MEMORY);
    assert_eq!(place.dir.trim().unwrap(), Trimmed::Done(bytes() - PAGE));
    assert!(blocks(&memory) <= 2 * PAGE, "{} bytes", blocks(&memory));
    assert_eq!(place.dir.trim().unwrap(), Trimmed::Nothing, "once is enough");

    let live = place.wake().unwrap();
    verified(&live);
    live.reserve().unwrap();
    assert_eq!(place.dir.trim().unwrap(), Trimmed::Nothing, "a life is no image");
    assert!(blocks(&live.memory()) >= bytes());
}

#[test]
fn nothing_is_trimmed_that_does_not_belong_together() {
    let place = Place::new();
    place.sleep(roomy(&place));
    let gen1 = place.path("gen-1");
    write(&gen1.join(MAP), 100, b"another");
    assert!(matches!(place.dir.trim(), Err(TrimError::Image(ImageRefusal::Damaged { .. }))));
    assert!(blocks(&gen1.join(MEMORY)) >= bytes());
}

#[test]
fn nobody_trims_for_a_waker_that_is_through() {
    let place = Place::new();
    place.sleep(roomy(&place));
    place.dir.stop_trims();
    assert_eq!(place.dir.trim().unwrap(), Trimmed::Cut);
    assert!(blocks(&place.path("gen-1").join(MEMORY)) >= bytes());
}

#[test]
fn what_was_reserved_for_nothing_is_given_back() {
    let place = Place::new();
    place.sleep_once();
    let live = place.wake().unwrap();
    live.reserve().unwrap();
    place.dir.trim_unused().unwrap();
    assert!(blocks(&live.memory()) <= 2 * PAGE);
    verified(&live);
}

#[test]
fn an_image_that_a_vmm_has_loaded_is_checked_before_it_is_used() {
    let place = Place::new();
    place.sleep_once();
    for damaged in [false, true] {
        let live = place.wake().unwrap();
        place.dir.put_back_unchecked(&live).unwrap();
        if damaged {
            write(&live.memory(), 5 * PAGE, b"moved on");
        }
        drop(live);
        match place.consume() {
            Ok(live) => {
                assert!(!damaged);
                verified(&live);
                place.sleep(live);
            }
            Err(refusal) => assert!(damaged && refusal.reason() == "damaged", "{refusal}"),
        }
    }
}

/// The trim is in the middle of a piece when a visitor comes.
#[cfg(feature = "failpoints")]
#[test]
fn a_wake_ends_a_trim_and_what_it_then_writes_stays() {
    let place = Place::new();
    place.sleep(roomy(&place));
    let (dir, machine) = (&place.dir, &place.machine);
    let (reached, in_it) = mpsc::channel();
    let (go, gone_on) = mpsc::channel::<()>();
    let gone_on = Mutex::new(gone_on);
    fail::cfg_callback("trim", move || {
        reached.send(()).unwrap();
        // Later pieces find that nobody is there to wait for.
        let _ = gone_on.lock().unwrap().recv();
    })
    .unwrap();
    std::thread::scope(|threads| {
        let trim = threads.spawn(|| dir.trim().unwrap());
        in_it.recv_timeout(PATIENCE).unwrap();
        let wake = threads.spawn(|| {
            let live = dir.consume(machine, &identity()).unwrap();
            live.reserve().unwrap();
            for page in 0..bytes() / PAGE {
                write(&live.memory(), page * PAGE, b"here");
            }
            live
        });
        let began = Instant::now();
        while dir.turns.wanted.load(Ordering::SeqCst) == 0 && began.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        assert!(place.path("gen-1").exists(), "the wake waits for the piece");
        drop(go);
        let (live, trimmed) = (wake.join().unwrap(), trim.join().unwrap());
        assert_eq!(trimmed, Trimmed::Cut);
        for page in 0..bytes() / PAGE {
            assert_eq!(read(&live.memory(), page * PAGE, 4), b"here", "page {page}");
        }
    });
}
