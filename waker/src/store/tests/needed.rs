//! What may go, and what comes in the place of what is spoilt.

use std::collections::BTreeSet;

use super::*;

/// All objects of the app, by what they are called.
fn objects(world: &World) -> BTreeSet<String> {
    let root = world.root.path().join("store/apps/hello");
    let mut found = BTreeSet::new();
    let mut dirs = vec![root.clone()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                found.insert(path.strip_prefix(&root).unwrap().to_string_lossy().into_owned());
            }
        }
    }
    found
}

#[tokio::test]
async fn only_what_kept_generations_need_is_kept_and_all_of_that() {
    let mut world = World::new();
    world.keep = 2;
    let a = world.node("a");
    for value in 1..12_u8 {
        a.live_once("hello", value).await;
        a.free("hello").await;
        let (reference, _) = a.node.read(&app("hello"), &Asked::default()).await.unwrap().unwrap();
        let at = app_key(&app("hello"));
        assert_eq!(reference.generations.len(), usize::from(value).min(3));
        let mut needed = BTreeSet::from(["ref.json@".to_owned()]);
        for stored in &reference.generations {
            let manifest =
                up::read_manifest(&a.node, &at, stored, &Asked::default()).await.unwrap();
            needed.insert(format!("{}/manifest.json@", stored.place()));
            needed.extend(manifest.places().map(|place| format!("{place}@")));
        }
        assert_eq!(objects(&world), needed, "after sleep {value}");
    }
}

#[tokio::test]
async fn a_spoilt_generation_gives_way_to_the_one_before() {
    let world = World::new();
    let a = world.node("a");
    a.live_once("hello", 1).await;
    a.free("hello").await;
    let before = objects(&world);
    a.live_once("hello", 2).await;
    a.free("hello").await;
    // What only the second needs.
    let root = world.root.path().join("store/apps/hello");
    for (number, object) in objects(&world).difference(&before).enumerate() {
        let path = root.join(object);
        let bytes = fs::read(&path).unwrap();
        let mut spoilt = bytes.clone();
        let middle = spoilt.len() / 3;
        spoilt[middle] ^= 1;
        fs::write(&path, &spoilt).unwrap();
        let b = world.node(&format!("b{number}"));
        let fetched = b.take("hello").await.unwrap().expect("one is whole");
        assert_eq!(fetched.generation, Generation(1), "{object} is spoilt");
        let live = b.begin("hello");
        assert_eq!(check(&live), 1, "{object} is spoilt");
        // Given back, as if it had never been taken.
        fs::write(&path, bytes).unwrap();
        let (reference, version) =
            b.node.read(&app("hello"), &Asked::default()).await.unwrap().unwrap();
        let free = Reference { turn: Turn::Free, ..reference };
        b.node.write(&free, Some(&version), &Asked::default()).await.unwrap();
    }
    let c = world.node("c");
    assert_eq!(c.live_once("hello", 3).await, 2, "and nothing else was wrong");
}

#[tokio::test]
async fn a_reference_or_a_manifest_that_is_none_is_told_with_its_place() {
    let world = World::new();
    let a = world.node("a");
    a.live_once("hello", 1).await;
    a.free("hello").await;
    let key = Key::new("apps/hello/ref.json").unwrap();
    for wrong in [&b"{"[..], b"[]", b"{\"format\":2}"] {
        world.store.put(&key, wrong.to_vec().into(), Condition::Always).await.unwrap();
        let b = world.node("b");
        let refused = b.take("hello").await.unwrap_err().to_string();
        assert!(refused.contains("apps/hello/ref.json"), "{refused}");
    }
}
