//! What leaves this node after a sleep, and comes back at a wake.
//!
//! ```text
//! apps/<app>/ref.json                           whose it is, and which generations there are: the commit point
//!            generations/<N>-<image id>/manifest.json  state
//!            layers/<turn>-<content id>         archives of memory and disk; later ones over earlier ones
//! probes/                                       what is tried out at the start, and removed
//! ```
//!
//! A generation goes up in this order: layers, state, manifest, reference. Nobody looks at what the reference
//! does not name, so a reader sees the old or the new generation, whole. Each write of the reference depends
//! on the one before being there still; who has taken the app meanwhile has changed it, and has a larger
//! fencing number ([`decide`]).
//!
//! The node's own word is `store.json` in the app's directory ([`Record`]), written before what it speaks of.

mod cached;
mod claim;
mod demand;
mod down;
mod gc;
mod manifest;
mod record;
mod reference;
mod take;
mod up;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use rouse_cache::Cache;
use rouse_protocol::app::AppId;
use rouse_store::{Condition, Conditions, Key, Span, Store, StoreError, Version};
use rouse_transfer::{Asked, Patience, retry};
use tokio::sync::{OnceCell, Semaphore};

use self::reference::{Reference, ReferenceError, app_key};

pub use self::cached::KeepError;
pub use self::claim::{Asker, Claim, Local, decide};
pub use self::demand::{Demanded, Pagers};
pub use self::down::{Cost, FetchError, Fetched, PrewarmError, Prewarmed};
pub use self::gc::{CollectError, Collected};
pub use self::manifest::Archived;
pub use self::record::{Record, Turn as RecordTurn};
pub use self::reference::{Stored, Turn};
pub use self::take::{ReleaseError, TakeError, Taken};
pub use self::up::{Freed, OpenLayersError, Up, UploadError};

/// The largest reference that is read, in bytes.
const MAX_REFERENCE: u64 = 256 << 10;

/// How a node uses its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// This node's name in it, which no other node has.
    pub node: String,
    /// Whether apps may be woken by whichever node asks first.
    pub moving: bool,
    /// How many generations are kept besides the newest.
    pub keep: usize,
    /// What is younger is never removed.
    pub grace: Duration,
    /// How many apps are sent at once.
    pub ups_at_once: usize,
    /// How long a small request is tried.
    pub patience: Patience,
}

/// The store of a node.
#[derive(Debug)]
pub struct NodeStore {
    store: Arc<dyn Store>,
    settings: Settings,
    /// Where images wait; none: they stay in their apps' directories, for good.
    cache: Option<Cache>,
    conditions: OnceCell<Conditions>,
    ups: Semaphore,
    pagers: Option<Pagers>,
}

/// Why the reference can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceFault {
    /// The store did not.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is none.
    #[error("{key}: {source}")]
    Reference {
        /// Where it is.
        key: Key,
        /// What is wrong with it.
        source: ReferenceError,
    },
}

impl ReferenceFault {
    /// Whether what is in the store is no reference: another try won't mend it.
    pub fn is_spoilt(&self) -> bool {
        matches!(self, Self::Reference { .. })
    }
}

impl NodeStore {
    /// `store` for a node. Nothing is asked yet.
    pub fn new(store: Arc<dyn Store>, settings: Settings, cache: Option<Cache>) -> Self {
        let ups = Semaphore::new(settings.ups_at_once.max(1));
        Self { store, settings, cache, conditions: OnceCell::new(), ups, pagers: None }
    }

    /// How it is used.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where images wait.
    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// Opens archives below `at`, all at once.
    pub async fn open_layers(
        &self,
        at: &Key,
        layers: &[Archived],
        asked: &Asked,
    ) -> Result<Vec<rouse_transfer::Remote>, OpenLayersError> {
        up::open_layers(self, at, layers, asked).await
    }

    fn is_cached(&self, stored: &Stored) -> bool {
        let entry = cached::entry(stored);
        self.cache.as_ref().zip(entry).is_some_and(|(cache, entry)| cache.contains(&entry))
    }

