//! Why a request may not wake its app, and what it is told.

use std::time::Duration;

use http::StatusCode;

use crate::grpc::Code;

/// A request that may not wake the sleeping app it is for. It says nothing about an app that is
/// awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// By its method.
    #[error("the app sleeps, and a request with this method does not wake it")]
    Method,
    /// By its path.
    #[error("the app sleeps, and a request for this path does not wake it")]
    Path,
    /// By its User-Agent.
    #[error("the app sleeps, and requests of this program do not wake it")]
    UserAgent,
    /// It carries none of the credentials that are asked for.
    #[error("the app sleeps, and a request without credentials does not wake it")]
    Unauthenticated,
    /// The app's wakes are used up.
    #[error("the app sleeps, and has been woken as often as it may for now")]
    AppBudget {
        /// When there is one again.
        retry_after: Duration,
    },
    /// The wakes of the client's address are used up.
    #[error("the app sleeps, and this address has woken it as often as it may for now")]
    AddressBudget {
        /// When there is one again.
        retry_after: Duration,
    },
}

impl Denied {
    /// The status. None of these may be stored by a cache without being told so (RFC 9110, 15.1;
    /// RFC 6585, 4), which rules out 405; and it would need an `Allow` that only the app knows.
    ///
    /// - 403 for what a rule forbids. Not 401, which must name a scheme (RFC 9110, 15.5.2) that
    ///   only the app knows.
    /// - 503 for a User-Agent: most are crawlers, and a 403 takes pages from their index.
    /// - 503 when the app's budget is used up, which is not the visitor's doing.
    /// - 429 when its own is.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Method | Self::Path | Self::Unauthenticated => StatusCode::FORBIDDEN,
            Self::UserAgent | Self::AppBudget { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::AddressBudget { .. } => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// The word in `Rouse-Error` and in metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Method => "wake-method",
            Self::Path => "wake-path",
            Self::UserAgent => "wake-user-agent",
            Self::Unauthenticated => "wake-unauthenticated",
            Self::AppBudget { .. } => "wake-budget",
            Self::AddressBudget { .. } => "wake-address-budget",
        }
    }

    /// A few words for a page or a problem's title.
    pub fn title(&self) -> &'static str {
        match self {
            Self::AppBudget { .. } | Self::AddressBudget { .. } => "Started too often",
            _ => "The site is asleep",
        }
    }

    /// When it makes sense to come again, if ever.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::AppBudget { retry_after } | Self::AddressBudget { retry_after } => {
                Some(*retry_after)
            }
            _ => None,
        }
    }

    /// What a gRPC client is told.
    pub fn grpc(&self) -> Code {
        match self {
            Self::Method | Self::Path => Code::PermissionDenied,
            Self::Unauthenticated => Code::Unauthenticated,
            Self::UserAgent | Self::AppBudget { .. } => Code::Unavailable,
            Self::AddressBudget { .. } => Code::ResourceExhausted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_are_told_apart() {
        let retry_after = Duration::from_secs(3);
        let table = [
            (Denied::Method, 403, "wake-method", 7),
            (Denied::Path, 403, "wake-path", 7),
            (Denied::UserAgent, 503, "wake-user-agent", 14),
            (Denied::Unauthenticated, 403, "wake-unauthenticated", 16),
            (Denied::AppBudget { retry_after }, 503, "wake-budget", 14),
            (Denied::AddressBudget { retry_after }, 429, "wake-address-budget", 8),
        ];
        // RFC 9110, 15.1: what a cache may store without being told.
        let cacheable = [200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501];
        for (denied, status, code, grpc) in table {
            assert_eq!((denied.status().as_u16(), denied.code()), (status, code));
            assert_eq!(denied.grpc() as u8, grpc);
            assert!(!cacheable.contains(&status));
            assert_eq!(denied.retry_after().is_some(), code.ends_with("budget"));
        }
    }
}
