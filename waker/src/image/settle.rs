//! From a standing VM to a generation: everything is made durable while the VM could still go on,
//! and then one rename publishes it.
//!
//! A manifest in `live` says that the VM will not run again: it is written when all else is
//! durable, removed durably before a vCPU runs again, and a waker that finds it without a VM
//! finishes what the one before had begun.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rouse_snapshot_format::{
    Image, ImageId, Known, Map, MergeInPlaceError, OpenImageError, PAGE, Progress, RefreshError,
    Sparsified, SparsifyOptions, VmmDiffError, VmmDiffOptions, Work, merge_in_place, refresh,
    verify_image, vmm_diff,
};

use super::disk::DiskSeal;
use super::files::{read_bounded, reflink, remove_dir, remove_file, sync_dir, write_durably};
use super::manifest::{FORMAT, Layer, MAX_PART, Manifest};
use super::{
    AppDir, DISK, DISK_ID, ImageRefusal, LAYER, LAYER_MAP, LIVE, Live, MANIFEST, MAP, MEMORY, PAIR,
    PAIR_DRAFT, STATE, generation_name, in_use,
};
use crate::fault;
use crate::vmm::RunRecord;
use crate::vmm::touched::Touched;

/// Why a standing VM could not be made a generation. It can go on.
#[derive(Debug, thiserror::Error)]
pub enum SettleError {
    /// The memory could not be looked at or made sparse.
    #[error(transparent)]
    Refresh(RefreshError),
    /// The VMM's layer can't be taken.
    #[error(transparent)]
    Layer(#[from] VmmDiffError),
    /// A map could not be written.
    #[error(transparent)]
    Map(#[from] rouse_snapshot_format::WriteMapError),
    /// A file could not be written, synced or renamed.
    #[error("{path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A visitor came.
    #[error("the sleep was called off")]
    Cancelled,
}

impl From<RefreshError> for SettleError {
    fn from(error: RefreshError) -> Self {
        match error {
            RefreshError::Cancelled(_) => Self::Cancelled,
            error => Self::Refresh(error),
        }
    }
}

/// What a save left beside the device state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedMemory {
    /// The memory file is the guest's RAM.
    InPlace,
    /// What changed, as a sparse file over it: [`Live::layer`].
    Layer,
}

/// What settling found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// What had to be written out for this sleep, in bytes.
    pub written_bytes: u64,
}

/// What it takes to settle a life.
pub struct Settle<'a> {
    /// Its directory.
    pub live: PathBuf,
    /// Its VM.
    pub record: &'a RunRecord,
    /// How the VMM saved it.
    pub memory: SavedMemory,
    /// What the VM may have written to its memory.
    pub touched: Touched,
    /// What of its memory its wake took, in bytes of it: the next one's working set. None: not known.
    pub woken_by: Vec<Range<u64>>,
    /// Ends it early.
    pub progress: &'a Progress,
}

fn writing(path: &Path) -> impl FnOnce(io::Error) -> SettleError {
    let path = path.to_owned();
    move |source| SettleError::Write { path, source }
}

impl AppDir {
    /// Makes all of the generation durable, the manifest last.
    pub fn settle(&self, job: Settle<'_>) -> Result<Settled, SettleError> {
        let Settle { live, record, memory, touched, woken_by, progress } = job;
        if !self.gather(progress).map_err(writing(&live.join(MEMORY)))? {
            return Err(SettleError::Cancelled);
        }
        let image_id = ImageId::random();
        sync_file(&live.join(STATE), "settle-sync")?;
        if live.join(DISK).exists() {
            sync_file(&live.join(DISK), "settle-sync")?;
        }
        let (mut written, layer) = match memory {
            SavedMemory::InPlace => {
                (in_place(&live, image_id, touched, &woken_by, progress)?, None)
            }
            SavedMemory::Layer => {
                let (written, layer) = layer(&live, image_id, progress)?;
                (written, Some(layer))
            }
        };
        if progress.is_cancelled() {
            return Err(SettleError::Cancelled);
        }
        self.pair(&live, record)?;
        let manifest = self.manifest(&live, record, image_id, layer)?;
        written += manifest.state_bytes + size(&live.join(MAP));
        self.write_manifest(&live, &manifest)?;
        fault::hit("settled").map_err(writing(&live))?;
        Ok(Settled { written_bytes: written })
    }

