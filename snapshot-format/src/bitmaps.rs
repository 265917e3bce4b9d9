//! Page states from the two bitmaps of a file.

use crate::bits;
use crate::map::WithoutParent;
use crate::units::{PAGE, PageStates};

/// Takes the bitmaps DATA and ZERO as they come from a file, piece by piece.
///
/// A large image's bitmaps are nearly all zeros, or in the case of ZERO nearly all ones. Words of zeros
/// are not written, so that the memory that they would take is never had from the system, and a whole
/// image's ZERO is compared and not kept.
pub(crate) struct Bitmaps {
    mem_size: u64,
    /// How many words each bitmap has.
    words: usize,
    /// How many were taken.
    at: usize,
    data: Vec<u64>,
    /// None for a whole image.
    zero: Option<Vec<u64>>,
    /// A page is in both, or behind the end.
    clash: bool,
    /// Pages in neither, of a whole image.
    missing: u64,
}

/// Why two bitmaps are not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BitmapsError {
    /// They give a page two states, or reach behind the last page.
    Clash,
    /// They leave pages to a parent, and there is none.
    WithoutParent(WithoutParent),
}

impl Bitmaps {
    /// For an image of so many bytes; `whole` if it has no parent.
    pub(crate) fn new(mem_size: u64, whole: bool) -> Self {
        let words = bits::words(mem_size.div_ceil(PAGE)) as usize;
        Self {
            mem_size,
            words,
            at: 0,
            data: vec![0; words],
            zero: (!whole).then(|| vec![0; words]),
            clash: false,
            missing: 0,
        }
    }

    /// The length of each bitmap in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.words as u64 * 8
    }

    /// Takes the next bytes, a multiple of 8, of DATA and then of ZERO; no more than there are.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        for word in bytes.as_chunks().0 {
            let (at, word) = (self.at, u64::from_le_bytes(*word));
            self.at += 1;
            let place = if at < self.words { at } else { at - self.words };
            let mask = self.mask(place);
            self.clash |= word & !mask != 0;
            if at < self.words {
                if word != 0 {
                    self.data[place] = word;
                }
                continue;
            }
            self.clash |= word & self.data[place] != 0;
            match &mut self.zero {
                Some(zero) if word != 0 => zero[place] = word,
                Some(_) => {}
                None => {
                    let neither = mask & !word & !self.data[place];
                    self.missing += u64::from(neither.count_ones());
                }
            }
        }
    }

    fn mask(&self, place: usize) -> u64 {
        let last = place + 1 == self.words;
        if last { bits::last_mask(self.mem_size.div_ceil(PAGE)) } else { u64::MAX }
    }

    /// The states, once all bytes were taken.
    pub(crate) fn finish(self) -> Result<PageStates, BitmapsError> {
        debug_assert_eq!(self.at, self.words * 2);
        if self.clash {
            return Err(BitmapsError::Clash);
        }
        if self.missing > 0 {
            return Err(BitmapsError::WithoutParent(WithoutParent { pages: self.missing }));
        }
        match self.zero {
            None => Ok(PageStates::of_full_image(self.mem_size, self.data)),
            Some(zero) => {
                PageStates::from_bitmaps(self.mem_size, self.data, zero).ok_or(BitmapsError::Clash)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::PageState;
    use proptest::prelude::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn read(mem_size: u64, whole: bool, words: &[u64]) -> Result<PageStates, BitmapsError> {
        let mut bitmaps = Bitmaps::new(mem_size, whole);
        assert_eq!(bitmaps.length() * 2, words.len() as u64 * 8);
        bitmaps.take(&bytes(words));
        bitmaps.finish()
    }

    #[test]
    fn bitmaps_that_do_not_fit_together() {
        let size = 66 * PAGE;
        for whole in [true, false] {
            assert!(read(size, whole, &[1, 0, !1, 3]).is_ok());
            // A page in both; one behind the end in either.
            assert_eq!(read(size, whole, &[1, 0, !0, 3]), Err(BitmapsError::Clash));
            assert_eq!(read(size, whole, &[1, 4, !1, 3]), Err(BitmapsError::Clash));
            assert_eq!(read(size, whole, &[1, 0, !1, 7]), Err(BitmapsError::Clash));
            assert!(read(0, whole, &[]).is_ok());
        }
        let missing = BitmapsError::WithoutParent(WithoutParent { pages: 3 });
        assert_eq!(read(size, true, &[1, 0, !7, 2]), Err(missing));
        assert_eq!(read(size, false, &[1, 0, !7, 2]).unwrap().counts().parent, 3);
    }

    proptest! {
        #[test]
        fn states_come_back_however_they_are_cut(
            states in prop::collection::vec(0_usize..3, 0..400),
            piece in 1_usize..5,
        ) {
            let mut wanted = PageStates::all(states.len() as u64 * PAGE, PageState::Parent);
            for (page, state) in states.iter().enumerate() {
                let state = [PageState::Data, PageState::Zero, PageState::Parent][*state];
                wanted.set(page as u64, state).unwrap();
            }
            let words: Vec<_> =
                wanted.data_words().iter().copied().chain(wanted.zero_words()).collect();
            let mut bitmaps = Bitmaps::new(wanted.mem_size(), false);
            for some in bytes(&words).chunks(piece * 8) {
                bitmaps.take(some);
            }
            prop_assert_eq!(bitmaps.finish().unwrap(), wanted);
        }
    }
}
