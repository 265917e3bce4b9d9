//! Who the guest is between two sleeps.

use std::sync::Arc;

use rouse_protocol::app::{AppId, Generation};
use rouse_protocol::signature::AgentKey;
use tokio::sync::watch;

/// What the agent signs with. Replaced as a whole when the waker tells of a new one, so that no
/// answer is ever signed with one life's key and another's generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// The app.
    pub app: AppId,
    /// The life that runs.
    pub generation: Generation,
    /// The app's key.
    pub key: AgentKey,
}

/// The present life; none before the waker's first word.
pub type Lives = watch::Receiver<Option<Arc<Life>>>;
