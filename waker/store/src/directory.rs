//! A store in a directory: an object is a file of its own, which is replaced and never changed.
//!
//! `a/b` is the file `a/b@`, so that `a` and `a/b` can both exist: a key has no `@`. Behind its bytes
//! a file has a [`tail`](files) that names them. Drafts, uploads and locks are in `.store`, which is
//! no key. Directories that have become empty stay.

mod files;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream;
use rustix::io::Errno;

use crate::probe::{Probed, probe};
use crate::{
    Body, Condition, Conditions, Got, Key, Meta, Page, Part, Span, Store, StoreError, Upload,
    Version,
};
use files::Files;

/// How much is read or copied at once, in bytes.
const CHUNK: usize = 256 * 1024;
/// The most objects of one page: as many as S3 gives.
const PAGE: usize = 1000;

/// Objects in a directory. Several processes may share it.
#[derive(Clone, Debug)]
pub struct Directory {
    files: Arc<Files>,
}

impl Directory {
    /// Opens the store in `root`, which is made where it is missing, and removes the drafts that
    /// nobody writes any more. Blocks.
    pub fn open(root: impl Into<PathBuf>) -> std::io::Result<Self> {
        Ok(Self { files: Arc::new(Files::open(root.into())?) })
    }

    /// Runs `work` where blocking does no harm. It goes on when the caller's future is dropped.
    async fn run<T: Send + 'static>(
        &self,
        key: &Key,
        work: impl FnOnce(&Files, &Key) -> Result<T, Failed> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (files, at) = (self.files.clone(), key.clone());
        match tokio::task::spawn_blocking(move || work(&files, &at)).await {
            Ok(done) => done.map_err(|failed| failed.of(key)),
            Err(e) => Err(StoreError::Unavailable { key: key.clone(), detail: e.to_string() }),
        }
    }
}

