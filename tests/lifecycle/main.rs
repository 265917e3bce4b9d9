//! Does an app live on through sleep and wake, and does it sleep exactly when it may?
#![forbid(unsafe_code)]

mod busy;
mod image;
mod join;
mod memory;
mod race;
mod stuck;
