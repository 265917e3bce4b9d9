use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;

use super::*;
use crate::fault;

/// Every point there is. A test that passes another is to be told here.
const POINTS: [&str; 14] = [
    "draft-made",
    "draft-locked",
    "file-synced",
    "recorded",
    "draft-synced",
    "renamed",
    "published",
    "set-aside",
    "remove",
    "record-removed",
    "removed",
    "taken",
    "taken-synced",
    "stripped",
];

/// Ends the hook with the test.
struct Hooked;

impl Hooked {
    fn new(hook: impl FnMut(&'static str) -> io::Result<()> + 'static) -> Self {
        fault::set(Some(Box::new(hook)));
        Self
    }
}

impl Drop for Hooked {
    fn drop(&mut self) {
        fault::set(None);
    }
}

/// All that the cache does: 3 displaces 1, 2 is taken and moved away, a draft is given up. Ends at the
/// first error.
fn life(cache: &Cache, to: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let draft = cache.reserve(DATA + PAGE, 3)?;
    fill(&draft, 3, DATA);
    drop(draft.publish(&id(3), 3)?);
    let mut taken = cache.take(&id(2))?;
    taken.move_to(to)?;
    drop(taken);
    let draft = cache.reserve(DATA, 4)?;
    fill(&draft, 4, DATA);
    drop(draft);
    Ok(())
}

fn marks() -> Budget {
    budget(200 << 10, 2 * ENTRY)
}

/// Panics unless every entry is whole or gone, nothing else is there, and the reckoning is right.
fn check_all(cache: &Cache, what: &str) {
    let mut expected = Vec::new();
    for number in 1..=4 {
        if cache.contains(&id(number)) {
            check(&cache.get(&id(number), 9).unwrap(), number);
            expected.push(id(number).to_string());
        }
    }
    assert_eq!(names(cache.path()), expected, "{what}");
    assert_eq!(cache.stats().allocated_bytes, du(cache.path()), "{what}");
    assert_eq!(cache.stats().reserved_bytes, 0, "{what}");
}

#[test]
fn after_a_crash_at_any_point_an_entry_is_whole_or_gone() {
    let place = Place::new();
    let cache = place.open(marks(), 0);
    (1..=2).for_each(|number| drop(put(&cache, number, number)));
    let seen = Rc::new(RefCell::new(Vec::new()));
    let hooked = {
        let (seen, root, beside) = (seen.clone(), place.root(), place.beside("crash"));
        Hooked::new(move |point| {
            let mut seen = seen.borrow_mut();
            let copy = beside.with_extension(seen.len().to_string());
            let copied = Command::new("cp").arg("-a").arg(&root).arg(&copy).status()?;
            assert!(copied.success());
            seen.push((point, copy));
            Ok(())
        })
    };
    life(&cache, &place.beside("app")).unwrap();
    drop(hooked);
    check_all(&cache, "at the end");
    check_memory(&File::open(place.beside("app").join("memory.img")).unwrap(), 2);
    assert_eq!(names(&place.beside("app")), ["memory.img", "vm.state"]);

    let seen = seen.take();
    let points: BTreeSet<_> = seen.iter().map(|(point, _)| *point).collect();
    let all: BTreeSet<_> = POINTS.into_iter().chain(["moved"]).collect();
    assert_eq!(points, all, "points that no test passes");
    let (mut published, mut taken, mut undone) = (false, false, 0);
    for (point, copy) in seen {
        published |= point == "renamed";
        taken |= point == "taken";
        if point == "record-removed"
            && let Some(trash) = names(&copy).iter().find(|name| name.starts_with(".trash"))
        {
            // The removals reached the disk, the rename before them did not.
            fs::rename(copy.join(trash), copy.join(id(1).to_string())).unwrap();
            undone += 1;
        }
        let cache = Cache::open(&copy, marks(), 9).unwrap();
        check_all(&cache, point);
        assert!(undone == 0 || !cache.contains(&id(1)), "{point}");
        assert_eq!(cache.contains(&id(3)), published, "{point}");
        assert_eq!(cache.contains(&id(2)), !taken, "{point}");
    }
    assert_eq!(undone, 1);
}

#[test]
fn after_an_error_at_any_point_an_entry_is_whole_or_gone_and_the_cache_goes_on() {
    for failing in POINTS {
        let place = Place::new();
        let cache = place.open(marks(), 0);
        (1..=2).for_each(|number| drop(put(&cache, number, number)));
        let hooked = Hooked::new(move |point| match point == failing {
            true => Err(io::Error::from_raw_os_error(5)),
            false => Ok(()),
        });
        let ended = life(&cache, &place.beside("app"));
        drop(hooked);
        let garbage = ["remove", "record-removed", "removed"].contains(&failing);
        assert!(ended.is_err() || garbage, "{failing} is passed over in silence");
        cache.evict(0, 9).unwrap();
        check_all(&cache, failing);
        drop(put(&cache, 4, 9));
        check_all(&cache, failing);
        drop(cache);
        check_all(&place.open(marks(), 9), failing);
    }
}

#[test]
fn what_crashes_left_by_hand_is_removed() {
    let place = Place::new();
    drop(put(&place.open(marks(), 0), 1, 1));
    let whole = place.root().join(id(1).to_string());
    for name in [".draft-1", ".trash-77", ".taken-3"] {
        let left = Command::new("cp").arg("-a").arg(&whole).arg(place.root().join(name)).status();
        assert!(left.unwrap().success());
    }
    // Made, and not even locked; and with something in it that nobody expects there.
    fs::create_dir(place.root().join(".draft-9")).unwrap();
    fs::create_dir_all(place.root().join(".trash-18446744073709551615/entry.json/deep")).unwrap();
    std::os::unix::fs::symlink(&whole, place.root().join(".trash-77/link")).unwrap();
    let cache = place.open(marks(), 9);
    assert!(cache.contains(&id(1)));
    check_all(&cache, "by hand");
    drop(put(&cache, 2, 9));
    check_all(&cache, "by hand");
}
