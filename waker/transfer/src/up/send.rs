//! Parts on their way.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use md5::{Digest as _, Md5};
use rouse_store::{Key, Part, Store, StoreError, Upload};
use tokio::task::{JoinError, JoinSet};

use super::{UpError, UpOptions};
use crate::retry::{Asked, Patience, retry};

/// Sends the parts of one archive, several at once.
pub(super) struct Sender<'a> {
    pub(super) store: Arc<dyn Store>,
    pub(super) key: Key,
    /// Bytes sent.
    pub(super) sent: u64,
    /// Parts that had arrived before.
    pub(super) kept: u64,
    part: u64,
    patience: Patience,
    asked: &'a Asked,
    upload: Option<Upload>,
    next: u32,
    /// Those that a process before this one sent.
    before: BTreeMap<u32, Part>,
    done: Vec<Part>,
    on_their_way: JoinSet<(Result<Part, StoreError>, Asked)>,
}

impl<'a> Sender<'a> {
    pub(super) fn new(
        store: Arc<dyn Store>,
        key: &Key,
        part: u64,
        options: &UpOptions<'_>,
        asked: &'a Asked,
    ) -> Self {
        Self {
            store,
            key: key.clone(),
            sent: 0,
            kept: 0,
            part,
            patience: options.patience,
            asked,
            upload: None,
            next: 1,
            before: BTreeMap::new(),
            done: Vec::new(),
            on_their_way: JoinSet::new(),
        }
    }

    /// Takes up an upload again, if it is still there.
    pub(super) async fn resume(&mut self, upload: Option<&Upload>) -> Result<(), UpError> {
        let Some(upload) = upload.filter(|upload| upload.key == self.key) else { return Ok(()) };
        let parts = retry(&self.patience, self.asked, |_| self.store.parts(upload)).await;
        match parts {
            Ok(parts) => {
                self.before = parts.into_iter().map(|part| (part.number, part)).collect();
                self.upload = Some(upload.clone());
                Ok(())
            }
            Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.upload.is_some()
    }

    /// Sends a part once fewer than `most` are on their way.
    pub(super) async fn part(&mut self, bytes: Bytes, most: usize) -> Result<(), UpError> {
        debug_assert!(bytes.len() as u64 <= self.part);
        let upload = match &self.upload {
            Some(upload) => upload.clone(),
            None => {
                let begun =
                    retry(&self.patience, self.asked, |_| self.store.begin(&self.key)).await?;
                self.upload.insert(begun).clone()
            }
        };
        let number = self.next;
        self.next += 1;
        if let Some(there) = self.before.remove(&number) {
            let compared = bytes.clone();
            let same =
                tokio::task::spawn_blocking(move || is_same(&there, &compared).then_some(there));
            if let Some(there) = same.await.map_err(|error| self.broken(&error))? {
                self.kept += 1;
                self.done.push(there);
                return Ok(());
            }
        }
        while self.on_their_way.len() >= most {
            self.arrived().await?;
        }
        self.sent += bytes.len() as u64;
        let (store, patience) = (Arc::clone(&self.store), self.patience);
        self.on_their_way.spawn(async move {
            let asked = Asked::default();
            let part = retry(&patience, &asked, |_| store.put_part(&upload, number, bytes.clone()));
            (part.await, asked)
        });
        Ok(())
    }

    async fn arrived(&mut self) -> Result<bool, UpError> {
        let Some(joined) = self.on_their_way.join_next().await else { return Ok(false) };
        let (part, asked) = joined.map_err(|error| self.broken(&error))?;
        self.asked.add(&asked);
        self.done.push(part?);
        Ok(true)
    }

    fn broken(&self, error: &JoinError) -> UpError {
        UpError::Broken { key: self.key.clone(), detail: error.to_string() }
    }

    /// Waits for what is on its way; then all parts, in order.
    pub(super) async fn all(&mut self) -> Result<(Upload, Vec<Part>), UpError> {
        while self.arrived().await? {}
        self.done.sort_by_key(|part| part.number);
        let upload = self.upload.clone().ok_or_else(|| UpError::Broken {
            key: self.key.clone(),
            detail: "there is no upload".into(),
        })?;
        Ok((upload, std::mem::take(&mut self.done)))
    }

    /// The object is made; there is nothing to forget.
    pub(super) fn done(&mut self) {
        self.upload = None;
    }

    /// Has the store forget what was sent. As good as it gets: what is left is for [`super::clean`].
    pub(super) async fn abort(&mut self) {
        // First, as a part that arrives after the upload is gone may stay and be charged for.
        self.on_their_way.shutdown().await;
        if let Some(upload) = self.upload.take() {
            let _ = retry(&self.patience, self.asked, |_| self.store.abort(&upload)).await;
        }
    }
}

/// Whether the store's tag says that these bytes have arrived. Of a tag that is neither their MD5 nor
/// their BLAKE3 nothing is known.
fn is_same(part: &Part, bytes: &[u8]) -> bool {
    let tag = part.tag.trim_matches('"');
    part.size == bytes.len() as u64
        && match tag.len() {
            32 => tag.eq_ignore_ascii_case(&hex::encode(Md5::digest(bytes))),
            64 => tag.eq_ignore_ascii_case(blake3::hash(bytes).to_hex().as_str()),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tag_that_is_a_hash_of_the_bytes_vouches_for_them() {
        let part = |tag: &str, size| Part { number: 1, tag: tag.into(), size };
        let md5 = "900150983cd24fb0d6963f7d28e17f72";
        assert!(is_same(&part(&format!("\"{md5}\""), 3), b"abc"));
        assert!(is_same(&part(blake3::hash(b"abc").to_hex().as_str(), 3), b"abc"));
        assert!(!is_same(&part(md5, 3), b"abd"));
        assert!(!is_same(&part(md5, 4), b"abc"));
        assert!(!is_same(&part("7", 3), b"abc"));
    }
}
