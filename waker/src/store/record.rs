//! What a node knows of its turn with an app: `store.json` in the app's directory.

use rouse_protocol::app::Generation;
use serde::{Deserialize, Serialize};

/// Written durably before what it speaks of is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The newest turn that this node has taken, or tried to.
    pub fence: u64,
    /// How far it is.
    pub turn: Turn,
}

/// How far a node's turn is, as far as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Turn {
    /// It has been asked for, and the answer is not known.
    Taking,
    /// The app is this node's.
    Held,
    /// This generation is being made free, and whether it is so is not known.
    Freeing(Generation),
    /// This generation is in the store, and any node may have taken the app.
    Free(Generation),
}

impl Record {
    /// Whether the app is this node's without asking.
    pub(super) fn holds(&self) -> bool {
        self.turn == Turn::Held
    }
}
