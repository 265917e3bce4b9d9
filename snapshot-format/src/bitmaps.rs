//! Page states from the two bitmaps of a file.

use crate::bitmap::{Bitmap, Builder};
use crate::bits;
use crate::map::WithoutParent;
use crate::units::{PAGE, PageStates};

/// Takes the bitmaps DATA and ZERO as they come from a file, piece by piece.
///
/// A whole image's ZERO is compared and not kept.
pub(crate) struct Bitmaps {
    mem_size: u64,
    /// How many words each bitmap has.
    words: usize,
    /// How many were taken.
    at: usize,
    data: Data,
    /// None for a whole image.
    zero: Option<Builder>,
    /// A page is in both, or behind the end.
    clash: bool,
    /// Pages in neither, of a whole image.
    missing: u64,
}

/// DATA while it is read, and then.
enum Data {
    Coming(Builder),
    There(Bitmap),
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
        let pages = mem_size.div_ceil(PAGE);
        let words = bits::words(pages) as usize;
        let data = match words {
            0 => Data::There(Bitmap::all(0, false)),
            _ => Data::Coming(Builder::new(pages)),
        };
        let zero = (!whole).then(|| Builder::new(pages));
        Self { mem_size, words, at: 0, data, zero, clash: false, missing: 0 }
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
            if at < self.words {
                self.take_data(at, word)
            } else {
                self.take_zero(at - self.words, word)
            }
        }
    }

    fn take_data(&mut self, at: usize, word: u64) {
        self.clash |= word & !self.mask(at) != 0;
        if let Data::Coming(builder) = &mut self.data {
            builder.word(word);
            if at + 1 == self.words {
                let builder = std::mem::replace(builder, Builder::new(0));
                self.data = Data::There(builder.finish());
            }
        }
    }

    fn take_zero(&mut self, at: usize, word: u64) {
        let data = match &self.data {
            Data::There(data) if at < self.words => data.word(at),
            _ => 0,
        };
        let mask = self.mask(at);
        self.clash |= word & (data | !mask) != 0;
        match &mut self.zero {
            Some(zero) => zero.word(word),
            None => self.missing += u64::from((mask & !word & !data).count_ones()),
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
        let data = match self.data {
            Data::There(data) => data,
            Data::Coming(builder) => builder.finish(),
        };
        Ok(match self.zero {
            None => PageStates::whole(self.mem_size, data),
            Some(zero) => PageStates::layer(self.mem_size, data, zero.finish()),
        })
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
                wanted.data_words().chain(wanted.zero_words()).collect();
            let mut bitmaps = Bitmaps::new(wanted.mem_size(), false);
            for some in bytes(&words).chunks(piece * 8) {
                bitmaps.take(some);
            }
            prop_assert_eq!(bitmaps.finish().unwrap(), wanted);
        }
    }
}
