//! What a sleeping app's visitors may and may not do, and how those who wait are told: decided here,
//! done elsewhere. No I/O but for the files that a configuration names, and no clock.
#![forbid(unsafe_code)]

pub mod path;
mod pattern;

pub use pattern::UserAgentPattern;
