//! The waker: brings sleeping apps to serving, and puts idle ones to sleep.
//!
//! One task an app ([`app`]) owns that app's state machine ([`lifecycle`], pure) and carries out
//! what it decides, on images ([`image`]) and virtual machine monitors ([`vmm`]). The [`registry`]
//! keeps the apps, the [`server`] is what proxies and operators talk to. What leaves the node and comes back
//! is the [`store`]'s.
#![forbid(unsafe_code)]

pub mod admission;
pub mod app;
pub mod config;
pub mod fault;
pub mod hook;
pub mod image;
pub mod lifecycle;
pub mod metrics;
pub mod pager;
pub mod pressure;
pub mod registry;
pub mod server;
pub mod store;
pub mod vmm;
