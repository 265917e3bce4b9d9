//! From a generation in the store to one that sleeps here.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::signature::AgentKey;
use rouse_snapshot_format::{ImageId, ImageIdError, Map, PAGE};
use rouse_store::{Key, StoreError};
use rouse_transfer::{
    Asked, Fill, FillError, FillOptions, Layers, LayersError, Metrics, StartError, retry,
};
use serde::{Deserialize, Serialize};

use super::manifest::{Archived, StoredManifest, below};
use super::reference::{Stored, Turn, app_key};
use super::up::{OpenLayersError, ReadManifestError, open_layers, read_manifest};
use super::{NodeStore, ReferenceFault, cached, small};
use crate::app::blocking;
use crate::fault;
use crate::image::{AppDir, Draft, MAX_PART};

/// What has to stay free besides the image, in bytes: for its map, its state and the next sleep's.
const SPARE: u64 = 64 << 20;

/// What state, map and records of an image in the cache take at most, as far as is reckoned, in bytes.
const OWN: u64 = 1 << 20;

/// A generation that was fetched, and sleeps here.
#[derive(Debug)]
pub struct Fetched {
    /// Which.
    pub generation: Generation,
    /// What its agent signs with.
    pub key: AgentKey,
    /// What it cost; none: it was in the cache.
    pub cost: Option<Cost>,
    /// From the start until the working set was there.
    pub working_set_after: Option<Duration>,
}

/// What was asked of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Requests made, those that failed too.
    pub requests: u64,
    /// Requests made because one before had failed, or came with something wrong.
    pub retries: u64,
    /// Requests for what another was at already.
    pub hedges: u64,
    /// Bytes that came.
    pub bytes: u64,
}

/// A generation that waits in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prewarmed {
    /// Which.
    pub generation: Generation,
    /// It was there already.
    pub was_there: bool,
    /// Bytes that came.
    pub bytes: u64,
}

