//! Reading: the bytes that were asked for, or an error.

use std::ops::Range;

use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_sdk_s3::primitives::{ByteStream, DateTime};
use futures_util::stream;

use super::S3;
use super::fault::chain;
use crate::{Body, Got, Key, Meta, Span, StoreError, Version};

fn corrupt(key: &Key, detail: impl Into<String>) -> StoreError {
    StoreError::Corrupt { key: key.clone(), detail: detail.into() }
}

/// The version that a tag is: quoted, as most stores write it everywhere and some only in headers.
pub(super) fn version(key: &Key, tag: Option<&str>) -> Result<Version, StoreError> {
    match tag.map(str::trim).filter(|tag| !tag.is_empty()) {
        None => Err(corrupt(key, "the store told no ETag")),
        Some(tag) if tag.ends_with('"') => Ok(Version::new(tag)),
        Some(tag) => Ok(Version::new(format!("\"{tag}\""))),
    }
}

pub(super) fn size(key: &Key, size: Option<i64>) -> Result<u64, StoreError> {
    let size = size.and_then(|size| u64::try_from(size).ok());
    size.ok_or_else(|| corrupt(key, "the store told no size"))
}

pub(super) fn unix_ms(time: Option<&DateTime>) -> Option<u64> {
    time.and_then(|time| time.to_millis().ok()).and_then(|ms| u64::try_from(ms).ok())
}

/// `bytes 5-9/20` → 5..10 of 20.
fn content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?, size.parse().ok()?))
}

/// `Range`'s value; none: all of it. No bytes at all can't be asked for.
fn header(span: &Span) -> Option<String> {
    match span {
        Span::All => None,
        Span::Range(range) => Some(format!("bytes={}-{}", range.start, range.end - 1)),
        Span::Last(last) => Some(format!("bytes=-{last}")),
    }
}

fn is_empty(span: &Span) -> bool {
    match span {
        Span::All => false,
        Span::Range(range) => range.is_empty(),
        Span::Last(last) => *last == 0,
    }
}

impl S3 {
    pub(super) async fn read(
        &self,
        key: &Key,
        span: Span,
        expected: Option<&Version>,
    ) -> Result<Got, StoreError> {
        if is_empty(&span) {
            return self.nothing(key, &span, expected).await;
        }
        let sent = self
            .reads
            .get_object()
            .bucket(&self.bucket)
            .key(self.full(key))
            .set_range(header(&span))
            .set_if_match(expected.map(|v| v.as_str().to_owned()))
            .send()
            .await;
        match sent {
            Ok(out) => got(key, &span, expected, out),
            // It begins at the object's end or later, or the object is empty.
            Err(e) if e.raw_response().is_some_and(|r| r.status().as_u16() == 416) => {
                self.nothing(key, &span, expected).await
            }
            Err(e) => Err(self.call(key, "read objects").failed(&e)),
        }
    }

    /// The answer to a read of no bytes: what the object is.
    async fn nothing(
        &self,
        key: &Key,
        span: &Span,
        expected: Option<&Version>,
    ) -> Result<Got, StoreError> {
        let Meta { size, version, .. } = self.look(key).await?;
        if expected.is_some_and(|e| *e != version) {
            return Err(StoreError::Changed { key: key.clone() });
        }
        let range = span.of(size);
        if !range.is_empty() {
            let detail = "it was replaced while it was being read".to_owned();
            return Err(StoreError::Unavailable { key: key.clone(), detail });
        }
        Ok(Got { size, version, range, body: Box::pin(stream::empty()) })
    }

    pub(super) async fn look(&self, key: &Key) -> Result<Meta, StoreError> {
        let sent = self.calls.head_object().bucket(&self.bucket).key(self.full(key)).send().await;
        let out = sent.map_err(|e| self.call(key, "look at objects").failed(&e))?;
        Ok(Meta {
            size: size(key, out.content_length())?,
            version: version(key, out.e_tag())?,
            written_unix_ms: unix_ms(out.last_modified()).unwrap_or(0),
        })
    }
}

fn got(
    key: &Key,
    span: &Span,
    expected: Option<&Version>,
    out: GetObjectOutput,
) -> Result<Got, StoreError> {
    let version = version(key, out.e_tag())?;
    // Not every store knows If-Match here.
    if expected.is_some_and(|e| *e != version) {
        return Err(StoreError::Changed { key: key.clone() });
    }
    let length = size(key, out.content_length())?;
    let (range, size) = match out.content_range() {
        Some(text) => content_range(text)
            .ok_or_else(|| corrupt(key, format!("Content-Range is {:.80}", text.escape_debug())))?,
        None => (0..length, length),
    };
    if range != span.of(size) || range.end - range.start != length {
        let (Range { start, end }, asked) = (range, span.of(size));
        return Err(corrupt(
            key,
            format!("bytes {start} to {end} of {size} came ({length}), not {asked:?}"),
        ));
    }
    Ok(Got { size, version, range, body: body(key.clone(), out.body, length) })
}

/// The bytes of `stream`, of which there are `left`: fewer or more are an error.
fn body(key: Key, stream: ByteStream, left: u64) -> Body {
    Box::pin(stream::try_unfold((stream, left), move |(mut stream, left)| {
        let key = key.clone();
        async move {
            match stream.next().await {
                Some(Ok(chunk)) => match left.checked_sub(chunk.len() as u64) {
                    Some(left) => Ok(Some((chunk, (stream, left)))),
                    None => Err(corrupt(&key, "more bytes came than were asked for")),
                },
                Some(Err(e)) => Err(StoreError::Unavailable { key, detail: chain(&e) }),
                None if left == 0 => Ok(None),
                None => {
                    let detail = format!("the answer ended {left} bytes early");
                    Err(StoreError::Unavailable { key, detail })
                }
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_is_read_whatever_it_says() {
        assert_eq!(content_range("bytes 5-9/20"), Some((5..10, 20)));
        for text in ["", "bytes", "bytes */20", "bytes 5-/20", "bytes 5-9/*", "items 5-9/20"] {
            assert_eq!(content_range(text), None, "{text}");
        }
        assert_eq!(content_range(&format!("bytes 0-{}/5", u64::MAX)), None);
    }

    #[test]
    fn a_tag_is_quoted_once() {
        let key = Key::new("a").unwrap();
        assert_eq!(version(&key, Some("abc")).unwrap().as_str(), "\"abc\"");
        assert_eq!(version(&key, Some("\"abc\"")).unwrap().as_str(), "\"abc\"");
        assert!(version(&key, Some(" ")).is_err() && version(&key, None).is_err());
    }
}
