//! What the app has in its memory, so that a sleep has something to save.

use anyhow::{Context, ensure};
use hyper::body::Bytes;
use rouse_tests::{Node, Reply, Visit};

use super::DIRTY_MIB;

/// The app's random bytes, as it described them last.
#[derive(Debug, Default)]
pub(super) struct Heap {
    filled: u64,
    said: Option<Bytes>,
}

impl Heap {
    /// Has all of it written anew, with other bytes than before.
    pub(super) async fn refill(&mut self, node: &Node) -> anyhow::Result<()> {
        self.filled += 1;
        let path = format!("/dirty?mib={DIRTY_MIB}&seed={}", self.filled);
        let reply = said(node, &Visit::post(&path, "")).await?;
        let same = self.said.as_ref() == Some(&reply.body);
        ensure!(!same, "the app's memory was to be written anew, and is what it was: {reply:?}");
        self.said = Some(reply.body);
        Ok(())
    }

    /// Whether the app still has the bytes that it was filled with. Whoever is fast and wrong is
    /// not fast.
    pub(super) async fn check(&self, node: &Node) -> anyhow::Result<()> {
        let Some(filled) = &self.said else { return Ok(()) };
        let reply = said(node, &Visit::get("/dirty")).await?;
        ensure!(reply.body == filled, "the app's memory is not what it was: {reply:?}");
        Ok(())
    }
}

/// What the app says when it is well.
async fn said(node: &Node, visit: &Visit) -> anyhow::Result<Reply> {
    let reply = visit.send(node.http()).await.with_context(|| visit.to_string())?;
    ensure!(reply.status == 200 && !reply.body.is_empty(), "{visit}: {reply:?}");
    Ok(reply)
}
