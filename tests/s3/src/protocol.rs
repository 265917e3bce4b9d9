//! S3's calls, as far as a store of ours uses them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use crate::backend::{Backend, Object, Upload, hex, holds, under};

/// The least size of a part that is not the last, in bytes (Amazon S3 user guide).
const MIN_PART: u64 = 5 << 20;

/// The backend as the protocol's crate takes it.
pub(crate) struct Protocol(pub(crate) Arc<Backend>);

fn size(size: u64) -> S3Result<i64> {
    i64::try_from(size).map_err(|e| s3_error!(e, InternalError))
}

fn at_most(asked: Option<i32>) -> usize {
    asked.and_then(|n| usize::try_from(n).ok()).unwrap_or(1000).min(1000)
}

impl Protocol {
    fn look(&self, bucket: &str, key: &str, if_match: Option<&ETagCondition>) -> S3Result<Object> {
        self.0.known(bucket)?;
        let object = self.0.state().objects.get(key).cloned();
        let object = object.ok_or_else(|| s3_error!(NoSuchKey))?;
        if let Some(condition) = if_match {
            holds(&object, condition)?;
        }
        Ok(object)
    }
}

#[async_trait]
impl S3 for Protocol {
    async fn get_object(
        &self,
        req: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let input = req.input;
        let object = self.look(&input.bucket, &input.key, input.if_match.as_ref())?;
        let range = match input.range {
            Some(range) => match range.check(object.size)? {
                // The end of an empty object, which s3s takes for a range.
                none if none.is_empty() => return Err(s3_error!(InvalidRange)),
                range => range,
            },
            None => 0..object.size,
        };
        Ok(S3Response::new(GetObjectOutput {
            content_length: Some(size(range.end - range.start)?),
            content_range: input
                .range
                .map(|_| format!("bytes {}-{}/{}", range.start, range.end - 1, object.size)),
            last_modified: Some(object.written.into()),
            body: Some(object.body(range)),
            e_tag: Some(ETag::Strong(object.tag)),
            ..Default::default()
        }))
    }

