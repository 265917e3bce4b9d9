//! What is in the store after an image was sent, whatever happened on the way.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use rouse_snapshot_format::{PackOptions, pack};
use rouse_store::{Condition, Store, StoreError};
use rouse_transfer::{Patience, Remote, Sent, UpError, UpOptions, clean, unfinished, up};
use support::images::{Fixture, noise};
use support::{Call, Fault, Memory, key, throttled, unavailable};
use tokio_util::sync::CancellationToken;

const QUICK: Patience = Patience {
    tries: 4,
    time: Duration::from_secs(30),
    first: Duration::from_millis(1),
    most: Duration::from_millis(2),
};

fn packed(fixture: &Fixture) -> Vec<u8> {
    let mut out = Vec::new();
    pack(&fixture.image(), &mut out, &PackOptions::default()).unwrap();
    out
}

async fn send(
    memory: &Arc<Memory>,
    fixture: &Fixture,
    options: UpOptions<'_>,
) -> Result<Sent, UpError> {
    let store: Arc<dyn Store> = memory.clone();
    let options = UpOptions { patience: QUICK, ..options };
    up(&store, &key("apps/a/memory"), fixture.image(), options).await
}

/// Some 30 MiB that do not compress: four parts.
fn large() -> Fixture {
    Fixture::new(noise(7700, 50, 7), &[3, 1, 200])
}

