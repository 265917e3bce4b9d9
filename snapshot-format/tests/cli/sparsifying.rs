//! `sparsify`.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use rouse_snapshot_format::{ImageId, PAGE, PageState, WindowSize, WorkingSet};

use super::Dir;

#[test]
fn in_place_with_a_map_that_stays_itself() {
    let dir = Dir::new();
    dir.image("memory.img", 1000, [5, 700]);
    let bytes = dir.bytes("memory.img");
    let text = dir.good("sparsify --dry-run memory.img");
    assert!(text.contains("2 pages of data, 998 of zeros"), "{text}");
    assert_eq!(dir.names(), ["memory.img"]);

    dir.good("sparsify memory.img");
    assert!(dir.bytes("memory.img") == bytes);
    assert!(fs::metadata(dir.path("memory.img")).unwrap().blocks() * 512 < 500 * PAGE);
    let map = dir.map("memory.map");
    assert_eq!(map.state(5), Ok(PageState::Data));
    assert_eq!(map.counts().zero, 998);
    assert!(map.has_checksums());

    // Again, with data gone: the map is new, and the image is still itself, with its working set.
    let mut set = WorkingSet::new();
    set.record([2, 0], WindowSize::DEFAULT);
    map.clone().with_working_set(set.clone()).write(dir.path("memory.map")).unwrap();
    dir.image("memory.img", 1000, [700]);
    dir.good("sparsify --threads 1 --no-sync memory.img");
    let again = dir.map("memory.map");
    assert_eq!(again.counts().data, 1);
    assert_eq!(again.image_id(), map.image_id());
    assert_eq!(again.working_set(), &set);

    // Windows of another size have other numbers.
    dir.good("sparsify --window 64 memory.img");
    let other = dir.map("memory.map");
    assert_eq!(other.window_size(), WindowSize::MIN);
    assert!(other.working_set().is_empty());
    // And stay, unless something else is said.
    dir.good("sparsify memory.img");
    assert_eq!(dir.map("memory.map").window_size(), WindowSize::MIN);
}

#[test]
fn to_a_copy() {
    let dir = Dir::new();
    dir.image("memory.img", 1000, 10..20);
    let bytes = dir.bytes("memory.img");
    dir.good("sparsify memory.img -o copy.img --dry-run");
    assert_eq!(dir.names(), ["memory.img"]);
    dir.good("sparsify memory.img -o copy.img");
    assert!(dir.bytes("copy.img") == bytes && dir.bytes("memory.img") == bytes);
    assert_eq!(dir.map("copy.map").counts().data, 10);
    assert_eq!(dir.names(), ["copy.img", "copy.map", "memory.img"]);

    // The copy of an image that has a name has the same.
    dir.good("sparsify memory.img");
    dir.good("sparsify memory.img -o copy.img --force --map elsewhere.map --quiet");
    assert_eq!(dir.map("elsewhere.map").image_id(), dir.map("memory.map").image_id());
}

#[test]
fn a_map_that_holds_an_id_or_says_layer_is_no_trifle() {
    let dir = Dir::new();
    dir.image("memory.img", 100, [1]);
    dir.good("sparsify memory.img");
    let id = dir.map("memory.map").image_id();
    dir.damage("memory.map", 60);
    dir.refused("sparsify memory.img", 65, "image id");
    dir.good("sparsify memory.img --force");
    assert_ne!(dir.map("memory.map").image_id(), id);

    dir.image("new.img", 100, [1, 2]);
    dir.good("sparsify new.img");
    dir.good("diff memory.img new.img -o layer.img");
    let layer = (dir.bytes("layer.img"), dir.bytes("layer.map"));
    for force in ["", "--force", "-o copy.img"] {
        dir.refused(&format!("sparsify layer.img {force}"), 65, "merge it first");
    }
    assert!((dir.bytes("layer.img"), dir.bytes("layer.map")) == layer);
    assert!(dir.map("layer.map").parent().is_some_and(|parent: ImageId| parent != id));
}

