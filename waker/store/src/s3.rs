//! A store in a bucket of S3, or of anything that speaks its protocol.
//!
//! A key is an object's key under the store's prefix, and a version its `ETag`. What is written has
//! a `Content-MD5`, so that bytes damaged on their way are refused.

mod bound;
mod fault;
mod held;
mod options;
mod parts;
mod read;

use std::fmt::{self, Debug};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::types::ServerSideEncryption;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use md5::{Digest, Md5};

use crate::probe::{Probed, probe};
use crate::{
    Condition, Conditions, Got, Key, Meta, Page, Part, Span, Store, StoreError, Upload, Version,
};
use fault::Call;
use held::{Headers, Lacks};
pub use options::{Encryption, OpenS3Error, S3Options};
use parts::Joined;

/// From so many bytes on a sum is worth a thread of its own.
const MUCH: usize = 64 << 10;
/// The least speed of a write that is not given up, in bytes per second.
const LEAST_SPEED: u64 = 128 << 10;

/// Objects in a bucket of S3.
pub struct S3 {
    calls: Client,
    /// The same, for what streams.
    reads: Client,
    bucket: String,
    /// What stands before every key: nothing, or ends in a slash.
    prefix: String,
    encryption: Encryption,
    connect_timeout: Duration,
    call_timeout: Duration,
    /// What a put is found not to hold to, and what the end of an upload.
    puts: Lacks,
    joins: Lacks,
}

impl Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3(s3://{}/{})", self.bucket, self.prefix)
    }
}

impl S3 {
    /// Opens the store that `options` say. Reads files and asks for credentials, but not the store
    /// itself: one that is away now may be back by the first call.
    pub async fn open(options: S3Options) -> Result<Self, OpenS3Error> {
        let (calls, reads) = options::clients(&options).await?;
        Ok(Self {
            calls,
            reads,
            bucket: options.bucket,
            prefix: options.prefix.map(|p| format!("{p}/")).unwrap_or_default(),
            encryption: options.encryption,
            connect_timeout: options.connect_timeout,
            call_timeout: options.call_timeout,
            puts: Lacks::default(),
            joins: Lacks::default(),
        })
    }

    fn full(&self, key: &Key) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Our key of an object's; none: it is no key of ours.
    fn ours(&self, full: Option<&str>) -> Option<Key> {
        let full = full?;
        let key = full.strip_prefix(&self.prefix).and_then(|key| Key::new(key).ok());
        if key.is_none() {
            // Of whatever else is in the bucket, there may be any number.
            tracing::debug!(key = full.get(..200).unwrap_or(full), "not a key of the store's");
        }
        key
    }

    fn call<'a>(&'a self, key: &'a Key, what: &'static str) -> Call<'a> {
        Call { key, bucket: &self.bucket, what }
    }

    /// The client's configuration of a call that may take `time`.
    fn within(&self, time: Duration) -> aws_sdk_s3::config::Builder {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(self.connect_timeout)
            .operation_attempt_timeout(time)
            .build();
        aws_sdk_s3::Config::builder().timeout_config(timeouts)
    }

    /// How long it may take to send so many bytes.
    fn time_for(&self, bytes: usize) -> Duration {
        self.call_timeout + Duration::from_secs(bytes as u64 / LEAST_SPEED)
    }

    fn encrypted(&self) -> (Option<ServerSideEncryption>, Option<String>) {
        match &self.encryption {
            Encryption::Bucket => (None, None),
            Encryption::Aes256 => (Some(ServerSideEncryption::Aes256), None),
            Encryption::Kms { key_id } => (Some(ServerSideEncryption::AwsKms), key_id.clone()),
        }
    }

    async fn send(
        &self,
        key: &Key,
        bytes: Bytes,
        condition: Condition<'_>,
    ) -> Result<Version, StoreError> {
        let headers = Headers::from(condition);
        let (encryption, key_id) = self.encrypted();
        let time = self.time_for(bytes.len());
        let sent = self
            .calls
            .put_object()
            .bucket(&self.bucket)
            .key(self.full(key))
            .content_md5(md5_of(&bytes).await)
            .set_if_match(headers.if_match)
            .set_if_none_match(headers.if_none_match)
            .set_server_side_encryption(encryption)
            .set_ssekms_key_id(key_id)
            .body(bytes.into())
            .customize()
            .config_override(self.within(time))
            .send()
            .await;
        match sent {
            Ok(out) => read::version(key, out.e_tag()),
            Err(e) => match (self.call(key, headers.what).failed(&e), condition) {
                // What is not there is not what it was thought to be.
                (StoreError::NotFound { key }, Condition::Unchanged(_)) => {
                    Err(StoreError::Changed { key })
                }
                (e, _) => Err(e),
            },
        }
    }

    async fn page(&self, prefix: &Key, from: Option<String>) -> Result<Page, StoreError> {
        let sent = self
            .calls
            .list_objects_v2()
            .bucket(&self.bucket)
            .prefix(format!("{}/", self.full(prefix)))
            .set_continuation_token(from.clone())
            .send()
            .await;
        let out = sent.map_err(|e| self.call(prefix, "list objects").failed(&e))?;
        let mut objects = Vec::with_capacity(out.contents().len());
        for object in out.contents() {
            let Some(key) = self.ours(object.key()).filter(|key| key.is_under(prefix)) else {
                continue;
            };
            let meta = Meta {
                size: read::size(&key, object.size())?,
                version: read::version(&key, object.e_tag())?,
                written_unix_ms: read::unix_ms(object.last_modified()).unwrap_or(0),
            };
            objects.push((key, meta));
        }
        let next = match (out.is_truncated(), out.next_continuation_token) {
            (Some(true), Some(next)) if Some(&next) != from.as_ref() => Some(next),
            (Some(true), _) => {
                let detail = "a listing goes on, but not where".to_owned();
                return Err(StoreError::Corrupt { key: prefix.clone(), detail });
            }
            _ => None,
        };
        Ok(Page { objects, next })
    }
}

