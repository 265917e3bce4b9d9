//! Taking an app's turn before it is woken.

use std::io;

use rouse_protocol::app::{AppId, Generation};
use rouse_store::StoreError;
use rouse_transfer::Asked;

use super::claim::{Asker, Claim, decide};
use super::record::{Record, Turn};
use super::reference::{Reference, Stored};
use super::{NodeStore, ReferenceFault};
use crate::fault;
use crate::image::AppDir;

/// Why an app is not this node's to wake.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// Another node has it.
    #[error("the app is on node {owner}: {why}")]
    Elsewhere {
        /// Which.
        owner: String,
        /// Why it can't be had.
        why: String,
    },
    /// The store does not have what it had.
    #[error(
        "generation {0} was in the store, and neither it nor the app's reference is there now: bring the store back, or remove store.json from the app's directory to begin anew"
    )]
    Lost(Generation),
    /// The store can't say.
    #[error("whose the app is can't be found out: {0}")]
    Reference(#[from] ReferenceFault),
    /// This node's own word can't be read or written.
    #[error("the app's record of the store: {0}")]
    Record(#[from] io::Error),
}

/// Why an app was not released.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The store does not know it.
    #[error("the store does not have it")]
    Nothing,
    /// Apps do not move here.
    #[error(
        "apps do not move here: the store has no conditional writes, or `store.moving` is false"
    )]
    Stays,
    /// It is free.
    #[error("it is free already: whichever node asks may wake it")]
    Free,
    /// This node holds it.
    #[error("this node holds it: put it to sleep")]
    Ours,
    /// The reference can't be read, or was changed meanwhile.
    #[error(transparent)]
    Reference(#[from] ReferenceFault),
}

/// An app that is this node's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// What is in the store has to be fetched before the wake, one of these, the newest first. None: what is
    /// here is woken.
    pub fetch: Vec<Stored>,
    /// What is here is in the store too, or was there, and is not needed.
    pub superseded: bool,
}

impl NodeStore {
    /// Makes sure that the app is this node's until its next generation is in the store.
    pub async fn take(&self, app: &AppId, dir: &AppDir, asked: &Asked) -> Result<Taken, TakeError> {
        let record = dir.store_record()?;
        let local = dir.local()?;
        if record.as_ref().is_some_and(Record::holds) {
            return Ok(Taken::default());
        }
        let there = self.read(app, asked).await?;
        let moving = self.moving().await.map_err(ReferenceFault::from)?;
        let asker = Asker { node: &self.settings().node, moving };
        let reference = there.as_ref().map(|(reference, _)| reference);
        let claim = decide(asker, app, record.as_ref(), local, reference);
        let (next, fetch) = match claim {
            Claim::Ours => {
                let fence = reference.map_or(0, |reference| reference.fence);
                dir.write_store_record(&Record { fence, turn: Turn::Held })?;
                return Ok(Taken::default());
            }
            Claim::Take(next) => (next, false),
            Claim::Fetch(next) => (next, true),
            Claim::Elsewhere { owner, why } => {
                return Err(TakeError::Elsewhere { owner, why: why.to_owned() });
            }
            Claim::Lost(generation) => return Err(TakeError::Lost(generation)),
        };
        // What this node has was made free by it, or it was never this node's.
        let superseded = record.as_ref().is_some_and(|record| {
            matches!((record.turn, local), (Turn::Free(g), super::Local::Asleep(here)) if g == here)
        });
        dir.write_store_record(&Record { fence: next.fence, turn: Turn::Taking })?;
        fault::hit("store-taking")?;
        self.take_turn(&next, there.as_ref().map(|(_, version)| version), asked).await?;
        fault::hit("store-taken")?;
        if fetch {
            return Ok(Taken { fetch: next.generations, superseded });
        }
        dir.write_store_record(&Record { fence: next.fence, turn: Turn::Held })?;
        Ok(Taken::default())
    }

    async fn take_turn(
        &self,
        next: &Reference,
        before: Option<&rouse_store::Version>,
        asked: &Asked,
    ) -> Result<(), TakeError> {
        match self.write(next, before, asked).await {
            Err(ReferenceFault::Store(StoreError::Changed { .. })) => Err(TakeError::Elsewhere {
                owner: "that asked at the same time".to_owned(),
                why: "it was faster".to_owned(),
            }),
            written => Ok(written?),
        }
    }

    /// Makes an app free that another node holds and that will not come back: what it has that the store does not is
    /// lost, and should it come back all the same it may not wake the app. Says which node that was.
    pub async fn release(&self, app: &AppId) -> Result<String, ReleaseError> {
        let asked = Asked::default();
        let Some((reference, version)) = self.read(app, &asked).await? else {
            return Err(ReleaseError::Nothing);
        };
        if !self.moving().await.map_err(ReferenceFault::from)? {
            return Err(ReleaseError::Stays);
        }
        if reference.turn == super::Turn::Free {
            return Err(ReleaseError::Free);
        }
        if reference.owner == self.settings().node {
            return Err(ReleaseError::Ours);
        }
        let owner = reference.owner.clone();
        let free = Reference { turn: super::Turn::Free, fence: reference.fence + 1, ..reference };
        self.write(&free, Some(&version), &asked).await?;
        tracing::warn!(%app, owner, "released: what that node has of it beyond the store is lost");
        Ok(owner)
    }

    /// The app, which was fetched, is here: it is as if it had slept here.
    pub fn held(&self, dir: &AppDir) -> io::Result<()> {
        let Some(record) = dir.store_record()? else { return Ok(()) };
        if record.holds() {
            return Ok(());
        }
        dir.write_store_record(&Record { turn: Turn::Held, ..record })
    }
}
