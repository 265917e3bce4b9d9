//! The DATA pages of a window one after the other, as checksums and frames take them.

use std::io;
use std::ops::Range;

use crate::read_at::ReadAt;
use crate::units::{PAGE, PageState, PageStates};

/// The checksum of a window without DATA: XXH3 of nothing.
pub(crate) const EMPTY_CHECKSUM: u64 = 0x2d06_8005_38d3_94c2;

/// The checksum of a window's packed bytes: XXH3, 64 bits, seed 0.
/// Source: the xxHash specification, <https://github.com/Cyan4973/xxHash>, `doc/xxhash_spec.md`.
pub(crate) fn checksum(packed: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(packed)
}

/// Where in the image `pages` lie, in bytes; the last page of an image may be cut short.
pub(crate) fn bytes_of(pages: &Range<u64>, mem_size: u64) -> Range<u64> {
    (pages.start * PAGE).min(mem_size)..(pages.end * PAGE).min(mem_size)
}

/// The runs of DATA among `pages`: where each lies in the image, and where in the packed bytes.
pub(crate) fn runs(
    states: &PageStates,
    pages: Range<u64>,
) -> impl Iterator<Item = (Range<u64>, Range<usize>)> {
    let mut packed = 0;
    states.runs_in(pages).filter(|run| run.state == PageState::Data).map(move |run| {
        let bytes = bytes_of(&run.pages, states.mem_size());
        let start = packed;
        packed += (bytes.end - bytes.start) as usize;
        (bytes, start..packed)
    })
}

/// How many bytes the DATA pages among `pages` have.
pub(crate) fn length(states: &PageStates, pages: Range<u64>) -> usize {
    runs(states, pages).last().map_or(0, |(_, packed)| packed.end)
}

/// Reads the DATA pages among `pages` behind one another into `packed`, in the place of what was
/// there. An error comes with the offset in the image where it was met.
pub(crate) fn gather(
    image: &(impl ReadAt + ?Sized),
    states: &PageStates,
    pages: Range<u64>,
    packed: &mut Vec<u8>,
) -> Result<(), (u64, io::Error)> {
    packed.resize(length(states, pages.clone()), 0);
    for (bytes, place) in runs(states, pages) {
        image
            .read_exact_at(&mut packed[place], bytes.start)
            .map_err(|error| (bytes.start, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_pages_lie_side_by_side() {
        let mem_size = 9 * PAGE + 10;
        let image: Vec<u8> = (0..mem_size).map(|at| (at / PAGE) as u8 + 1).collect();
        let mut states = PageStates::all(mem_size, PageState::Zero);
        for page in [1, 2, 5, 9] {
            states.set(page, PageState::Data).unwrap();
        }
        let mut packed = vec![7; 3];
        gather(image.as_slice(), &states, 0..10, &mut packed).unwrap();
        let wanted: Vec<u8> =
            [2, 3, 6].iter().flat_map(|n| [*n; PAGE as usize]).chain([10; 10]).collect();
        assert_eq!(packed, wanted);
        gather(image.as_slice(), &states, 3..5, &mut packed).unwrap();
        assert_eq!(packed, [0_u8; 0]);
        assert_eq!(length(&states, 2..6), 2 * PAGE as usize);
        let short = gather(&image[..6 * PAGE as usize], &states, 0..10, &mut packed).unwrap_err();
        assert_eq!((short.0, short.1.kind()), (9 * PAGE, io::ErrorKind::UnexpectedEof));
    }

    #[test]
    fn nothing_has_the_checksum_of_the_specification() {
        assert_eq!(checksum(&[]), EMPTY_CHECKSUM);
    }
}
