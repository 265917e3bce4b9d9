//! What is measured within this process: the memory's bandwidth, and how fast a map opens.

use std::hint::black_box;
use std::path::Path;
use std::thread;
use std::time::Instant;

use anyhow::Context;
use rouse_snapshot_format::Map;

use crate::stats::median;

/// What is summed up, in bytes: larger than the caches of any machine that one measures on.
const BUFFER: usize = 1 << 30;
/// How often a map is opened.
const OPENINGS: usize = 200;

/// How fast all cores together read memory, in bytes per second.
pub(super) fn bandwidth() -> f64 {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    // Not zeros, which the kernel would have one page for.
    let buffer = vec![1_u64; BUFFER / size_of::<u64>()];
    let start = Instant::now();
    thread::scope(|scope| {
        for part in buffer.chunks(buffer.len().div_ceil(threads)) {
            scope
                .spawn(|| black_box(part.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word))));
        }
    });
    BUFFER as f64 / start.elapsed().as_secs_f64()
}

/// How long it takes to open a map, from its path to a checked [`Map`]: the median, in
/// milliseconds.
pub(super) fn map_open(path: &Path) -> anyhow::Result<f64> {
    let mut took = Vec::with_capacity(OPENINGS);
    for _ in 0..OPENINGS {
        let start = Instant::now();
        let map = Map::open(path).with_context(|| path.display().to_string())?;
        took.push(start.elapsed().as_secs_f64() * 1e3);
        black_box(map);
    }
    median(&took).context("no openings")
}
