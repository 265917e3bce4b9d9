use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::{OpenError, PublishError};

#[test]
fn an_entry_is_found_again_after_a_restart_with_its_last_use() {
    let place = Place::new();
    let cache = place.open(large(), 1000);
    drop(put(&cache, 1, 1000));
    drop(put(&cache, 2, 2000));
    check(&cache.get(&id(1), 5000).unwrap(), 1);
    assert!(cache.get(&id(3), 5000).is_none());
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.published, stats.hits, stats.misses), (2, 2, 1, 1));
    drop(cache);
    let cache = place.open(large(), 9000);
    let uses: Vec<_> = cache.entries().iter().map(|entry| entry.last_use_unix_ms).collect();
    assert_eq!(uses, [5000, 2000]);
    check(&cache.get(&id(2), 9000).unwrap(), 2);
    drop(cache);
    // A clock that was ahead once.
    let uses: Vec<_> =
        place.open(large(), 3000).entries().iter().map(|entry| entry.last_use_unix_ms).collect();
    assert_eq!(uses, [3000, 3000]);
}

#[test]
fn what_is_reckoned_is_what_du_says() {
    let place = Place::new();
    let cache = place.open(large(), 0);
    for number in 1..60 {
        drop(put(&cache, number, number));
        assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
    }
    drop(cache.take(&id(7)).unwrap());
    assert_eq!(cache.stats().allocated_bytes, du(&place.root()));
    assert_eq!(occupied(&place.root()), du(&place.root()));
    drop(cache);
    assert_eq!(place.open(large(), 0).stats().allocated_bytes, du(&place.root()));
}

#[test]
fn only_one_has_the_cache_open() {
    let place = Place::new();
    let cache = place.open(large(), 0);
    assert!(matches!(Cache::open(&place.root(), large(), 0), Err(OpenError::InUse { .. })));
    // A pin keeps it open.
    let pinned = put(&cache, 1, 0);
    drop(cache);
    assert!(matches!(Cache::open(&place.root(), large(), 0), Err(OpenError::InUse { .. })));
    drop(pinned);
    place.open(large(), 0);
}

#[test]
fn directories_and_files_are_their_owners_alone() {
    let place = Place::new();
    let cache = place.open(large(), 0);
    let draft = cache.reserve(DATA, 0).unwrap();
    fs::write(draft.path().join("disk.img"), "by path").unwrap();
    fs::set_permissions(draft.path().join("disk.img"), fs::Permissions::from_mode(0o644)).unwrap();
    fill(&draft, 1, PAGE);
    drop(draft.publish(&id(1), 0).unwrap());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let entry = place.root().join(id(1).to_string());
    assert_eq!((mode(&place.root()), mode(&entry)), (0o700, 0o700));
    for name in ["disk.img", "memory.img", "vm.state", "lock", "entry.json"] {
        assert_eq!(mode(&entry.join(name)), 0o600, "{name}");
    }
}

