//! `inspect`.

use rouse_snapshot_format::{PAGE, WindowSize, WorkingSet};
use serde_json::{Value, json};

use super::Dir;

/// An image, its map with a working set, and its archive.
fn files() -> Dir {
    let dir = Dir::new();
    dir.image("memory.img", 1000, (0..20).chain([500]));
    dir.good("sparsify memory.img");
    let mut set = WorkingSet::new();
    set.record([7, 0], WindowSize::DEFAULT);
    dir.map("memory.map").with_working_set(set).write(dir.path("memory.map")).unwrap();
    dir.good("pack memory.img");
    dir
}

fn json(dir: &Dir, name: &str) -> Value {
    serde_json::from_str(&dir.good(&format!("inspect --json {name}"))).unwrap()
}

#[test]
fn files_are_known_by_what_is_in_them() {
    let dir = files();
    let id = dir.map("memory.map").image_id().to_hex();
    for (name, kind) in [("memory.map", "map"), ("memory.img", "image"), ("memory.rsz", "archive")]
    {
        let said = json(&dir, name);
        assert_eq!(said["kind"], kind);
        assert_eq!(said["path"], name);
        assert_eq!(said["image_id"], id);
        assert_eq!(said["mem_size"], 1000 * PAGE);
        assert_eq!(said["pages"], json!({"all": 1000, "data": 21, "zero": 979, "parent": 0}));
        assert_eq!(said["data_bytes"], 21 * PAGE);
        assert_eq!(said["data_runs"], 2);
        assert_eq!(said["windows_with_data"], 2);
        assert_eq!(said["checksums"], true);
        assert_eq!(said["working_set"]["order"], json!([7, 0]));
        assert_eq!(said["disk"].is_object(), kind == "image");
        assert_eq!(said["archive"].is_object(), kind == "archive");

        let text = dir.good(&format!("inspect {name}"));
        assert!(text.contains(&id) && text.contains("21 pages"), "{text}");
        // A pipe has no use for colours.
        assert!(!text.contains('\x1b'), "{text}");
    }
    let archive = &json(&dir, "memory.rsz")["archive"];
    assert_eq!(archive["bytes"], dir.bytes("memory.rsz").len());
    assert_eq!(archive["frames"], 2);
    assert_eq!(archive["working_set_frames"], 2);
    assert!(archive["largest_frame"]["bytes"].as_u64().unwrap() > 0);
    let disk = &json(&dir, "memory.img")["disk"];
    assert_eq!(disk["size"], 1000 * PAGE);

    // By any name.
    std::fs::rename(dir.path("memory.rsz"), dir.path("x.map")).unwrap();
    assert_eq!(json(&dir, "x.map")["kind"], "archive");
    std::fs::rename(dir.path("memory.map"), dir.path("m.img")).unwrap();
    assert_eq!(json(&dir, "m.img")["kind"], "map");
    dir.refused("inspect memory.img", 65, "--map");
    assert!(dir.good("inspect memory.img --map m.img").contains(&id));
}

#[test]
fn a_drawing_stands_for_itself() {
    let dir = files();
    assert_eq!(dir.good("inspect memory.img --svg picture.svg"), "");
    let svg = String::from_utf8(dir.bytes("picture.svg")).unwrap();
    assert!(
        svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.ends_with("</svg>\n")
    );
    assert!(svg.contains("memory.img") && !svg.contains("href"));
    let names = dir.names();
    dir.refused("inspect memory.img --svg picture.svg", 73, "--force");
    dir.refused("inspect memory.img --svg memory.img --force", 2, "another output");
    dir.good("inspect memory.map --svg picture.svg --force");
    assert_eq!(dir.names(), names);
}