    fn manifest(
        &self,
        live: &Path,
        record: &RunRecord,
        image_id: ImageId,
        layer: Option<Layer>,
    ) -> Result<Manifest, SettleError> {
        let read = |name: &str| {
            let path = live.join(name);
            read_bounded(&path, MAX_PART).map_err(writing(&path))
        };
        let (state, map) = (read(STATE)?, read(MAP)?);
        let disk = live.join(DISK);
        let sealed = disk.exists().then(|| DiskSeal::of(live)).transpose();
        let slept = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Manifest {
            format: FORMAT,
            app: self.app.clone(),
            generation: record.generation,
            image_id: image_id.to_string(),
            slept_unix_ms: u64::try_from(slept.as_millis()).unwrap_or(u64::MAX),
            vmm: record.identity.clone(),
            machine: record.machine.clone(),
            memory_bytes: u64::from(record.memory_mib) << 20,
            vcpus: record.vcpus,
            map_blake3: blake3::hash(&map).to_hex().to_string(),
            state_bytes: state.len() as u64,
            state_blake3: blake3::hash(&state).to_hex().to_string(),
            disk: sealed.map_err(writing(&disk))?,
            layer,
        })
    }

    fn write_manifest(&self, directory: &Path, manifest: &Manifest) -> Result<(), SettleError> {
        let path = directory.join(MANIFEST);
        let text = serde_json::to_vec_pretty(manifest).map_err(io::Error::from);
        fault::hit("settle-manifest")
            .and(text)
            .and_then(|text| write_durably(&path, &text))
            .map_err(writing(&path))
    }

    /// A second copy of all parts, where the file system shares their blocks: memory *and* disk to
    /// go back to. It takes the place of the one before when the sleep is published.
    fn pair(&self, live: &Path, record: &RunRecord) -> Result<(), SettleError> {
        let pair = live.join(PAIR_DRAFT);
        remove_dir(&pair).map_err(writing(&pair))?;
        if !record.keep_pair {
            return Ok(());
        }
        fs::create_dir(&pair).map_err(writing(&pair))?;
        for name in [MEMORY, MAP, LAYER, LAYER_MAP, STATE, DISK, DISK_ID] {
            let from = live.join(name);
            if !from.exists() {
                continue;
            }
            match reflink(&from, &pair.join(name)).map_err(writing(&from))? {
                Some(copy) => keep_times(&from, &copy).map_err(writing(&from))?,
                // Not on this file system: there is no way back but the disk.
                None => return remove_dir(&pair).map_err(writing(&pair)),
            }
        }
        sync_dir(&pair).map_err(writing(&pair))
    }

    /// Takes a settled life back: before its VM runs on, nothing may say that it is an image.
    pub fn undo(&self) -> io::Result<()> {
        fault::hit("undo")?;
        let live = self.path.join(LIVE);
        remove_file(&live.join(MANIFEST))?;
        // Also when it is not there: an earlier try may have failed at just this.
        sync_dir(&live)
    }

    /// Publishes a settled life whose VM is gone. Durable when it returns.
    pub fn publish(&self, live: Live) -> Result<super::Published, SettleError> {
        let Live { path, memory_lock, .. } = live;
        drop(memory_lock);
        self.end_lazy().map_err(writing(&path))?;
        fault::hit("publish").map_err(writing(&path))?;
        let manifest = Manifest::read(&path).map_err(|refusal| SettleError::Write {
            path: path.clone(),
            source: io::Error::other(refusal),
        })?;
        self.rename_to(&path, &manifest)
    }

    fn rename_to(&self, live: &Path, manifest: &Manifest) -> Result<super::Published, SettleError> {
        let generation = manifest.generation;
        let to = self.path.join(generation_name(generation));
        // A copy that is to be gone back to says what it is by its own manifest, written now: until
        // the rename it is a copy of something that may go on.
        let (pair, draft) = (live.join(PAIR), live.join(PAIR_DRAFT));
        // One of this very sleep has its place already, if this was cut off before.
        let ours = Manifest::read(&pair).is_ok_and(|pair| pair.generation == generation);
        if !ours {
            remove_dir(&pair).map_err(writing(&pair))?;
        }
        if draft.exists() {
            self.write_manifest(&draft, manifest)?;
            fs::rename(&draft, &pair).and_then(|()| sync_dir(live)).map_err(writing(&pair))?;
        }
        fs::rename(live, &to)
            .and_then(|()| self.point_to(Some(generation)))
            .and_then(|()| self.sync())
            .map_err(writing(&to))?;
        fault::hit("published").map_err(writing(&to))?;
        Ok(super::Published { generation, image_bytes: self.data_bytes(&to) })
    }

    /// Finishes what a waker before this one had begun: a `live` with a manifest and without a VM.
    /// It is only an image if every byte is as the map says.
    pub(super) fn finish(&self) -> Result<(), ImageRefusal> {
        let live = self.path.join(LIVE);
        if !live.join(MANIFEST).exists() {
            return Ok(());
        }
        fault::hit("finish").map_err(ImageRefusal::Consume)?;
        let manifest = Manifest::read(&live)?;
        let map = manifest.names(&live)?;
        let memory = live.join(MEMORY);
        let damaged = |what| ImageRefusal::Damaged { path: memory.clone(), what };
        let image = Image::with_map(&memory, map).map_err(|_| damaged("map"))?;
        verify_image(&image, Work::default()).map_err(|_| damaged("checksum"))?;
        drop(image);
        tracing::info!(app = %self.app, generation = %manifest.generation, "finishes a sleep that was cut off");
        let renamed = self.rename_to(&live, &manifest);
        renamed.map(drop).map_err(|e| ImageRefusal::Consume(io::Error::other(e)))?;
        fault::hit("finished").map_err(ImageRefusal::Consume)
    }

    /// Merges the layer that a VMM left into the memory below it. It may be cut off at any moment and
    /// is then done again.
    pub(super) fn merge(
        &self,
        directory: &Path,
        manifest: Manifest,
    ) -> Result<Manifest, ImageRefusal> {
        let Some(layer) = &manifest.layer else { return Ok(manifest) };
        let merge = |error: &dyn std::fmt::Display| ImageRefusal::Merge(error.to_string());
        let layer_map = directory.join(LAYER_MAP);
        let bytes = read_bounded(&layer_map, MAX_PART).map_err(|e| merge(&e))?;
        if blake3::hash(&bytes).to_hex().as_str() != layer.map_blake3 {
            return Err(ImageRefusal::Damaged { path: layer_map, what: "checksum" });
        }
        let (memory, map) = (directory.join(MEMORY), directory.join(MAP));
        let over = Image::open(directory.join(LAYER), &layer_map).map_err(|e| merge(&e))?;
        match merge_in_place(&memory, &map, &[&over], &Work::default()) {
            Ok(_) => {}
            Err(MergeInPlaceError::Open(OpenImageError::InUse(_))) => {
                return Err(ImageRefusal::Busy { path: memory, source: in_use() });
            }
            Err(error) => return Err(merge(&error)),
        }
        let merged = read_bounded(&map, MAX_PART).map_err(|e| merge(&e))?;
        let manifest = Manifest {
            map_blake3: blake3::hash(&merged).to_hex().to_string(),
            image_id: over.map().image_id().to_string(),
            layer: None,
            ..manifest
        };
        self.write_manifest(directory, &manifest).map_err(|e| merge(&e))?;
        for name in [LAYER, LAYER_MAP] {
            remove_file(&directory.join(name)).map_err(|e| merge(&e))?;
        }
        Ok(manifest)
    }

    /// What an image holds, without the disk, in bytes: what its parts occupy once it is trimmed.
    fn data_bytes(&self, directory: &Path) -> u64 {
        let Ok(map) = Map::open(directory.join(MAP)) else { return self.image_bytes(directory) };
        let parts = [STATE, MAP, LAYER, LAYER_MAP].map(|name| size(&directory.join(name)));
        map.counts().data * PAGE + parts.iter().sum::<u64>()
    }

    /// What an image's parts occupy on disk, without the disk, in bytes.
    pub(super) fn image_bytes(&self, directory: &Path) -> u64 {
        [MEMORY, STATE, MAP, LAYER, LAYER_MAP].map(|name| size(&directory.join(name))).iter().sum()
    }
}

