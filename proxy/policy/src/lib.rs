//! What a sleeping app's visitors may and may not do, and how those who wait are told: decided here,
//! done elsewhere. No I/O but for the files that a configuration names, and no clock.
#![forbid(unsafe_code)]

pub mod budget;
mod denied;
pub mod grpc;
pub mod page;
pub mod path;
mod pattern;
pub mod preflight;
mod request;
pub mod schedule;
pub mod waiting;
pub mod who;

pub use budget::{Budgets, Rate};
pub use denied::Denied;
pub use pattern::UserAgentPattern;
pub use request::Request;
pub use waiting::{Kind, Waiting};

/// Whether `value` need not be told.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
