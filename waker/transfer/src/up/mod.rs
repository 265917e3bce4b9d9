//! From an image to an archive in a store, without a file in between.
//!
//! Packing writes into parts that are sent while it goes on. Memory: at most 64 MiB for parts, or four of
//! them where one is larger than a quarter of that (they grow with the image, as there may be no more than
//! [`MAX_PARTS`](rouse_store::MAX_PARTS)), besides what packing itself takes.
//!
//! An upload that was cut off by the end of its process is taken up again by packing anew, which makes
//! the same bytes of the same image: a part that has arrived is left out if the store's tag for it is the MD5
//! (S3) or the BLAKE3 of the bytes it should have, and is sent again where a tag says nothing of the kind.

mod parts;
mod send;
mod stale;

use std::num::NonZeroUsize;
use std::sync::Arc;

use rouse_snapshot_format::{Image, PackError, PackOptions, Packed, Progress, Work, pack};
use rouse_store::{Condition, Key, Store, StoreError, Upload, Version};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::parts::{Parts, in_flight, part_size};
use self::send::Sender;
use crate::remote::Remote;
use crate::retry::{Asked, Patience, retry};

pub use self::stale::{CleanError, clean, unfinished};

/// What parts may take in memory together, in bytes, unless four are larger.
const MEMORY: u64 = 64 << 20;

/// How to go about [`up()`].
#[derive(Debug)]
pub struct UpOptions<'a> {
    /// What the archive's appearing depends on.
    pub condition: Condition<'a>,
    /// zstd's level, 1 to 19.
    pub level: i32,
    /// How many threads pack; none: one for each core.
    pub threads: Option<NonZeroUsize>,
    /// How long each request is tried.
    pub patience: Patience,
    /// An upload of the same image under the same key that was cut off: see [`unfinished`].
    pub resume: Option<Upload>,
    /// Ends it; what was sent is then forgotten.
    pub cancel: CancellationToken,
}

impl Default for UpOptions<'_> {
    fn default() -> Self {
        Self {
            condition: Condition::Always,
            level: PackOptions::default().level,
            threads: None,
            patience: Patience::default(),
            resume: None,
            cancel: CancellationToken::new(),
        }
    }
}

/// An archive that is in the store, durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its size in bytes.
    pub size: u64,
    /// BLAKE3 of its index: what a manifest keeps of it.
    pub index_blake3: [u8; 32],
    /// What the store calls it.
    pub version: Version,
    /// Requests made, those that failed too.
    pub requests: u64,
    /// Requests made because one before had failed.
    pub retries: u64,
    /// Bytes sent, each time they were.
    pub sent: u64,
    /// Parts that had arrived before.
    pub kept_parts: u64,
}

/// Why an archive is not in the store. What was sent of it is forgotten, or left for [`clean`] where the store did not answer.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// The image could not be packed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It was ended from outside.
    #[error("{key}: sending the archive was cancelled")]
    Cancelled {
        /// The object that it would have been.
        key: Key,
    },
    /// Packing ended without a result.
    #[error("{key}: packing broke off: {detail}")]
    Broken {
        /// The object that it would have been.
        key: Key,
        /// What is known.
        detail: String,
    },
}

/// Packs an image into an object of the store. One that fits in a part is sent by a single request.
///
/// When this future is dropped packing ends soon, and an upload is left for [`clean`].
pub async fn up(
    store: &Arc<dyn Store>,
    key: &Key,
    image: Image,
    options: UpOptions<'_>,
) -> Result<Sent, UpError> {
    let part = part_size(image.map());
    let asked = Asked::default();
    let mut sender = Sender::new(Arc::clone(store), key, part, &options, &asked);
    let cancelled = options.cancel.clone();
    let outcome = cancelled
        .run_until_cancelled(run(&mut sender, image, part, &options, &asked))
        .await
        .unwrap_or_else(|| Err(UpError::Cancelled { key: key.clone() }));
    match outcome {
        Ok((packed, version)) => Ok(Sent {
            size: packed.bytes,
            index_blake3: packed.index_blake3,
            version,
            requests: asked.requests(),
            retries: asked.retries(),
            sent: sender.sent,
            kept_parts: sender.kept,
        }),
        Err(error) => {
            sender.abort().await;
            Err(error)
        }
    }
}

/// Has packing end when nobody waits for it any more.
struct Packing(Arc<Progress>);

impl Drop for Packing {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

async fn run(
    sender: &mut Sender<'_>,
    image: Image,
    part: u64,
    options: &UpOptions<'_>,
    asked: &Asked,
) -> Result<(Packed, Version), UpError> {
    let key = sender.key.clone();
    sender.resume(options.resume.as_ref()).await?;
    let packing = Packing(Arc::new(Progress::new()));
    let (tx, mut parts) = mpsc::channel(1);
    let (level, threads, progress) = (options.level, options.threads, Arc::clone(&packing.0));
    let packed = tokio::task::spawn_blocking(move || {
        let mut out = Parts::new(tx, part);
        let work = Work { threads, progress: Some(&progress) };
        let packed = pack(&image, &mut out, &PackOptions { level, work })?;
        Ok::<_, PackError>((packed, out.finish()))
    });
    // What is in flight, one in the channel, one that is being filled and the one in hand.
    let most = in_flight(part);
    while let Some(bytes) = parts.recv().await {
        sender.part(bytes, most).await?;
    }
    let (packed, last) = packed
        .await
        .map_err(|error| UpError::Broken { key: key.clone(), detail: error.to_string() })??;
    let condition = options.condition;
    if !sender.has_begun() {
        let made = retry(&options.patience, asked, |failed| {
            let (store, key, packed, bytes) = (&sender.store, &key, &packed, last.clone());
            async move {
                let put = store.put(key, bytes, condition).await;
                mine(store, key, packed, failed, put).await
            }
        });
        let version = made.await?;
        sender.sent += packed.bytes;
        return Ok((packed, version));
    }
    if !last.is_empty() {
        sender.part(last, most).await?;
    }
    let (upload, parts) = sender.all().await?;
    let version = retry(&options.patience, asked, |failed| {
        let (store, key, packed, upload, parts) = (&sender.store, &key, &packed, &upload, &parts);
        async move {
            let made = store.complete(upload, parts, condition).await;
            mine(store, key, packed, failed, made).await
        }
    })
    .await?;
    sender.done();
    Ok((packed, version))
}

/// A write whose answer was lost may have happened: another try of it is then refused, and what is
/// there is ours.
async fn mine(
    store: &Arc<dyn Store>,
    key: &Key,
    packed: &Packed,
    failed: u32,
    made: Result<Version, StoreError>,
) -> Result<Version, StoreError> {
    match made {
        Err(error @ (StoreError::Changed { .. } | StoreError::NotFound { .. })) if failed > 0 => {
            let once = Patience { tries: 1, ..Patience::default() };
            let (store, key) = (Arc::clone(store), key.clone());
            let there = Remote::open(store, key, packed.index_blake3, packed.bytes, &once).await;
            there.map(|remote| remote.version().clone()).map_err(|_| error)
        }
        made => made,
    }
}
