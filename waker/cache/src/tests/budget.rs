use std::fs;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use super::*;
use crate::{Limit, NoRoom, PublishError, ReserveError, TakeError};

/// A process that has a descriptor as its input, and ends with this.
struct Holder(Child);

impl Holder {
    fn new(descriptor: OwnedFd) -> Self {
        let mut command = Command::new("sleep");
        command.arg("60").stdin(descriptor).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn no_room(error: ReserveError) -> NoRoom {
    match error {
        ReserveError::NoRoom(no_room) => no_room,
        error => panic!("{error}"),
    }
}

fn ids(cache: &Cache) -> Vec<ContentId> {
    cache.entries().iter().map(|entry| entry.id).collect()
}

#[test]
fn who_needs_room_displaces_the_least_recently_used() {
    let place = Place::new();
    let high = 300 << 10;
    let cache = place.open(budget(high, ENTRY), 0);
    for number in 1..=3 {
        drop(put(&cache, number, number * 1000));
    }
    drop(cache.get(&id(1), 4000));
    // One goes for the next, and no more.
    drop(put(&cache, 4, 100_000));
    assert_eq!(ids(&cache), [id(1), id(3), id(4)]);
    let stats = cache.stats();
    assert_eq!((stats.evictions, stats.ages.sum_ms), (1, 98_000));
    assert_eq!(stats.ages.counts[..3], [0, 1, 0]);
    assert!((DATA..2 * DATA).contains(&stats.evicted_bytes));
    assert!(occupied(&place.root()) <= high);
    // The rest is for the background: down to the low mark, a bounded number at once.
    let done = cache.evict(1, 100_000).unwrap();
    assert_eq!((done.entries, done.more), (1, true));
    assert_eq!(ids(&cache), [id(1), id(4)]);
    let done = cache.evict(9, 100_000).unwrap();
    assert_eq!((done.entries, done.more), (1, false));
    assert_eq!(ids(&cache), [id(4)]);
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
    // Below the high mark nothing goes until that is reached again.
    drop(put(&cache, 5, 100_000));
    assert_eq!(cache.evict(9, 100_000).unwrap(), Default::default());
}

#[test]
fn a_budget_that_shrank_over_a_restart_is_reached_by_eviction() {
    let place = Place::new();
    let cache = place.open(large(), 0);
    (1..=8).for_each(|number| drop(put(&cache, number, number)));
    drop(cache);
    let cache = place.open(budget(4 * ENTRY, 2 * ENTRY), 10);
    assert_eq!(cache.stats().entries, 8);
    cache.evict(99, 10).unwrap();
    assert_eq!(*ids(&cache).last().unwrap(), id(8));
    assert!(du(&place.root()) <= 2 * ENTRY);
}

#[test]
fn a_refusal_for_want_of_room_evicts_nothing_and_says_why() {
    let place = Place::new();
    let cache = place.open(budget(4 * ENTRY, ENTRY), 0);
    let pinned = put(&cache, 1, 1);
    drop(put(&cache, 2, 2));
    let refused = no_room(cache.reserve(4 * DATA, 3).unwrap_err());
    assert_eq!(refused.limit, Limit::Budget);
    assert!(refused.needed > 4 * DATA && refused.free < refused.needed, "{refused}");
    assert!((DATA..=ENTRY).contains(&refused.pinned), "{refused}");
    assert_eq!(ids(&cache), [id(1), id(2)]);
    assert_eq!((cache.stats().refused, cache.stats().reserved_bytes), (1, 0));
    drop(pinned);
    drop(cache.reserve(3 * DATA, 3).unwrap());
    assert_eq!(no_room(cache.reserve(u64::MAX, 3).unwrap_err()).pinned, 0);
}

#[test]
fn what_is_promised_to_drafts_is_not_promised_again() {
    let place = Place::new();
    let cache = place.open(budget(4 * ENTRY, ENTRY), 0);
    let mut one = cache.reserve(DATA, 0).unwrap();
    let two = cache.reserve(DATA, 0).unwrap();
    assert!(cache.reserve(2 * DATA, 0).is_err());
    one.grow(DATA / 4, 0).unwrap();
    assert!(one.grow(2 * DATA, 0).is_err());
    drop((one, two));
    assert_eq!(cache.stats().reserved_bytes, 0);
    drop(cache.reserve(2 * DATA, 0).unwrap());
    assert_eq!(names(&place.root()), [""; 0]);
}

#[test]
fn a_draft_that_outgrew_its_reservation_has_to_find_room_for_the_rest() {
    let place = Place::new();
    let cache = place.open(budget(3 * ENTRY, ENTRY), 0);
    let pinned = put(&cache, 1, 0);
    drop(put(&cache, 2, 0));
    let draft = cache.reserve(PAGE, 0).unwrap();
    fill(&draft, 3, 2 * DATA);
    drop(draft.publish(&id(3), 0).unwrap());
    assert_eq!(ids(&cache), [id(1), id(3)]);
    let draft = cache.reserve(PAGE, 0).unwrap();
    fill(&draft, 4, 4 * DATA);
    assert!(matches!(draft.publish(&id(4), 0), Err(PublishError::NoRoom(_))));
    check(&pinned, 1);
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
    assert_eq!(cache.stats().reserved_bytes, 0);
}

#[test]
fn what_the_file_system_has_not_is_refused() {
    let place = Place::new();
    let keep_free = 1 << 60;
    let cache = place.open(Budget::new(u64::MAX, 0, keep_free).unwrap(), 0);
    let refused = no_room(cache.reserve(DATA, 0).unwrap_err());
    assert_eq!((refused.limit, refused.free), (Limit::FileSystem, 0));
}

#[test]
fn a_lease_in_another_process_keeps_an_entry_over_a_restart() {
    let place = Place::new();
    let marks = budget(200 << 10, 0);
    let cache = place.open(marks, 0);
    let pinned = put(&cache, 1, 1);
    let lease = pinned.lease().unwrap();
    drop(pinned);
    drop(put(&cache, 2, 2));
    let vmm = Holder::new(lease);
    drop(cache);
    let cache = place.open(marks, 10);
    assert_eq!(cache.entries().iter().map(|entry| entry.pinned).collect::<Vec<_>>(), [true, false]);
    assert!(matches!(cache.take(&id(1)), Err(TakeError::Pinned(_))));
    drop(put(&cache, 3, 3));
    cache.evict(9, 10).unwrap();
    assert_eq!(ids(&cache), [id(1)]);
    let refused = no_room(cache.reserve(2 * DATA + DATA / 2, 10).unwrap_err());
    assert!((DATA..=ENTRY).contains(&refused.pinned), "{refused}");
    check(&cache.get(&id(1), 10).unwrap(), 1);
    // Spoilt and leased: not served, and there until the lease ends.
    fs::write(place.root().join(id(1).to_string()).join("vm.state"), "short").unwrap();
    assert!(cache.get(&id(1), 10).is_none());
    assert!(place.root().join(id(1).to_string()).exists());
    drop(cache);
    let cache = place.open(marks, 10);
    assert!(!cache.contains(&id(1)));
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
    assert!(cache.stats().allocated_bytes > DATA);
    drop(vmm);
    cache.evict(9, 10).unwrap();
    assert_eq!(names(&place.root()), [""; 0]);
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
}

#[test]
fn a_draft_that_another_process_writes_stays_over_a_restart_until_that_ends() {
    let place = Place::new();
    let cache = place.open(large(), 0);
    let draft = cache.reserve(DATA, 0).unwrap();
    fill(&draft, 1, DATA);
    let lease = draft.lease().unwrap();
    let writer = Holder::new(lease);
    // A crash runs no destructor; the descriptors go all the same.
    let kept = place.beside("kept");
    fs::rename(draft.path(), &kept).unwrap();
    let name = draft.path().to_owned();
    drop((draft, cache));
    fs::rename(&kept, &name).unwrap();
    let cache = place.open(large(), 0);
    assert!(name.exists());
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
    drop(writer);
    cache.evict(0, 0).unwrap();
    assert!(!name.exists());
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
}
