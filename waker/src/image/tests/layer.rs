//! A VMM that maps memory privately: is what it left in a layer merged, once, before it is used?

use std::os::fd::AsRawFd;

use rouse_snapshot_format::{PageState, journal_path};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::*;

/// A life from `gen-1` whose changes went to a layer; and what its guest's memory is.
pub(super) fn layered(place: &Place) -> (Live, Vec<u8>) {
    let first = place.boot();
    for page in [3, 5, 100, 700] {
        write(&first.memory(), page * PAGE, format!("base {page}").as_bytes());
    }
    place.sleep(first);
    let live = place.wake().unwrap();
    let mut memory = fs::read(live.memory()).unwrap();
    leave_layer(&live, &mut memory, &[(5, b"changed"), (100, b""), (400, b"new"), (401, b"")]);
    (live, memory)
}

/// As Firecracker's `Diff`: as long as memory, whole pages that were written to, holes elsewhere.
fn leave_layer(live: &Live, memory: &mut [u8], pages: &[(u64, &[u8])]) {
    live.clear_state().unwrap();
    let layer = File::create_new(live.layer()).unwrap();
    layer.set_len(memory.len() as u64).unwrap();
    for (page, text) in pages {
        let mut bytes = [0; PAGE as usize];
        bytes[..text.len()].copy_from_slice(text);
        layer.write_all_at(&bytes, page * PAGE).unwrap();
        memory[(page * PAGE) as usize..][..PAGE as usize].copy_from_slice(&bytes);
    }
}

pub(super) fn settle(place: &Place, live: &Live) -> Settled {
    place.settle_by(live, SavedMemory::Layer, unknown(), &Progress::new()).unwrap()
}

pub(super) fn is_merged(live: &Live, memory: &[u8]) {
    assert!(fs::read(live.memory()).unwrap() == memory, "the memory is another");
    for gone in [live.path().join(LAYER_MAP), journal_path(live.path().join(MAP)), live.layer()] {
        assert!(!gone.exists(), "{} is left", gone.display());
    }
    assert_eq!(fs::read(live.state()).unwrap(), SAVED);
    verified(live);
}

#[test]
fn a_layer_is_merged_when_it_is_consumed_and_not_before() {
    let place = Place::new();
    let (live, memory) = layered(&place);
    let file = |path: &Path| {
        let metadata = fs::metadata(path).unwrap();
        (metadata.ino(), metadata.modified().unwrap(), fs::read(path).unwrap())
    };
    let base = file(&live.memory());
    let settled = settle(&place, &live);
    assert!(settled.written_bytes >= 4 * PAGE, "{settled:?}");
    assert!(file(&live.memory()) == base, "it is mapped, and was written to");
    assert_eq!(place.dir.publish(live).unwrap().generation, Generation(2));
    assert!(file(&place.path("gen-2").join(MEMORY)) == base, "a visitor waits for the publishing");

    let live = place.wake().unwrap();
    is_merged(&live, &memory);
    let map = verified(&live);
    let state = |page| map.state(page).unwrap();
    assert_eq!([3, 5, 100, 400, 401].map(state), {
        use PageState::{Data, Zero};
        [Data, Data, Zero, Data, Zero]
    });
    assert!(matches!(place.consume(), Err(ImageRefusal::None)), "used twice");
}

#[test]
fn layers_follow_each_other() {
    let place = Place::new();
    let (live, mut memory) = layered(&place);
    settle(&place, &live);
    place.dir.publish(live).unwrap();
    for n in 0..3 {
        let live = place.wake().unwrap();
        is_merged(&live, &memory);
        let text = format!("life {n}");
        leave_layer(&live, &mut memory, &[(5, text.as_bytes()), (n + 500, b"more")]);
        settle(&place, &live);
        place.dir.publish(live).unwrap();
    }
    is_merged(&place.wake().unwrap(), &memory);
}

#[test]
fn a_merge_that_was_cut_off_comes_to_the_same() {
    let mut place = Place::new();
    let (live, memory) = layered(&place);
    settle(&place, &live);
    place.dir.publish(live).unwrap();
    let gen2 = place.path("gen-2");
    cut_off_amid_the_merge(&place, &gen2);
    assert!(!gen2.join(MAP).exists() && journal_path(gen2.join(MAP)).exists(), "not amid it");
    place.crash();
    is_merged(&place.wake().unwrap(), &memory);
}

