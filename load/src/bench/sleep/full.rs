//! The peer: a snapshot of all of the memory, as a VMM writes it that knows no other.
//!
//! Firecracker's `Full` snapshot writes every byte of the guest's RAM to the memory file, zeros
//! included, and then syncs it (docs/snapshotting/snapshot-support.md there).

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::place::Place;
use crate::units::ms;

/// How much is written at once, in bytes.
const PIECE: usize = 1 << 20;

/// How it went.
#[derive(Clone, Copy, Debug)]
pub(super) struct Full {
    /// How long it took until it was durable, in milliseconds.
    pub(super) ms: f64,
    /// How much was written, in bytes.
    pub(super) bytes: u64,
    /// What the disk was given to write meanwhile, in bytes; none where the system does not tell.
    pub(super) disk_bytes: Option<u64>,
}

impl Full {
    /// Writes all of `memory` to the fresh file `to`, and removes that again.
    pub(super) async fn write(place: &Place, memory: &Path, to: &Path) -> anyhow::Result<Self> {
        let written = place.written();
        let files = (memory.to_owned(), to.to_owned());
        let copy = tokio::task::spawn_blocking(move || copy(&files.0, &files.1));
        let (took, bytes) = copy
            .await?
            .with_context(|| format!("writing all of {} to {}", memory.display(), to.display()))?;
        let disk_bytes = place.written_since(written);
        std::fs::remove_file(to).with_context(|| to.display().to_string())?;
        Ok(Self { ms: ms(took), bytes, disk_bytes })
    }
}

/// Only what a VMM does is timed: it has the memory in its hands, so reading costs it nothing.
fn copy(from: &Path, to: &Path) -> io::Result<(Duration, u64)> {
    let mut from = File::open(from)?;
    let mut to = File::create_new(to)?;
    let mut piece = vec![0; PIECE];
    let (mut took, mut bytes) = (Duration::ZERO, 0);
    loop {
        let read = match from.read(&mut piece) {
            Ok(0) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        let start = Instant::now();
        to.write_all(&piece[..read])?;
        took += start.elapsed();
        bytes += read as u64;
    }
    let start = Instant::now();
    to.sync_all()?;
    Ok((took + start.elapsed(), bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn every_byte_is_written_zeros_too() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("memory.img"), dir.path().join("full.img"));
        let mut memory = File::create(&from).unwrap();
        memory.write_all(b"some pages").unwrap();
        // A hole, and an end in the middle of a piece.
        memory.set_len(3 * PIECE as u64 + 4096).unwrap();
        let (took, bytes) = copy(&from, &to).unwrap();
        assert_eq!(bytes, 3 * PIECE as u64 + 4096);
        assert!(took > Duration::ZERO);
        assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap(), "the same bytes");
        // st_blocks counts units of 512 bytes on every filesystem of Linux.
        assert!(std::fs::metadata(&to).unwrap().blocks() * 512 >= bytes, "no hole is left out");
        // Never over a file that is there.
        assert_eq!(copy(&from, &to).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
