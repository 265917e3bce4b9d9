//! Finding out whether a store's conditional writes do what they say.

use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

use crate::{Condition, Conditions, Key, StoreError, Version};

/// What the probe needs of a store: writes that it does not yet refuse by what it knows.
#[async_trait]
pub(crate) trait Probed: Sync {
    async fn write(
        &self,
        key: &Key,
        bytes: &'static [u8],
        condition: Condition<'_>,
    ) -> Result<Version, StoreError>;

    async fn remove(&self, key: &Key) -> Result<(), StoreError>;
}

/// Tries both conditions under `scratch`, and leaves nothing there.
pub(crate) async fn probe(store: &dyn Probed, scratch: &Key) -> Result<Conditions, StoreError> {
    // A key of its own: two that probe at once would take each other's writes for the store's fault.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let key = scratch
        .join(format!("{now:x}-{:x}", std::process::id()))
        .map_err(|e| StoreError::Refused { key: scratch.clone(), detail: e.to_string() })?;
    let found = attempt(store, &key).await;
    let removed = store.remove(&key).await;
    let found = found?;
    removed.map(|()| found)
}

async fn attempt(store: &dyn Probed, key: &Key) -> Result<Conditions, StoreError> {
    let mut absent = answer(store.write(key, b"1", Condition::Absent).await)? == Answer::Written;
    let old = store.write(key, b"2", Condition::Always).await?;
    absent &= answer(store.write(key, b"3", Condition::Absent).await)? == Answer::Held;
    let new = store.write(key, b"4", Condition::Always).await?;
    let stale = answer(store.write(key, b"5", Condition::Unchanged(&old)).await)?;
    let unchanged = stale == Answer::Held
        && answer(store.write(key, b"6", Condition::Unchanged(&new)).await)? == Answer::Written;
    Ok(Conditions { absent, unchanged })
}

#[derive(PartialEq, Eq)]
enum Answer {
    Written,
    Held,
    /// The store does not know the condition.
    Unknown,
}

fn answer(done: Result<Version, StoreError>) -> Result<Answer, StoreError> {
    match done {
        Ok(_) => Ok(Answer::Written),
        Err(StoreError::Changed { .. }) => Ok(Answer::Held),
        Err(StoreError::Unsupported(_) | StoreError::Refused { .. }) => Ok(Answer::Unknown),
        Err(e) => Err(e),
    }
}
