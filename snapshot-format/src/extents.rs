//! Where a file has data, by what the filesystem knows.

use std::fs::File;
use std::ops::Range;
use std::{io, iter, mem};

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};

use crate::units::PAGE;

/// The data of a file of `size` bytes, extent by extent: everything else is holes. A filesystem that
/// knows of no holes calls everything data. An error comes with the offset where it was met, and ends it.
pub(crate) fn extents(
    file: &File,
    size: u64,
) -> impl Iterator<Item = Result<Range<u64>, (u64, io::Error)>> {
    extents_in(file, size, iter::once(0..size))
}

/// [`extents`] within `ranges`, which are ascending, apart, and within the file.
///
/// One walker for a whole file, which never looks again at what it has passed: on tmpfs a look for the
/// next hole passes every page before it, so that looking anew from many places would take the square
/// of the file's size.
pub(crate) fn extents_in(
    file: &File,
    size: u64,
    ranges: impl IntoIterator<Item = Range<u64>>,
) -> impl Iterator<Item = Result<Range<u64>, (u64, io::Error)>> {
    // None after an error.
    let mut ranges = Some(ranges.into_iter().fuse());
    // What is left of the range.
    let mut range = 0..0;
    // The extent that was found last; between the place from which it was looked for and its start
    // there are only holes.
    let mut extent = 0..0;
    iter::from_fn(move || {
        loop {
            if range.is_empty() {
                range = ranges.as_mut()?.next()?;
                continue;
            }
            if extent.end <= range.start {
                match next(file, range.start, size) {
                    Ok(found) => extent = found.unwrap_or(u64::MAX..u64::MAX),
                    Err(error) => {
                        ranges = None;
                        let from = mem::take(&mut range).start;
                        return Some(Err((from, error)));
                    }
                }
            }
            let end = range.end.min(extent.end);
            let part = range.start.max(extent.start)..end;
            range.start = end;
            if !part.is_empty() {
                return Some(Ok(part));
            }
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
    Ok(Some(start..end.max((start + 1).next_multiple_of(PAGE).min(size))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
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
    proptest! {
        #[test]
        fn within_ranges_it_is_the_same_data(
            pages in prop::collection::vec(any::<bool>(), 0..40),
            ranges in prop::collection::vec((0_u64..20 * PAGE, 1_u64..20 * PAGE), 0..8),
            tail in 0..PAGE,
        ) {
            let file = tempfile::tempfile().unwrap();
            let size = pages.len() as u64 * PAGE + tail;
            file.set_len(size).unwrap();
            for page in (0..pages.len()).filter(|page| pages[*page]) {
                file.write_all_at(&[1], page as u64 * PAGE).unwrap();
            }
            let mut end = 0;
            let ranges: Vec<_> = ranges
                .into_iter()
                .map(|(hole, length)| {
                    let start = (end + hole).min(size);
                    end = (start + length).min(size);
                    start..end
                })
                .collect();
            let bytes = |extents: &[Range<u64>]| {
                let mut in_it = vec![false; size as usize];
                for extent in extents {
                    in_it[extent.start as usize..extent.end as usize].fill(true);
                }
                in_it
            };
            let all: Vec<_> = extents(&file, size).map(Result::unwrap).collect();
            let found: Vec<_> = extents_in(&file, size, ranges.clone()).map(Result::unwrap).collect();
            prop_assert!(found.iter().all(|extent| !extent.is_empty()));
            prop_assert!(found.is_sorted_by(|a, b| a.end <= b.start));
            let both = bytes(&all).into_iter().zip(bytes(&ranges));
            let wanted: Vec<_> = both.map(|(all, ranges)| all && ranges).collect();
            prop_assert!(bytes(&found) == wanted, "{found:?} of {all:?}");
        }
    }

    #[test]
    fn an_error_ends_it() {
        // A file that can't be sought in.
        let (pipe, _writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(pipe));
        let mut found = extents_in(&file, 4 * PAGE, [PAGE..2 * PAGE, 3 * PAGE..4 * PAGE]);
        let (offset, error) = found.next().unwrap().unwrap_err();
        assert_eq!((offset, error.raw_os_error()), (PAGE, Some(Errno::ESPIPE as i32)));
        assert!(found.next().is_none() && found.next().is_none());
    }
}
