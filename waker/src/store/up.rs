//! From a generation that sleeps here to one that any node may wake.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::signature::AgentKey;
use rouse_snapshot_format::{
    Image, ImageId, Map, OpenImageError, SparsifyError, SparsifyOptions, ToCopy,
};
use rouse_store::{Condition, Key, KeyError, StoreError, Upload, Version};
use rouse_transfer::{
    Asked, Layers, LayersError, OpenRemoteError, Remote, UpError, UpOptions, retry, unfinished, up,
};
use tokio_util::sync::CancellationToken;

use super::manifest::{
    Archived, FORMAT, MAX_MANIFEST, ManifestError, Part, StoredDisk, StoredManifest, below,
};
use super::record::{Record, Turn};
use super::reference::{Reference, Stored, app_key};
use super::{KeepError, NodeStore, ReferenceFault, cached, small};
use crate::app::blocking;
use crate::fault;
use crate::image::{AppDir, ImageRefusal, Sleeping};

/// More layers than this are not put over one another: each costs a wake a request.
const MOST_LAYERS: usize = 6;

/// A generation that is to be sent.
#[derive(Debug)]
pub struct Up {
    /// The app's directory.
    pub dir: Arc<AppDir>,
    /// The app.
    pub app: AppId,
    /// What its agent signs with.
    pub key: AgentKey,
    /// Ends it, unless it is at its last step, which has to come to an end.
    pub cancel: CancellationToken,
}

/// A generation that any node may wake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Which.
    pub generation: Generation,
    /// Bytes sent, each time they were.
    pub bytes: u64,
    /// Requests made, those that failed too.
    pub requests: u64,
    /// Requests made because one before had failed.
    pub retries: u64,
    /// It was there already.
    pub was_there: bool,
}

