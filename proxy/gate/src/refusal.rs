//! Why a visitor is not let through.

use std::time::Duration;

use rouse_policy::Denied;
use rouse_protocol::wake::{FailureCode, WakeFailure};

/// Every way in which a hold ends without the app. Each is a different answer to the visitor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The app did not serve before the visitor's deadline.
    #[error("the app did not serve in time")]
    Deadline,
    /// The app sleeps, and this visitor may not wake it.
    #[error("{0}")]
    Denied(Denied),
    /// It takes a while, and the visitor is shown the waiting page meanwhile. The wake goes on.
    #[error("the app is starting, and the visitor comes again by itself")]
    Waiting,
    /// The app, or this proxy, holds as many visitors as it may.
    #[error("too many visitors are waiting")]
    Full,
    /// The visitor left.
    #[error("the visitor left")]
    Gone,
    /// This proxy is going down.
    #[error("this proxy is going down")]
    Stopping,
    /// The waker can't be reached, or broke off.
    #[error("the waker can't be reached: {0}")]
    WakerUnreachable(String),
    /// The app is parked.
    #[error("the app is parked: {0}")]
    Parked(String),
    /// The waker could not wake the app.
    #[error("the app could not be woken: {0}")]
    WakeFailed(WakeFailure),
    /// The waker refused the call itself.
    #[error("the waker refused: {0}")]
    WakerRefused(String),
    /// The VM ran but the app never served within the gate's own time.
    #[error("the app's machine runs, but the app does not answer")]
    NotServing,
    /// The app is not configured any more.
    #[error("the app is not configured any more")]
    Removed,
}

impl Refusal {
    /// What a failed wake means to its visitors.
    pub fn from_failure(failure: WakeFailure) -> Self {
        match failure.code {
            FailureCode::Parked => Self::Parked(failure.detail),
            FailureCode::Removed => Self::Removed,
            FailureCode::Stopping => Self::WakerUnreachable(failure.detail),
            FailureCode::Backoff
            | FailureCode::Full
            | FailureCode::Vmm
            | FailureCode::Storage
            | FailureCode::Store
            | FailureCode::Elsewhere
            | FailureCode::Locked
            // Only said of boots, which nobody asks for here.
            | FailureCode::NotAsleep => Self::WakeFailed(failure),
        }
    }

    /// Whether no wake was even tried, so that there is nothing to be charged for.
    pub(crate) fn never_began(&self) -> bool {
        match self {
            Self::WakerUnreachable(_)
            | Self::WakerRefused(_)
            | Self::Parked(_)
            | Self::Removed
            | Self::Stopping => true,
            Self::WakeFailed(failure) => {
                matches!(
                    failure.code,
                    FailureCode::Backoff | FailureCode::Full | FailureCode::Elsewhere
                )
            }
            Self::Deadline
            | Self::Denied(_)
            | Self::Waiting
            | Self::Full
            | Self::Gone
            | Self::NotServing => false,
        }
    }

    /// When it makes sense to come again, if ever.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Deadline | Self::Full | Self::NotServing => Some(Duration::from_secs(5)),
            Self::Denied(denied) => denied.retry_after(),
            Self::Stopping | Self::Waiting | Self::WakerUnreachable(_) | Self::WakerRefused(_) => {
                Some(Duration::from_secs(1))
            }
            Self::WakeFailed(failure) => {
                Some(Duration::from_millis(failure.retry_after_ms.unwrap_or(5_000)))
            }
            Self::Gone | Self::Parked(_) | Self::Removed => None,
        }
    }
}
