//! What is left of a fill that is cancelled at any point: no thread, no request.
//! Alone in its process, as it counts threads.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::sync::Arc;

use rouse_snapshot_format::{PackOptions, pack};
use rouse_transfer::{Fill, FillError, FillOptions, Layers, Patience, Remote};
use support::images::{Fixture, noise};
use support::{Fault, Memory, key};

/// Threads of fills that this process has.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<fs::DirEntry>| fs::read(task.ok()?.path().join("comm")).ok();
    tasks.filter_map(name).filter(|name| name.starts_with(b"rouse-fill")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fill_that_is_cancelled_or_dropped_leaves_no_thread_and_no_request() {
    let fixture = Fixture::new(noise(3000, 9, 3), &[4, 5]);
    let mut archive = Vec::new();
    let packed = pack(&fixture.image(), &mut archive, &PackOptions::default()).unwrap();
    let memory = Arc::new(Memory::new());
    memory.set(&key("a"), archive.into());
    for at in 0..12_u64 {
        memory.rule(|_| Fault::None);
        let patience = Patience::default();
        let (blake3, size) = (packed.index_blake3, packed.bytes);
        let remote = Remote::open(memory.clone(), key("a"), blake3, size, &patience).await.unwrap();
        let mut asked = 0;
        memory.rule(move |_| {
            asked += 1;
            if asked > 2 { Fault::Hang } else { Fault::None }
        });
        let file = fs::File::create(fixture.path(&format!("{at}.img"))).unwrap();
        let fill =
            Fill::start(Layers::new(vec![remote]).unwrap(), file, FillOptions::default()).unwrap();
        // A thread names itself once it runs.
        while threads() == 0 {
            tokio::task::yield_now().await;
        }
        while fill.metrics().written < at * 50_000 {
            tokio::task::yield_now().await;
        }
        if at % 3 == 0 {
            drop(fill);
        } else {
            fill.cancel();
            assert!(matches!(fill.whole().await, Err(FillError::Cancelled)));
            drop(fill);
        }
        // Whatever goes on would hold the store.
        while threads() > 0 || Arc::strong_count(&memory) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
