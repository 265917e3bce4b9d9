//! Where a file has data, by what the filesystem knows.

use std::fs::File;
use std::io;
use std::ops::Range;

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

use crate::units::PAGE;

/// The data of a file of `size` bytes, extent by extent: everything else is holes. A filesystem that
/// knows of no holes calls everything data. An error comes with the offset where it was met, and ends it.
///
/// One walker for a whole file: on tmpfs a look for the next hole passes every page before it, so
/// that looking anew from many places would take the square of the file's size.
pub(crate) fn extents(
    file: &File,
    size: u64,
) -> impl Iterator<Item = Result<Range<u64>, (u64, io::Error)>> {
    let mut at = Some(0);
    std::iter::from_fn(move || {
        let from = at.take().filter(|at| *at < size)?;
        match next(file, from, size) {
            Ok(extent) => {
                at = extent.as_ref().map(|extent| extent.end);
                extent.map(Ok)
            }
            Err(error) => Some(Err((from, error))),
        }
    })
}

fn next(file: &File, from: u64, size: u64) -> io::Result<Option<Range<u64>>> {
    let seek = |at: u64, whence| {
        let at = i64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
        match lseek(file, at, whence) {
            Ok(found) => Ok(u64::try_from(found).ok()),
            Err(Errno::ENXIO) => Ok(None),
            Err(errno) => Err(io::Error::from(errno)),
        }
    };
    let Some(start) = seek(from, Whence::SeekData)?.filter(|start| *start < size) else {
        return Ok(None);
    };
    let end = seek(start, Whence::SeekHole)?.unwrap_or(size).min(size);
    // Somebody may dig a hole between the two looks. To end there would be to call the rest a hole.
    Ok(Some(start..end.max((start + PAGE).min(size))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn data_is_found_where_it_was_written() {
        let file = tempfile::tempfile().unwrap();
        let size = (5 << 30) + 10;
        file.set_len(size).unwrap();
        for at in [0, 1 << 20, size - 1] {
            file.write_all_at(&[1], at).unwrap();
        }
        let found: Vec<_> = extents(&file, size).map(Result::unwrap).collect();
        for at in [0, 1 << 20, size - 1] {
            assert!(found.iter().any(|extent| extent.contains(&at)), "{at} in {found:?}");
        }
        assert!(found.is_sorted_by(|a, b| a.end <= b.start));
        // The size that is asked for is where it ends.
        assert!(extents(&file, 10).all(|extent| extent.unwrap().end <= 10));
        assert_eq!(extents(&file, 0).count(), 0);
        assert_eq!(extents(&tempfile::tempfile().unwrap(), size).count(), 0);
    }
}
