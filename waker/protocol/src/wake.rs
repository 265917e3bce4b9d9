//! `POST /v1/apps/{id}/wake` and `POST /v1/apps/{id}/sleep`.
//!
//! A wake is answered by a stream of [`WakeEvent`]s, one JSON object a line: each phase as it
//! ends, then `ready` or `failed`. Who joins a running wake first gets the phases that are over.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::app::Generation;
use crate::signature::AgentKey;

/// A part of a wake, in the order in which a visitor meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Proxy: from the request's arrival until the waker was asked, and the way there and back.
    Hold,
    /// Waker: waiting for admission on this node.
    Queue,
    /// Waker: asking the store whose the app is, and what it takes to fetch from there before a VM can run.
    Fetch,
    /// Waker: the image opened, checked and consumed.
    Image,
    /// Waker: a VMM process in hand, its memory and devices made.
    Vmm,
    /// Waker: the VMM reads the device state; at a cold boot the kernel is loaded.
    Load,
    /// Waker: the vCPUs set going.
    Resume,
    /// Proxy: from the resumed VM until the verdict `serving`.
    Gate,
    /// Proxy: from the verdict until the request was let go.
    Release,
    /// Proxy: from the release until the app's response header.
    App,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Self; 10] = [
        Self::Hold,
        Self::Queue,
        Self::Fetch,
        Self::Image,
        Self::Vmm,
        Self::Load,
        Self::Resume,
        Self::Gate,
        Self::Release,
        Self::App,
    ];

    /// The word in messages, metrics and `Server-Timing`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Queue => "queue",
            Self::Fetch => "fetch",
            Self::Image => "image",
            Self::Vmm => "vmm",
            Self::Load => "load",
            Self::Resume => "resume",
            Self::Gate => "gate",
            Self::Release => "release",
            Self::App => "app",
        }
    }
}

/// How an app came to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Memory was restored from an image.
    Resumed,
    /// The guest booted from its kernel.
    Cold,
    /// It was paused: its VM stood still with its memory in RAM.
    Unpaused,
    /// It was awake already, or a sleep was cancelled before the VM was gone.
    Awake,
}

impl Outcome {
    /// The word in messages and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Resumed => "resumed",
            Self::Cold => "cold",
            Self::Unpaused => "unpaused",
            Self::Awake => "awake",
        }
    }
}

/// How long one phase of a wake took, in whole microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Which.
    pub phase: Phase,
    /// How long, in microseconds.
    pub us: u64,
}

impl PhaseTime {
    /// `took`, rounded down to microseconds.
    pub fn new(phase: Phase, took: Duration) -> Self {
        Self { phase, us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX) }
    }

    /// How long.
    pub fn took(self) -> Duration {
        Duration::from_micros(self.us)
    }
}

/// One line of a wake's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum WakeEvent {
    /// A phase is over.
    Phase(PhaseTime),
    /// The VM runs. The last line.
    Ready(Ready),
    /// It does not. The last line.
    Failed(WakeFailure),
}

/// Where an awake app is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Where the guest's port is reached on this node. That the VM runs does not mean that the
    /// app answers there yet: that is for the gate to find out.
    pub endpoint: SocketAddr,
    /// The life that the endpoint belongs to.
    pub generation: Generation,
    /// How it came to run.
    pub outcome: Outcome,
    /// The key of the agent that fronts the app; none when the guest has no agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<AgentKey>,
}

/// Why an app could not be woken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{}: {detail}", code.as_str())]
pub struct WakeFailure {
    /// The kind.
    pub code: FailureCode,
    /// What happened, for the operator.
    pub detail: String,
    /// When another try makes sense, in milliseconds; none when it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// The kinds of [`WakeFailure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureCode {
    /// A wake failed a moment ago and the next is not due yet.
    Backoff,
    /// The node has no room now.
    Full,
    /// The app is parked until an operator clears it.
    Parked,
    /// The waker is going down.
    Stopping,
    /// The VMM could neither restore the app nor boot it.
    Vmm,
    /// The app's directory could not be read or written.
    Storage,
    /// The object store did not give what it takes.
    Store,
    /// Another node has the app.
    Elsewhere,
    /// Another process runs the app's VM and can't be adopted.
    Locked,
    /// The app was removed from the configuration meanwhile.
    Removed,
    /// A boot was asked for, and the app has a VM, or is parked.
    NotAsleep,
}

impl FailureCode {
    /// The word in messages and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Backoff => "backoff",
            Self::Full => "full",
            Self::Parked => "parked",
            Self::Stopping => "stopping",
            Self::Vmm => "vmm",
            Self::Storage => "storage",
            Self::Store => "store",
            Self::Elsewhere => "elsewhere",
            Self::Locked => "locked",
            Self::Removed => "removed",
            Self::NotAsleep => "not-asleep",
        }
    }
}

/// Who wants an app to sleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SleepReason {
    /// A proxy saw nobody for the app's idle time. Every proxy must have seen nobody for as long.
    Idle,
    /// An operator. It is enough that nothing is in flight.
    #[default]
    Operator,
}

