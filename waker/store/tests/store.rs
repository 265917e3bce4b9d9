//! What every store promises.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod common;

use bytes::Bytes;
use common::{each, key, read};
use futures_util::TryStreamExt;
use rouse_store::{Condition, Directory, Key, MIN_PART, Span, Store, StoreError, Version};

#[tokio::test]
async fn a_read_yields_the_bytes_that_the_object_has_there() {
    each(async |place| {
        let store = place.open().await;
        let at = key("a/b");
        let bytes: Vec<u8> = (0..600_000_u32).map(|i| (i % 251) as u8).collect();
        store.put(&at, bytes.clone().into(), Condition::Always).await.unwrap();
        assert_eq!(read(&*store, &at, Span::All).await, bytes);
        assert_eq!(read(&*store, &at, Span::Range(5..300_000)).await, bytes[5..300_000]);
        assert_eq!(read(&*store, &at, Span::Range(599_990..700_000)).await, bytes[599_990..]);
        assert_eq!(read(&*store, &at, Span::Range(700_000..800_000)).await, b"");
        assert_eq!(read(&*store, &at, Span::Range(600_000..600_001)).await, b"");
        assert_eq!(read(&*store, &at, Span::Range(7..7)).await, b"");
        assert_eq!(read(&*store, &at, Span::Last(7)).await, bytes[599_993..]);
        assert_eq!(read(&*store, &at, Span::Last(0)).await, b"");
        assert_eq!(read(&*store, &at, Span::Last(900_000)).await, bytes);
    })
    .await;
}

#[tokio::test]
async fn what_is_got_tells_what_it_is() {
    each(async |place| {
        let store = place.open().await;
        let at = key("a");
        let version =
            store.put(&at, Bytes::from_static(b"0123456789"), Condition::Always).await.unwrap();
        let meta = store.head(&at).await.unwrap();
        assert_eq!((meta.size, &meta.version), (10, &version));
        assert!(meta.written_unix_ms > 1_700_000_000_000);
        for (span, range) in [
            (Span::All, 0..10),
            (Span::Range(2..5), 2..5),
            (Span::Range(8..50), 8..10),
            (Span::Range(50..60), 10..10),
            (Span::Last(3), 7..10),
            (Span::Last(99), 0..10),
        ] {
            let got = store.get(&at, span, Some(&version)).await.unwrap();
            assert_eq!((got.size, got.range, got.version), (10, range, version.clone()));
        }
    })
    .await;
}

#[tokio::test]
async fn an_empty_object_is_read_as_none() {
    each(async |place| {
        let store = place.open().await;
        store.put(&key("a"), Bytes::new(), Condition::Always).await.unwrap();
        for span in [Span::All, Span::Range(0..5), Span::Last(5)] {
            assert_eq!(read(&*store, &key("a"), span).await, b"");
        }
        let none = store.get(&key("b"), Span::Range(0..5), None).await;
        assert!(matches!(none, Err(StoreError::NotFound { .. })));
    })
    .await;
}

#[tokio::test]
async fn of_racing_writers_to_an_absent_key_one_wins() {
    each(async |place| {
        let at = key("race");
        // Each opens the store for itself, as processes do.
        let mut writers = Vec::new();
        for i in 0..8_u8 {
            let (store, at) = (place.open().await, at.clone());
            writers
                .push(async move { store.put(&at, Bytes::from(vec![i]), Condition::Absent).await });
        }
        one_of_eight(futures_util::future::join_all(writers).await);
    })
    .await;
}

#[tokio::test]
async fn of_racing_writers_over_one_version_one_wins() {
    each(async |place| {
        let at = key("race");
        let old = place
            .open()
            .await
            .put(&at, Bytes::from_static(b"old"), Condition::Always)
            .await
            .unwrap();
        let mut writers = Vec::new();
        for i in 0..8_u8 {
            let (store, at, old) = (place.open().await, at.clone(), old.clone());
            writers.push(async move {
                store.put(&at, Bytes::from(vec![i]), Condition::Unchanged(&old)).await
            });
        }
        one_of_eight(futures_util::future::join_all(writers).await);
    })
    .await;
}

fn one_of_eight(done: Vec<Result<Version, StoreError>>) {
    assert_eq!(done.iter().filter(|d| d.is_ok()).count(), 1, "{done:?}");
    assert_eq!(done.iter().filter(|d| matches!(d, Err(StoreError::Changed { .. }))).count(), 7);
}

#[tokio::test]
async fn conditions_hold_and_the_probe_leaves_nothing() {
    each(async |place| {
        let store = place.open().await;
        let found = store.conditions(&key("x/scratch")).await.unwrap();
        assert!(found.absent && found.unchanged);
        assert!(store.list(&key("x"), None).await.unwrap().objects.is_empty());
    })
    .await;
}

