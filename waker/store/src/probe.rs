//! Finding out whether a store's conditional writes do what they say.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// How often each step is tried: a probe is many requests, and one that has bad luck must not spoil it.
const TRIES: u32 = 6;
/// The wait after a step that failed; it doubles with each further one.
const PAUSE: Duration = Duration::from_millis(25);

/// Tries both conditions under `scratch`, and leaves nothing there.
pub(crate) async fn probe(store: &dyn Probed, scratch: &Key) -> Result<Conditions, StoreError> {
    let mut keys = Vec::new();
    let found = attempt(store, scratch, &mut keys).await;
    for key in &keys {
        patient(|_| store.remove(key)).await?;
    }
    found
}

/// A key of its own: two that probe at once would take each other's writes for the store's fault, and so would one
/// whose first try may have come through.
fn fresh(scratch: &Key, number: u32) -> Result<Key, StoreError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let key = scratch.join(format!("{now:x}-{:x}-{number}", std::process::id()));
    key.map_err(|e| StoreError::Refused { key: scratch.clone(), detail: e.to_string() })
}

async fn attempt(
    store: &dyn Probed,
    scratch: &Key,
    keys: &mut Vec<Key>,
) -> Result<Conditions, StoreError> {
    for number in 0..TRIES {
        keys.push(fresh(scratch, number)?);
    }
    let first = patient(|number| {
        let key = &keys[number as usize];
        async move { Ok((key, answer(store.write(key, b"1", Condition::Absent).await)?)) }
    });
    let (key, first) = first.await?;
    let put = |bytes| patient(move |_| store.write(key, bytes, Condition::Always));
    let held = |bytes, condition| {
        patient(move |_| async move { answer(store.write(key, bytes, condition).await) })
    };
    let old = put(b"2").await?;
    let absent = first == Answer::Written && held(b"3", Condition::Absent).await? == Answer::Held;
    // Another than the old one, also where two of the same bytes have one name.
    put(b"4").await?;
    let stale = held(b"5", Condition::Unchanged(&old)).await? == Answer::Held;
    let right = patient(|number| async move {
        // What a try before may have written is not what it was.
        let bytes: &'static [u8] = if number % 2 == 0 { b"6" } else { b"7" };
        let new = store.write(key, bytes, Condition::Always).await?;
        answer(store.write(key, b"8", Condition::Unchanged(&new)).await)
    });
    let unchanged = stale && right.await? == Answer::Written;
    Ok(Conditions { absent, unchanged })
}

/// `step`, which is told how often it has failed, until it does not fail for want of luck.
async fn patient<T, F: Future<Output = Result<T, StoreError>>>(
    step: impl Fn(u32) -> F,
) -> Result<T, StoreError> {
    let mut failed = 0;
    loop {
        match step(failed).await {
            Err(error) if error.is_transient() && failed + 1 < TRIES => {
                tokio::time::sleep(PAUSE * 2_u32.pow(failed)).await;
                failed += 1;
            }
            done => return done,
        }
    }
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
