//! Many bits in little memory.

use std::ops::Range;

use crate::bits;

/// Words of a chunk: 4096 bits, which are the pages of 16 MiB.
const WORDS: usize = 64;

/// Bits, of which long runs are alike: chunks that are all clear or all set take no memory of
/// their own. A sparse image's bitmap so takes what its data has it take, and not its size.
#[derive(Clone, Debug)]
pub(crate) struct Bitmap {
    bits: u64,
    chunks: Vec<Chunk>,
}

#[derive(Clone, Debug)]
enum Chunk {
    Clear,
    /// All bits of all words; never the last chunk when that is cut short.
    Set,
    Words(Box<[u64; WORDS]>),
}

impl Chunk {
    fn of(words: &[u64; WORDS]) -> Self {
        if words.iter().all(|word| *word == 0) {
            Self::Clear
        } else if words.iter().all(|word| *word == u64::MAX) {
            Self::Set
        } else {
            Self::Words(Box::new(*words))
        }
    }

    fn word(&self, at: usize) -> u64 {
        match self {
            Self::Clear => 0,
            Self::Set => u64::MAX,
            Self::Words(words) => words[at],
        }
    }
}

impl Bitmap {
    /// So many bits, all of them `value`.
    pub(crate) fn all(bits: u64, value: bool) -> Self {
        let mut builder = Builder::new(bits);
        builder.run(bits, value);
        builder.finish()
    }

    /// The bits in `words`, of which those behind the last bit are clear.
    pub(crate) fn from_words(bits: u64, words: Vec<u64>) -> Self {
        debug_assert!(bits::fit(&words, bits));
        let mut builder = Builder::new(bits);
        words.into_iter().for_each(|word| builder.word(word));
        builder.finish()
    }

    /// How many words of 64 bits there are.
    pub(crate) fn len_words(&self) -> usize {
        bits::words(self.bits) as usize
    }

    /// Word `at`, which must be there. Bits behind the last are clear.
    pub(crate) fn word(&self, at: usize) -> u64 {
        self.chunks[at / WORDS].word(at % WORDS)
    }

    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        (0..self.len_words()).map(|at| self.word(at))
    }

    /// Whether bit `n` is set; bits behind the end are not.
    pub(crate) fn get(&self, n: u64) -> bool {
        n < self.bits && self.word((n / 64) as usize) >> (n % 64) & 1 == 1
    }

    /// Sets bit `n`, which must be there, to `value`.
    pub(crate) fn put(&mut self, n: u64, value: bool) {
        debug_assert!(n < self.bits);
        if self.get(n) == value {
            return;
        }
        let at = (n / 64) as usize;
        let chunk = &mut self.chunks[at / WORDS];
        let words = match chunk {
            Chunk::Words(words) => words,
            alike => {
                *alike = Chunk::Words(Box::new([alike.word(0); WORDS]));
                let Chunk::Words(words) = alike else { unreachable!("it was just made so") };
                words
            }
        };
        bits::put(&mut words[..], n % (64 * WORDS as u64), value);
    }

    /// How many bits are set.
    pub(crate) fn count(&self) -> u64 {
        let of = |chunk: &Chunk| match chunk {
            Chunk::Clear => 0,
            Chunk::Set => 64 * WORDS as u64,
            Chunk::Words(words) => bits::count(&words[..]),
        };
        self.chunks.iter().map(of).sum()
    }

    /// How many bits of `range` are set; those behind the end are not.
    pub(crate) fn count_in(&self, range: Range<u64>) -> u64 {
        let end = range.end.min(self.bits);
        let (mut at, mut count) = (range.start, 0);
        while at < end {
            let next = (at / 64 + 1).saturating_mul(64).min(end);
            let word = self.word((at / 64) as usize) & u64::MAX << (at % 64);
            count += u64::from((word & bits::last_mask(next)).count_ones());
            at = next;
        }
        count
    }
}

impl PartialEq for Bitmap {
    fn eq(&self, other: &Self) -> bool {
        self.bits == other.bits && self.words().eq(other.words())
    }
}

impl Eq for Bitmap {}

