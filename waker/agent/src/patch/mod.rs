//! Patches other than the disk's.

pub mod command;
pub mod env;
pub mod ssh;
