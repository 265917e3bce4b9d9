//! `GET /v1/status` and `GET /v1/apps/{id}/trace`: what an operator wants to see of apps.

use serde::{Deserialize, Serialize};

use crate::app::Generation;
use crate::wake::{Outcome, PhaseTime};
use crate::watch::AppView;

/// One app with its sizes and its last wake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppStatus {
    /// The app, without its key.
    #[serde(flatten)]
    pub view: AppView,
    /// Its VM's memory in MiB.
    pub memory_mib: u32,
    /// Its vCPUs.
    pub vcpus: u8,
    /// The VMM's process, while there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// What the newest image, or while it runs the memory file, occupies on disk, in bytes.
    pub image_bytes: u64,
    /// What its disk occupies, in bytes; none: it has no disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// How large its disk is for the guest, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_size: Option<u64>,
    /// Until when it is busy, as its guest says, in milliseconds of Unix time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_until_unix_ms: Option<u64>,
    /// Wakes that failed in a row.
    pub failures: u32,
    /// The newest wake of this waker's time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_wake: Option<WakeTrace>,
}

/// One wake from its start to its patches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeTrace {
    /// When it began, in milliseconds of Unix time.
    pub at_unix_ms: u64,
    /// The life that it began, or tried to.
    pub generation: Generation,
    /// How it ended; none: it failed.
    pub outcome: Option<Outcome>,
    /// Why no image was used, when it was a cold boot though there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What it cost to fetch it from the object store, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreTrace>,
    /// The waker's phases, in order, and the first visitor's once its proxy has told them.
    pub phases: Vec<PhaseTime>,
    /// What was done to the guest after the first byte.
    pub patches: Vec<PatchTrace>,
}

/// What was asked of the object store for a wake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreTrace {
    /// Requests, those that failed too.
    pub requests: u64,
    /// Requests made because one before had failed, or came with something wrong.
    pub retries: u64,
    /// Requests for what another was at already.
    pub hedges: u64,
    /// Bytes of frames that came, each time they did.
    pub bytes: u64,
}

/// One patch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchTrace {
    /// `clock`, `entropy`, `env`, `disk`, `ssh` or `command`.
    pub patch: String,
    /// How long it took, in microseconds.
    pub us: u64,
    /// What went wrong, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
