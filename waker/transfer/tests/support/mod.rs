//! A store in memory that is as strict as a real one and fails as told, and images to send to it.
#![allow(clippy::unwrap_used, dead_code)]

pub(crate) mod images;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use md5::{Digest as _, Md5};
use rouse_store::{
    Condition, Conditions, Got, Key, MAX_PARTS, MIN_PART, Meta, Page, Part, Span, Store,
    StoreError, Upload, Version,
};

/// What a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Get(std::ops::Range<u64>),
    Put,
    Begin,
    PutPart(u32),
    Parts,
    Complete,
    Abort,
}

/// What becomes of it.
#[derive(Clone, Debug, Default)]
pub(crate) enum Fault {
    #[default]
    None,
    /// It fails, and nothing happened.
    Fail(StoreError),
    /// It happened, and its answer is lost.
    Lost(StoreError),
    /// Only so many bytes come.
    Cut(usize),
    /// The byte there is another.
    Flip(usize),
    /// It takes longer.
    Slow(Duration),
    /// Nothing ever comes.
    Hang,
}

type Rule = Box<dyn FnMut(&Call) -> Fault + Send>;

#[derive(Default)]
struct Inner {
    objects: BTreeMap<Key, Bytes>,
    uploads: BTreeMap<String, (Upload, BTreeMap<u32, Bytes>)>,
    calls: Vec<Call>,
    begun: u64,
}

/// Objects in memory.
pub(crate) struct Memory {
    inner: Mutex<Inner>,
    rule: Mutex<Rule>,
    /// How many bytes come at once.
    chunk: usize,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub(crate) fn unavailable() -> StoreError {
    StoreError::Unavailable { key: key("k"), detail: "reset".into() }
}

pub(crate) fn throttled() -> StoreError {
    StoreError::Throttled { key: key("k"), detail: "slow down".into() }
}

fn tag(bytes: &[u8]) -> String {
    format!("\"{}\"", hex::encode(Md5::digest(bytes)))
}

/// Quick also without optimisation, as every request asks for it.
fn version_of(bytes: &[u8]) -> Version {
    Version::new(blake3::hash(bytes).to_hex().as_str())
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self::failing(|_| Fault::None)
    }

    pub(crate) fn failing(rule: impl FnMut(&Call) -> Fault + Send + 'static) -> Self {
        Self { inner: Mutex::default(), rule: Mutex::new(Box::new(rule)), chunk: 50_000 }
    }

    pub(crate) fn rule(&self, rule: impl FnMut(&Call) -> Fault + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.inner.lock().unwrap().calls.clone()
    }

    pub(crate) fn forget_calls(&self) {
        self.inner.lock().unwrap().calls.clear();
    }

    pub(crate) fn object(&self, key: &Key) -> Option<Bytes> {
        self.inner.lock().unwrap().objects.get(key).cloned()
    }

    pub(crate) fn set(&self, key: &Key, bytes: Bytes) {
        self.inner.lock().unwrap().objects.insert(key.clone(), bytes);
    }

    pub(crate) fn arrived_parts(&self) -> usize {
        self.inner.lock().unwrap().uploads.values().map(|(_, parts)| parts.len()).sum()
    }

    pub(crate) fn open_uploads(&self) -> usize {
        self.inner.lock().unwrap().uploads.len()
    }

    /// What befalls this call: how a body is spoilt, and what is said when it has happened.
    async fn meet(&self, call: Call) -> Result<(Fault, Option<StoreError>), StoreError> {
        self.inner.lock().unwrap().calls.push(call.clone());
        let fault = (self.rule.lock().unwrap())(&call);
        tokio::task::yield_now().await;
        match fault {
            Fault::Fail(error) => Err(error),
            Fault::Lost(error) => Ok((Fault::None, Some(error))),
            Fault::Slow(time) => {
                tokio::time::sleep(time).await;
                Ok((Fault::None, None))
            }
            Fault::Hang => std::future::pending().await,
            spoilt => Ok((spoilt, None)),
        }
    }

    fn allowed(inner: &Inner, key: &Key, condition: Condition<'_>) -> Result<(), StoreError> {
        let there = inner.objects.get(key).map(|bytes| version_of(bytes));
        let holds = match condition {
            Condition::Always => true,
            Condition::Absent => there.is_none(),
            Condition::Unchanged(version) => there.as_ref() == Some(version),
        };
        if holds { Ok(()) } else { Err(StoreError::Changed { key: key.clone() }) }
    }
}

fn or_lost<T>(value: T, lost: Option<StoreError>) -> Result<T, StoreError> {
    lost.map_or(Ok(value), Err)
}

#[async_trait]
impl Store for Memory {
    async fn get(
        &self,
        key: &Key,
        span: Span,
        expected: Option<&Version>,
    ) -> Result<Got, StoreError> {
        let there = self.object(key);
        let size = there.as_ref().map_or(0, |bytes| bytes.len() as u64);
        let range = span.of(size);
        let (spoil, _) = self.meet(Call::Get(range.clone())).await?;
        let there = there.ok_or_else(|| StoreError::NotFound { key: key.clone() })?;
        let version = version_of(&there);
        if expected.is_some_and(|expected| *expected != version) {
            return Err(StoreError::Changed { key: key.clone() });
        }
        let mut bytes = there[range.start as usize..range.end as usize].to_vec();
        let mut broken = None;
        match spoil {
            Fault::Cut(at) if at < bytes.len() => {
                bytes.truncate(at);
                broken = Some(Err(unavailable()));
            }
            Fault::Flip(at) if !bytes.is_empty() => {
                let at = at % bytes.len();
                bytes[at] ^= 0x40;
            }
            _ => {}
        }
        let chunks: Vec<_> =
            bytes.chunks(self.chunk).map(|some| Ok(Bytes::copy_from_slice(some))).collect();
        let body = stream::iter(chunks.into_iter().chain(broken)).then(|some| async move {
            tokio::task::yield_now().await;
            some
        });
        Ok(Got { size, version, range, body: Box::pin(body) })
    }

