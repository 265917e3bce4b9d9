//! One request: from the store to frames.

use std::sync::atomic::Ordering;

use futures_util::StreamExt as _;
use rouse_store::{Span, StoreError};
use tokio::time::timeout;

use super::plan::Ask;
use super::shared::Shared;
use super::work::Job;

/// Brings the frames of `ask` as far as they are still of use, and hands each over when it is whole.
pub(super) async fn fetch(shared: &Shared, ask: &Ask) -> Result<(), StoreError> {
    let frame = |number: usize| {
        let frame = shared.layers.frame(number);
        frame.ok_or_else(|| broken(shared, ask, "there is no such frame"))
    };
    let ((remote, first), (_, last)) = (frame(ask.frames.start)?, frame(ask.frames.end - 1)?);
    let wanted = first.offset..last.offset + u64::from(last.length);
    let stall = shared.options.stall;
    let stalled = |_| StoreError::Unavailable {
        key: remote.key().clone(),
        detail: format!("nothing came for {stall:?}"),
    };
    let get = remote.store().get(remote.key(), Span::Range(wanted.clone()), Some(remote.version()));
    let mut got = timeout(stall, get).await.map_err(stalled)??;
    if got.range != wanted || got.size != remote.size() {
        return Err(broken(shared, ask, "other bytes came than were asked for"));
    }
    let mut left = ask.frames.clone();
    let Some(mut number) = left.next() else { return Ok(()) };
    let mut length = first.length as usize;
    let mut frame_bytes = buffer(shared, length);
    loop {
        let some = timeout(stall, got.body.next()).await.map_err(stalled)?;
        let mut some = some.ok_or_else(|| broken(shared, ask, "it ended early"))??;
        while !some.is_empty() {
            let take = some.len().min(length - frame_bytes.len());
            frame_bytes.extend_from_slice(&some.split_to(take));
            if frame_bytes.len() < length {
                break;
            }
            let bytes = std::mem::take(&mut frame_bytes);
            land(shared, ask, number, bytes);
            match left.next() {
                Some(next) => number = next,
                None => return Ok(()),
            }
            length = frame(number)?.1.length as usize;
            frame_bytes = buffer(shared, length);
        }
        if !shared.lock().plan.is_of_use(ask.id) {
            return Ok(());
        }
    }
}

fn buffer(shared: &Shared, length: usize) -> Vec<u8> {
    let mut buffer = shared.queue.buffer();
    buffer.reserve_exact(length);
    buffer
}

/// A frame has come; it is handed over unless another request brought it first.
fn land(shared: &Shared, ask: &Ask, frame: usize, bytes: Vec<u8>) {
    let now = shared.now();
    shared.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    let mut inner = shared.lock();
    inner.plan.pace.came(bytes.len() as u64, now);
    let ours = inner.plan.claim(ask.id, frame);
    drop(inner);
    if ours {
        shared.queue.push(Job { frame, fault: ask.fault, bytes });
    }
}

fn broken(shared: &Shared, ask: &Ask, detail: &str) -> StoreError {
    let key = shared.layers.key_of(ask.frames.start).clone();
    StoreError::Corrupt { key, detail: detail.into() }
}
