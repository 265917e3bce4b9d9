//! What the gate tells whoever counts.

use std::time::Duration;

use crate::refusal::Refusal;
use crate::times::{Shares, WakeTimes};

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldEnd {
    /// The visitor was let through.
    Forwarded,
    /// Its deadline came.
    Deadline,
    /// It may not wake the app.
    Denied,
    /// It was shown the waiting page, and comes again.
    Waiting,
    /// There was no room.
    Full,
    /// It left.
    Gone,
    /// The app is parked.
    Parked,
    /// The wake failed.
    Failed,
    /// The waker could not be reached.
    Unreachable,
    /// This proxy goes down.
    Stopping,
}

impl HoldEnd {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Forwarded,
        Self::Deadline,
        Self::Denied,
        Self::Waiting,
        Self::Full,
        Self::Gone,
        Self::Parked,
        Self::Failed,
        Self::Unreachable,
        Self::Stopping,
    ];

    /// The word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::Deadline => "deadline",
            Self::Denied => "denied",
            Self::Waiting => "waiting",
            Self::Full => "full",
            Self::Gone => "gone",
            Self::Parked => "parked",
            Self::Failed => "failed",
            Self::Unreachable => "unreachable",
            Self::Stopping => "stopping",
        }
    }
}

impl From<&Refusal> for HoldEnd {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Deadline => Self::Deadline,
            Refusal::Denied(_) => Self::Denied,
            Refusal::Waiting => Self::Waiting,
            Refusal::Full => Self::Full,
            Refusal::Gone => Self::Gone,
            Refusal::Stopping => Self::Stopping,
            Refusal::WakerUnreachable(_) => Self::Unreachable,
            Refusal::Parked(_) => Self::Parked,
            Refusal::WakeFailed(_)
            | Refusal::WakerRefused(_)
            | Refusal::NotServing
            | Refusal::Removed => Self::Failed,
        }
    }
}

/// How a wake ended, as seen from the gate.
#[derive(Clone, Copy, Debug)]
pub enum WakeEnd<'a> {
    /// The gate opened.
    Serving(&'a WakeTimes),
    /// It did not.
    Refused(&'a Refusal),
}

/// What became of telling the waker that the first byte of a life has gone out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TellEnd {
    /// It knows.
    Told,
    /// It did not take it.
    Refused,
    /// It could not be reached, or not before there was something newer to tell.
    Unreachable,
}

impl TellEnd {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Told, Self::Refused, Self::Unreachable];

    /// The word in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Told => "told",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Whoever counts. Called from hot paths: must not block.
pub trait Observer: Send + Sync + 'static {
    /// A hold ended.
    fn hold_ended(&self, _end: HoldEnd) {}
    /// A wake ended, this long after a visitor started it.
    fn wake_ended(&self, _end: WakeEnd<'_>, _took: Duration) {}
    /// A held visitor got its response header. `first` is true for one visitor of each wake.
    fn visitor_served(&self, _shares: &Shares, _first: bool) {}
    /// A wake began before its visitor was let in.
    fn woken_early(&self) {}
    /// The waker was told of a first byte, or could not be.
    fn served_told(&self, _end: TellEnd) {}
}

impl Observer for () {}
