//! Images of apps that are in the store too, on this node's disk: given away when there is no room for them.
//!
//! A generation enters the cache once it is free, or ahead of its wake, and leaves it to be woken: an image is
//! used once. Its entry's id is the BLAKE3 of its manifest in the store.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rouse_cache::{Cache, ContentId, PublishError, ReserveError};
use rouse_protocol::signature::AgentKey;

use super::reference::Stored;
use crate::image::AppDir;

/// What a cache's directories and records take besides the files, in bytes.
const SPARE: u64 = 64 << 10;

/// Why a generation is not kept in the cache.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// There is no room.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// It could not be made an entry.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// Its files can't be looked at or moved.
    #[error(transparent)]
    File(#[from] io::Error),
}

/// The entry of a generation; none where the manifest's checksum is none.
pub(super) fn entry(stored: &Stored) -> Option<ContentId> {
    let hash = blake3::Hash::from_hex(&stored.manifest_blake3).ok()?;
    Some(ContentId::from_bytes(*hash.as_bytes()))
}

pub(super) fn now_unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Moves a generation that is free from the app's directory into the cache, or away where that has no room:
/// it is in the store. Blocks.
pub(super) fn keep(
    cache: &Cache,
    dir: &AppDir,
    stored: &Stored,
    key: &AgentKey,
) -> Result<(), KeepError> {
    let Some(id) = entry(stored) else { return Ok(()) };
    let Some(leaving) = dir.leaving(stored.generation, key)? else { return Ok(()) };
    let bytes = allocated(leaving.path())? + SPARE;
    let kept = match cache.reserve(bytes, now_unix_ms()) {
        Ok(draft) => {
            leaving.move_into(draft.path())?;
            draft.publish(&id, now_unix_ms()).map(drop).map_err(KeepError::from)
        }
        Err(error) => Err(error.into()),
    };
    leaving.remove()?;
    kept
}

/// Moves a generation from the cache to a fresh directory `to`, for its one use. Whether it was there. Blocks.
pub(super) fn take(cache: &Cache, stored: &Stored, to: &Path) -> io::Result<bool> {
    let Some(id) = entry(stored) else { return Ok(false) };
    let Some(pinned) = cache.get(&id, now_unix_ms()) else { return Ok(false) };
    match pinned.take() {
        Ok(mut taken) => taken.move_to(to).map(|()| true),
        Err(error) => {
            // It comes from the store then.
            tracing::warn!(%error, "an image in the cache can't be taken");
            Ok(false)
        }
    }
}

/// What the files in a directory occupy, in bytes.
fn allocated(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for file in std::fs::read_dir(path)? {
        bytes += file?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}
