//! What a generation in the store is made of: its `manifest.json`, the last of its parts to be written.

use rouse_protocol::signature::AgentKey;
use rouse_store::{Key, KeyError};
use rouse_transfer::MAX_LAYERS;
use serde::{Deserialize, Serialize};

use crate::image::Manifest;

/// The version of [`StoredManifest`] that is written, and the only one that is read.
pub(super) const FORMAT: u32 = 1;
/// The largest manifest that is read, in bytes: some 2 KB are usual.
pub(super) const MAX_MANIFEST: u64 = 256 << 10;

/// A generation as the store has it. It holds the agent's key, as its memory does: who may read it is as
/// good as root in the guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredManifest {
    /// The version of this form.
    pub format: u32,
    /// The node that it slept on.
    pub node: String,
    /// The turn in which it did.
    pub fence: u64,
    /// Its manifest there.
    pub image: Manifest,
    /// The key that its agent signs with.
    pub key: AgentKey,
    /// The device state.
    pub state: Part,
    /// The memory's archives, the bottommost first.
    pub memory: Vec<Archived>,
    /// The disk; none: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<StoredDisk>,
}

/// A small object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    /// Where, below the app's key.
    pub place: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// BLAKE3, hexadecimal.
    pub blake3: String,
}

/// An archive of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Archived {
    /// Where, below the app's key.
    pub place: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// BLAKE3 of its index, hexadecimal, which covers all of it.
    pub index_blake3: String,
    /// The layer's image id, hexadecimal.
    pub image_id: String,
    /// DATA in it, in bytes.
    pub data_bytes: u64,
}

/// A disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredDisk {
    /// Its archives, the bottommost first.
    pub layers: Vec<Archived>,
}

/// Why a generation in the store can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It is not what the reference speaks of.
    #[error("its checksum does not match")]
    Checksum,
    /// It is no manifest of this version.
    #[error("it is none of format {FORMAT}: {0}")]
    Form(String),
    /// A part of it would be somewhere else.
    #[error(transparent)]
    Place(#[from] KeyError),
}

impl StoredManifest {
    /// Reads the one with this checksum, hexadecimal.
    pub(super) fn parse(bytes: &[u8], blake3: &str) -> Result<Self, ManifestError> {
        if blake3::hash(bytes).to_hex().as_str() != blake3 {
            return Err(ManifestError::Checksum);
        }
        let form = |detail: String| ManifestError::Form(detail);
        let manifest: Self = serde_json::from_slice(bytes).map_err(|e| form(e.to_string()))?;
        if manifest.format != FORMAT {
            return Err(form(format!("its format is {}", manifest.format)));
        }
        let disk = manifest.disk.iter().flat_map(|disk| &disk.layers).count();
        let memory = manifest.memory.len();
        if memory == 0 || memory > MAX_LAYERS || disk > MAX_LAYERS {
            return Err(form(format!("it has {memory} layers of memory and {disk} of the disk")));
        }
        if manifest.disk.is_some() != manifest.image.disk.is_some() {
            return Err(form("it has a disk and names none, or names one and has none".into()));
        }
        Ok(manifest)
    }

    /// All objects that it needs, below the app's key.
    pub(super) fn places(&self) -> impl Iterator<Item = &str> {
        let disk = self.disk.iter().flat_map(|disk| &disk.layers);
        let layers = self.memory.iter().chain(disk).map(|layer| &*layer.place);
        layers.chain([&*self.state.place])
    }
}

/// Below the app's key, and nowhere else.
pub(super) fn below(app: &Key, place: &str) -> Result<Key, KeyError> {
    app.join(place)
}
