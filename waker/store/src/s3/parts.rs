//! Objects that are sent in parts.

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::error::ProvideErrorMetadata;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;

use super::held::Headers;
use super::{S3, md5_of, read};
use crate::probe::Probed;
use crate::{Condition, Key, MAX_PARTS, Part, Store, StoreError, Upload, Version};

/// How long a store may take to put an object together: Amazon's keep the answer open for minutes.
const JOIN_TIMEOUT: Duration = Duration::from_secs(600);
/// The most uploads that are listed; whoever has more has lost control of them.
const MAX_UPLOADS: usize = 100_000;
const WHAT: &str = "take objects in parts";

fn corrupt(key: &Key, detail: &str) -> StoreError {
    StoreError::Corrupt { key: key.clone(), detail: detail.to_owned() }
}

fn refused(key: &Key, detail: &str) -> StoreError {
    StoreError::Refused { key: key.clone(), detail: detail.to_owned() }
}

/// S3 counts parts in `i32`.
fn number(key: &Key, number: u32) -> Result<i32, StoreError> {
    let number = i32::try_from(number).ok().filter(|n| (1..=MAX_PARTS as i32).contains(n));
    number.ok_or_else(|| refused(key, "a part's number is from 1 to 10000"))
}

/// A store whose small objects are sent in parts too, for the probe.
pub(super) struct Joined<'a>(pub(super) &'a S3);

#[async_trait]
impl Probed for Joined<'_> {
    async fn write(
        &self,
        key: &Key,
        bytes: &'static [u8],
        condition: Condition<'_>,
    ) -> Result<Version, StoreError> {
        let Self(store) = self;
        let upload = store.begin_parts(key).await?;
        let done = match store.send_part(&upload, 1, Bytes::from_static(bytes)).await {
            Ok(part) => store.join(&upload, &[part], condition).await,
            Err(e) => Err(e),
        };
        if done.is_err() {
            store.forget(&upload).await?;
        }
        done
    }

    async fn remove(&self, key: &Key) -> Result<(), StoreError> {
        Store::delete(self.0, key).await
    }
}

impl S3 {
    pub(super) async fn begin_parts(&self, key: &Key) -> Result<Upload, StoreError> {
        let (encryption, key_id) = self.encrypted();
        let sent = self
            .calls
            .create_multipart_upload()
            .bucket(&self.bucket)
            .key(self.full(key))
            .set_server_side_encryption(encryption)
            .set_ssekms_key_id(key_id)
            .send()
            .await;
        let out = sent.map_err(|e| self.call(key, WHAT).failed(&e))?;
        match out.upload_id {
            Some(id) if !id.is_empty() => Ok(Upload { key: key.clone(), id, begun_unix_ms: None }),
            _ => Err(corrupt(key, "the store gave the upload no id")),
        }
    }

    pub(super) async fn send_part(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
    ) -> Result<Part, StoreError> {
        let key = &upload.key;
        let size = bytes.len() as u64;
        let time = self.time_for(bytes.len());
        let sent = self
            .calls
            .upload_part()
            .bucket(&self.bucket)
            .key(self.full(key))
            .upload_id(&upload.id)
            .part_number(self::number(key, number)?)
            .content_md5(md5_of(&bytes).await)
            .body(bytes.into())
            .customize()
            .config_override(self.within(time))
            .send()
            .await;
        let out = sent.map_err(|e| self.call(key, WHAT).failed(&e))?;
        let tag = read::version(key, out.e_tag())?.as_str().to_owned();
        Ok(Part { number, tag, size })
    }

    pub(super) async fn list_parts(&self, upload: &Upload) -> Result<Vec<Part>, StoreError> {
        let key = &upload.key;
        let mut parts: Vec<Part> = Vec::new();
        let mut marker: Option<String> = None;
        loop {
            let sent = self
                .calls
                .list_parts()
                .bucket(&self.bucket)
                .key(self.full(key))
                .upload_id(&upload.id)
                .set_part_number_marker(marker.clone())
                .send()
                .await;
            let out = sent.map_err(|e| self.call(key, WHAT).failed(&e))?;
            for part in out.parts() {
                let number = part.part_number().and_then(|n| u32::try_from(n).ok());
                let number = number
                    .filter(|n| (1..=MAX_PARTS).contains(n))
                    .ok_or_else(|| corrupt(key, "a part has no number"))?;
                // So there can't be more of them than there are numbers, whatever is answered.
                if parts.last().is_some_and(|last| last.number >= number) {
                    return Err(corrupt(key, "the parts are not told in their order"));
                }
                let tag = read::version(key, part.e_tag())?.as_str().to_owned();
                parts.push(Part { number, tag, size: read::size(key, part.size())? });
            }
            if out.is_truncated() != Some(true) {
                return Ok(parts);
            }
            let next = out.next_part_number_marker;
            if next.is_none() || next == marker || out.parts.is_none_or(|p| p.is_empty()) {
                return Err(corrupt(key, "the parts go on, but not where"));
            }
            marker = next;
        }
    }

