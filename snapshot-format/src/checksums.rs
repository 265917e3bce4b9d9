//! The checksums of an image's windows.

use crate::packed::EMPTY_CHECKSUM;

/// One for each window; those of windows without DATA take no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checksums {
    /// How many windows there are.
    windows: u64,
    /// The windows whose checksum is not that of nothing, ascending.
    numbers: Vec<u32>,
    /// Theirs.
    values: Vec<u64>,
}

impl Checksums {
    /// Adds the next window's.
    pub(crate) fn push(&mut self, checksum: u64) {
        if checksum != EMPTY_CHECKSUM {
            // There are no more than `MAX_WINDOWS`.
            self.numbers.push(self.windows as u32);
            self.values.push(checksum);
        }
        self.windows += 1;
    }

    /// That of `window`; none if there is no such window.
    pub(crate) fn get(&self, window: u64) -> Option<u64> {
        if window >= self.windows {
            return None;
        }
        let number = u32::try_from(window).ok()?;
        let found = self.numbers.binary_search(&number).ok();
        Some(found.map_or(EMPTY_CHECKSUM, |at| self.values[at]))
    }

    /// The windows whose checksum is not that of nothing.
    pub(crate) fn of_data(&self) -> impl Iterator<Item = u64> {
        self.numbers.iter().map(|number| u64::from(*number))
    }

    /// All, from the first window's on.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        let mut next = self.numbers.iter().zip(&self.values).peekable();
        (0..self.windows).map(move |window| {
            let this = next.next_if(|(number, _)| u64::from(**number) == window);
            this.map_or(EMPTY_CHECKSUM, |(_, value)| *value)
        })
    }
}

impl FromIterator<u64> for Checksums {
    fn from_iter<I: IntoIterator<Item = u64>>(all: I) -> Self {
        let mut checksums = Self::default();
        all.into_iter().for_each(|checksum| checksums.push(checksum));
        checksums.numbers.shrink_to_fit();
        checksums.values.shrink_to_fit();
        checksums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_window_has_its_own(
            all in prop::collection::vec(prop_oneof![Just(EMPTY_CHECKSUM), any::<u64>()], 0..300),
        ) {
            let checksums: Checksums = all.iter().copied().collect();
            prop_assert_eq!(checksums.iter().collect::<Vec<_>>(), all.clone());
            for (window, checksum) in all.iter().enumerate() {
                prop_assert_eq!(checksums.get(window as u64), Some(*checksum));
            }
            prop_assert_eq!(checksums.get(all.len() as u64), None);
            prop_assert_eq!(checksums.get(u64::MAX), None);
            prop_assert!(checksums.of_data().all(|w| all[w as usize] != EMPTY_CHECKSUM));
        }
    }
}