async fn md5_of(bytes: &Bytes) -> String {
    let sum = |bytes: &Bytes| STANDARD.encode(Md5::digest(bytes));
    if bytes.len() < MUCH {
        return sum(bytes);
    }
    let shared = bytes.clone();
    let done = tokio::task::spawn_blocking(move || sum(&shared)).await;
    // Only a runtime that ends does not run it.
    done.unwrap_or_else(|_| sum(bytes))
}

#[async_trait]
impl Probed for S3 {
    async fn write(
        &self,
        key: &Key,
        bytes: &'static [u8],
        condition: Condition<'_>,
    ) -> Result<Version, StoreError> {
        self.send(key, Bytes::from_static(bytes), condition).await
    }

    async fn remove(&self, key: &Key) -> Result<(), StoreError> {
        Store::delete(self, key).await
    }
}

#[async_trait]
impl Store for S3 {
    async fn get(
        &self,
        key: &Key,
        span: Span,
        expected: Option<&Version>,
    ) -> Result<Got, StoreError> {
        self.read(key, span, expected).await
    }

    async fn head(&self, key: &Key) -> Result<Meta, StoreError> {
        self.look(key).await
    }

    async fn put(
        &self,
        key: &Key,
        bytes: Bytes,
        condition: Condition<'_>,
    ) -> Result<Version, StoreError> {
        self.puts.check(condition)?;
        self.send(key, bytes, condition).await
    }

    async fn begin(&self, key: &Key) -> Result<Upload, StoreError> {
        self.begin_parts(key).await
    }

    async fn put_part(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
    ) -> Result<Part, StoreError> {
        self.send_part(upload, number, bytes).await
    }

    async fn parts(&self, upload: &Upload) -> Result<Vec<Part>, StoreError> {
        self.list_parts(upload).await
    }

    async fn complete(
        &self,
        upload: &Upload,
        parts: &[Part],
        condition: Condition<'_>,
    ) -> Result<Version, StoreError> {
        self.joins.check(condition)?;
        self.join(upload, parts, condition).await
    }

    async fn abort(&self, upload: &Upload) -> Result<(), StoreError> {
        self.forget(upload).await
    }

    async fn uploads(&self, prefix: &Key) -> Result<Vec<Upload>, StoreError> {
        self.list_uploads(prefix).await
    }

    async fn list(&self, prefix: &Key, from: Option<String>) -> Result<Page, StoreError> {
        self.page(prefix, from).await
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        let sent = self.calls.delete_object().bucket(&self.bucket).key(self.full(key)).send().await;
        match sent.map_err(|e| self.call(key, "remove objects").failed(&e)) {
            Ok(_) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }

    async fn conditions(&self, scratch: &Key) -> Result<Conditions, StoreError> {
        let found = probe(self, scratch).await?;
        // Some stores look at conditions in a put only. Their puts are still worth something, so
        // that only the ends of uploads are refused.
        self.joins.learn(probe(&Joined(self), scratch).await?);
        self.puts.learn(found);
        Ok(found)
    }
}