    pub(super) async fn join(
        &self,
        upload: &Upload,
        parts: &[Part],
        condition: Condition<'_>,
    ) -> Result<Version, StoreError> {
        let key = &upload.key;
        // The store would say so too, but a proxy of it may not.
        if parts.is_empty() || !parts.is_sorted_by(|a, b| a.number < b.number) {
            return Err(refused(key, "an upload is completed by its parts, in their order"));
        }
        let mut all = CompletedMultipartUpload::builder();
        for part in parts {
            let number = number(key, part.number)?;
            all = all.parts(CompletedPart::builder().part_number(number).e_tag(&part.tag).build());
        }
        let headers = Headers::from(condition);
        let sent = self
            .calls
            .complete_multipart_upload()
            .bucket(&self.bucket)
            .key(self.full(key))
            .upload_id(&upload.id)
            .multipart_upload(all.build())
            .set_if_match(headers.if_match)
            .set_if_none_match(headers.if_none_match)
            .customize()
            .config_override(self.within(JOIN_TIMEOUT.max(self.call_timeout)))
            .send()
            .await;
        match sent {
            Ok(out) => read::version(key, out.e_tag()),
            Err(e) => {
                let absent = e.code() == Some("NoSuchKey");
                match self.call(key, headers.what).failed(&e) {
                    // What is not there is not what it was thought to be; the upload is another thing.
                    StoreError::NotFound { key }
                        if absent && matches!(condition, Condition::Unchanged(_)) =>
                    {
                        Err(StoreError::Changed { key })
                    }
                    e => Err(e),
                }
            }
        }
    }

    pub(super) async fn forget(&self, upload: &Upload) -> Result<(), StoreError> {
        let sent = self
            .calls
            .abort_multipart_upload()
            .bucket(&self.bucket)
            .key(self.full(&upload.key))
            .upload_id(&upload.id)
            .send()
            .await;
        match sent.map_err(|e| self.call(&upload.key, WHAT).failed(&e)) {
            Ok(_) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }

    pub(super) async fn list_uploads(&self, prefix: &Key) -> Result<Vec<Upload>, StoreError> {
        let mut uploads = Vec::new();
        let mut seen = 0;
        let mut marker: (Option<String>, Option<String>) = (None, None);
        loop {
            let sent = self
                .calls
                .list_multipart_uploads()
                .bucket(&self.bucket)
                .prefix(format!("{}/", self.full(prefix)))
                .set_key_marker(marker.0.clone())
                .set_upload_id_marker(marker.1.clone())
                .send()
                .await;
            let out = sent.map_err(|e| self.call(prefix, "list uploads").failed(&e))?;
            seen += out.uploads().len();
            if seen > MAX_UPLOADS {
                return Err(refused(
                    prefix,
                    "more than 100000 uploads are neither done nor aborted",
                ));
            }
            for upload in out.uploads() {
                let key = self.ours(upload.key()).filter(|key| key.is_under(prefix));
                let (Some(key), Some(id)) = (key, upload.upload_id()) else { continue };
                let begun_unix_ms = read::unix_ms(upload.initiated());
                uploads.push(Upload { key, id: id.to_owned(), begun_unix_ms });
            }
            if out.is_truncated() != Some(true) {
                uploads.sort_by(|a, b| (&a.key, &a.id).cmp(&(&b.key, &b.id)));
                return Ok(uploads);
            }
            let empty = out.uploads().is_empty();
            let next = (out.next_key_marker, out.next_upload_id_marker);
            if empty || next.0.is_none() || next == marker {
                return Err(corrupt(prefix, "the uploads go on, but not where"));
            }
            marker = next;
        }
    }
}
