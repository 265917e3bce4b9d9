//! Uploads that nobody goes on with.

use std::sync::Arc;
use std::time::Duration;

use rouse_store::{Key, Store, StoreError, Upload};

/// Why stale uploads could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("uploads under {prefix} can't be removed ({removed} were): {source}")]
pub struct CleanError {
    /// Under which prefix.
    prefix: Key,
    /// How many were removed all the same.
    removed: u64,
    /// What the store said last.
    source: StoreError,
}

/// Aborts the uploads under `prefix` that were begun before `grace` ago by the store's word, and says
/// how many. One whose beginning the store does not tell is left alone.
///
/// `grace` must be longer than any upload takes: whoever is still sending loses theirs.
pub async fn clean(
    store: &Arc<dyn Store>,
    prefix: &Key,
    now_unix_ms: u64,
    grace: Duration,
) -> Result<u64, CleanError> {
    let failed = |removed, source| CleanError { prefix: prefix.clone(), removed, source };
    let uploads = store.uploads(prefix).await.map_err(|error| failed(0, error))?;
    let mut removed = 0;
    let mut last = None;
    for upload in uploads.iter().filter(|upload| is_stale(upload, now_unix_ms, grace)) {
        match store.abort(upload).await {
            Ok(()) => removed += 1,
            Err(error) => last = Some(error),
        }
    }
    last.map_or(Ok(removed), |error| Err(failed(removed, error)))
}

fn is_stale(upload: &Upload, now_unix_ms: u64, grace: Duration) -> bool {
    let age = upload.begun_unix_ms.and_then(|begun| now_unix_ms.checked_sub(begun));
    age.is_some_and(|age| u128::from(age) >= grace.as_millis())
}

/// The newest upload of `key`, which lies under `prefix`, that was cut off: what [`UpOptions::resume`](crate::UpOptions::resume)
/// takes, if nobody else is sending it.
pub async fn unfinished(
    store: &Arc<dyn Store>,
    prefix: &Key,
    key: &Key,
) -> Result<Option<Upload>, StoreError> {
    let uploads = store.uploads(prefix).await?;
    Ok(uploads.into_iter().filter(|u| u.key == *key).max_by_key(|u| u.begun_unix_ms))
}
