//! `rouse-snapshot` as scripts see it.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use rouse_snapshot_format::{ImageId, Map, PAGE, PageState, PageStates, WindowSize};

fn rouse_snapshot(args: &[&str], paths: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rouse-snapshot")).args(args).args(paths).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: &Output, code: i32, word: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.starts_with("rouse-snapshot: ") && text.contains(word), "{text}");
}

#[test]
fn sparsify_then_inspect() {
    let dir = tempfile::tempdir().unwrap();
    let (image, map) = (dir.path().join("memory.img"), dir.path().join("memory.map"));
    let mut bytes = vec![0; 100 * PAGE as usize + 1];
    bytes[5 * PAGE as usize] = 1;
    fs::write(&image, &bytes).unwrap();

    let text = stdout(&rouse_snapshot(&["sparsify", "--dry-run"], &[&image]));
    assert!(text.contains("1 pages of data, 100 of zeros"), "{text}");
    assert!(!map.exists());

    stdout(&rouse_snapshot(&["sparsify"], &[&image]));
    assert!(fs::read(&image).unwrap() == bytes);
    let written = Map::open(&map).unwrap();
    assert_eq!(written.state(5), Ok(PageState::Data));
    assert_eq!(written.counts().zero, 100);

    // Again, with data gone: the map is new, and the image is still itself.
    bytes[5 * PAGE as usize] = 0;
    fs::write(&image, &bytes).unwrap();
    stdout(&rouse_snapshot(&["sparsify", "--threads", "1"], &[&image]));
    let again = Map::open(&map).unwrap();
    assert_eq!(again.counts().data, 0);
    assert_eq!(again.image_id(), written.image_id());

    let json = stdout(&rouse_snapshot(&["inspect", "--json"], &[&map]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["image_id"], again.image_id().to_hex());
    assert_eq!(json["pages"]["zero"], 101);
    let text = stdout(&rouse_snapshot(&["inspect"], &[&map]));
    assert!(text.contains(&again.image_id().to_hex()) && text.contains("101 pages"), "{text}");
}

#[test]
fn refusals_have_their_codes() {
    let dir = tempfile::tempdir().unwrap();
    let (image, map) = (dir.path().join("memory.img"), dir.path().join("memory.map"));
    refused(&rouse_snapshot(&["inspect"], &[&map]), 1, "memory.map");
    refused(&rouse_snapshot(&["sparsify"], &[&image]), 1, "memory.img");
    fs::write(&image, [0; 10_000]).unwrap();
    refused(&rouse_snapshot(&["sparsify"], &[&map.with_extension("map")]), 1, "--map");

    let vm = File::open(&image).unwrap();
    vm.lock_shared().unwrap();
    refused(&rouse_snapshot(&["sparsify"], &[&image]), 75, "in use");
    vm.unlock().unwrap();

    // A broken map holds an id that would be lost, and a layer's holes are not zeros.
    fs::write(&map, "ROUSEMAP and no more").unwrap();
    refused(&rouse_snapshot(&["inspect"], &[&map]), 65, "cut short");
    refused(&rouse_snapshot(&["sparsify"], &[&image]), 65, "image id");
    let states = PageStates::all(10_000, PageState::Parent);
    let layer =
        Map::new(ImageId::random(), Some(ImageId::random()), WindowSize::DEFAULT, states).unwrap();
    layer.write(&map).unwrap();
    refused(&rouse_snapshot(&["sparsify"], &[&image]), 1, "layer");
    assert_eq!(Map::open(&map).unwrap(), layer);
}
