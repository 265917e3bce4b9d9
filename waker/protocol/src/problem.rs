//! Errors over HTTP, in the form of RFC 9457 (`application/problem+json`).

use serde::{Deserialize, Serialize};

/// The media type of a [`Problem`].
pub const PROBLEM_JSON: &str = "application/problem+json";

/// One error of ours as a client reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A URI for the kind of error: `urn:rouse:error:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// What is wrong, the same for all errors of this kind.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong in this case, and what to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl Problem {
    /// A problem of the kind `code` (words joined by `-`).
    pub fn new(status: u16, code: &str, title: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:rouse:error:{code}"),
            title: title.to_owned(),
            status,
            detail: detail.into(),
        }
    }

    /// The code that [`Self::new`] was given, or all of `kind` when the URI is not one of ours.
    pub fn code(&self) -> &str {
        self.kind.strip_prefix("urn:rouse:error:").unwrap_or(&self.kind)
    }
}
