//! Why a request is refused.

use http::StatusCode;

/// A request that the app can't answer as asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// A query or path parameter is missing, unknown, malformed or out of bounds.
    #[error("{name}: {why}")]
    Parameter {
        /// Which.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// There is nothing at this path.
    #[error("there is nothing at this path")]
    NotFound,
    /// The path takes other methods.
    #[error("this path takes {0}")]
    Method(&'static str),
    /// The visitor's body broke off.
    #[error("the request's body broke off: {0}")]
    Body(#[from] hyper::Error),
    /// No upgrade where one is needed.
    #[error("this path takes a WebSocket handshake")]
    NoUpgrade,
    /// What the path shows is missing in this guest.
    #[error("{0}")]
    Missing(String),
    /// The machine has not what it takes.
    #[error("{0}")]
    Machine(String),
}

impl Refusal {
    /// A [`Self::Parameter`].
    pub(crate) fn parameter(name: &str, why: impl Into<String>) -> Self {
        Self::Parameter { name: name.to_owned(), why: why.into() }
    }

    /// The status to answer with.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Parameter { .. } | Self::Body(_) => StatusCode::BAD_REQUEST,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::NoUpgrade => StatusCode::UPGRADE_REQUIRED,
            Self::Missing(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Machine(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}
