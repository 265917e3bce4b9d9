//! Why a file is not filled.

use std::io;
use std::sync::Arc;

use rouse_snapshot_format::DecodeFrameError;
use rouse_store::{Key, StoreError};

/// Why a fill does not begin. The file is as it was, or empty of data.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The file can't be looked at or made as large as the image.
    #[error("the file to fill: {0}")]
    File(io::Error),
    /// Something is in the file, which would shine through where the image has zeros.
    #[error("the file to fill has {0} bytes and must be empty")]
    NotEmpty(u64),
    /// The file system is too full.
    #[error("the image needs {needed} bytes and the file system has {free} free; make room")]
    NoRoom {
        /// What the image's DATA takes, in bytes.
        needed: u64,
        /// What is free to us, in bytes.
        free: u64,
    },
    /// There are no threads to decode on.
    #[error("no thread can be started: {0}")]
    Thread(io::Error),
}

/// Why a fill ended. What is in the file is right as far as it was waited for; the rest is holes.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FillError {
    /// The store did not give a frame, for as long as was tried.
    #[error("{key}: frame {frame} can't be had: {source}")]
    Store {
        /// The object.
        key: Key,
        /// The frame's number, in the order of the archive.
        frame: usize,
        /// What the store said last.
        source: StoreError,
    },
    /// A frame is not what the index says, however often it was fetched.
    #[error("{key}: frame {frame} is corrupt: {source}")]
    Corrupt {
        /// The object.
        key: Key,
        /// The frame's number, in the order of the archive.
        frame: usize,
        /// What is wrong with it.
        source: Arc<DecodeFrameError>,
    },
    /// The file can't be written.
    #[error("the image can't be written at offset {offset}: {source}")]
    Write {
        /// Where, in bytes.
        offset: u64,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The image has no such window.
    #[error("the image has windows 0 to {windows} (not included), and not {window}")]
    Unknown {
        /// The window that was asked for.
        window: u64,
        /// How many there are.
        windows: u64,
    },
    /// A task or thread of ours broke.
    #[error("filling broke off: {0}")]
    Broken(String),
    /// It was ended from outside.
    #[error("filling was cancelled")]
    Cancelled,
}