/// Why a generation is not free. It is here, as it was.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// Its parts can't be read, or are no image.
    #[error(transparent)]
    Image(#[from] ImageRefusal),
    /// Its memory can't be opened.
    #[error(transparent)]
    Memory(#[from] OpenImageError),
    /// Its disk can't be read.
    #[error("its disk: {0}")]
    Disk(#[from] SparsifyError),
    /// The map has no checksums, by which what changed could be told.
    #[error("the map of its {0} has no checksums")]
    NoChecksums(&'static str),
    /// An archive was not taken.
    #[error(transparent)]
    Up(#[from] UpError),
    /// A small object was not taken.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A place is no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The reference can't be read or written.
    #[error(transparent)]
    Reference(#[from] ReferenceFault),
    /// What the node notes of it can't be read or written.
    #[error("the app's record of the store: {0}")]
    Record(io::Error),
    /// Another node has taken the app: what is here is not to be woken any more.
    #[error("node {owner} has taken the app in turn {fence}; this node's was {known}")]
    Taken {
        /// Which.
        owner: String,
        /// Its fencing number.
        fence: u64,
        /// This node's.
        known: u64,
    },
    /// It was called off: somebody wakes the app.
    #[error("it was called off")]
    Cancelled,
}

/// The archives of one image that are in the store, and what they make.
struct Below {
    layers: Vec<Archived>,
    map: Map,
}

/// One of this app's uploads.
struct Sending<'a> {
    node: &'a NodeStore,
    up: &'a Up,
    at: Key,
    fence: u64,
    asked: Asked,
    bytes: u64,
}

impl NodeStore {
    /// Sends the generation that sleeps in the app's directory, and makes the app free for any node. None:
    /// there is none.
    pub async fn free(&self, up: &Up) -> Result<Option<Freed>, UploadError> {
        let cancelled = || UploadError::Cancelled;
        let until = |work| up.cancel.run_until_cancelled(work);
        let _turn = until(self.ups.acquire()).await.ok_or_else(cancelled)?;
        let dir = Arc::clone(&up.dir);
        let Some(sleeping) = blocking(move || dir.sleeping()).await? else { return Ok(None) };
        let generation = sleeping.manifest.generation;
        let record = up.dir.store_record().map_err(UploadError::Record)?;
        if record.as_ref().is_some_and(|record| record.turn == Turn::Free(generation)) {
            // What was cut off before it was kept.
            let reference = self.read(&up.app, &Asked::default()).await?;
            let stored = reference.and_then(|(reference, _)| reference.newest().cloned());
            self.keep(up, stored).await;
            return Ok(Some(Freed { generation, was_there: true, ..Freed::default() }));
        }
        let mut sending = Sending {
            node: self,
            up,
            at: app_key(&up.app),
            fence: 0,
            asked: Asked::default(),
            bytes: 0,
        };
        let sent =
            up.cancel.run_until_cancelled(Box::pin(sending.send(&sleeping, record.as_ref())));
        let (reference, version, known, stored) = sent.await.ok_or_else(cancelled)??;
        // From here on it comes to an end: whoever wakes the app waits for that.
        let was_there = stored.is_none();
        let free = reference.turn == super::Turn::Free;
        let next = match &stored {
            Some(stored) => Some(reference.published(stored.clone(), self.settings.keep)),
            // It was fetched and never ran.
            None if !free => Some(Reference { turn: super::Turn::Free, ..reference.clone() }),
            None => None,
        };
        let stored = stored.or_else(|| reference.newest().cloned());
        if let Some(next) = next {
            let freeing = Record { fence: known, turn: Turn::Freeing(generation) };
            let dir = &up.dir;
            dir.write_store_record(&freeing).map_err(UploadError::Record)?;
            fault::hit("store-freeing").map_err(UploadError::Record)?;
            let next = Reference { fence: known, ..next };
            match self.write(&next, version.as_ref(), &sending.asked).await {
                Err(ReferenceFault::Store(StoreError::Changed { .. })) => {
                    return Err(self.taken(up, known, &sending.asked).await);
                }
                written => written?,
            }
            fault::hit("store-freed").map_err(UploadError::Record)?;
        }
        let free = Record { fence: known, turn: Turn::Free(generation) };
        up.dir.write_store_record(&free).map_err(UploadError::Record)?;
        self.keep(up, stored).await;
        Ok(Some(Freed {
            generation,
            bytes: sending.bytes,
            requests: sending.asked.requests(),
            retries: sending.asked.retries(),
            was_there,
        }))
    }

    /// A generation that is free need not stay in the app's directory.
    async fn keep(&self, up: &Up, stored: Option<Stored>) {
        let (Some(cache), Some(stored)) = (self.cache.clone(), stored) else { return };
        let (dir, key) = (Arc::clone(&up.dir), up.key.clone());
        match blocking(move || cached::keep(&cache, &dir, &stored, &key)).await {
            Ok(()) => {}
            Err(KeepError::Reserve(error)) => {
                tracing::info!(app = %up.app, %error, "its image is in the store alone");
            }
            Err(error) => tracing::warn!(app = %up.app, %error, "its image is not in the cache"),
        }
    }

    async fn taken(&self, up: &Up, known: u64, asked: &Asked) -> UploadError {
        match self.read(&up.app, asked).await {
            Ok(Some((there, _))) => {
                UploadError::Taken { owner: there.owner, fence: there.fence, known }
            }
            Ok(None) => UploadError::Taken { owner: "unknown".to_owned(), fence: 0, known },
            Err(error) => error.into(),
        }
    }

    /// The archives that a generation in the store is made of, and their maps.
    async fn below(&self, at: &Key, layers: &[Archived], asked: &Asked) -> Result<Map, BelowError> {
        let opened = open_layers(self, at, layers, asked).await?;
        Ok(Layers::new(opened)?.map().clone())
    }
}

/// Why what is in the store can't be built upon. Then all is sent anew.
#[derive(Debug, thiserror::Error)]
enum BelowError {
    #[error(transparent)]
    Open(#[from] OpenLayersError),
    #[error(transparent)]
    Layers(#[from] LayersError),
}

/// Why archives in the store can't be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenLayersError {
    /// One can't be opened.
    #[error(transparent)]
    Open(#[from] OpenRemoteError),
    /// A manifest has something else where a checksum should be.
    #[error("the manifest's checksum of {place} is none")]
    Checksum {
        /// Of what.
        place: String,
    },
    /// A place is no key.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl OpenLayersError {
    /// Whether what is in the store is not what it should be.
    pub fn is_spoilt(&self) -> bool {
        match self {
            Self::Open(OpenRemoteError::Store(error)) => {
                matches!(error, StoreError::NotFound { .. } | StoreError::Corrupt { .. })
            }
            _ => true,
        }
    }
}

/// Opens archives, all at once.
pub(super) async fn open_layers(
    node: &NodeStore,
    at: &Key,
    layers: &[Archived],
    asked: &Asked,
) -> Result<Vec<Remote>, OpenLayersError> {
    let opening = layers.iter().map(|layer| async move {
        let key = below(at, &layer.place)?;
        let wrong = || OpenLayersError::Checksum { place: layer.place.clone() };
        let index = blake3::Hash::from_hex(&layer.index_blake3).map_err(|_| wrong())?;
        let patience = &node.settings.patience;
        let store = Arc::clone(&node.store);
        Ok(Remote::open(store, key, *index.as_bytes(), layer.bytes, patience).await?)
    });
    let opened: Result<Vec<Remote>, OpenLayersError> =
        futures_util::future::try_join_all(opening).await;
    let opened = opened?;
    for remote in &opened {
        asked.count(remote.requests());
    }
    Ok(opened)
}

type Sent = (Reference, Option<Version>, u64, Option<Stored>);

impl Sending<'_> {
    /// All but the reference. The last of the answer is none if the store has it all.
    async fn send(
        &mut self,
        sleeping: &Sleeping,
        record: Option<&Record>,
    ) -> Result<Sent, UploadError> {
        let (reference, version, known) = self.turn(record).await?;
        self.fence = known;
        let image_id = sleeping.manifest.image_id.clone();
        if reference.newest().is_some_and(|newest| newest.image_id == image_id) {
            return Ok((reference, version, known, None));
        }
        let before = self.before(&reference).await;
        let (memory_below, disk_below) = match before {
            Some((memory, disk)) => (Some(memory), disk),
            None => (None, None),
        };
        let map = sleeping.map.clone();
        let memory = self.image(sleeping.memory.clone(), map, memory_below, "memory").await?;
        fault::hit("store-memory").map_err(UploadError::Record)?;
        let disk = match &sleeping.disk {
            None => None,
            Some(path) => {
                let path = path.clone();
                let looked = blocking(move || {
                    let found = ToCopy::open(&path)?.look(&SparsifyOptions::default())?;
                    Ok::<_, SparsifyError>((path, found.into_map(ImageId::random())))
                });
                let (path, map) = looked.await?;
                Some(StoredDisk { layers: self.image(path, map, disk_below, "disk").await? })
            }
        };
        fault::hit("store-layers").map_err(UploadError::Record)?;
        let stored = self.manifest(sleeping, memory, disk).await?;
        fault::hit("store-manifest").map_err(UploadError::Record)?;
        Ok((reference, version, known, Some(stored)))
    }

    /// Whose turn it is: this node's, or it is over.
    async fn turn(
        &mut self,
        record: Option<&Record>,
    ) -> Result<(Reference, Option<Version>, u64), UploadError> {
        let known = record.map_or(0, |record| record.fence);
        let node = &self.node.settings.node;
        let Some((there, version)) = self.node.read(&self.up.app, &self.asked).await? else {
            // It slept before there was this store.
            return Ok((Reference::first(&self.up.app, node, known.max(1)), None, known.max(1)));
        };
        if there.owner != *node || (record.is_some() && there.fence != known) {
            return Err(UploadError::Taken { owner: there.owner, fence: there.fence, known });
        }
        let fence = there.fence;
        Ok((there, Some(version), fence))
    }

    /// What the newest generation in the store is made of; none where there is none or it can't be built upon.
    async fn before(&self, reference: &Reference) -> Option<(Below, Option<Below>)> {
        let stored = reference.newest()?;
        let read = async {
            let manifest = read_manifest(self.node, &self.at, stored, &self.asked).await?;
            let memory = self.node.below(&self.at, &manifest.memory, &self.asked).await;
            let memory =
                Below { map: memory.map_err(BeforeError::Below)?, layers: manifest.memory };
            let disk = match manifest.disk {
                None => None,
                Some(disk) => {
                    let map = self.node.below(&self.at, &disk.layers, &self.asked).await;
                    Some(Below { map: map.map_err(BeforeError::Below)?, layers: disk.layers })
                }
            };
            Ok::<_, BeforeError>((memory, disk))
        };
        match read.await {
            Ok(before) => Some(before),
            Err(error) => {
                tracing::warn!(app = %self.up.app, generation = %stored.generation, %error, "what the store has is not built upon");
                None
            }
        }
    }

    /// Sends what of an image is not in the store yet.
    async fn image(
        &mut self,
        path: std::path::PathBuf,
        map: Map,
        below_it: Option<Below>,
        what: &'static str,
    ) -> Result<Vec<Archived>, UploadError> {
        let content = map.content_id().ok_or(UploadError::NoChecksums(what))?;
        let map = map.with_image_id(content);
        let (mut layers, map) = match below_it.and_then(|below| over(&map, below)) {
            Some((layers, None)) => return Ok(layers),
            Some((layers, Some(layer))) => (layers, layer),
            None => (Vec::new(), map),
        };
        let place = format!("layers/{}-{content}", self.fence);
        let key = below(&self.at, &place)?;
        let data_bytes = map.counts().data * rouse_snapshot_format::PAGE;
        let image = blocking(move || Image::with_map(path, map)).await?;
        let resume = self.unfinished(&key).await;
        let options = UpOptions {
            condition: Condition::Always,
            patience: self.node.settings.patience,
            resume,
            cancel: self.up.cancel.clone(),
            ..UpOptions::default()
        };
        let sent = up(&self.node.store, &key, image, options).await?;
        self.asked.count(sent.requests);
        self.asked.count_retries(sent.retries);
        self.bytes += sent.sent;
        layers.push(Archived {
            place,
            bytes: sent.size,
            index_blake3: blake3::Hash::from_bytes(sent.index_blake3).to_hex().to_string(),
            image_id: content.to_string(),
            data_bytes,
        });
        Ok(layers)
    }

    /// One of the same content in the same turn that was cut off, by the end of its process.
    async fn unfinished(&self, key: &Key) -> Option<Upload> {
        match unfinished(&self.node.store, &self.at, key).await {
            Ok(upload) => upload,
            Err(error) => {
                tracing::debug!(%error, "unfinished uploads can't be listed");
                None
            }
        }
    }

    async fn manifest(
        &mut self,
        sleeping: &Sleeping,
        memory: Vec<Archived>,
        disk: Option<StoredDisk>,
    ) -> Result<Stored, UploadError> {
        let mut stored = Stored {
            generation: sleeping.manifest.generation,
            image_id: sleeping.manifest.image_id.clone(),
            manifest_blake3: String::new(),
            slept_unix_ms: sleeping.manifest.slept_unix_ms,
        };
        let place = format!("{}/state", stored.place());
        let state = Bytes::from(sleeping.state.clone());
        let part = Part {
            bytes: state.len() as u64,
            blake3: blake3::hash(&state).to_hex().to_string(),
            place,
        };
        self.put(&part.place, state).await?;
        let manifest = StoredManifest {
            format: FORMAT,
            node: self.node.settings.node.clone(),
            fence: self.fence,
            image: sleeping.manifest.clone(),
            key: self.up.key.clone(),
            state: part,
            memory,
            disk,
        };
        let text = serde_json::to_vec_pretty(&manifest)
            .map_err(|error| UploadError::Record(io::Error::from(error)))?;
        stored.manifest_blake3 = blake3::hash(&text).to_hex().to_string();
        self.commit(&format!("{}/manifest.json", stored.place()), text.into()).await?;
        Ok(stored)
    }

    /// Writes what must not be there yet, unless it is the same: then an earlier try was cut off behind it.
    async fn commit(&mut self, place: &str, bytes: Bytes) -> Result<(), UploadError> {
        let key = below(&self.at, place)?;
        let condition = match self.node.conditions().await?.absent {
            true => Condition::Absent,
            false => Condition::Always,
        };
        self.bytes += bytes.len() as u64;
        let put = retry(&self.node.settings.patience, &self.asked, |_| {
            let (store, key, bytes) = (&self.node.store, &key, bytes.clone());
            async move {
                let put = store.put(key, bytes.clone(), condition).await;
                let Err(StoreError::Changed { .. }) = put else { return put };
                match small(&**store, key, MAX_MANIFEST).await {
                    Ok((there, version)) if there == bytes => Ok(version),
                    Ok(_) => put,
                    Err(error) => Err(error),
                }
            }
        });
        Ok(put.await.map(drop)?)
    }

    async fn put(&mut self, place: &str, bytes: Bytes) -> Result<(), UploadError> {
        let key = below(&self.at, place)?;
        self.bytes += bytes.len() as u64;
        let put = retry(&self.node.settings.patience, &self.asked, |_| {
            let (store, key, bytes) = (&self.node.store, &key, bytes.clone());
            async move { store.put(key, bytes, Condition::Always).await }
        });
        Ok(put.await.map(drop)?)
    }
}

/// The layers to keep, and the one to put over them if anything changed. None: better all anew.
fn over(map: &Map, below: Below) -> Option<(Vec<Archived>, Option<Map>)> {
    let Below { layers, map: base } = below;
    let layer = map.layer_over(&base)?;
    let counts = layer.counts();
    if counts.data + counts.zero == 0 {
        return Some((layers, None));
    }
    if layers.len() >= MOST_LAYERS {
        return None;
    }
    // What would lie under others without being seen is fetched by nobody, but it is kept.
    let kept: u64 = layers.iter().map(|layer| layer.data_bytes / rouse_snapshot_format::PAGE).sum();
    (kept + counts.data <= map.counts().data * 2).then_some((layers, Some(layer)))
}

#[derive(Debug, thiserror::Error)]
enum BeforeError {
    #[error(transparent)]
    Manifest(#[from] ReadManifestError),
    #[error(transparent)]
    Below(BelowError),
}

/// Why a manifest in the store can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadManifestError {
    /// The store did not give it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is none.
    #[error("{key}: {source}")]
    Manifest {
        /// Where it is.
        key: Key,
        /// What is wrong with it.
        source: ManifestError,
    },
    /// Its place is no key.
    #[error(transparent)]
    Key(#[from] KeyError),
}

pub(super) async fn read_manifest(
    node: &NodeStore,
    at: &Key,
    stored: &Stored,
    asked: &Asked,
) -> Result<StoredManifest, ReadManifestError> {
    let key = below(at, &format!("{}/manifest.json", stored.place()))?;
    let mut tries = 0;
    loop {
        let read = retry(&node.settings.patience, asked, |_| {
            let (store, key) = (&node.store, &key);
            async move { small(&**store, key, MAX_MANIFEST).await }
        });
        let (bytes, _) = read.await?;
        match StoredManifest::parse(&bytes, &stored.manifest_blake3) {
            // It may have been the way.
            Err(ManifestError::Checksum) if tries < 2 => tries += 1,
            Err(source) => return Err(ReadManifestError::Manifest { key, source }),
            Ok(manifest) => return Ok(manifest),
        }
    }
}