    async fn head(&self, key: &Key) -> Result<Meta, StoreError> {
        let bytes = self.object(key).ok_or_else(|| StoreError::NotFound { key: key.clone() })?;
        let version = version_of(&bytes);
        Ok(Meta { size: bytes.len() as u64, version, written_unix_ms: 0 })
    }

    async fn put(
        &self,
        key: &Key,
        bytes: Bytes,
        condition: Condition<'_>,
    ) -> Result<Version, StoreError> {
        let (_, lost) = self.meet(Call::Put).await?;
        let version = version_of(&bytes);
        let mut inner = self.inner.lock().unwrap();
        Self::allowed(&inner, key, condition)?;
        inner.objects.insert(key.clone(), bytes);
        or_lost(version, lost)
    }

    async fn begin(&self, key: &Key) -> Result<Upload, StoreError> {
        let (_, lost) = self.meet(Call::Begin).await?;
        let mut inner = self.inner.lock().unwrap();
        inner.begun += 1;
        let begun = inner.begun;
        let upload =
            Upload { key: key.clone(), id: begun.to_string(), begun_unix_ms: Some(begun * 1000) };
        inner.uploads.insert(upload.id.clone(), (upload.clone(), BTreeMap::new()));
        or_lost(upload, lost)
    }

    async fn put_part(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
    ) -> Result<Part, StoreError> {
        let (_, lost) = self.meet(Call::PutPart(number)).await?;
        assert!((1..=MAX_PARTS).contains(&number), "part {number}");
        let part = Part { number, tag: tag(&bytes), size: bytes.len() as u64 };
        let mut inner = self.inner.lock().unwrap();
        let (_, parts) = inner
            .uploads
            .get_mut(&upload.id)
            .ok_or_else(|| StoreError::NotFound { key: upload.key.clone() })?;
        parts.insert(number, bytes);
        or_lost(part, lost)
    }

    async fn parts(&self, upload: &Upload) -> Result<Vec<Part>, StoreError> {
        self.meet(Call::Parts).await?;
        let inner = self.inner.lock().unwrap();
        let (_, parts) = inner
            .uploads
            .get(&upload.id)
            .ok_or_else(|| StoreError::NotFound { key: upload.key.clone() })?;
        let part = |(number, bytes): (&u32, &Bytes)| Part {
            number: *number,
            tag: tag(bytes),
            size: bytes.len() as u64,
        };
        Ok(parts.iter().map(part).collect())
    }

    async fn complete(
        &self,
        upload: &Upload,
        parts: &[Part],
        condition: Condition<'_>,
    ) -> Result<Version, StoreError> {
        let (_, lost) = self.meet(Call::Complete).await?;
        let mut inner = self.inner.lock().unwrap();
        let refused =
            |detail: &str| StoreError::Refused { key: upload.key.clone(), detail: detail.into() };
        let (_, there) = inner
            .uploads
            .get(&upload.id)
            .ok_or_else(|| StoreError::NotFound { key: upload.key.clone() })?;
        if parts.is_empty() || !parts.is_sorted_by(|a, b| a.number < b.number) {
            return Err(refused("InvalidPartOrder"));
        }
        let mut whole = Vec::new();
        for (place, part) in parts.iter().enumerate() {
            let bytes = there.get(&part.number).ok_or_else(|| refused("InvalidPart"))?;
            if tag(bytes) != part.tag {
                return Err(refused("InvalidPart"));
            }
            if (bytes.len() as u64) < MIN_PART && place + 1 < parts.len() {
                return Err(refused("EntityTooSmall"));
            }
            whole.extend_from_slice(bytes);
        }
        Self::allowed(&inner, &upload.key, condition)?;
        inner.uploads.remove(&upload.id);
        let version = version_of(&whole);
        inner.objects.insert(upload.key.clone(), whole.into());
        or_lost(version, lost)
    }

    async fn abort(&self, upload: &Upload) -> Result<(), StoreError> {
        self.meet(Call::Abort).await?;
        self.inner.lock().unwrap().uploads.remove(&upload.id);
        Ok(())
    }

    async fn uploads(&self, prefix: &Key) -> Result<Vec<Upload>, StoreError> {
        let inner = self.inner.lock().unwrap();
        let under = |(upload, _): &&(Upload, _)| upload.key.is_under(prefix);
        Ok(inner.uploads.values().filter(under).map(|(upload, _)| upload.clone()).collect())
    }

    async fn list(&self, _: &Key, _: Option<String>) -> Result<Page, StoreError> {
        Err(StoreError::Unsupported("list"))
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.inner.lock().unwrap().objects.remove(key);
        Ok(())
    }

    async fn conditions(&self, _: &Key) -> Result<Conditions, StoreError> {
        Ok(Conditions { absent: true, unchanged: true })
    }
}
