//! Moves the archive of an image between its sparse file and a [`Store`](rouse_store::Store).
//!
//! [`up()`] packs an image straight into the store; nothing lies on disk in between, and memory is
//! bounded. [`Remote::open`] reads an archive's index from the store by one request, and [`Fill`]
//! fills a sparse file from it, or from several that are layers of one image ([`Layers`]): the working set first, what somebody waits for before
//! anything else, every frame verified before a byte of it is written.
//!
//! What decides (which bytes next, how many requests at once, which to hedge, how long to wait) is
//! pure and takes the clock as an argument.
#![forbid(unsafe_code)]

mod fill;
mod layers;
mod remote;
mod retry;
mod up;

pub use fill::{Fill, FillError, FillOptions, Metrics, StartError};
pub use layers::{Layers, LayersError, MAX_LAYERS};
pub use remote::{OpenRemoteError, Remote};
pub use retry::{Asked, Patience, retry};
pub use up::{CleanError, Sent, UpError, UpOptions, clean, unfinished, up};
