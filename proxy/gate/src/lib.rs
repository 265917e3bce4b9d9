//! What stands between a visitor and an app that may be asleep: apps, holds, joins, the verdict and
//! the policy of waking and sleeping.
//!
//! No Pingora and no sockets of its own: it reaches the waker through [`Waker`], an app through
//! [`Prober`] and pooled connections through [`Dialer`]. A proxy does three things:
//!
//! 1. [`Gate::enter`] gives the [`Visitor`] of the app that a request is for, or says that it is nobody's.
//! 2. [`Visitor::enter_open`] costs next to nothing while the app is awake; else [`Gate::hold`] waits for it,
//!    unless [the app's policy](Visitor::asker) says otherwise.
//! 3. [`Gate::answered`] when the response header comes; dropping the visitor ends its stay.
//!
//! An app takes 1.4 KiB asleep and 1.7 KiB once it serves (10,000 apps; policy, state and routes, without its
//! connections): `examples/apps.rs` measures it.
//!
//! | module | decides, without I/O |
//! | --- | --- |
//! | [`verdict`] | what one probe or one live answer proves |
//! | [`schedule`] | when to probe again, and how long to wait |
//! | [`times`] | what part of a wait was whose |
//! | `app` | the gate of one app: closed, waking, open, failed; who joins and who starts |
//! | `known` | what the waker's last word means for an open gate |
//! | `routing` | which app a request is for, and what apps claim in vain |
//! | [`activity`] | whether an app is idle |
#![forbid(unsafe_code)]

pub mod activity;
mod app;
mod asker;
mod early;
mod gate;
mod hold;
mod idle;
mod known;
mod observer;
mod outside;
mod places;
mod probing;
mod refusal;
mod routing;
pub mod schedule;
mod served;
mod sync;
#[cfg(test)]
mod tests;
pub mod times;
pub mod verdict;
mod visitor;
mod waiting;
mod wake;

pub use app::{App, Open, Status};
pub use asker::Asker;
pub use gate::{Gate, Limits, Settings};
pub use observer::{HoldEnd, Observer, TellEnd, WakeEnd};
pub use outside::{Dialer, Events, Probe, Prober, Upstream, Waker};
pub use refusal::Refusal;
pub use routing::Unserved;
pub use visitor::{Visitor, Woken};
