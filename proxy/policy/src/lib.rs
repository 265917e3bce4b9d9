//! What a sleeping app's visitors may and may not do, and how those who wait are told: decided
//! here, done elsewhere. No I/O but for the files that a configuration names, and no clock.
//!
//! | module | decides |
//! | --- | --- |
//! | [`who`] | whether a request may wake its app at all |
//! | [`budget`] | whether there is a wake left for it, in all and for its address |
//! | [`reply`], [`preflight`] | what is answered without waking and without counting as activity |
//! | [`schedule`] | when an app is kept awake, and when it is woken with nobody asking |
//! | [`waiting`], [`page`], [`grpc`] | how a visitor waits, and what it is told meanwhile |
//!
//! A proxy asks in this order, for a request to an app that is not serving:
//!
//! 1. [`WakePolicy::reply`]: answered at once, nothing else happens;
//! 2. [`WakePolicy::may_wake`]: else [`Denied`];
//! 3. join a wake that runs, or [`Budgets::charge`] and start one.
//!
//! While it serves: [`WakePolicy::reply`] with `serving`, and [`WakePolicy::counts`].
#![forbid(unsafe_code)]

pub mod budget;
#[cfg(feature = "config")]
pub mod config;
mod denied;
pub mod grpc;
pub mod page;
pub mod path;
mod pattern;
mod policy;
pub mod preflight;
pub mod reply;
mod request;
pub mod schedule;
pub mod waiting;
pub mod who;

pub use budget::{Budgets, Rate};
pub use denied::Denied;
pub use pattern::UserAgentPattern;
pub use policy::{Policies, WakePolicy};
pub use request::Request;
pub use waiting::{Kind, Waiting};

/// Whether `value` need not be told.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
