//! Moves the archive of an image between its sparse file and a [`Store`](rouse_store::Store).
//!
//! [`up()`] packs an image straight into the store; nothing lies on disk in between, and memory is
//! bounded. [`Remote::open`] reads an archive's index from the store by one request.
#![forbid(unsafe_code)]

mod remote;
mod retry;
mod up;

pub use remote::{OpenRemoteError, Remote};
pub use retry::Patience;
pub use up::{CleanError, Sent, UpError, UpOptions, clean, unfinished, up};
