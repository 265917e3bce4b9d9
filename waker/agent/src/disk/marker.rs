//! The block that a flush leaves on the disk.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Advice, OFlags, fadvise};

/// The file's name in the root of the disk.
pub(super) const FILE: &str = ".rouse-marker";

/// The file's size, in bytes: a page, and a multiple of what any disk reads at once.
const BLOCK: usize = 4096;

/// How many hexadecimal digits a marker has.
const DIGITS: usize = 32;

/// A name that one flush has and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marker(String);

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Marker {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let sound = text.len() == DIGITS && text.bytes().all(|b| b.is_ascii_hexdigit());
        sound.then(|| Self(text.to_owned()))
    }

    /// The marker that `block` begins with, if any.
    pub(super) fn of_block(block: &[u8]) -> Option<Self> {
        Self::parse(std::str::from_utf8(block.get(..DIGITS)?).ok()?)
    }

    fn block(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..DIGITS].copy_from_slice(self.0.as_bytes());
        block[DIGITS] = b'\n';
        block
    }

    /// Whether `block` is this marker's, in every byte.
    pub(super) fn is_in(&self, block: &[u8]) -> bool {
        self.block() == block
    }

    /// Writes it to `path`, over what was there, and has it synced. In place: the block stays
    /// where memory knows it to be.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(0o600).custom_flags(flags(OFlags::NOFOLLOW));
        // Not cut off first: that would free the block.
        let file = options.truncate(false).open(path)?;
        file.write_all_at(&self.block(), 0)?;
        file.set_len(BLOCK as u64)?;
        file.sync_all()?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    }
}

/// The first block of the file at `path`, from the disk and not from the page cache.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    match read_direct(path) {
        // A file system without direct reads.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => read_dropped(path),
        read => read,
    }
}

fn read_direct(path: &Path) -> io::Result<Vec<u8>> {
    let direct = flags(OFlags::DIRECT | OFlags::NOFOLLOW);
    let file = OpenOptions::new().read(true).custom_flags(direct).open(path)?;
    // Direct reads go to aligned memory only.
    let mut buffer = vec![0; 2 * BLOCK];
    let start = buffer.as_ptr().align_offset(BLOCK);
    let aligned = buffer
        .get_mut(start..)
        .and_then(|rest| rest.get_mut(..BLOCK))
        .ok_or_else(|| io::Error::other("no aligned memory"))?;
    let read = file.read_at(aligned, 0)?;
    Ok(aligned[..read].to_vec())
}

/// What is clean is dropped from the cache, and the block is clean: it was synced.
fn read_dropped(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(flags(OFlags::NOFOLLOW)).open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut block = vec![0; BLOCK];
    let read = file.read_at(&mut block, 0)?;
    block.truncate(read);
    Ok(block)
}

fn flags(flags: OFlags) -> i32 {
    // The kernel's flags are an int.
    flags.bits() as i32
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const ONE: &str = "00112233445566778899aabbccddeeff";
    const TWO: &str = "ffeeddccbbaa99887766554433221100";

    #[test]
    fn only_32_digits_are_a_marker() {
        assert_eq!(Marker::parse(ONE).unwrap().to_string(), ONE);
        let long = format!("{ONE}0");
        for bad in
            ["", &ONE[1..], &long, "0011223344556677 899aabbccddeeff", "é".repeat(16).as_str()]
        {
            assert_eq!(Marker::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_written_is_read_by_either_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        read(&path).unwrap_err();
        for marker in [ONE, TWO].map(|text| Marker::parse(text).unwrap()) {
            marker.write(&path).unwrap();
            for block in [read(&path), read_dropped(&path)] {
                let block = block.unwrap();
                assert!(marker.is_in(&block));
                assert_eq!(Marker::of_block(&block), Some(marker.clone()));
            }
        }
        let metadata = path.metadata().unwrap();
        assert_eq!((metadata.len(), metadata.permissions().mode() & 0o777), (4096, 0o600));
        assert!(!Marker::parse(ONE).unwrap().is_in(&read(&path).unwrap()));
    }

    #[test]
    fn another_blocks_marker_is_none() {
        for block in [&b""[..], b"0011", &[0; BLOCK]] {
            assert_eq!(Marker::of_block(block), None);
            assert!(!Marker::parse(ONE).unwrap().is_in(block));
        }
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join(FILE), dir.path().join("other"));
        std::fs::write(&other, "x").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        Marker::parse(ONE).unwrap().write(&path).unwrap_err();
        read(&path).unwrap_err();
        assert_eq!(std::fs::read(&other).unwrap(), b"x");
    }
}
