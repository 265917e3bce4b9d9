//! What is in the file after a fill, whatever happened on the way.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rouse_snapshot_format::{Image, PackOptions, Packed, pack};
use rouse_store::StoreError;
use rouse_transfer::{Fill, FillError, FillOptions, Layers, Patience, Remote};
use support::images::{Fixture, noise};
use support::{Call, Fault, Memory, key, throttled, unavailable};

const OPTIONS: FillOptions = FillOptions {
    patience: Patience {
        tries: 30,
        time: Duration::from_secs(60),
        first: Duration::from_millis(1),
        most: Duration::from_millis(4),
    },
    stall: Duration::from_secs(20),
    hedge_after: Duration::from_millis(50),
};

struct Case {
    fixture: Fixture,
    memory: Arc<Memory>,
    packed: Packed,
}

impl Case {
    fn new(fixture: Fixture) -> Self {
        let mut archive = Vec::new();
        let packed = pack(&fixture.image(), &mut archive, &PackOptions::default()).unwrap();
        let memory = Arc::new(Memory::new());
        memory.set(&key("a"), archive.into());
        Self { fixture, memory, packed }
    }

    async fn remote(&self) -> Remote {
        let Packed { bytes, index_blake3, .. } = self.packed;
        let patience = OPTIONS.patience;
        Remote::open(self.memory.clone(), key("a"), index_blake3, bytes, &patience).await.unwrap()
    }

    fn file(&self) -> File {
        self.fixture.file_to_fill()
    }

    /// Opens it, and fills the file by this rule.
    async fn fill(&self, rule: impl FnMut(&Call) -> Fault + Send + 'static) -> Fill {
        let remote = self.remote().await;
        self.memory.forget_calls();
        self.memory.rule(rule);
        Fill::start(Layers::new(vec![remote]).unwrap(), self.file(), OPTIONS).unwrap()
    }

    fn filled(&self) -> Vec<u8> {
        fs::read(self.fixture.path("filled.img")).unwrap()
    }

    fn window(&self, window: u64) -> Vec<u8> {
        let bytes = self.fixture.map.window_bytes(window);
        self.fixture.bytes[bytes.start as usize..bytes.end as usize].to_vec()
    }

    fn check_whole(&self) {
        assert!(self.filled() == self.fixture.bytes, "other bytes");
        let allocated = fs::metadata(self.fixture.path("filled.img")).unwrap().blocks() * 512;
        // What a file system takes for its own book-keeping is little.
        assert!(allocated <= self.fixture.map.counts().data * 4096 + (128 << 10), "{allocated}");
    }
}

