//! How are visitors held, and how does every hold end?
#![forbid(unsafe_code)]

mod answers;
mod crowd;
mod leaving;
