use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rand::RngExt as _;

use super::*;
use crate::{NoRoom, ReserveError, TakeError};

const THREADS: u64 = 8;
const ROUNDS: u64 = 150;
/// So many entries of about [`ENTRY`] have room.
const ROOM: u64 = 10;
const IDS: u64 = 30;

#[test]
fn eight_at_once_never_exceed_the_budget_lose_what_is_pinned_or_see_a_half_entry() {
    let place = Place::new();
    let high = ROOM * (DATA + PAGE + (33 << 10));
    let cache = place.open(budget(high, high / 2), 0);
    let (clock, over) = (AtomicU64::new(1), AtomicBool::new(false));
    let (got, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = |thread: u64| {
        let mut random = rand::rng();
        let mut kept: Vec<(u64, Pinned)> = Vec::new();
        for round in 0..ROUNDS {
            let now = clock.fetch_add(1, Ordering::Relaxed);
            let number = random.random_range(0..IDS);
            match random.random_range(0..10) {
                0 => drop(cache.evict(2, now).unwrap()),
                1 => match cache.take(&id(number)) {
                    Ok(mut taken) => {
                        let to = place.beside(&format!("taken-{thread}-{round}"));
                        taken.move_to(&to).unwrap();
                        drop(taken);
                        check_memory(&File::open(to.join("memory.img")).unwrap(), number);
                        fs::remove_dir_all(to).unwrap();
                    }
                    Err(TakeError::Absent(_) | TakeError::Pinned(_)) => {}
                    Err(error) => panic!("{error}"),
                },
                _ => match cache.get(&id(number), now) {
                    Some(pinned) => {
                        check(&pinned, number);
                        got.fetch_add(1, Ordering::Relaxed);
                        kept.push((number, pinned));
                    }
                    None => match cache.reserve(DATA + PAGE, now) {
                        Ok(draft) => {
                            fill(&draft, number, DATA);
                            let pinned = draft.publish(&id(number), now).unwrap();
                            check(&pinned, number);
                            kept.push((number, pinned));
                        }
                        Err(ReserveError::NoRoom(NoRoom { .. })) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error}"),
                    },
                },
            }
            // Each keeps one at most, so that there is mostly somebody to evict or to take.
            if kept.len() > random.random_range(0..2) {
                let (number, pinned) = kept.remove(0);
                check(&pinned, number);
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let work = &work;
                scope.spawn(move || work(thread))
            })
            .collect();
        // What du sees while names move may count a directory twice, but an inode only once.
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            let occupied = occupied(&place.root());
            if occupied > high {
                over.store(true, Ordering::Relaxed);
            }
        }
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    assert!(!over.load(Ordering::Relaxed), "over the high mark");
    let stats = cache.stats();
    assert!(got.load(Ordering::Relaxed) > 0 && stats.evictions > 0 && stats.taken > 0, "{stats:?}");
    assert_eq!(stats.refused, refused.load(Ordering::Relaxed));
    assert_eq!((stats.discarded, stats.reserved_bytes), (0, 0));
    assert_eq!(stats.allocated_bytes, du(&place.root()));
    assert!(names(&place.root()).iter().all(|name| !name.starts_with('.')));
}
