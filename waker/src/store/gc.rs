//! Removing from the store what no generation needs.

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use rouse_protocol::app::AppId;
use rouse_store::{Key, KeyError, StoreError};
use rouse_transfer::{Asked, CleanError, clean};

use super::manifest::below;
use super::reference::app_key;
use super::up::{ReadManifestError, read_manifest};
use super::{NodeStore, ReferenceFault};

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Uploads that nobody goes on with.
    pub uploads: u64,
}

/// Why nothing more is removed. What was removed was not needed.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// The reference can't be read.
    #[error(transparent)]
    Reference(#[from] ReferenceFault),
    /// A kept generation's manifest can't be read: what it needs is not known.
    #[error(transparent)]
    Manifest(#[from] ReadManifestError),
    /// The store does not list or remove.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A place is no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Uploads can't be removed.
    #[error(transparent)]
    Clean(#[from] CleanError),
}

impl NodeStore {
    /// Removes what none of the app's kept generations needs and what is older than the grace time. Another
    /// node that takes the app meanwhile builds on what is kept, and under names of its own turn.
    pub async fn collect(&self, app: &AppId) -> Result<Collected, CollectError> {
        let (at, asked) = (app_key(app), Asked::default());
        let Some((reference, _)) = self.read(app, &asked).await? else {
            return Ok(Collected::default());
        };
        let mut needed: HashSet<Key> = HashSet::from([super::reference_key(app)]);
        for stored in &reference.generations {
            let manifest = read_manifest(self, &at, stored, &asked).await?;
            needed.insert(below(&at, &format!("{}/manifest.json", stored.place()))?);
            for place in manifest.places() {
                needed.insert(below(&at, place)?);
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let grace = u64::try_from(self.settings.grace.as_millis()).unwrap_or(u64::MAX);
        let mut collected = Collected::default();
        let mut from = None;
        loop {
            let page = self.store.list(&at, from).await?;
            for (key, meta) in page.objects {
                let young = now.saturating_sub(meta.written_unix_ms) < grace;
                if young || needed.contains(&key) {
                    continue;
                }
                self.store.delete(&key).await?;
                collected.objects += 1;
                collected.bytes += meta.size;
            }
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        collected.uploads = clean(&self.store, &at, now, self.settings.grace).await?;
        Ok(collected)
    }
}