#[tokio::test]
async fn an_upload_goes_on_after_a_restart_and_shows_nothing_before_it_is_complete() {
    each(async |place| {
        let store = place.open().await;
        let at = key("a/big");
        let one = Bytes::from(vec![1; MIN_PART as usize]);
        let upload = store.begin(&at).await.unwrap();
        store.put_part(&upload, 3, Bytes::from_static(b"three")).await.unwrap();
        store.put_part(&upload, 1, Bytes::from_static(b"old")).await.unwrap();
        let store = place.open().await;
        let resumed = store.uploads(&key("a")).await.unwrap().remove(0);
        assert_eq!(resumed.id, upload.id);
        let sent = store.put_part(&resumed, 1, one.clone()).await.unwrap();
        assert!(matches!(store.head(&at).await, Err(StoreError::NotFound { .. })));
        let parts = store.parts(&resumed).await.unwrap();
        assert_eq!(parts.iter().map(|part| part.number).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(parts[0], sent);
        let version = store.complete(&resumed, &parts, Condition::Absent).await.unwrap();
        assert_eq!(store.head(&at).await.unwrap().version, version);
        assert_eq!(read(&*store, &at, Span::All).await, [&one[..], b"three"].concat());
        // A span over the seam of two parts.
        assert_eq!(read(&*store, &at, Span::Last(6)).await, b"\x01three");
        assert!(store.uploads(&key("a")).await.unwrap().is_empty());
        store.abort(&resumed).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_upload_is_completed_only_where_its_condition_holds() {
    each(async |place| {
        let store = place.open().await;
        let at = key("a/b");
        let upload = store.begin(&at).await.unwrap();
        let part = store.put_part(&upload, 1, Bytes::from_static(b"new")).await.unwrap();
        let old = store.put(&at, Bytes::from_static(b"old"), Condition::Always).await.unwrap();
        let parts = [part];
        let done = store.complete(&upload, &parts, Condition::Absent).await;
        assert!(matches!(done, Err(StoreError::Changed { .. })), "{done:?}");
        let newer = store.put(&at, Bytes::from_static(b"newer"), Condition::Always).await.unwrap();
        let done = store.complete(&upload, &parts, Condition::Unchanged(&old)).await;
        assert!(matches!(done, Err(StoreError::Changed { .. })), "{done:?}");
        store.complete(&upload, &parts, Condition::Unchanged(&newer)).await.unwrap();
        assert_eq!(read(&*store, &at, Span::All).await, b"new");
    })
    .await;
}

#[tokio::test]
async fn parts_that_do_not_fit_are_refused() {
    each(async |place| {
        let store = place.open().await;
        let upload = store.begin(&key("a/b")).await.unwrap();
        let part = store.put_part(&upload, 1, Bytes::from_static(b"1")).await.unwrap();
        let mut other = part.clone();
        other.number = 2;
        for parts in [vec![], vec![other.clone()], vec![part.clone(), part.clone()]] {
            let done = store.complete(&upload, &parts, Condition::Always).await;
            assert!(matches!(done, Err(StoreError::Refused { .. })), "{parts:?}: {done:?}");
        }
        for number in [0, 10_001, u32::MAX] {
            let sent = store.put_part(&upload, number, Bytes::new()).await;
            assert!(matches!(sent, Err(StoreError::Refused { .. })), "{number}: {sent:?}");
        }
        store.abort(&upload).await.unwrap();
        let parts = store.parts(&upload).await;
        assert!(matches!(parts, Err(StoreError::NotFound { .. })), "{parts:?}");
    })
    .await;
}

#[tokio::test]
async fn a_listing_has_all_keys_in_order_page_by_page() {
    each(async |place| {
        let store = place.open().await;
        let mut keys: Vec<Key> = (0..1005).map(|i| key(&format!("p/{i:04}"))).collect();
        keys.extend([key("p/0001/x"), key("p/0001.y")]);
        keys.sort();
        for at in keys.iter().chain([&key("p"), &key("pp/1")]) {
            store.put(at, Bytes::new(), Condition::Always).await.unwrap();
        }
        let first = store.list(&key("p"), None).await.unwrap();
        let last = store.list(&key("p"), first.next).await.unwrap();
        assert_eq!(last.next, None);
        let listed: Vec<Key> = first.objects.into_iter().chain(last.objects).map(|o| o.0).collect();
        assert_eq!(listed, keys);
    })
    .await;
}

#[tokio::test]
async fn what_is_absent_or_another_version_is_told_apart() {
    each(async |place| {
        let store = place.open().await;
        let at = key("a");
        store.delete(&at).await.unwrap();
        let old = store.put(&at, Bytes::from_static(b"1"), Condition::Always).await.unwrap();
        store.put(&at, Bytes::from_static(b"2"), Condition::Unchanged(&old)).await.unwrap();
        for span in [Span::All, Span::Range(0..1), Span::Range(9..10)] {
            let got = store.get(&at, span, Some(&old)).await.map(|got| got.range);
            assert!(matches!(got, Err(StoreError::Changed { .. })), "{got:?}");
        }
        store.delete(&at).await.unwrap();
        assert!(matches!(store.head(&at).await, Err(StoreError::NotFound { .. })));
        let put = store.put(&at, Bytes::new(), Condition::Unchanged(&old)).await;
        assert!(matches!(put, Err(StoreError::Changed { .. })), "{put:?}");
    })
    .await;
}

#[tokio::test]
async fn a_body_that_is_dropped_half_read_harms_nothing() {
    each(async |place| {
        let store = place.open().await;
        let bytes = Bytes::from(vec![7; 4 << 20]);
        store.put(&key("a"), bytes.clone(), Condition::Always).await.unwrap();
        let mut body = store.get(&key("a"), Span::All, None).await.unwrap().body;
        assert!(body.try_next().await.unwrap().is_some());
        drop(body);
        assert_eq!(read(&*store, &key("a"), Span::All).await, bytes);
    })
    .await;
}

#[tokio::test]
async fn a_draft_that_was_cut_off_is_removed_and_a_link_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Directory::open(dir.path()).unwrap();
    let draft = dir.path().join(".store/drafts/1-1-1");
    std::fs::write(&draft, b"half").unwrap();
    Directory::open(dir.path()).unwrap();
    assert!(!draft.exists());
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), dir.path().join("out")).unwrap();
    let put = store.put(&key("out/a"), Bytes::new(), Condition::Always).await;
    assert!(matches!(put, Err(StoreError::Refused { .. })), "{put:?}");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
}