#[test]
fn a_copy_takes_no_map_away_before_it_is_there() {
    let dir = Dir::new();
    dir.image("vm.img", 100, [1]);
    dir.image("old.img", 100, [2]);
    dir.good("sparsify vm.img");
    dir.good("sparsify old.img");
    let before = dir.files();
    // The map that the copy would have is the image's own.
    dir.refused("sparsify vm.img -o vm.sparse --force", 2, "what is read");
    dir.refused("sparsify vm.img -o old.img --map vm.map --force", 2, "what is read");
    let vm = File::open(dir.path("vm.img")).unwrap();
    vm.lock().unwrap();
    dir.refused("sparsify vm.img -o vm.sparse --force", 2, "what is read");
    dir.refused("sparsify vm.img -o old.img --force", 75, "in use");
    assert!(dir.files() == before);
    drop(vm);
    dir.good("sparsify vm.img -o old.img --force");
    assert!(dir.bytes("old.img") == dir.bytes("vm.img"));
    assert_eq!(dir.map("old.map"), dir.map("vm.map"));
}

#[test]
fn no_other_map_makes_a_whole_image_of_a_layer() {
    let dir = Dir::new();
    dir.image("a.img", 100, [1, 2]);
    dir.image("b.img", 100, [1, 3]);
    dir.good("sparsify a.img");
    dir.good("sparsify b.img");
    dir.good("diff a.img b.img -o layer.img");
    let before = dir.files();
    for line in [
        "sparsify layer.img --map x.map",
        "sparsify layer.img --map x.map --force",
        "sparsify layer.img --map b.map",
        "sparsify layer.img -o x.img --map x.map",
        "pack layer.img --map b.map -o x.rsz",
    ] {
        dir.refused(line, 65, "merge it first");
    }
    // Nor of one that is merged in part, wherever the journal is.
    for (journal, lines) in [
        ("a.map.merging", &["sparsify a.img --map x.map", "pack a.img --map b.map -o x.rsz"][..]),
        ("x.map.merging", &["sparsify a.img --map x.map", "pack a.img --map x.map -o x.rsz"]),
    ] {
        fs::write(dir.path(journal), "").unwrap();
        for line in lines {
            dir.refused(line, 65, "merge --in-place");
        }
        fs::remove_file(dir.path(journal)).unwrap();
    }
    assert!(dir.files() == before);
    // A layer is packed as what it is.
    dir.good("pack layer.img -o layer.rsz");
    dir.good("unpack layer.rsz -o again.img");
    assert_eq!(dir.map("again.map"), dir.map("layer.map"));
}

#[test]
fn a_map_that_would_lose_something_is_not_written_anew() {
    let dir = Dir::new();
    dir.image("a.img", 100, [1]);
    dir.good("sparsify a.img");
    dir.later("a.map");
    // Blocks that it would give back.
    dir.image("a.img", 100, [1]);
    let before = (dir.files(), fs::metadata(dir.path("a.img")).unwrap().blocks());
    dir.refused("sparsify a.img", 65, "features");
    dir.refused("sparsify a.img --force", 65, "features");
    assert!((dir.files(), fs::metadata(dir.path("a.img")).unwrap().blocks()) == before);
}

#[test]
fn the_map_of_an_image_of_another_size_gives_no_name() {
    let dir = Dir::new();
    dir.image("a.img", 100, [1]);
    dir.good("sparsify a.img");
    let id = dir.map("a.map").image_id();
    dir.image("a.img", 101, [1]);
    let before = dir.files();
    dir.refused("sparsify a.img", 65, "--force");
    dir.refused("sparsify a.img -o b.img", 65, "--force");
    assert!(dir.files() == before);
    dir.good("sparsify a.img --force");
    assert_ne!(dir.map("a.map").image_id(), id);
    dir.good("verify a.img");
}

#[test]
fn what_can_not_be_said_is_done_all_the_same() {
    let dir = Dir::new();
    dir.image("a.img", 100, [1]);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = dir.command("sparsify a.img").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(dir.map("a.map").counts().data, 1);
    dir.good("verify a.img");
}
