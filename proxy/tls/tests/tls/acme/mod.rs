//! Certificates that are ordered.

mod pebble;
mod played;
mod responder;
