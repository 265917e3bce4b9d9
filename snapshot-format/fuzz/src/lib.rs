//! What the fuzz targets do with the bytes that they get, as plain functions: a panic is a find.
//! `tests/corpus.rs` runs the same ones over the kept corpus, without a fuzzer.
#![allow(clippy::unwrap_used)]

pub mod archive;
pub mod frame;
pub mod input;
pub mod map;
pub mod merge;
pub mod scratch;
pub mod seal;

/// What is done with the bytes of an input.
pub type Target = fn(&[u8]);

/// The targets by their names, which are those of their corpora.
pub const TARGETS: [(&str, Target); 4] =
    [("map", map::run), ("archive", archive::run), ("frame", frame::run), ("merge", merge::run)];