/// Has the merge fail at its first write to the memory, and leaves what it left.
fn cut_off_amid_the_merge(place: &Place, directory: &Path) {
    let (memory, kept) = (directory.join(MEMORY), directory.join("kept"));
    let sealed = File::from(memfd_create("memory", MemfdFlags::ALLOW_SEALING).unwrap());
    sealed.write_all_at(&fs::read(&memory).unwrap(), 0).unwrap();
    fcntl_add_seals(&sealed, SealFlags::WRITE).unwrap();
    fs::rename(&memory, &kept).unwrap();
    let link = format!("/proc/self/fd/{}", sealed.as_raw_fd());
    std::os::unix::fs::symlink(link, &memory).unwrap();
    let refusal = place.consume().unwrap_err();
    assert_eq!(refusal.reason(), "merge", "{refusal}");
    fs::rename(&kept, &memory).unwrap();
}

#[test]
fn a_merge_that_was_done_and_not_noted_is_done() {
    let mut place = Place::new();
    let (live, memory) = layered(&place);
    settle(&place, &live);
    place.dir.publish(live).unwrap();
    let gen2 = place.path("gen-2");
    let over = Image::open(gen2.join(LAYER), gen2.join(LAYER_MAP)).unwrap();
    let (base, map) = (gen2.join(MEMORY), gen2.join(MAP));
    rouse_snapshot_format::merge_in_place(&base, &map, &[&over], &Work::default()).unwrap();
    drop(over);
    place.crash();
    is_merged(&place.wake().unwrap(), &memory);
}

#[test]
fn a_merge_that_is_given_up_leaves_nothing_to_the_next_life() {
    let place = Place::new();
    let (live, _) = layered(&place);
    settle(&place, &live);
    place.dir.publish(live).unwrap();
    cut_off_amid_the_merge(&place, &place.path("gen-2"));
    let live = place.boot();
    assert_eq!(names(live.path()), [DISK, DISK_ID, MEMORY]);
}

#[test]
fn a_sleep_with_a_layer_that_was_cut_off_is_finished() {
    let mut place = Place::new();
    let (live, memory) = layered(&place);
    settle(&place, &live);
    drop(live);
    place.crash();
    is_merged(&place.wake().unwrap(), &memory);
}

#[test]
fn a_layer_that_is_taken_back_is_no_image() {
    let mut place = Place::new();
    let (live, _) = layered(&place);
    settle(&place, &live);
    place.dir.undo().unwrap();
    drop(live);
    place.crash();
    assert!(matches!(place.consume(), Err(ImageRefusal::None)));
    assert_eq!(names(&place.path(LIVE)), [DISK, DISK_ID]);
}

#[test]
fn a_layer_that_is_damaged_is_refused() {
    type Spoil = (&'static str, fn(&Path));
    let spoils: [Spoil; 5] = [
        ("merge", |p| fs::remove_file(p.join(LAYER)).unwrap()),
        ("merge", |p| fs::remove_file(p.join(LAYER_MAP)).unwrap()),
        ("damaged", |p| write(&p.join(LAYER_MAP), 40, b"M")),
        ("merge", |p| write(&p.join(LAYER), 5 * PAGE, b"C")),
        // Below the layer, in a window that is written anew.
        ("merge", |p| write(&p.join(MEMORY), 3 * PAGE, b"B")),
    ];
    for (i, (reason, spoil)) in spoils.into_iter().enumerate() {
        let place = Place::new();
        let (live, _) = layered(&place);
        settle(&place, &live);
        place.dir.publish(live).unwrap();
        spoil(&place.path("gen-2"));
        let refusal = place.consume().unwrap_err();
        assert_eq!(refusal.reason(), reason, "spoil {i}: {refusal}");
        let live = place.boot();
        assert!(live.disk().is_some());
        assert_eq!(names(live.path()), [DISK, DISK_ID, MEMORY], "spoil {i}");
    }
}

#[test]
fn somebody_at_the_memory_below_is_waited_for() {
    let place = Place::new();
    let (live, memory) = layered(&place);
    settle(&place, &live);
    place.dir.publish(live).unwrap();
    let other = lock_exclusively(&place.path("gen-2").join(MEMORY)).unwrap().unwrap();
    assert_eq!(place.consume().unwrap_err().reason(), "busy");
    drop(other);
    is_merged(&place.wake().unwrap(), &memory);
}