fn parts_of(calls: &[Call]) -> Vec<u32> {
    let part = |call: &Call| if let Call::PutPart(number) = call { Some(*number) } else { None };
    calls.iter().filter_map(part).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_archive_is_one_request_and_opens_by_one() {
    let fixture = Fixture::new(noise(100, 3, 1), &[2, 0]);
    let memory = Arc::new(Memory::new());
    let sent = send(&memory, &fixture, UpOptions::default()).await.unwrap();
    assert_eq!(memory.calls(), [Call::Put]);
    assert_eq!((sent.requests, sent.retries), (1, 0));
    assert_eq!(memory.object(&key("apps/a/memory")).unwrap(), packed(&fixture));

    let open =
        |blake3, size| Remote::open(memory.clone(), key("apps/a/memory"), blake3, size, &QUICK);
    let remote = open(sent.index_blake3, sent.size).await.unwrap();
    assert_eq!(remote.requests(), 1);
    assert_eq!(remote.map().image_id(), fixture.map.image_id());
    assert_eq!(remote.map().states(), fixture.map.states());
    assert!(open([7; 32], sent.size).await.unwrap_err().to_string().contains("manifest"));
    assert!(open(sent.index_blake3, 5).await.unwrap_err().to_string().contains("5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_archive_goes_in_parts_and_gets_through_failures() {
    let fixture = large();
    let mut count = 0;
    let memory = Arc::new(Memory::failing(move |call| {
        count += 1;
        match (count, call) {
            (1 | 3, _) => Fault::Fail(throttled()),
            (5, _) => Fault::Lost(unavailable()),
            _ => Fault::None,
        }
    }));
    let sent = send(&memory, &fixture, UpOptions::default()).await.unwrap();
    let archive = packed(&fixture);
    assert_eq!(memory.object(&key("apps/a/memory")).unwrap(), archive);
    assert_eq!((sent.size, sent.retries), (archive.len() as u64, 3));
    assert_eq!(sent.requests, memory.calls().len() as u64);
    assert_eq!(memory.open_uploads(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_was_lost_is_found_to_have_happened() {
    for fixture in [Fixture::new(noise(9, 3, 1), &[]), large()] {
        let mut lost = false;
        let memory = Arc::new(Memory::failing(move |call| {
            if matches!(call, Call::Put | Call::Complete) && !std::mem::replace(&mut lost, true) {
                return Fault::Lost(unavailable());
            }
            Fault::None
        }));
        let options = || UpOptions { condition: Condition::Absent, ..Default::default() };
        let sent = send(&memory, &fixture, options()).await.unwrap();
        assert_eq!(sent.retries, 1);
        // Another image is not taken for it.
        let other = Fixture::new(noise(9, 2, 5), &[]);
        let error = send(&memory, &other, options()).await.unwrap_err();
        assert!(matches!(error, UpError::Store(StoreError::Changed { .. })), "{error}");
        assert_eq!(memory.object(&key("apps/a/memory")).unwrap(), packed(&fixture));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_or_is_cancelled_at_any_request_leaves_no_upload() {
    let fixture = large();
    for at in 1..=6 {
        let cancel = CancellationToken::new();
        for cancelled in [true, false] {
            let (mut count, token) = (0, cancel.clone());
            let memory = Arc::new(Memory::failing(move |call| {
                count += 1;
                if count != at || *call == Call::Abort {
                    return Fault::None;
                }
                if cancelled {
                    token.cancel();
                    return Fault::Hang;
                }
                Fault::Fail(StoreError::Denied { key: key("k"), detail: "no".into() })
            }));
            let cancel = if cancelled { cancel.clone() } else { CancellationToken::new() };
            let options = UpOptions { cancel, ..Default::default() };
            let error = send(&memory, &fixture, options).await.unwrap_err();
            match error {
                UpError::Cancelled { .. } => assert!(cancelled),
                UpError::Store(StoreError::Denied { .. }) => assert!(!cancelled),
                other => panic!("{other}"),
            }
            assert_eq!(memory.open_uploads(), 0, "at {at}");
            assert_eq!(memory.object(&key("apps/a/memory")), None);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_was_cut_off_goes_on_with_what_is_missing() {
    let fixture = large();
    let memory = Arc::new(Memory::failing(|call| match call {
        Call::PutPart(2 | 4) => Fault::Hang,
        _ => Fault::None,
    }));
    // As if the process had been killed: nobody aborts.
    {
        let sending = send(&memory, &fixture, UpOptions::default());
        tokio::pin!(sending);
        let both = async {
            while parts_of(&memory.calls()).len() < 4 || memory.arrived_parts() < 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! { _ = &mut sending => panic!("it hangs"), () = both => {} }
    }
    assert_eq!(memory.open_uploads(), 1);
    let store: Arc<dyn Store> = memory.clone();
    let (apps, at) = (key("apps"), key("apps/a/memory"));
    let resume = unfinished(&store, &apps, &at).await.unwrap();
    assert!(resume.is_some());
    memory.rule(|_| Fault::None);
    memory.forget_calls();
    let sent = send(&memory, &fixture, UpOptions { resume, ..Default::default() }).await.unwrap();
    let mut again = parts_of(&memory.calls());
    again.sort_unstable();
    assert_eq!((again, sent.kept_parts), (vec![2, 4], 2));
    assert_eq!(memory.object(&at).unwrap(), packed(&fixture));

    // Parts of something else are replaced.
    let upload = store.begin(&at).await.unwrap();
    store.put_part(&upload, 1, vec![0; 8 << 20].into()).await.unwrap();
    let options = UpOptions { resume: Some(upload), ..Default::default() };
    assert_eq!(send(&memory, &fixture, options).await.unwrap().kept_parts, 0);
    assert_eq!(memory.object(&at).unwrap(), packed(&fixture));
}

#[tokio::test]
async fn only_stale_uploads_are_cleaned() {
    let memory = Arc::new(Memory::new());
    let store: Arc<dyn Store> = memory.clone();
    for _ in 0..3 {
        store.begin(&key("apps/a/memory")).await.unwrap();
    }
    store.begin(&key("other/memory")).await.unwrap();
    let grace = Duration::from_secs(60);
    assert_eq!(clean(&store, &key("apps"), 62_000, grace).await.unwrap(), 2);
    assert_eq!(memory.open_uploads(), 2);
    assert_eq!(clean(&store, &key("apps"), 0, grace).await.unwrap(), 0);
}