/// Makes a [`Bitmap`] from its first bit to its last.
pub(crate) struct Builder {
    bits: u64,
    chunks: Vec<Chunk>,
    chunk: Box<[u64; WORDS]>,
    /// How many bits there are so far.
    at: u64,
}

impl Builder {
    pub(crate) fn new(bits: u64) -> Self {
        let chunks = Vec::with_capacity(bits::words(bits).div_ceil(WORDS as u64) as usize);
        Self { bits, chunks, chunk: Box::new([0; WORDS]), at: 0 }
    }

    /// The next 64 bits, or as many as are left. To be called at a multiple of 64.
    pub(crate) fn word(&mut self, word: u64) {
        debug_assert!(self.at.is_multiple_of(64));
        let at = (self.at / 64) as usize % WORDS;
        self.chunk[at] = word;
        self.at += 64;
        if at + 1 == WORDS {
            self.close();
        }
    }

    /// The next bits, as many as are said, all of them `value`.
    pub(crate) fn run(&mut self, length: u64, value: bool) {
        let end = self.at + length;
        while self.at < end {
            let (word, bit) = ((self.at / 64) as usize % WORDS, self.at % 64);
            let more = (64 - bit).min(end - self.at);
            if value {
                self.chunk[word] |= (u64::MAX >> (64 - more)) << bit;
            }
            self.at += more;
            if word + 1 == WORDS && bit + more == 64 {
                self.close();
            }
        }
    }

    fn close(&mut self) {
        self.chunks.push(Chunk::of(&self.chunk));
        self.chunk.fill(0);
    }

    /// The bitmap; bits that were not said are clear.
    pub(crate) fn finish(mut self) -> Bitmap {
        let chunks = bits::words(self.bits).div_ceil(WORDS as u64) as usize;
        while self.chunks.len() < chunks {
            self.close();
        }
        Bitmap { bits: self.bits, chunks: self.chunks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_runs() -> impl Strategy<Value = Vec<(u64, bool)>> {
        let length = prop_oneof![0_u64..5, 0_u64..200, 3000_u64..10_000, Just(4096), Just(64)];
        prop::collection::vec((length, any::<bool>()), 0..12)
    }

    proptest! {
        #[test]
        fn it_is_what_a_plain_one_is(
            runs in any_runs(),
            puts in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..50),
            parts in prop::collection::vec((0_u64..40_000, 0_u64..40_000), 0..10),
        ) {
            let mut plain: Vec<bool> =
                runs.iter().flat_map(|(n, value)| std::iter::repeat_n(*value, *n as usize)).collect();
            let bits = plain.len() as u64;
            let mut builder = Builder::new(bits);
            runs.iter().for_each(|(n, value)| builder.run(*n, *value));
            let mut bitmap = builder.finish();
            for (at, value) in puts.iter().filter(|_| bits > 0) {
                let at = at.index(plain.len());
                plain[at] = *value;
                bitmap.put(at as u64, *value);
            }
            for (at, value) in plain.iter().enumerate() {
                prop_assert_eq!(bitmap.get(at as u64), *value);
            }
            prop_assert!(!bitmap.get(bits) && !bitmap.get(u64::MAX));
            let count = |range: Range<usize>| plain[range].iter().filter(|bit| **bit).count() as u64;
            prop_assert_eq!(bitmap.count(), count(0..plain.len()));
            for (start, end) in parts {
                let within = (start.min(bits) as usize)..(end.min(bits).max(start.min(bits)) as usize);
                prop_assert_eq!(bitmap.count_in(start..end), count(within));
            }
            let again = Bitmap::from_words(bits, bitmap.words().collect());
            prop_assert_eq!(&again, &bitmap);
            prop_assert_eq!(Bitmap::all(bits, true).count(), bits);
            prop_assert_eq!(Bitmap::all(bits, false).count(), 0);
        }
    }

    #[test]
    fn what_is_alike_takes_no_memory() {
        let mut builder = Builder::new(1 << 28);
        builder.run(1 << 27, true);
        let bitmap = builder.finish();
        assert!(bitmap.chunks.iter().all(|chunk| !matches!(chunk, Chunk::Words(_))));
        assert_eq!(bitmap.chunks.len(), 1 << 16);
    }
}
