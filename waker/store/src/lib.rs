//! Where images go when they leave their node: objects under keys, in a directory or in S3.
//!
//! A [`Store`] knows nothing of apps, images or archives. What it promises is what whoever publishes
//! a generation needs: an object appears whole or not at all, a write may depend on what is there
//! ([`Condition`]), and it is durable when the call returns.
#![forbid(unsafe_code)]

mod directory;
mod key;
mod probe;
mod s3;

use std::fmt::Debug;
use std::ops::Range;
use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;

pub use directory::Directory;
pub use key::{Key, KeyError};
pub use s3::{Encryption, OpenS3Error, S3, S3Options};

/// Names what an object was at one time: S3's `ETag`. Two versions of one object are equal only
/// when their bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version(String);

impl Version {
    /// The version that a store calls `tag`.
    pub fn new(tag: impl Into<String>) -> Self {
        Self(tag.into())
    }

    /// As the store calls it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a write depends on. A store that can't hold to it says so in [`Store::conditions`], and
/// refuses the write ([`StoreError::Unsupported`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'a> {
    /// Nothing: what is there is replaced.
    Always,
    /// Nothing is there (`If-None-Match: *`).
    Absent,
    /// What is there is still this (`If-Match`).
    Unchanged(&'a Version),
}

/// Which bytes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Span {
    /// All of them.
    All,
    /// These; what lies past the object's end is left out.
    Range(Range<u64>),
    /// The last so many, or all of a shorter object.
    Last(u64),
}

impl Span {
    /// Which bytes they are of an object of `size` bytes; none where it does not reach so far.
    pub fn of(&self, size: u64) -> Range<u64> {
        match self {
            Self::All => 0..size,
            Self::Range(range) => {
                let start = range.start.min(size);
                start..range.end.clamp(start, size)
            }
            Self::Last(last) => size.saturating_sub(*last)..size,
        }
    }
}

/// The bytes of an object as they come. It ends early only with an error.
pub type Body = Pin<Box<dyn Stream<Item = Result<Bytes, StoreError>> + Send>>;

/// An object that is being read.
pub struct Got {
    /// The whole object's size in bytes.
    pub size: u64,
    /// What it is now.
    pub version: Version,
    /// Which bytes [`Self::body`] yields.
    pub range: Range<u64>,
    /// The bytes.
    pub body: Body,
}

/// What is known of an object without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Its size in bytes.
    pub size: u64,
    /// What it is now.
    pub version: Version,
    /// When it was written, in milliseconds of Unix time, by the store's clock.
    pub written_unix_ms: u64,
}

/// Some of the objects under a prefix, in the order of their keys.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The objects. May be stale: a listing is a hint, and never the word on what exists.
    pub objects: Vec<(Key, Meta)>,
    /// Where the next page begins; none: this is the last.
    pub next: Option<String>,
}

/// An object that is sent in parts, and does not exist before it is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// The object that it will be.
    pub key: Key,
    /// The store's name for it.
    pub id: String,
    /// When it was begun, in milliseconds of Unix time, where the store tells.
    pub begun_unix_ms: Option<u64>,
}

/// A part that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 1 to [`MAX_PARTS`]; parts are put together in this order, in whichever they came.
    pub number: u32,
    /// The store's name for its bytes.
    pub tag: String,
    /// Its size in bytes.
    pub size: u64,
}

/// The most parts of one upload (Amazon S3 user guide, "multipart upload limits").
pub const MAX_PARTS: u32 = 10_000;
/// The least that a part may have unless it is the last, in bytes (the same page).
pub const MIN_PART: u64 = 5 << 20;

