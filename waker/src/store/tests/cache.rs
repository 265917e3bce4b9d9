//! Many apps over a cache for few.

use super::*;

const APPS: usize = 50;

fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let own = fs::symlink_metadata(&path).map_or(0, |m| m.blocks() * 512);
            if path.is_dir() { own + allocated(&path) } else { own }
        })
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_apps_over_a_cache_for_ten() {
    let world = World::new();
    // An image with its disk has some 300 KiB, and entries have directories and records.
    let a = world.node_with("a", Some(10 * (420 << 10)));
    let cache = a.node.cache().unwrap().clone();
    let mut values = [0_u8; APPS];
    let mut dice = 7_u64;
    let (mut hits, mut fetches, mut value) = (0, 0, 0_u8);
    for step in 0..220 {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        // Each once, then some of them often.
        let number = match step {
            0..APPS => step,
            _ if !dice.is_multiple_of(4) => (dice >> 8) as usize % 6,
            _ => (dice >> 8) as usize % APPS,
        };
        let name = format!("app{number}");
        let taken = a.take(&name).await.unwrap();
        if step >= APPS {
            match &taken.as_ref().expect("nothing is left in the app's directory").cost {
                None => hits += 1,
                Some(_) => fetches += 1,
            }
        }
        let live = a.begin(&name);
        assert_eq!(check(&live), values[number], "{name} at step {step}");
        value = value.wrapping_add(1).max(1);
        write(&live, value);
        values[number] = value;
        a.end(&name, live);
        a.free(&name).await;
        let there = allocated(cache.path());
        assert!(there <= cache.budget().high(), "{there} bytes at step {step}");
    }
    let stats = cache.stats();
    assert!(hits > 80, "what is used often is there: {hits} hits, {fetches} fetches: {stats:?}");
    assert!(fetches > 20 && stats.evictions > 50, "{fetches} fetches: {stats:?}");
    assert_eq!((stats.hits, stats.taken, stats.discarded), (hits, hits, 0));
    assert!((5..=14).contains(&stats.entries), "{stats:?}");
}

#[tokio::test]
async fn an_image_waits_where_it_is_asked_to_and_is_whole_after_a_restart() {
    let world = World::new();
    let a = world.node("a");
    a.live_once("hello", 5).await;
    let b = world.node_with("b", Some(16 << 20));
    let early = b.node.prewarm(&app("hello")).await;
    assert!(matches!(early, Err(PrewarmError::Held(_))), "{early:?}");
    a.free("hello").await;
    let warmed = b.node.prewarm(&app("hello")).await.unwrap();
    assert!(!warmed.was_there && warmed.bytes > 0, "{warmed:?}");
    assert!(b.node.prewarm(&app("hello")).await.unwrap().was_there);
    drop(b);
    let b = world.node_with("b", Some(16 << 20));
    let fetched = b.take("hello").await.unwrap().expect("it was not here");
    assert!(fetched.cost.is_none(), "from the cache: {fetched:?}");
    assert_eq!(fetched.key, a.dir("hello").key().unwrap(), "with the key of where it slept");
    assert_eq!(b.live_once("hello", 6).await, 5);
    let none = world.node("c").node.prewarm(&app("hello")).await;
    assert!(matches!(none, Err(PrewarmError::NoCache)), "{none:?}");
    let nothing = b.node.prewarm(&app("other")).await;
    assert!(matches!(nothing, Err(PrewarmError::Nothing)), "{nothing:?}");
}

#[tokio::test]
async fn one_that_is_in_use_is_not_taken_from_its_user() {
    let world = World::new();
    let a = world.node_with("a", Some(16 << 20));
    a.live_once("hello", 5).await;
    a.free("hello").await;
    let cache = a.node.cache().unwrap();
    let entry = cache.entries().remove(0);
    let pinned = cache.get(&entry.id, 9).expect("it is there");
    let fetched = a.take("hello").await.unwrap().expect("from the store then");
    assert!(fetched.cost.is_some(), "{fetched:?}");
    assert!(pinned.open("memory.img").is_ok(), "and it is still there");
}

#[tokio::test]
async fn where_there_is_no_room_it_is_in_the_store_alone() {
    let world = World::new();
    let a = world.node_with("a", Some(64 << 10));
    a.live_once("hello", 5).await;
    a.free("hello").await;
    assert_eq!(a.node.cache().unwrap().stats().entries, 0);
    assert_eq!(a.dir("hello").local().unwrap(), Local::Nothing, "nor is it here");
    assert_eq!(a.live_once("hello", 6).await, 5);
}