    async fn head_object(
        &self,
        req: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = req.input;
        let object = self.look(&input.bucket, &input.key, input.if_match.as_ref())?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: Some(size(object.size)?),
            last_modified: Some(object.written.into()),
            e_tag: Some(ETag::Strong(object.tag)),
            ..Default::default()
        }))
    }

    async fn put_object(
        &self,
        req: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let input = req.input;
        self.0.known(&input.bucket)?;
        let piece = self.0.keep(input.body, input.content_md5.as_deref()).await?;
        let e_tag = self.0.publish(
            &mut self.0.state(),
            &input.key,
            Object::new(vec![piece], false),
            input.if_match.as_ref(),
            input.if_none_match.as_ref(),
        )?;
        Ok(S3Response::new(PutObjectOutput { e_tag: Some(e_tag), ..Default::default() }))
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.0.known(&req.input.bucket)?;
        self.0.state().objects.remove(&req.input.key);
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = req.input;
        self.0.known(&input.bucket)?;
        let state = self.0.state();
        let all = state.stale.as_ref().unwrap_or(&state.objects);
        let after = input.continuation_token.as_deref().max(input.start_after.as_deref());
        let max = at_most(input.max_keys);
        let mut contents = Vec::new();
        let mut next = None;
        for (key, object) in under(all, input.prefix.as_deref().unwrap_or_default(), after) {
            if contents.len() == max {
                next = contents.last().and_then(|last: &s3s::dto::Object| last.key.clone());
                break;
            }
            contents.push(s3s::dto::Object {
                key: Some(key.clone()),
                size: Some(size(object.size)?),
                e_tag: Some(ETag::Strong(object.tag.clone())),
                last_modified: Some(object.written.into()),
                ..Default::default()
            });
        }
        Ok(S3Response::new(ListObjectsV2Output {
            is_truncated: Some(next.is_some()),
            next_continuation_token: next,
            key_count: i32::try_from(contents.len()).ok(),
            contents: Some(contents),
            name: Some(input.bucket),
            prefix: input.prefix,
            ..Default::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let input = req.input;
        self.0.known(&input.bucket)?;
        let id = self.0.id();
        let upload = Upload {
            key: input.key.clone(),
            begun: std::time::SystemTime::now(),
            parts: Default::default(),
        };
        self.0.state().uploads.insert(id.clone(), upload);
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            ..Default::default()
        }))
    }

    async fn upload_part(
        &self,
        req: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let input = req.input;
        if !(1..=10_000).contains(&input.part_number) {
            return Err(s3_error!(InvalidArgument));
        }
        let piece = self.0.keep(input.body, input.content_md5.as_deref()).await?;
        let e_tag = Some(ETag::Strong(hex(&piece.md5)));
        let mut state = self.0.state();
        let upload = state.uploads.get_mut(&input.upload_id).filter(|u| u.key == input.key);
        let upload = upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
        upload.parts.insert(input.part_number, piece);
        Ok(S3Response::new(UploadPartOutput { e_tag, ..Default::default() }))
    }

    async fn list_parts(
        &self,
        req: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        let input = req.input;
        let state = self.0.state();
        let upload = state.uploads.get(&input.upload_id).filter(|u| u.key == input.key);
        let upload = upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
        let max = at_most(input.max_parts);
        let after = input.part_number_marker.unwrap_or(0);
        let mut parts = Vec::new();
        let mut next = None;
        for (number, piece) in upload.parts.range(after.saturating_add(1)..) {
            if parts.len() == max {
                next = parts.last().and_then(|last: &Part| last.part_number);
                break;
            }
            parts.push(Part {
                part_number: Some(*number),
                size: Some(size(piece.size)?),
                e_tag: Some(ETag::Strong(hex(&piece.md5))),
                ..Default::default()
            });
        }
        Ok(S3Response::new(ListPartsOutput {
            is_truncated: Some(next.is_some()),
            next_part_number_marker: next,
            parts: Some(parts),
            upload_id: Some(input.upload_id),
            ..Default::default()
        }))
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let input = req.input;
        self.0.known(&input.bucket)?;
        let prefix = input.prefix.as_deref().unwrap_or_default();
        let state = self.0.state();
        let mut all: Vec<_> =
            state.uploads.iter().filter(|u| u.1.key.starts_with(prefix)).collect();
        all.sort_by(|a, b| (&a.1.key, a.0).cmp(&(&b.1.key, b.0)));
        let marker = (input.key_marker.unwrap_or_default(), input.upload_id_marker);
        all.retain(|(id, upload)| match &marker.1 {
            Some(after) => (&upload.key, *id) > (&marker.0, after),
            None => upload.key > marker.0 || marker.0.is_empty(),
        });
        let max = at_most(input.max_uploads);
        let truncated = all.len() > max;
        all.truncate(max);
        let last = all.last().filter(|_| truncated);
        Ok(S3Response::new(ListMultipartUploadsOutput {
            is_truncated: Some(truncated),
            next_key_marker: last.map(|(_, upload)| upload.key.clone()),
            next_upload_id_marker: last.map(|(id, _)| (*id).clone()),
            uploads: Some(
                all.iter()
                    .map(|(id, upload)| MultipartUpload {
                        key: Some(upload.key.clone()),
                        upload_id: Some((*id).clone()),
                        initiated: Some(upload.begun.into()),
                        ..Default::default()
                    })
                    .collect(),
            ),
            ..Default::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = req.input;
        let asked = input.multipart_upload.and_then(|u| u.parts).unwrap_or_default();
        let mut state = self.0.state();
        let upload = state.uploads.get(&input.upload_id).filter(|u| u.key == input.key);
        let upload = upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
        let mut pieces = Vec::new();
        let mut before = 0;
        for (i, part) in asked.iter().enumerate() {
            let number = part.part_number.unwrap_or_default();
            if number <= before {
                return Err(s3_error!(InvalidPartOrder));
            }
            before = number;
            let piece = upload.parts.get(&number).ok_or_else(|| s3_error!(InvalidPart))?;
            if part.e_tag.as_ref().map(ETag::value) != Some(&hex(&piece.md5)) {
                return Err(s3_error!(InvalidPart));
            }
            if i + 1 < asked.len() && piece.size < MIN_PART {
                return Err(s3_error!(EntityTooSmall));
            }
            pieces.push(piece.clone());
        }
        if pieces.is_empty() {
            return Err(s3_error!(InvalidRequest));
        }
        let object = Object::new(pieces, true);
        let ignored = self.0.quirks.ignores_conditions_of_uploads.load(Ordering::Relaxed);
        let match_ = input.if_match.as_ref().filter(|_| !ignored);
        let none_match = input.if_none_match.as_ref().filter(|_| !ignored);
        let e_tag = self.0.publish(&mut state, &input.key, object, match_, none_match)?;
        state.uploads.remove(&input.upload_id);
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(e_tag),
            ..Default::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        match self.0.state().uploads.remove(&req.input.upload_id) {
            Some(_) => Ok(S3Response::new(AbortMultipartUploadOutput::default())),
            None => Err(s3_error!(NoSuchUpload)),
        }
    }
}
