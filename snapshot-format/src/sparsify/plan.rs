//! Which parts of an image are to be looked at, and what is known of the others.

use std::iter;
use std::ops::Range;

use crate::bits;
use crate::map::{Map, TooManyWindows};
use crate::packed::EMPTY_CHECKSUM;
use crate::units::{PAGE, WindowSize};

/// What is known of an image before it is looked at, and where it is to be.
#[derive(Debug)]
pub(super) struct Plan {
    /// The image's size in bytes.
    pub(super) mem_size: u64,
    pub(super) window: WindowSize,
    /// The DATA bitmap, clear where the image is to be looked at.
    pub(super) data: Vec<u64>,
    /// The checksums of all windows, those that are to be looked at as if they had no DATA.
    pub(super) checksums: Vec<u64>,
    /// Where to look, in bytes: whole windows, ascending, never two side by side.
    pub(super) places: Vec<Range<u64>>,
}

impl Plan {
    /// Nothing is known.
    pub(super) fn all(mem_size: u64, window: WindowSize) -> Result<Self, TooManyWindows> {
        TooManyWindows::check(window, mem_size)?;
        Ok(Self {
            mem_size,
            window,
            data: vec![0; bits::words(mem_size.div_ceil(PAGE)) as usize],
            checksums: vec![EMPTY_CHECKSUM; window.count(mem_size) as usize],
            places: iter::once(0..mem_size).collect(),
        })
    }

    /// All is as in the map of a whole image, but for the windows in which something of `written` lies.
    /// None for a map without checksums.
    pub(super) fn written(map: &Map, written: &[Range<u64>]) -> Option<Self> {
        let (mem_size, window) = (map.mem_size(), map.window_size());
        let mut data: Vec<u64> = map.states().data_words().collect();
        let mut checksums: Vec<u64> = map.checksums()?.collect();
        let places = windows_of(written, window, mem_size);
        for place in &places {
            bits::clear(&mut data, place.start / PAGE..place.end.div_ceil(PAGE));
            let windows = place.start / window.bytes()..place.end.div_ceil(window.bytes());
            checksums[windows.start as usize..windows.end as usize].fill(EMPTY_CHECKSUM);
        }
        Some(Self { mem_size, window, data, checksums, places })
    }
}

/// Where the windows lie that have a byte of `ranges`, in bytes: ascending, never two side by side.
fn windows_of(ranges: &[Range<u64>], window: WindowSize, mem_size: u64) -> Vec<Range<u64>> {
    let within = ranges.iter().map(|range| range.start..range.end.min(mem_size));
    let mut all: Vec<_> = within
        .filter(|range| !range.is_empty())
        .map(|range| {
            let start = range.start & !(window.bytes() - 1);
            start..range.end.next_multiple_of(window.bytes()).min(mem_size)
        })
        .collect();
    all.sort_unstable_by_key(|range| range.start);
    all.dedup_by(|next, before| {
        let one = next.start <= before.end;
        if one {
            before.end = before.end.max(next.end);
        }
        one
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_window_with_a_byte_of_a_range_is_there_once(
            mem_size in 0_u64..20 << 16,
            ranges in prop::collection::vec((0_u64..22 << 16, 0_u64..3 << 16, any::<bool>()), 0..12),
        ) {
            let window = WindowSize::MIN;
            // Some that end before they start, and some that end nowhere.
            let ranges: Vec<_> = ranges
                .into_iter()
                .map(|(start, length, whole)| match (length % 5, whole) {
                    (0, true) => start..u64::MAX,
                    (1, true) => start..start / 2,
                    _ => start..start + length,
                })
                .collect();
            let wanted: Vec<_> = (0..window.count(mem_size))
                .map(|number| number * window.bytes())
                .map(|start| start..(start + window.bytes()).min(mem_size))
                .filter(|place| {
                    ranges.iter().any(|r| r.start.max(place.start) < r.end.min(place.end))
                })
                .collect();
            let found = windows_of(&ranges, window, mem_size);
            prop_assert!(found.is_sorted_by(|a, b| a.end < b.start));
            let mut cut = Vec::new();
            for place in found {
                let starts = place.clone().step_by(window.bytes() as usize);
                cut.extend(starts.map(|at| at..(at + window.bytes()).min(place.end)));
            }
            prop_assert_eq!(cut, wanted);
        }
    }
}