    /// What conditional writes are worth there, found out once.
    pub async fn conditions(&self) -> Result<Conditions, StoreError> {
        let asked = Asked::default();
        let probe = |_| async {
            let name = format!("probes/{}-{:016x}", self.settings.node, rand::random::<u64>());
            let scratch = Key::new(name).map_err(|error| StoreError::Refused {
                key: Key::new("probes").expect("a key"),
                detail: error.to_string(),
            })?;
            self.store.conditions(&scratch).await
        };
        let probed = || retry(&self.settings.patience, &asked, probe);
        self.conditions.get_or_try_init(probed).await.copied()
    }

    /// Whether apps may move, as far as store and operator go.
    pub async fn moving(&self) -> Result<bool, StoreError> {
        let Conditions { absent, unchanged } = self.conditions().await?;
        Ok(self.settings.moving && absent && unchanged)
    }

    async fn read(
        &self,
        app: &AppId,
        asked: &Asked,
    ) -> Result<Option<(Reference, Version)>, ReferenceFault> {
        let key = reference_key(app);
        let read = retry(&self.settings.patience, asked, |_| {
            let (store, key) = (&self.store, &key);
            async move { small(&**store, key, MAX_REFERENCE).await }
        });
        match read.await {
            Ok((bytes, version)) => match Reference::parse(app, &bytes) {
                Ok(reference) => Ok(Some((reference, version))),
                Err(source) => Err(ReferenceFault::Reference { key, source }),
            },
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the reference if what was read before is still there. A write whose answer got lost is known
    /// by what is there then.
    async fn write(
        &self,
        reference: &Reference,
        before: Option<&Version>,
        asked: &Asked,
    ) -> Result<(), ReferenceFault> {
        let key = reference_key(&reference.app);
        let text = serde_json::to_vec_pretty(reference)
            .map_err(|error| StoreError::Refused { key: key.clone(), detail: error.to_string() })?;
        let text = bytes::Bytes::from(text);
        let held = self.conditions().await?;
        let condition = match before {
            Some(version) if held.unchanged => Condition::Unchanged(version),
            None if held.absent => Condition::Absent,
            _ => Condition::Always,
        };
        let written = retry(&self.settings.patience, asked, |failed| {
            let (store, key, text) = (&self.store, &key, text.clone());
            async move {
                match store.put(key, text.clone(), condition).await {
                    Err(StoreError::Changed { .. }) if failed > 0 => {
                        match small(&**store, key, MAX_REFERENCE).await {
                            Ok((there, version)) if there == text => Ok(version),
                            Ok(_) => Err(StoreError::Changed { key: key.clone() }),
                            Err(error) => Err(error),
                        }
                    }
                    put => put,
                }
            }
        });
        Ok(written.await.map(drop)?)
    }
}

fn reference_key(app: &AppId) -> Key {
    app_key(app).join("ref.json").expect("a name that is part of a key")
}

/// A whole object, if it has no more than `most` bytes.
async fn small(
    store: &dyn Store,
    key: &Key,
    most: u64,
) -> Result<(bytes::Bytes, Version), StoreError> {
    use futures_util::TryStreamExt as _;
    let mut got = store.get(key, Span::All, None).await?;
    let corrupt = |detail: String| StoreError::Corrupt { key: key.clone(), detail };
    if got.size > most {
        return Err(StoreError::Refused {
            key: key.clone(),
            detail: format!("it has {} bytes, and {most} are the most", got.size),
        });
    }
    let mut bytes = bytes::BytesMut::new();
    while let Some(some) = got.body.try_next().await? {
        if (bytes.len() + some.len()) as u64 > got.size {
            return Err(corrupt("more came than it has".to_owned()));
        }
        bytes.extend_from_slice(&some);
    }
    if bytes.len() as u64 != got.size {
        return Err(corrupt(format!("{} of {} bytes came", bytes.len(), got.size)));
    }
    Ok((bytes.freeze(), got.version))
}
