//! The objects behind the protocol: as S3 keeps them, so that `a` and `a/b` can both exist, a
//! condition is looked at and the write done in one step, and parts can come in any order.

use std::collections::BTreeMap;
use std::io::SeekFrom;
use std::ops::{Bound, Range};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use md5::{Digest, Md5};
use s3s::dto::{ETag, ETagCondition, StreamingBlob};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use tempfile::TempPath;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

/// How much of a file is read at once, in bytes.
const CHUNK: usize = 256 << 10;

/// Bytes in a file of their own, which goes with them.
#[derive(Debug)]
pub(crate) struct Piece {
    path: TempPath,
    pub(crate) size: u64,
    pub(crate) md5: [u8; 16],
}

#[derive(Clone, Debug)]
pub(crate) struct Object {
    pieces: Vec<Arc<Piece>>,
    pub(crate) size: u64,
    pub(crate) tag: String,
    pub(crate) written: SystemTime,
}

impl Object {
    /// The object of these pieces, with a tag as S3 makes it.
    pub(crate) fn new(pieces: Vec<Arc<Piece>>, in_parts: bool) -> Self {
        let tag = match &pieces[..] {
            [one] if !in_parts => hex(&one.md5),
            many => {
                let mut sum = Md5::new();
                many.iter().for_each(|piece| sum.update(piece.md5));
                format!("{}-{}", hex(&sum.finalize()), many.len())
            }
        };
        let size = pieces.iter().map(|piece| piece.size).sum();
        Self { pieces, size, tag, written: SystemTime::now() }
    }

    /// Which bytes of which pieces `range` is.
    fn within(&self, range: Range<u64>) -> Vec<(Arc<Piece>, Range<u64>)> {
        let mut begin = 0;
        let mut found = Vec::new();
        for piece in &self.pieces {
            let end = begin + piece.size;
            let (from, to) = (range.start.max(begin), range.end.min(end));
            if from < to {
                found.push((piece.clone(), from - begin..to - begin));
            }
            begin = end;
        }
        found
    }

    pub(crate) fn body(&self, range: Range<u64>) -> StreamingBlob {
        let pieces = stream::iter(self.within(range)).then(|(piece, range)| async move {
            let mut file = tokio::fs::File::open(&piece.path).await?;
            file.seek(SeekFrom::Start(range.start)).await?;
            let some = file.take(range.end - range.start);
            let read = tokio_util::io::ReaderStream::with_capacity(some, CHUNK);
            // The file stays as long as it is read.
            std::io::Result::Ok(read.map_ok(move |bytes| {
                let _ = &piece;
                bytes
            }))
        });
        StreamingBlob::wrap(pieces.try_flatten())
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) struct Upload {
    pub(crate) key: String,
    pub(crate) begun: SystemTime,
    pub(crate) parts: BTreeMap<i32, Arc<Piece>>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) objects: BTreeMap<String, Object>,
    pub(crate) uploads: BTreeMap<String, Upload>,
    /// What listings tell instead of what is there.
    pub(crate) stale: Option<BTreeMap<String, Object>>,
}

/// What of S3's the server does not do, as some that speak its protocol don't.
#[derive(Debug, Default)]
pub(crate) struct Quirks {
    pub(crate) ignores_conditions: AtomicBool,
    pub(crate) ignores_conditions_of_uploads: AtomicBool,
    pub(crate) refuses_conditions: AtomicBool,
}

/// One bucket.
pub(crate) struct Backend {
    pub(crate) bucket: String,
    dir: std::path::PathBuf,
    state: Mutex<State>,
    pub(crate) quirks: Quirks,
    count: AtomicU64,
}

