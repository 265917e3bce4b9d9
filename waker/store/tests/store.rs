//! What every store promises.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use rouse_store::{Condition, Directory, Key, Span, Store, StoreError};

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn directory() -> (tempfile::TempDir, Arc<dyn Store>) {
    let dir = tempfile::tempdir().unwrap();
    let store = Directory::open(dir.path()).unwrap();
    (dir, Arc::new(store))
}

async fn read(store: &dyn Store, at: &Key, span: Span) -> Vec<u8> {
    let chunks: Vec<Bytes> =
        store.get(at, span, None).await.unwrap().body.try_collect().await.unwrap();
    chunks.concat()
}

#[tokio::test]
async fn a_read_yields_the_bytes_that_the_object_has_there() {
    let (_dir, store) = directory();
    let at = key("a/b");
    let bytes: Vec<u8> = (0..600_000_u32).map(|i| (i % 251) as u8).collect();
    store.put(&at, bytes.clone().into(), Condition::Always).await.unwrap();
    assert_eq!(read(&*store, &at, Span::All).await, bytes);
    assert_eq!(read(&*store, &at, Span::Range(5..300_000)).await, bytes[5..300_000]);
    assert_eq!(read(&*store, &at, Span::Range(599_990..700_000)).await, bytes[599_990..]);
    assert_eq!(read(&*store, &at, Span::Range(700_000..800_000)).await, b"");
    assert_eq!(read(&*store, &at, Span::Last(7)).await, bytes[599_993..]);
    assert_eq!(read(&*store, &at, Span::Last(900_000)).await, bytes);
}

#[tokio::test]
async fn of_racing_writers_to_an_absent_key_one_wins() {
    let (dir, _) = directory();
    let at = key("race");
    let writers = (0..8_u8).map(|i| {
        // Each opens the directory for itself, as processes do.
        let (store, at) = (Directory::open(dir.path()).unwrap(), at.clone());
        async move { store.put(&at, Bytes::from(vec![i]), Condition::Absent).await }
    });
    let done = futures_util::future::join_all(writers).await;
    assert_eq!(done.iter().filter(|d| d.is_ok()).count(), 1);
    assert_eq!(done.iter().filter(|d| matches!(d, Err(StoreError::Changed { .. }))).count(), 7);
}

#[tokio::test]
async fn conditions_hold_and_the_probe_leaves_nothing() {
    let (_dir, store) = directory();
    let found = store.conditions(&key("x/scratch")).await.unwrap();
    assert!(found.absent && found.unchanged);
    assert!(store.list(&key("x"), None).await.unwrap().objects.is_empty());
}

#[tokio::test]
async fn an_upload_goes_on_after_a_restart_and_shows_nothing_before_it_is_complete() {
    let (dir, store) = directory();
    let at = key("a/big");
    let upload = store.begin(&at).await.unwrap();
    store.put_part(&upload, 2, Bytes::from_static(b"two")).await.unwrap();
    store.put_part(&upload, 1, Bytes::from_static(b"old")).await.unwrap();
    let store = Directory::open(dir.path()).unwrap();
    let resumed = store.uploads(&key("a")).await.unwrap().remove(0);
    assert_eq!(resumed.id, upload.id);
    store.put_part(&resumed, 1, Bytes::from_static(b"one")).await.unwrap();
    assert!(matches!(store.head(&at).await, Err(StoreError::NotFound { .. })));
    let parts = store.parts(&resumed).await.unwrap();
    store.complete(&resumed, &parts, Condition::Absent).await.unwrap();
    assert_eq!(read(&store, &at, Span::All).await, b"onetwo");
    assert!(store.uploads(&key("a")).await.unwrap().is_empty());
    store.abort(&resumed).await.unwrap();
}

#[tokio::test]
async fn a_listing_has_all_keys_in_order_page_by_page() {
    let (_dir, store) = directory();
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
}

#[tokio::test]
async fn what_is_absent_or_another_version_is_told_apart() {
    let (_dir, store) = directory();
    let at = key("a");
    store.delete(&at).await.unwrap();
    let old = store.put(&at, Bytes::from_static(b"1"), Condition::Always).await.unwrap();
    store.put(&at, Bytes::from_static(b"2"), Condition::Unchanged(&old)).await.unwrap();
    let got = store.get(&at, Span::All, Some(&old)).await;
    assert!(matches!(got, Err(StoreError::Changed { .. })));
    store.delete(&at).await.unwrap();
    assert!(matches!(store.head(&at).await, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn a_draft_that_was_cut_off_is_removed_and_a_link_is_not_followed() {
    let (dir, store) = directory();
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