/// How deep an app sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Its VM stands still and keeps its RAM: no CPU, and a wake takes milliseconds.
    Paused,
    /// It is an image on disk: no CPU and no RAM.
    Image,
}

impl Tier {
    /// The word in messages and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Image => "image",
        }
    }
}

/// The body of `POST /v1/apps/{id}/sleep`. An empty body is an operator's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SleepRequest {
    /// Only this life; none: whichever there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Who wants it.
    #[serde(default)]
    pub reason: SleepReason,
    /// How deep; none: an operator's is an image, an idle app is paused first if it is configured so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
}

/// The answer of a sleep that came to its end (200).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SleepReport {
    /// The generation that sleeps now.
    pub generation: Generation,
    /// How deep.
    pub tier: Tier,
    /// From the request until every proxy had agreed, in microseconds. All times here are from the
    /// request; those of steps that a pause does not come to are 0.
    pub agreed_us: u64,
    /// Until the guest had flushed its disk.
    pub flushed_us: u64,
    /// Until the VM stood still.
    pub stopped_us: u64,
    /// Until the VMM's state was written. From here on a visitor could be served from the VM again.
    pub saved_us: u64,
    /// Until all that the generation is made of was durable.
    pub durable_us: u64,
    /// Until the VM was gone, its RAM given back, and the generation published.
    pub published_us: u64,
    /// What of memory and disk had to be written out for it, and the VMM's state and the map, in
    /// bytes.
    pub written_bytes: u64,
    /// What the image occupies on disk, in bytes.
    pub image_bytes: u64,
}

/// Why an app was not put to sleep (409, the problem's code).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SleepRefusal {
    /// There is no VM, or it is of another generation than the one named.
    NotAwake,
    /// Its schedule keeps it awake, or it says that it is busy. Only idle sleeps are refused so: an
    /// operator's is carried out.
    KeptAwake,
    /// A proxy has something in flight, or saw a visitor too recently.
    Busy,
    /// A visitor came before the VM was gone; the app serves.
    Cancelled,
    /// A proxy did not answer in time; the app serves.
    NoAgreement,
    /// The snapshot failed; the app serves, or the detail says what became of it.
    Failed,
}

impl SleepRefusal {
    /// The word in messages and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotAwake => "not-awake",
            Self::KeptAwake => "kept-awake",
            Self::Busy => "busy",
            Self::Cancelled => "cancelled",
            Self::NoAgreement => "no-agreement",
            Self::Failed => "failed",
        }
    }
}

/// The body of `POST /v1/apps/{id}/agreement`: a proxy's answer to an app that is `draining`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agreement {
    /// The name under which the proxy watches.
    pub proxy: String,
    /// The life it speaks of.
    pub generation: Generation,
    /// The question that it answers.
    pub question: u64,
    /// Its gate is closed and nothing is in flight; or else the app must stay awake.
    pub agree: bool,
}

/// The body of `POST /v1/apps/{id}/served`: a proxy has sent the first byte of an answer since the
/// app's last wake. Only now is the guest patched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// The life that answered.
    pub generation: Generation,
    /// The proxy's phases of the wake, as the first visitor met them.
    #[serde(default)]
    pub phases: Vec<PhaseTime>,
}

/// The body of `POST /v1/apps/{id}/boot`: a cold boot of an app without a VM, from its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootRequest {
    /// Not a cold boot, but back to memory *and* disk of the last sleep, where the file system keeps
    /// both. What was written to the disk since is set aside.
    #[serde(default)]
    pub rollback: bool,
}

/// The answer to `POST /v1/apps/{id}/prewarm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrewarmReport {
    /// The generation that waits in the node's cache now.
    pub generation: Generation,
    /// It was there already.
    pub was_there: bool,
    /// Bytes that came from the store.
    pub bytes: u64,
}

/// The answer to `POST /v1/apps/{id}/release`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseReport {
    /// The node that held it.
    pub owner: String,
}

/// The body of `POST /v1/apps/{id}/park`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParkRequest {
    /// Why; told to every visitor's operator.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_documented_ones() {
        let lines = [
            (
                WakeEvent::Phase(PhaseTime { phase: Phase::Queue, us: 31 }),
                r#"{"event":"phase","phase":"queue","us":31}"#,
            ),
            (
                WakeEvent::Ready(Ready {
                    endpoint: "127.0.0.1:4000".parse().unwrap(),
                    generation: Generation(7),
                    outcome: Outcome::Resumed,
                    key: None,
                }),
                r#"{"event":"ready","endpoint":"127.0.0.1:4000","generation":7,"outcome":"resumed"}"#,
            ),
            (
                WakeEvent::Failed(WakeFailure {
                    code: FailureCode::Backoff,
                    detail: "x".into(),
                    retry_after_ms: Some(500),
                }),
                r#"{"event":"failed","code":"backoff","detail":"x","retry_after_ms":500}"#,
            ),
        ];
        for (event, line) in lines {
            assert_eq!(serde_json::to_string(&event).unwrap(), line);
            assert_eq!(serde_json::from_str::<WakeEvent>(line).unwrap(), event);
        }
    }
}