/// Why work on files failed; which key it was for is known to the caller.
#[derive(Debug)]
enum Failed {
    Io(std::io::Error),
    Changed,
    Corrupt(&'static str),
    Refused(&'static str),
}

impl From<std::io::Error> for Failed {
    fn from(e: std::io::Error) -> Self {
        Self::Io(e)
    }
}

impl From<Errno> for Failed {
    fn from(e: Errno) -> Self {
        Self::Io(e.into())
    }
}

impl Failed {
    fn of(self, key: &Key) -> StoreError {
        let key = key.clone();
        let e = match self {
            Self::Changed => return StoreError::Changed { key },
            Self::Corrupt(why) => return StoreError::Corrupt { key, detail: why.to_owned() },
            Self::Refused(why) => return StoreError::Refused { key, detail: why.to_owned() },
            Self::Io(e) => e,
        };
        let detail = e.to_string();
        match Errno::from_io_error(&e) {
            Some(Errno::NOENT) => StoreError::NotFound { key },
            Some(Errno::NOSPC | Errno::DQUOT) => StoreError::Full { key, detail },
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => StoreError::Denied { key, detail },
            Some(Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => StoreError::Refused { key, detail },
            _ => StoreError::Unavailable { key, detail },
        }
    }
}

fn body(key: Key, file: Arc<File>, range: std::ops::Range<u64>) -> Body {
    Box::pin(stream::try_unfold(range, move |left| {
        let (file, key) = (file.clone(), key.clone());
        async move {
            if left.is_empty() {
                return Ok(None);
            }
            let len = (left.end - left.start).min(CHUNK as u64);
            let read = tokio::task::spawn_blocking(move || {
                let mut chunk = vec![0; len as usize];
                file.read_exact_at(&mut chunk, left.start).map(|()| chunk)
            })
            .await
            .unwrap_or_else(|e| Err(std::io::Error::other(e)));
            match read {
                Ok(chunk) => Ok(Some((Bytes::from(chunk), left.start + len..left.end))),
                Err(e) => Err(StoreError::Unavailable { key, detail: e.to_string() }),
            }
        }
    }))
}

/// A condition that a blocking thread can own.
enum Held {
    Always,
    Absent,
    Unchanged(Version),
}

impl From<Condition<'_>> for Held {
    fn from(condition: Condition<'_>) -> Self {
        match condition {
            Condition::Always => Self::Always,
            Condition::Absent => Self::Absent,
            Condition::Unchanged(version) => Self::Unchanged(version.clone()),
        }
    }
}

#[async_trait]
impl Probed for Directory {
    async fn write(
        &self,
        key: &Key,
        bytes: &'static [u8],
        condition: Condition<'_>,
    ) -> Result<Version, StoreError> {
        self.put(key, Bytes::from_static(bytes), condition).await
    }

    async fn remove(&self, key: &Key) -> Result<(), StoreError> {
        self.delete(key).await
    }
}

#[async_trait]
impl Store for Directory {
    async fn get(
        &self,
        key: &Key,
        span: Span,
        expected: Option<&Version>,
    ) -> Result<Got, StoreError> {
        let (file, meta) = self.run(key, |files, key| files.look(key)).await?;
        if expected.is_some_and(|e| *e != meta.version) {
            return Err(StoreError::Changed { key: key.clone() });
        }
        let range = span.of(meta.size);
        let body = body(key.clone(), Arc::new(file), range.clone());
        Ok(Got { size: meta.size, version: meta.version, range, body })
    }

    async fn head(&self, key: &Key) -> Result<Meta, StoreError> {
        self.run(key, |files, key| files.look(key).map(|(_, meta)| meta)).await
    }

    async fn put(
        &self,
        key: &Key,
        bytes: Bytes,
        condition: Condition<'_>,
    ) -> Result<Version, StoreError> {
        let held = Held::from(condition);
        self.run(key, move |files, key| {
            let mut draft = files.draft()?;
            draft.write(&bytes)?;
            files.publish(key, draft, &held)
        })
        .await
    }

    async fn begin(&self, key: &Key) -> Result<Upload, StoreError> {
        self.run(key, |files, key| files.begin(key)).await
    }

    async fn put_part(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
    ) -> Result<Part, StoreError> {
        let id = upload.id.clone();
        self.run(&upload.key, move |files, key| files.put_part(key, &id, number, &bytes)).await
    }

    async fn parts(&self, upload: &Upload) -> Result<Vec<Part>, StoreError> {
        let id = upload.id.clone();
        self.run(&upload.key, move |files, key| files.parts(key, &id)).await
    }

    async fn complete(
        &self,
        upload: &Upload,
        parts: &[Part],
        condition: Condition<'_>,
    ) -> Result<Version, StoreError> {
        let (id, parts, held) = (upload.id.clone(), parts.to_vec(), Held::from(condition));
        self.run(&upload.key, move |files, key| files.complete(key, &id, &parts, &held)).await
    }

    async fn abort(&self, upload: &Upload) -> Result<(), StoreError> {
        let id = upload.id.clone();
        self.run(&upload.key, move |files, _| files.abort(&id)).await
    }

    async fn uploads(&self, prefix: &Key) -> Result<Vec<Upload>, StoreError> {
        self.run(prefix, |files, prefix| files.uploads(prefix)).await
    }

    async fn list(&self, prefix: &Key, from: Option<String>) -> Result<Page, StoreError> {
        self.run(prefix, move |files, prefix| {
            // One more than a page tells where the next begins.
            let mut least = BTreeMap::new();
            files.walk(prefix, &mut |key| {
                if from.as_deref().is_none_or(|from| key.as_str() >= from) {
                    least.insert(key, ());
                    if least.len() > PAGE + 1 {
                        least.pop_last();
                    }
                }
            })?;
            let next = (least.len() > PAGE).then(|| least.pop_last()).flatten();
            let mut objects = Vec::with_capacity(least.len());
            for key in least.into_keys() {
                match files.look(&key) {
                    Ok((_, meta)) => objects.push((key, meta)),
                    // Removed meanwhile.
                    Err(Failed::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(Page { objects, next: next.map(|(key, ())| key.as_str().to_owned()) })
        })
        .await
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.run(key, |files, key| files.delete(key)).await
    }

    async fn conditions(&self, scratch: &Key) -> Result<Conditions, StoreError> {
        probe(self, scratch).await
    }
}