#[test]
fn what_is_not_the_caches_is_left_alone() {
    let place = Place::new();
    drop(place.open(large(), 0));
    let outside = place.beside("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("entry.json"), "{}").unwrap();
    let foreign = ["notes.txt", "lost+found", ".draft-x", &id(1).to_string(), &id(2).to_string()];
    fs::write(place.root().join(foreign[0]), "mine").unwrap();
    fs::create_dir(place.root().join(foreign[1])).unwrap();
    fs::create_dir(place.root().join(foreign[2])).unwrap();
    symlink(&outside, place.root().join(foreign[3])).unwrap();
    fs::write(place.root().join(foreign[4]), "no directory").unwrap();
    symlink(&outside, place.root().join(".trash-18446744073709551615")).unwrap();
    let cache = place.open(large(), 0);
    assert_eq!(cache.stats().entries, 0);
    for number in [1, 2] {
        let draft = cache.reserve(DATA, 0).unwrap();
        fill(&draft, number, PAGE);
        let refused = draft.publish(&id(number), 0).unwrap_err();
        assert!(matches!(refused, PublishError::Occupied { .. }), "{refused}");
    }
    assert_eq!(names(&place.root()).len(), foreign.len() + 1);
    assert!(outside.join("entry.json").exists());
}

#[test]
fn a_cache_behind_a_symbolic_link_is_refused() {
    let place = Place::new();
    fs::create_dir(place.beside("real")).unwrap();
    symlink(place.beside("real"), place.root()).unwrap();
    assert!(matches!(Cache::open(&place.root(), large(), 0), Err(OpenError::File { .. })));
}

#[test]
fn a_draft_with_something_else_than_plain_files_is_refused() {
    let place = Place::new();
    let cache = place.open(large(), 0);
    fs::write(place.beside("secret"), "secret").unwrap();
    let spoil: [fn(&Path, &Path); 4] = [
        |draft, secret| symlink(secret, draft.join("disk.img")).unwrap(),
        |draft, _| fs::create_dir(draft.join("disk.img")).unwrap(),
        |draft, _| fs::write(draft.join("Disk.img"), "").unwrap(),
        |draft, _| (0..16).for_each(|n| fs::write(draft.join(format!("f{n}")), "").unwrap()),
    ];
    for spoil in spoil {
        let draft = cache.reserve(DATA, 0).unwrap();
        fill(&draft, 1, PAGE);
        spoil(draft.path(), &place.beside("secret"));
        let refused = draft.publish(&id(1), 0).unwrap_err();
        assert!(matches!(refused, PublishError::Unfit { .. }), "{refused}");
    }
    let empty = cache.reserve(DATA, 0).unwrap();
    assert!(matches!(empty.publish(&id(1), 0), Err(PublishError::Unfit { what: "no file", .. })));
    let draft = cache.reserve(DATA, 0).unwrap();
    for name in ["", ".x", "entry.json", "lock", "a/b", "..", "A", &"x".repeat(65)] {
        assert!(draft.create(name).is_err(), "{name:?}");
    }
    drop(draft);
    assert_eq!(names(&place.root()), [""; 0]);
    assert_eq!(cache.stats().reserved_bytes, 0);
}

/// One way to spoil an entry's directory.
type Spoil = fn(&Path);

const SPOILS: [(&str, Spoil); 10] = [
    ("no record", |entry| fs::remove_file(entry.join("entry.json")).unwrap()),
    ("an empty record", |entry| fs::write(entry.join("entry.json"), "").unwrap()),
    ("another format", |entry| {
        let text = fs::read_to_string(entry.join("entry.json")).unwrap();
        let text = text.replace("\"format\":1", "\"format\":2");
        fs::remove_file(entry.join("entry.json")).unwrap();
        fs::write(entry.join("entry.json"), text).unwrap();
    }),
    ("a record without end", |entry| {
        fs::write(entry.join("entry.json"), " ".repeat(1 << 20)).unwrap();
    }),
    ("a file is missing", |entry| fs::remove_file(entry.join("vm.state")).unwrap()),
    ("a file is short", |entry| {
        fs::write(entry.join("vm.state"), "short").unwrap();
    }),
    ("a file is a link", |entry| {
        fs::remove_file(entry.join("vm.state")).unwrap();
        symlink("memory.img", entry.join("vm.state")).unwrap();
    }),
    ("the record is a directory", |entry| {
        fs::remove_file(entry.join("entry.json")).unwrap();
        fs::create_dir(entry.join("entry.json")).unwrap();
    }),
    ("all is gone", |entry| fs::remove_dir_all(entry).unwrap()),
    ("the record names a path", |entry| {
        let text = fs::read_to_string(entry.join("entry.json")).unwrap();
        let text = text.replace("vm.state", "../../xx");
        fs::remove_file(entry.join("entry.json")).unwrap();
        fs::write(entry.join("entry.json"), text).unwrap();
    }),
];

#[test]
fn an_entry_that_differs_from_its_record_goes_and_is_never_served() {
    for restarted in [false, true] {
        for (what, spoil) in SPOILS {
            let place = Place::new();
            let mut cache = place.open(large(), 0);
            drop(put(&cache, 1, 0));
            drop(put(&cache, 2, 0));
            let entry = place.root().join(id(1).to_string());
            if restarted {
                drop(cache);
                spoil(&entry);
                cache = place.open(large(), 0);
            } else {
                spoil(&entry);
            }
            assert!(cache.get(&id(1), 0).is_none(), "{what}");
            assert!(!cache.contains(&id(1)), "{what}");
            assert_eq!(names(&place.root()), [id(2).to_string()], "{what}");
            assert_eq!(cache.stats().allocated_bytes, du(&place.root()), "{what}");
            check(&put(&cache, 1, 0), 1);
            check(&cache.get(&id(2), 0).unwrap(), 2);
        }
    }
}

#[test]
fn a_file_or_a_lock_that_was_added_or_removed_while_closed_spoils_an_entry() {
    let spoils: [Spoil; 3] = [
        |entry| fs::write(entry.join("more"), "").unwrap(),
        |entry| fs::remove_file(entry.join("lock")).unwrap(),
        |entry| (0..100).for_each(|n| fs::write(entry.join(n.to_string()), "").unwrap()),
    ];
    for spoil in spoils {
        let place = Place::new();
        drop(put(&place.open(large(), 0), 1, 0));
        spoil(&place.root().join(id(1).to_string()));
        assert!(!place.open(large(), 0).contains(&id(1)));
        assert_eq!(names(&place.root()), [""; 0]);
    }
}

#[test]
fn the_second_to_publish_an_id_gets_the_entry_of_the_first() {
    let place = Place::new();
    let cache = place.open(large(), 0);
    let second = cache.reserve(DATA, 0).unwrap();
    let first = put(&cache, 1, 0);
    fill(&second, 1, PAGE);
    let again = second.publish(&id(1), 7).unwrap();
    assert_eq!(again.path("memory.img"), first.path("memory.img"));
    check(&again, 1);
    assert_eq!(names(&place.root()), [id(1).to_string()]);
    assert_eq!((cache.stats().published, cache.stats().reserved_bytes), (1, 0));
}
