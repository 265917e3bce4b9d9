//! Files that live as long as one input.

use std::fs::File;
use std::path::Path;

use tempfile::TempDir;

/// Where memory is a directory: syncing costs nothing there.
const MEMORY: &str = "/dev/shm";

/// A file without a name.
pub fn file() -> File {
    match Path::new(MEMORY) {
        there if there.is_dir() => tempfile::tempfile_in(there).unwrap(),
        _ => tempfile::tempfile().unwrap(),
    }
}

/// A directory, gone when dropped.
pub fn directory() -> TempDir {
    match Path::new(MEMORY) {
        there if there.is_dir() => tempfile::tempdir_in(there).unwrap(),
        _ => tempfile::tempdir().unwrap(),
    }
}
