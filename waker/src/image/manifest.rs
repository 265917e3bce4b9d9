//! The manifest: what binds the parts of one generation, and what they depend on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rouse_protocol::app::{AppId, Generation};
use rouse_snapshot_format::Map;
use serde::{Deserialize, Serialize};

use super::disk::DiskSeal;
use super::files::{read_bounded, read_small};
use super::{MANIFEST, MAP, MEMORY, STATE};
use crate::config::MachineConfig;
use crate::vmm::VmmIdentity;

/// The version of [`Manifest`] that is written, and the only one that is read.
pub(super) const FORMAT: u32 = 2;
/// The largest device state or map that is read, in bytes. QEMU's state is some 60 KB.
pub const MAX_PART: u64 = 256 << 20;

/// The commit point of a sleep: it is written last, when all that it names is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this form.
    pub format: u32,
    /// The app.
    pub app: AppId,
    /// The generation.
    pub generation: Generation,
    /// The id that memory, its map, the device state and the disk's seal share; hexadecimal.
    pub image_id: String,
    /// When it fell asleep, in milliseconds of Unix time.
    pub slept_unix_ms: u64,
    /// What can load it.
    pub vmm: VmmIdentity,
    /// [`MachineConfig::fingerprint`] when its life began.
    pub machine: String,
    /// The guest's RAM in bytes.
    pub memory_bytes: u64,
    /// Its vCPUs.
    pub vcpus: u8,
    /// BLAKE3 of the map, hexadecimal.
    pub map_blake3: String,
    /// The device state's size in bytes.
    pub state_bytes: u64,
    /// BLAKE3 of the device state, hexadecimal.
    pub state_blake3: String,
    /// The disk as memory knows it; none: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskSeal>,
    /// The VMM left memory's changes in a layer of its own, which has to be merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<Layer>,
}

/// A differential layer over `memory.img`: its map, beside it, has all checksums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// BLAKE3 of the layer's map, hexadecimal.
    pub map_blake3: String,
}

/// Why an image is not used. It leads to a cold boot, never to a guess.
#[derive(Debug, thiserror::Error)]
pub enum ImageRefusal {
    /// There is none.
    #[error("there is no image")]
    None,
    /// Its memory is not to be trusted, or an operator wants a cold boot.
    #[error("a cold boot was asked for")]
    Unwanted,
    /// A part can't be read.
    #[error("{path}: {source}")]
    Read {
        /// The part.
        path: PathBuf,
        /// What reading it said.
        source: io::Error,
    },
    /// Another process has locked its memory. It is not spent by that.
    #[error("{path}: {source}")]
    Busy {
        /// The memory.
        path: PathBuf,
        /// That it is locked.
        source: io::Error,
    },
    /// The manifest is none of this version.
    #[error("{path} is no manifest of format {FORMAT}: {detail}")]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// It was made by or for something else.
    #[error("its {what} is {image}, and here it is {here}")]
    Mismatch {
        /// What differs.
        what: &'static str,
        /// As the image has it.
        image: String,
        /// As it is here.
        here: String,
    },
    /// A part is not the one that the manifest names.
    #[error("{path} is damaged: its {what} does not match")]
    Damaged {
        /// The part.
        path: PathBuf,
        /// What does not match.
        what: &'static str,
    },
    /// The map is no map.
    #[error("{path}: {source}")]
    Map {
        /// The map.
        path: PathBuf,
        /// What is wrong with it.
        source: rouse_snapshot_format::OpenMapError,
    },
    /// A layer could not be merged into its memory.
    #[error("its layer can't be merged: {0}")]
    Merge(String),
    /// It was good and could not be consumed.
    #[error("it can't be consumed: {0}")]
    Consume(io::Error),
}