/// The memory file is the RAM: what changed is synced and looked at. Zeros keep their blocks, which the
/// guest may need again, until it is gone.
fn in_place(
    live: &Path,
    image_id: ImageId,
    touched: Touched,
    woken_by: &[Range<u64>],
    progress: &Progress,
) -> Result<u64, SettleError> {
    let (memory, map_path) = (live.join(MEMORY), live.join(MAP));
    let before = Map::open(&map_path).ok();
    fault::hit("settle-memory").map_err(writing(&memory))?;
    sync_file(&memory, "settle-sync")?;
    let ranges = match touched {
        Touched::Ranges(ranges) => Some(ranges),
        Touched::Unknown(reason) => {
            tracing::debug!(%reason, "all of the memory is looked at");
            None
        }
    };
    let known = match (&before, &ranges) {
        (Some(map), Some(written)) => Some(Known { map, written }),
        _ => None,
    };
    let work = Work { progress: Some(progress), ..Work::default() };
    let options = SparsifyOptions { work, dry_run: true, ..SparsifyOptions::default() };
    let found: Sparsified = match refresh(&memory, known, &options) {
        Err(
            RefreshError::Layer { .. } | RefreshError::Size { .. } | RefreshError::NoChecksums(_),
        ) => refresh(&memory, None, &options)?,
        found => found?,
    };
    let map = found.into_map(image_id);
    let mut working_set = before.as_ref().map(|map| map.working_set().clone()).unwrap_or_default();
    let window = map.window_size();
    let windows = woken_by
        .iter()
        .flat_map(|bytes| bytes.start / window.bytes()..bytes.end.div_ceil(window.bytes()));
    working_set.record(windows.filter_map(|window| u32::try_from(window).ok()), window);
    let map = map.with_working_set(working_set);
    fault::hit("settle-map").map_err(writing(&map_path))?;
    map.write(&map_path)?;
    Ok(changed_bytes(before.as_ref(), &map))
}

