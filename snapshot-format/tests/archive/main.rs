//! Archives: what goes in comes out, and nothing else does.
#![allow(clippy::unwrap_used)]

mod damage;
mod images;
mod large;
mod order;
mod roundtrip;