impl ImageRefusal {
    /// A part could not be read. That there are no descriptors or no memory now says nothing of the image.
    pub(super) fn reading(path: PathBuf, source: io::Error) -> Self {
        use rustix::io::Errno;
        match Errno::from_io_error(&source) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Self::Busy { path, source },
            _ => Self::Read { path, source },
        }
    }

    /// A word for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Unwanted => "unwanted",
            Self::Read { .. } => "read",
            Self::Busy { .. } => "busy",
            Self::Manifest { .. } => "manifest",
            Self::Mismatch { what, .. } => what,
            Self::Damaged { .. } | Self::Map { .. } => "damaged",
            Self::Merge(_) => "merge",
            Self::Consume(_) => "consume",
        }
    }
}

impl Manifest {
    /// The manifest in `directory`.
    pub(super) fn read(directory: &Path) -> Result<Self, ImageRefusal> {
        let path = directory.join(MANIFEST);
        let text =
            read_small(&path).map_err(|source| ImageRefusal::reading(path.clone(), source))?;
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|error| ImageRefusal::Manifest { path, detail: error.to_string() })?;
        same("format", &manifest.format, &FORMAT)?;
        Ok(manifest)
    }

    /// Is it this app's, and can this machine on this VMM load it?
    pub(crate) fn fits(
        &self,
        app: &AppId,
        machine: &MachineConfig,
        vmm: &VmmIdentity,
    ) -> Result<(), ImageRefusal> {
        same("app", &self.app, app)?;
        same("VMM", &self.vmm.kind, &vmm.kind)?;
        same("VMM version", &self.vmm.version, &vmm.version)?;
        same("accelerator", &self.vmm.accelerator, &vmm.accelerator)?;
        same("CPU", &self.vmm.cpu, &vmm.cpu)?;
        same("kernel", &self.vmm.kernel, &vmm.kernel)?;
        same("memory size", &self.memory_bytes, &machine.memory_bytes())?;
        same("vCPU count", &self.vcpus, &machine.vcpus)?;
        same("machine", &self.machine, &machine.fingerprint())
    }

    /// Are the parts in `directory` those that it names? Memory itself is not read.
    pub(super) fn names(&self, directory: &Path) -> Result<Map, ImageRefusal> {
        let damaged = |name: &str, what| ImageRefusal::Damaged { path: directory.join(name), what };
        let read = |name: &str| {
            let path = directory.join(name);
            read_bounded(&path, MAX_PART).map_err(|source| ImageRefusal::reading(path, source))
        };
        let state = read(STATE)?;
        if state.len() as u64 != self.state_bytes {
            return Err(damaged(STATE, "size"));
        }
        if blake3::hash(&state).to_hex().as_str() != self.state_blake3 {
            return Err(damaged(STATE, "checksum"));
        }
        if blake3::hash(&read(MAP)?).to_hex().as_str() != self.map_blake3 {
            return Err(damaged(MAP, "checksum"));
        }
        let map_path = directory.join(MAP);
        let map =
            Map::open(&map_path).map_err(|source| ImageRefusal::Map { path: map_path, source })?;
        if self.layer.is_none() && map.image_id().to_string() != self.image_id {
            return Err(damaged(MAP, "image id"));
        }
        let memory = directory.join(MEMORY);
        let size =
            fs::metadata(&memory).map_err(|source| ImageRefusal::reading(memory, source))?.len();
        if size != self.memory_bytes || map.mem_size() != size {
            return Err(damaged(MEMORY, "size"));
        }
        self.knows_disk(directory)?;
        Ok(map)
    }

    fn knows_disk(&self, directory: &Path) -> Result<(), ImageRefusal> {
        let Some(sealed) = &self.disk else {
            return same(
                "disk",
                &"none",
                if directory.join(super::DISK).exists() { &"one" } else { &"none" },
            );
        };
        let now = DiskSeal::of(directory)
            .map_err(|source| ImageRefusal::reading(directory.join(super::DISK), source))?;
        match sealed.differs(&now) {
            Some((what, image, here)) => Err(ImageRefusal::Mismatch { what, image, here }),
            None => Ok(()),
        }
    }
}

pub(super) fn same<T: PartialEq + ToString>(
    what: &'static str,
    image: &T,
    here: &T,
) -> Result<(), ImageRefusal> {
    if image == here {
        return Ok(());
    }
    Err(ImageRefusal::Mismatch { what, image: image.to_string(), here: here.to_string() })
}
