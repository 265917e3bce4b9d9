//! The TLS end as clients see it. A test is named after what it proves.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

#[cfg(feature = "acme")]
mod acme;
mod challenge;
mod client_auth;
mod curl;
mod early;
mod names;
mod refused;
mod reload;
mod resume;
mod support;
mod watching;