fn dice(seed: u64) -> impl FnMut(u64) -> u64 + Send + 'static {
    let mut x = seed | 1;
    move |of| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 11) % of
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_working_set_lands_and_then_the_rest_in_few_requests_and_bounded_memory() {
    let case = Case::new(Fixture::new(noise(24_000, 20, 3), &[300, 7, 8]));
    let fill = case.fill(|_| Fault::None).await;
    fill.working_set().await.unwrap();
    let file = File::open(case.fixture.path("filled.img")).unwrap();
    for window in [300, 7, 8] {
        let wanted = case.window(window);
        let mut there = vec![0; wanted.len()];
        file.read_exact_at(&mut there, window * (64 << 10)).unwrap();
        assert!(there == wanted);
    }
    fill.whole().await.unwrap();
    case.check_whole();
    let metrics = fill.metrics();
    assert_eq!(metrics.written, case.fixture.map.counts().data * 4096);
    assert!(metrics.most_held <= 50 << 20, "{metrics:?}");
    assert!(metrics.working_set_after <= metrics.whole_after);
    assert!(metrics.requests >= 12 && metrics.requests < 60, "{metrics:?}");
    assert_eq!((metrics.retries, metrics.faults), (0, 0));
    assert_eq!(case.memory.calls().len() as u64, metrics.requests);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_somebody_waits_for_overtakes_requests_that_hang() {
    let case = Case::new(Fixture::new(noise(4000, 9, 3), &[]));
    // Nothing comes but what is small: a fault.
    let fill = case
        .fill(|call| match call {
            Call::Get(range) if range.end - range.start > 1 << 20 => Fault::Hang,
            _ => Fault::None,
        })
        .await;
    let fill = Arc::new(fill);
    fill.need(200).await.unwrap();
    let blocking = Arc::clone(&fill);
    tokio::task::spawn_blocking(move || blocking.need_blocking(100)).await.unwrap().unwrap();
    let there = case.filled();
    for window in [200, 100] {
        let bytes = case.fixture.map.window_bytes(window);
        assert!(there[bytes.start as usize..bytes.end as usize] == case.window(window));
    }
    assert!(matches!(fill.need(9999).await, Err(FillError::Unknown { window: 9999, .. })));
    fill.cancel();
    assert!(matches!(fill.whole().await, Err(FillError::Cancelled)));
    assert!(matches!(fill.need(10).await, Err(FillError::Cancelled)));
    fill.need(200).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_hangs_is_hedged() {
    let case = Case::new(Fixture::new(noise(3000, 9, 3), &[]));
    let mut first = true;
    let fill = case
        .fill(move |_| if std::mem::replace(&mut first, false) { Fault::Hang } else { Fault::None })
        .await;
    fill.whole().await.unwrap();
    case.check_whole();
    assert!(fill.metrics().hedges > 0);
    assert_eq!(fill.metrics().retries, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_try_mends_ends_it_by_name() {
    let case = || Case::new(Fixture::new(noise(50, 9, 3), &[]));
    let error = |fill: Fill| async move { fill.whole().await.unwrap_err() };

    let one = case();
    let end = error(one.fill(|_| Fault::Flip(5)).await).await;
    assert!(matches!(end, FillError::Corrupt { frame: 0, .. }), "{end}");
    let one = case();
    let end = error(one.fill(|_| Fault::Fail(unavailable())).await).await;
    let lasting = |e: &_| matches!(e, StoreError::Unavailable { .. });
    assert!(matches!(&end, FillError::Store { frame: 0, source, .. } if lasting(source)), "{end}");
    assert_eq!(one.memory.calls().len(), OPTIONS.patience.tries as usize);

    let one = case();
    let remote = one.remote().await;
    one.memory.set(&key("a"), one.memory.object(&key("a")).unwrap().slice(1..));
    let end =
        error(Fill::start(Layers::new(vec![remote]).unwrap(), one.file(), OPTIONS).unwrap()).await;
    let changed = |e: &_| matches!(e, StoreError::Changed { .. });
    assert!(matches!(&end, FillError::Store { source, .. } if changed(source)), "{end}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_to_a_window_that_is_there_stays() {
    let case = Case::new(Fixture::new(noise(2000, 9, 3), &[]));
    let mut random = dice(9);
    let fill = case
        .fill(move |_| match random(3) {
            0 => Fault::Cut(random(2 << 20) as usize),
            1 => Fault::Flip(random(2 << 20) as usize),
            _ => Fault::None,
        })
        .await;
    let ours = File::options().write(true).open(case.fixture.path("filled.img")).unwrap();
    let mut wanted = case.fixture.bytes.clone();
    for window in [60, 3, 100, 31] {
        fill.need(window).await.unwrap();
        let bytes = case.fixture.map.window_bytes(window);
        ours.write_all_at(&[0xee; 64 << 10], bytes.start).unwrap();
        wanted[bytes.start as usize..bytes.end as usize].fill(0xee);
    }
    fill.whole().await.unwrap();
    assert!(case.filled() == wanted);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_image_is_filled_rightly_under_any_faults_and_needs(
        pages in 0_usize..700,
        hole in 1_usize..9,
        touched in prop::collection::vec(0_u32..50, 0..8),
        needs in prop::collection::vec(0_u64..50, 0..12),
        seed in any::<u64>(),
    ) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let case = Case::new(Fixture::new(noise(pages, hole, seed), &touched));
        let fill = runtime.block_on(async {
            let mut random = dice(seed ^ 77);
            let fill = case.fill(move |_| match random(10) {
                0 => Fault::Cut(random(1 << 21) as usize),
                1 => Fault::Flip(random(1 << 21) as usize),
                2 => Fault::Fail(unavailable()),
                3 => Fault::Fail(throttled()),
                4 => Fault::Slow(Duration::from_millis(random(80))),
                _ => Fault::None,
            }).await;
            for window in needs.iter().filter(|window| **window < case.fixture.map.windows()) {
                fill.need(*window).await.unwrap();
                let bytes = case.fixture.map.window_bytes(*window);
                let there = case.filled();
                assert!(there[bytes.start as usize..bytes.end as usize] == case.window(*window));
            }
            fill.whole().await.unwrap();
            fill
        });
        case.check_whole();
        let metrics = fill.metrics();
        let remote = runtime.block_on(case.remote());
        for frame in (0..remote.index().frames()).filter_map(|n| remote.index().frame(n)) {
            let asked = case.memory.calls().iter().filter(|call| {
                // The index's own request is the last and reaches to the end.
                matches!(call, Call::Get(range)
                    if range.contains(&frame.offset) && range.end < remote.size())
            }).count() as u64;
            prop_assert!(asked <= 1 + metrics.retries + metrics.hedges);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_are_filled_from_as_one_image() {
    // Each is the one before with some windows changed: to noise, and to zeros.
    let base = Fixture::new(noise(4000, 9, 3), &[5]);
    let mut bytes = base.bytes.clone();
    bytes[20 * (64 << 10)..24 * (64 << 10)].copy_from_slice(&noise(64, 9, 11));
    bytes[30 * (64 << 10)..31 * (64 << 10)].fill(0);
    let second = Fixture::new(bytes.clone(), &[21, 5, 40]);
    bytes[22 * (64 << 10)..23 * (64 << 10)].copy_from_slice(&noise(16, 3, 12));
    let third = Fixture::new(bytes, &[22, 21, 5, 40]);
    let memory = Arc::new(Memory::new());
    let mut remotes = Vec::new();
    let mut below: Option<&Fixture> = None;
    for (name, fixture) in [("a", &base), ("b", &second), ("c", &third)] {
        let map = match below {
            Some(below) => fixture.map.layer_over(&below.map).unwrap(),
            None => fixture.map.clone(),
        };
        let image = Image::with_map(fixture.path("memory.img"), map).unwrap();
        let mut archive = Vec::new();
        let packed = pack(&image, &mut archive, &PackOptions::default()).unwrap();
        memory.set(&key(name), archive.into());
        let Packed { bytes, index_blake3, .. } = packed;
        let patience = &OPTIONS.patience;
        let remote = Remote::open(memory.clone(), key(name), index_blake3, bytes, patience);
        remotes.push(remote.await.unwrap());
        below = Some(fixture);
    }
    let layers = Layers::new(remotes).unwrap();
    assert_eq!(layers.map(), &third.map);
    // A layer is as large as what changed.
    let sizes: Vec<u64> = layers.remotes().iter().map(Remote::size).collect();
    assert!(sizes[1] < sizes[0] / 20 && sizes[2] < sizes[1], "{sizes:?}");
    assert!(layers.working_set_bytes() < layers.bytes() / 20);
    let fill = Fill::start(layers, third.file_to_fill(), OPTIONS).unwrap();
    fill.working_set().await.unwrap();
    for window in [22_u64, 21, 5, 40] {
        let bytes = third.map.window_bytes(window);
        let file = File::open(third.path("filled.img")).unwrap();
        let mut there = vec![0; (bytes.end - bytes.start) as usize];
        file.read_exact_at(&mut there, bytes.start).unwrap();
        assert!(there == third.bytes[bytes.start as usize..bytes.end as usize], "{window}");
    }
    fill.need(23).await.unwrap();
    fill.whole().await.unwrap();
    assert!(fs::read(third.path("filled.img")).unwrap() == third.bytes);
}
