//! Every input that fuzzing has found worth keeping, without a fuzzer. `./dev fuzz` finds more.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::panic;
use std::path::Path;

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the fuzzer's library, of which only the targets are run"
)]
#[path = "../fuzz/src/lib.rs"]
mod targets;

/// How many inputs a target may keep, and of how many bytes in all. With more, it is time for
/// `cargo fuzz cmin`.
const MAX_FILES: usize = 200;
const MAX_BYTES: usize = 500_000;

fn replay(target: &str) {
    let (_, run) = targets::TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let inputs: Vec<_> = paths.into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect();
    assert!(inputs.iter().any(|(_, path)| path.to_string_lossy().contains("seed-")), "no seeds");
    let bytes: usize = inputs.iter().map(|(bytes, _)| bytes.len()).sum();
    assert!(inputs.len() <= MAX_FILES, "{} files", inputs.len());
    assert!(bytes <= MAX_BYTES, "{bytes} bytes");

    let failed: Vec<_> = inputs
        .into_iter()
        .filter(|(bytes, _)| panic::catch_unwind(|| run(bytes)).is_err())
        .map(|(_, path)| path)
        .collect();
    assert!(failed.is_empty(), "these inputs fail: {failed:#?}");
}

#[test]
fn maps() {
    replay("map");
}

#[test]
fn archives() {
    replay("archive");
}

#[test]
fn frames() {
    replay("frame");
}

#[test]
fn merges() {
    replay("merge");
}
