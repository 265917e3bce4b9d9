//! What the parts of Rouse say to each other.
//!
//! - [`app`]: app ids, host names and generations, parsed once and then trusted.
//! - [`route`]: which requests are an app's.
//! - [`signature`]: the agent's signed word about its app, the only thing that counts as *down*.
//! - [`wake`], `watch` and `status` (feature `watch`): messages on the waker's socket (HTTP/1.1, one JSON object a line).
//! - [`control`]: messages between the waker and the agent in the guest.
//! - `client` (feature `client`): a small async client of the waker's socket.
#![forbid(unsafe_code)]

pub mod app;
#[cfg(feature = "client")]
pub mod client;
pub mod control;
pub mod problem;
pub mod route;
pub mod signature;
#[cfg(feature = "watch")]
pub mod status;
pub mod wake;
#[cfg(feature = "watch")]
pub mod watch;

/// The longest line, in bytes, that either end of any of our line protocols accepts.
///
/// An app's record with as many rules as its file may hold is shorter; a longer line is a fault
/// or an attack, and is refused before it is buffered.
pub const MAX_LINE: usize = 64 * 1024;
