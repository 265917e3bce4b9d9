//! `sparsify`.

use std::fs;
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