/// What windows hold that are not as they were, in bytes.
fn changed_bytes(before: Option<&Map>, after: &Map) -> u64 {
    let same_shape =
        |map: &&Map| map.mem_size() == after.mem_size() && map.window_size() == after.window_size();
    let before = before.filter(same_shape);
    (0..after.windows())
        .filter(|&window| before.is_none_or(|map| map.checksum(window) != after.checksum(window)))
        .map(|window| after.window_data_pages(window) * PAGE)
        .sum()
}

/// The VMM wrote what changed to a file of its own, and the memory below is as it was.
fn layer(live: &Path, image_id: ImageId, progress: &Progress) -> Result<(u64, Layer), SettleError> {
    let (path, map_path) = (live.join(LAYER), live.join(LAYER_MAP));
    sync_file(&path, "settle-sync")?;
    let work = Work { progress: Some(progress), ..Work::default() };
    if !live.join(MAP).exists() {
        // A life that began with a boot: below it is memory that nobody has written to.
        let options = SparsifyOptions { work, ..SparsifyOptions::default() };
        let empty = refresh(&live.join(MEMORY), None, &options)?.into_map(ImageId::random());
        empty.write(live.join(MAP))?;
    }
    let below = Map::open(live.join(MAP))
        .map_err(|e| SettleError::Write { path: live.join(MAP), source: io::Error::other(e) })?;
    let options = VmmDiffOptions { work, window: Some(below.window_size()) };
    let map = match vmm_diff(&path, image_id, below.image_id(), &options) {
        Err(VmmDiffError::Cancelled(_)) => return Err(SettleError::Cancelled),
        map => map?,
    };
    fault::hit("settle-map").map_err(writing(&map_path))?;
    map.write(&map_path)?;
    let bytes = read_bounded(&map_path, MAX_PART).map_err(writing(&map_path))?;
    Ok((size(&path), Layer { map_blake3: blake3::hash(&bytes).to_hex().to_string() }))
}

fn sync_file(path: &Path, point: &'static str) -> Result<(), SettleError> {
    fault::hit(point).and_then(|()| File::open(path)?.sync_all()).map_err(writing(path))
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |m| m.blocks() * 512)
}

/// A copy of a disk is the disk as it was sealed, its last write included.
fn keep_times(from: &Path, copy: &File) -> io::Result<()> {
    let metadata = fs::metadata(from)?;
    let times =
        fs::FileTimes::new().set_accessed(metadata.accessed()?).set_modified(metadata.modified()?);
    copy.set_times(times)?;
    copy.sync_all()
}