/// Why nothing waits in the cache.
#[derive(Debug, thiserror::Error)]
pub enum PrewarmError {
    /// There is no cache.
    #[error("this node has no cache: set `cache.max_mib` in waker.toml")]
    NoCache,
    /// The app has never slept into the store.
    #[error("the store has no generation of it")]
    Nothing,
    /// It runs, or is not in the store yet.
    #[error("node {0} has it, awake or not in the store yet")]
    Held(String),
    /// The reference can't be read.
    #[error(transparent)]
    Reference(#[from] ReferenceFault),
    /// It can't be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The cache does not take it.
    #[error(transparent)]
    Keep(#[from] cached::KeepError),
}

/// Why a generation is not here.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Its manifest can't be read.
    #[error(transparent)]
    Manifest(#[from] ReadManifestError),
    /// It is not the app's, or not the one that the reference speaks of.
    #[error("its manifest speaks of generation {generation} of {app}")]
    Other {
        /// Whose.
        app: AppId,
        /// Which.
        generation: Generation,
    },
    /// An archive can't be opened.
    #[error(transparent)]
    Open(#[from] OpenLayersError),
    /// Its archives do not fit each other.
    #[error(transparent)]
    Layers(#[from] LayersError),
    /// Its device state can't be read.
    #[error(transparent)]
    State(#[from] StoreError),
    /// A part is another than the manifest says.
    #[error("its {0} is not what its manifest says")]
    Damaged(&'static str),
    /// The file system is too full.
    #[error(
        "{path} has {free} bytes free, and generation {generation} needs {needed}: make room on that file system"
    )]
    NoRoom {
        /// Where.
        path: PathBuf,
        /// Which.
        generation: Generation,
        /// What it needs, in bytes.
        needed: u64,
        /// What is free, in bytes.
        free: u64,
    },
    /// The process that was to bring the memory did not.
    #[error("its pager: {why}")]
    Pager {
        /// What it said.
        why: String,
        /// What is in the store is spoilt.
        spoilt: bool,
    },
    /// A file can't be filled.
    #[error(transparent)]
    Start(#[from] StartError),
    /// What it is made of did not come.
    #[error(transparent)]
    Fill(#[from] FillError),
    /// A file can't be made, written or moved.
    #[error("{path}: {source}")]
    File {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl From<ImageIdError> for FetchError {
    fn from(_: ImageIdError) -> Self {
        Self::Damaged("image id")
    }
}

impl FetchError {
    /// Whether the generation itself is spoilt, in the store: another try won't mend it.
    pub fn is_spoilt(&self) -> bool {
        let gone = |error: &StoreError| {
            matches!(error, StoreError::NotFound { .. } | StoreError::Corrupt { .. })
        };
        match self {
            Self::Other { .. } | Self::Layers(_) | Self::Damaged(_) => true,
            Self::Manifest(ReadManifestError::Store(error)) | Self::State(error) => gone(error),
            Self::Manifest(_) => true,
            Self::Open(error) => error.is_spoilt(),
            Self::Pager { spoilt, .. } => *spoilt,
            Self::Fill(FillError::Store { source, .. }) => {
                gone(source) || matches!(source, StoreError::Changed { .. })
            }
            Self::Fill(FillError::Corrupt { .. }) => true,
            Self::NoRoom { .. } | Self::Start(_) | Self::Fill(_) | Self::File { .. } => false,
        }
    }

    /// There is no room for it here.
    pub fn is_full(&self) -> bool {
        match self {
            Self::NoRoom { .. } | Self::Start(StartError::NoRoom { .. }) => true,
            Self::File { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            Self::Fill(FillError::Write { source, .. }) => {
                source.kind() == io::ErrorKind::StorageFull
            }
            _ => false,
        }
    }
}

impl NodeStore {
    /// Fetches a generation, from the cache or from the store, so that it is as if it had slept here. What was
    /// here goes: it is thrown away if it is `superseded`, and set aside otherwise.
    pub async fn fetch(
        &self,
        app: &AppId,
        dir: &Arc<AppDir>,
        stored: &Stored,
        superseded: bool,
        asked: &Asked,
    ) -> Result<Fetched, FetchError> {
        let file = || move |source| FetchError::File { path: dir.path().to_owned(), source };
        let (cache, wanted, place) = (self.cache.clone(), stored.clone(), Arc::clone(dir));
        let cached = blocking(move || {
            let to = place.clear_draft()?;
            let Some(cache) = cache else { return Ok(None) };
            Ok(cached::take(&cache, &wanted, &to)?.then_some(to))
        });
        let (to, cost, working_set_after) = match cached.await.map_err(file())? {
            Some(to) => (to, None, None),
            None => {
                let place = Arc::clone(dir);
                let to = blocking(move || place.make_draft()).await.map_err(file())?;
                let (cost, after) = Box::pin(self.bring(app, &to, stored, asked)).await?;
                (to, Some(cost), after)
            }
        };
        let adopting = Arc::clone(dir);
        let adopted = blocking(move || adopting.adopt(&to, superseded)).await;
        let (generation, key) = adopted.map_err(file())?;
        fault::hit("store-adopted").map_err(file())?;
        Ok(Fetched { generation, key, cost, working_set_after })
    }

    /// Has the newest generation of a sleeping app in the cache, ahead of its wake.
    pub async fn prewarm(&self, app: &AppId) -> Result<Prewarmed, PrewarmError> {
        let cache = self.cache.clone().ok_or(PrewarmError::NoCache)?;
        let asked = Asked::default();
        let Some((reference, _)) = self.read(app, &asked).await? else {
            return Err(PrewarmError::Nothing);
        };
        if reference.turn == Turn::Held {
            return Err(PrewarmError::Held(reference.owner));
        }
        let stored = reference.newest().cloned().ok_or(PrewarmError::Nothing)?;
        let generation = stored.generation;
        let Some(id) = cached::entry(&stored) else { return Err(PrewarmError::Nothing) };
        if cache.contains(&id) {
            return Ok(Prewarmed { generation, was_there: true, bytes: 0 });
        }
        let at = app_key(app);
        let manifest = read_manifest(self, &at, &stored, &asked).await.map_err(FetchError::from)?;
        let disk = manifest.disk.iter().flat_map(|disk| &disk.layers);
        // As much as all layers together have; what one hides of another is given back.
        let data: u64 = manifest.memory.iter().chain(disk).map(|layer| layer.data_bytes).sum();
        let reserving = cache.clone();
        let draft =
            blocking(move || reserving.reserve(data.saturating_add(OWN), cached::now_unix_ms()));
        let draft = draft.await.map_err(cached::KeepError::from)?;
        let (cost, _) = Box::pin(self.bring(app, draft.path(), &stored, &asked)).await?;
        let published = blocking(move || draft.publish(&id, cached::now_unix_ms()).map(drop));
        published.await.map_err(cached::KeepError::from)?;
        Ok(Prewarmed { generation, was_there: false, bytes: cost.bytes })
    }

    /// Brings all parts of a generation into the empty directory `to`.
    async fn bring(
        &self,
        app: &AppId,
        to: &Path,
        stored: &Stored,
        asked: &Asked,
    ) -> Result<(Cost, Option<Duration>), FetchError> {
        let at = app_key(app);
        let manifest = read_manifest(self, &at, stored, asked).await?;
        let generation = self.check(app, stored, &manifest)?;
        let none: &[Archived] = &[];
        let disk_layers = manifest.disk.as_ref().map_or(none, |disk| &disk.layers);
        let (state, memory, disk) = futures_util::try_join!(
            self.state(&at, &manifest, asked),
            async { Ok(open_layers(self, &at, &manifest.memory, asked).await?) },
            async { Ok(open_layers(self, &at, disk_layers, asked).await?) },
        )?;
        let memory = Layers::new(memory)?;
        let disk = if disk.is_empty() { None } else { Some(Layers::new(disk)?) };
        if memory.map().mem_size() != manifest.image.memory_bytes {
            return Err(FetchError::Damaged("memory"));
        }
        let disk_bytes = manifest.image.disk.as_ref().map(|seal| seal.bytes);
        if disk.as_ref().map(|disk| disk.map().mem_size()) != disk_bytes {
            return Err(FetchError::Damaged("disk"));
        }
        let file = || move |source| FetchError::File { path: to.to_owned(), source };
        let draft = Draft::new(to).map_err(file())?;
        admit(to, generation, &memory, disk.as_ref())?;
        fault::hit("store-fetching").map_err(file())?;
        let id = ImageId::from_hex(&manifest.image.image_id)?;
        let map = memory.map().clone().with_image_id(id);
        let (memory, disk) = futures_util::try_join!(filled(memory, draft.memory()), async {
            match disk {
                Some(disk) => filled(disk, draft.disk()).await.map(Some),
                None => Ok(None),
            }
        },)?;
        fault::hit("store-fetched").map_err(file())?;
        let mut cost =
            Cost { requests: asked.requests(), retries: asked.retries(), ..Cost::default() };
        for metrics in [Some(memory), disk].into_iter().flatten() {
            cost.requests += metrics.requests;
            cost.retries += metrics.retries;
            cost.hedges += metrics.hedges;
            cost.bytes += metrics.bytes;
        }
        let StoredManifest { image, key, .. } = manifest;
        let working_set_after = memory.working_set_after;
        let finished = {
            let to = to.to_owned();
            blocking(move || Draft::at(&to).finish(image, Some(&map), &state, &key))
        };
        finished.await.map_err(file())?;
        Ok((cost, working_set_after))
    }

    /// Whether the manifest is the one that the reference speaks of.
    pub(super) fn check(
        &self,
        app: &AppId,
        stored: &Stored,
        manifest: &StoredManifest,
    ) -> Result<Generation, FetchError> {
        let (there, generation) = (&manifest.image.app, manifest.image.generation);
        let same = manifest.image.image_id == stored.image_id;
        if there != app || generation != stored.generation || !same {
            return Err(FetchError::Other { app: there.clone(), generation });
        }
        Ok(generation)
    }

    pub(super) async fn state(
        &self,
        at: &Key,
        manifest: &StoredManifest,
        asked: &Asked,
    ) -> Result<Vec<u8>, FetchError> {
        let part = &manifest.state;
        let key = below(at, &part.place).map_err(OpenLayersError::from)?;
        let read = retry(&self.settings.patience, asked, |_| {
            let (store, key) = (&self.store, &key);
            async move {
                let (bytes, _) = small(&**store, key, MAX_PART).await?;
                // It may have been the way: another try is due.
                if blake3::hash(&bytes).to_hex().as_str() == part.blake3 {
                    return Ok(bytes);
                }
                let detail = "its checksum does not match".to_owned();
                Err(StoreError::Corrupt { key: key.clone(), detail })
            }
        });
        Ok(read.await?.to_vec())
    }
}

pub(super) async fn filled(layers: Layers, path: PathBuf) -> Result<Metrics, FetchError> {
    let made = |source| FetchError::File { path: path.clone(), source };
    let file = File::options().read(true).write(true).open(&path).map_err(made)?;
    let kept = file.try_clone().map_err(made)?;
    let fill = Fill::start(layers, file, FillOptions::default())?;
    fill.whole().await?;
    let metrics = fill.metrics();
    drop(fill);
    blocking(move || kept.sync_all()).await.map_err(made)?;
    Ok(metrics)
}

/// Whether there is room for all of it, before anything is fetched: half an image is of no use.
fn admit(
    to: &Path,
    generation: Generation,
    memory: &Layers,
    disk: Option<&Layers>,
) -> Result<(), FetchError> {
    let data = |map: &Map| map.counts().data * PAGE;
    let needed = data(memory.map()) + disk.map_or(0, |disk| data(disk.map())) + SPARE;
    let path = to.to_owned();
    let failed =
        |errno: rustix::io::Errno| FetchError::File { path: path.clone(), source: errno.into() };
    let room = rustix::fs::statvfs(to).map_err(failed)?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    if free < needed {
        return Err(FetchError::NoRoom { path, generation, needed, free });
    }
    Ok(())
}
