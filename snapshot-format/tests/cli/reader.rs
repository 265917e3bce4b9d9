//! `reader.py`, which knows `FORMAT.md` and nothing else, against the program.

use std::path::Path;
use std::process::Command;

use rouse_snapshot_format::{Image, Map, PackOptions, PageState, WorkingSet, pack};
use serde_json::Value;

use super::{Dir, needed};

/// What the reader says of `archive`, which it restores as `out`.
fn read(dir: &Dir, archive: &str, out: &str) -> Value {
    needed("python3");
    needed("zstd");
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("reader.py");
    let output = Command::new("python3")
        .arg(reader)
        .args([archive, out])
        .current_dir(dir.path("."))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{archive}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The reader and the program agree on an archive, byte for byte and word for word.
fn agree(dir: &Dir, name: &str) {
    let archive = format!("{name}.rsz");
    let said = read(dir, &archive, "by-reader.img");
    dir.good(&format!("unpack {archive} -o by-us.img --force"));
    assert!(dir.bytes("by-reader.img") == dir.bytes("by-us.img"), "{name}");
    let facts: Value =
        serde_json::from_str(&dir.good(&format!("inspect --json {archive}"))).unwrap();
    for key in ["image_id", "mem_size"] {
        assert_eq!(said[key], facts[key], "{name}");
    }
    for state in ["data", "zero", "parent"] {
        assert_eq!(said["pages"][state], facts["pages"][state], "{name}");
    }
    assert_eq!(said["frames"], facts["archive"]["frames"], "{name}");
    assert_eq!(said["working_set_frames"], facts["archive"]["working_set_frames"], "{name}");
}

#[test]
fn a_reader_by_the_document_alone_reads_our_archives() {
    let dir = Dir::new();
    dir.image("plain.img", 3000, (0..300).chain(2000..2010));
    dir.image("one.img", 1, [0]);
    dir.image("zeros.img", 100, []);
    dir.image("odd.img", 130, (0..130).step_by(3));
    // A last page that is cut short, and no page at all.
    let odd = dir.bytes("odd.img");
    std::fs::write(dir.path("odd.img"), &odd[..129 * 4096 + 7]).unwrap();
    std::fs::write(dir.path("empty.img"), []).unwrap();
    for name in ["plain", "one", "zeros", "odd", "empty"] {
        dir.good(&format!("sparsify {name}.img"));
        dir.good(&format!("pack {name}.img"));
        agree(&dir, name);
    }
}

#[test]
fn a_working_set_and_a_layer_are_read_too() {
    let dir = Dir::new();
    dir.image("base.img", 1000, 0..500);
    dir.image("new.img", 1000, (0..300).chain(400..640));
    dir.good("sparsify base.img");
    dir.good("sparsify new.img --window 64");
    dir.good("diff base.img new.img -o layer.img");
    dir.good("pack layer.img");
    agree(&dir, "layer");
    let layer = Map::open(dir.path("by-us.map")).unwrap();
    assert!(layer.counts().parent > 0 && layer.state(350) == Ok(PageState::Zero));

    let mut set = WorkingSet::new();
    set.record([30, 2, 7, 60], dir.map("new.map").window_size());
    let map = dir.map("new.map").with_working_set(set);
    let image = Image::with_map(dir.path("new.img"), map).unwrap();
    let out = std::fs::File::create(dir.path("new.rsz")).unwrap();
    pack(&image, out, &PackOptions::default()).unwrap();
    agree(&dir, "new");
    assert_eq!(read(&dir, "new.rsz", "again.img")["working_set_frames"], 3);
}

#[test]
fn the_reader_is_as_short_as_it_says() {
    let text = include_str!("../../reader.py");
    assert!(text.lines().count() <= 60, "{} lines", text.lines().count());
}