impl Backend {
    pub(crate) fn new(bucket: &str, dir: &Path) -> Self {
        Self {
            bucket: bucket.to_owned(),
            dir: dir.to_owned(),
            state: Mutex::default(),
            quirks: Quirks::default(),
            count: AtomicU64::new(0),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> String {
        format!("upload-{:06}", self.count.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn freeze_listings(&self, frozen: bool) {
        let mut state = self.state();
        state.stale = frozen.then(|| state.objects.clone());
    }

    pub(crate) fn known(&self, bucket: &str) -> S3Result<()> {
        if bucket == self.bucket { Ok(()) } else { Err(s3_error!(NoSuchBucket)) }
    }

    /// Keeps what `body` yields, which must have the sum `md5` where it is told.
    pub(crate) async fn keep(
        &self,
        body: Option<StreamingBlob>,
        md5: Option<&str>,
    ) -> S3Result<Arc<Piece>> {
        let (file, path) = tempfile::NamedTempFile::new_in(&self.dir)
            .map_err(|e| s3_error!(e, InternalError))?
            .into_parts();
        let mut file = tokio::fs::File::from_std(file);
        let (mut sum, mut size) = (Md5::new(), 0);
        let mut body = body;
        while let Some(body) = &mut body {
            let Some(bytes) = body.next().await else { break };
            // A cut connection, or a body that is not what its signature or its sum says.
            let bytes: Bytes = bytes.map_err(|e| match e.downcast::<S3Error>() {
                Ok(e) => *e,
                Err(e) if e.to_string().contains("Sha256Mismatch") => other_bytes(),
                Err(e) => s3_error!(IncompleteBody, "{e}"),
            })?;
            sum.update(&bytes);
            size += bytes.len() as u64;
            file.write_all(&bytes).await.map_err(|e| s3_error!(e, InternalError))?;
        }
        file.flush().await.map_err(|e| s3_error!(e, InternalError))?;
        let sum: [u8; 16] = sum.finalize().into();
        match md5 {
            Some(told) if STANDARD.encode(sum) != told => Err(s3_error!(BadDigest)),
            _ => Ok(Arc::new(Piece { path, size, md5: sum })),
        }
    }

    /// Puts `object` there if the conditions hold.
    pub(crate) fn publish(
        &self,
        state: &mut State,
        key: &str,
        object: Object,
        if_match: Option<&ETagCondition>,
        if_none_match: Option<&ETagCondition>,
    ) -> S3Result<ETag> {
        let ignored = self.quirks.ignores_conditions.load(Ordering::Relaxed);
        if self.quirks.refuses_conditions.load(Ordering::Relaxed)
            && (if_match.is_some() || if_none_match.is_some())
        {
            return Err(s3_error!(NotImplemented));
        }
        if !ignored {
            let there = state.objects.get(key);
            if if_none_match.is_some() && there.is_some() {
                return Err(s3_error!(PreconditionFailed));
            }
            if let Some(condition) = if_match {
                let Some(there) = there else { return Err(s3_error!(NoSuchKey)) };
                holds(there, condition)?;
            }
        }
        let tag = object.tag.clone();
        state.objects.insert(key.to_owned(), object);
        Ok(ETag::Strong(tag))
    }
}

/// S3's own answer, for which s3s has no word.
fn other_bytes() -> S3Error {
    let code = S3ErrorCode::from_bytes(b"XAmzContentSHA256Mismatch");
    let mut e = S3Error::new(code.unwrap_or(S3ErrorCode::BadDigest));
    e.set_status_code(http::StatusCode::BAD_REQUEST);
    e
}

/// Whether `object` is what `If-Match` says.
pub(crate) fn holds(object: &Object, condition: &ETagCondition) -> S3Result<()> {
    match condition.as_etag() {
        Some(tag) if tag.value() != object.tag => Err(s3_error!(PreconditionFailed)),
        _ => Ok(()),
    }
}

/// The entries under `prefix` behind `after`.
pub(crate) fn under<'a, T>(
    all: &'a BTreeMap<String, T>,
    prefix: &'a str,
    after: Option<&str>,
) -> impl Iterator<Item = (&'a String, &'a T)> {
    let begin = match after {
        Some(after) if after >= prefix => Bound::Excluded(after.to_owned()),
        _ => Bound::Included(prefix.to_owned()),
    };
    all.range((begin, Bound::Unbounded)).take_while(move |(key, _)| key.starts_with(prefix))
}
