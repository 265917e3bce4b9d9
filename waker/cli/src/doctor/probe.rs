//! From the machine to facts. Nothing here judges, and nothing is left behind.

pub(super) mod host;
pub(super) mod mounts;
pub(super) mod socket;
pub(super) mod storage;