/// Why a store did not do as it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no such object or upload.
    #[error("{key}: not found")]
    NotFound {
        /// What was asked for.
        key: Key,
    },
    /// The credentials do not allow it.
    #[error("{key}: access denied: {detail}")]
    Denied {
        /// What was asked for.
        key: Key,
        /// What the store said.
        detail: String,
    },
    /// A [`Condition`] did not hold, or the object read is no longer the one that was expected.
    #[error("{key}: it is not what it was thought to be")]
    Changed {
        /// What was asked for.
        key: Key,
    },
    /// The store wants us to go slower.
    #[error("{key}: the store throttles: {detail}")]
    Throttled {
        /// What was asked for.
        key: Key,
        /// What the store said.
        detail: String,
    },
    /// What came is not what the store said it would send, or what it keeps is not what was sent.
    #[error("{key}: corrupt: {detail}")]
    Corrupt {
        /// What was asked for.
        key: Key,
        /// What does not match.
        detail: String,
    },
    /// The store can't do that at all.
    #[error("the store can't {0}")]
    Unsupported(&'static str),
    /// The store has no room.
    #[error("{key}: the store is full: {detail}")]
    Full {
        /// What was to be written.
        key: Key,
        /// What the store said.
        detail: String,
    },
    /// It could not be reached, broke off, or failed: another try may do.
    #[error("{key}: the store is unavailable: {detail}")]
    Unavailable {
        /// What was asked for.
        key: Key,
        /// What went wrong.
        detail: String,
    },
    /// The request is wrong, and another try will not mend it.
    #[error("{key}: the store refuses: {detail}")]
    Refused {
        /// What was asked for.
        key: Key,
        /// What the store said.
        detail: String,
    },
}

impl StoreError {
    /// Whether the same request may do later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Throttled { .. } | Self::Unavailable { .. } | Self::Corrupt { .. })
    }
}

/// What a store's conditional writes are worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// [`Condition::Absent`] holds.
    pub absent: bool,
    /// [`Condition::Unchanged`] holds.
    pub unchanged: bool,
}

/// Objects under keys. One attempt each: trying again is up to the caller, who knows what for.
///
/// Dropping a call's future abandons it; a write may or may not have happened then.
#[async_trait]
pub trait Store: Debug + Send + Sync + 'static {
    /// Reads an object, or a part of it. With `expected` another version is [`StoreError::Changed`].
    async fn get(
        &self,
        key: &Key,
        span: Span,
        expected: Option<&Version>,
    ) -> Result<Got, StoreError>;

    /// Looks at an object.
    async fn head(&self, key: &Key) -> Result<Meta, StoreError>;

    /// Writes a small object at once.
    async fn put(
        &self,
        key: &Key,
        bytes: Bytes,
        condition: Condition<'_>,
    ) -> Result<Version, StoreError>;

    /// Begins an object that is sent in parts.
    async fn begin(&self, key: &Key) -> Result<Upload, StoreError>;

    /// Sends a part; the same number again replaces it.
    async fn put_part(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
    ) -> Result<Part, StoreError>;

    /// The parts that have arrived, by number: where to go on after a restart.
    async fn parts(&self, upload: &Upload) -> Result<Vec<Part>, StoreError>;

    /// Makes the object of these parts, in this order.
    async fn complete(
        &self,
        upload: &Upload,
        parts: &[Part],
        condition: Condition<'_>,
    ) -> Result<Version, StoreError>;

    /// Forgets an upload and its parts. One that is not there is success.
    async fn abort(&self, upload: &Upload) -> Result<(), StoreError>;

    /// The uploads under a prefix that are neither complete nor aborted.
    async fn uploads(&self, prefix: &Key) -> Result<Vec<Upload>, StoreError>;

    /// The objects under a prefix, from `from` on ([`Page::next`]).
    async fn list(&self, prefix: &Key, from: Option<String>) -> Result<Page, StoreError>;

    /// Removes an object. One that is not there is success.
    async fn delete(&self, key: &Key) -> Result<(), StoreError>;

    /// Finds out, by trying under `scratch`, whether conditional writes do what they say.
    async fn conditions(&self, scratch: &Key) -> Result<Conditions, StoreError>;
}
