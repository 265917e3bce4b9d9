//! What a filesystem makes of holes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::extents::extents;
use crate::units::PAGE;

/// Whether a page in the directory of `path`, where `file` is, stays a hole when those beside it
/// are written. Tried out on a file without name: what filesystems say of their blocks is not what
/// their holes are made of (tmpfs with huge pages, ZFS, network filesystems).
pub(super) fn holes_are_pages(path: &Path, file: &File) -> io::Result<bool> {
    // The file may be reached by a link from another filesystem.
    let path = fs::canonicalize(path)?;
    let probe = tempfile::tempfile_in(path.parent().unwrap_or(Path::new("/")))?;
    if probe.metadata()?.dev() != file.metadata()?.dev() {
        return Ok(false);
    }
    // In the midst of what any filesystem takes for a block.
    const PROBE: u64 = 8 << 20;
    let wanted = [PROBE / 2 + PAGE, PROBE / 2 + 3 * PAGE].map(|start| start..start + PAGE);
    probe.set_len(PROBE)?;
    for page in &wanted {
        probe.write_all_at(&[1; PAGE as usize], page.start)?;
    }
    let found: Result<Vec<_>, _> = extents(&probe, PROBE).collect();
    Ok(found.map_err(|(_, error)| error)? == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_of_common_filesystems_are_pages() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("diff");
        let file = File::create_new(&path).unwrap();
        assert!(holes_are_pages(&path, &file).unwrap(), "these tests need a common filesystem");
        // A link does not make a filesystem of where it lies.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/proc/self/status", &link).unwrap();
        let elsewhere = File::open(&link).unwrap();
        assert!(!holes_are_pages(&link, &elsewhere).is_ok_and(|pages| pages));
        assert!(!holes_are_pages(&path, &elsewhere).unwrap());
    }
}
