//! Bit n of a bitmap is bit n % 64 of word n / 64.

use std::ops::Range;

/// How many words `bits` bits need.
pub(crate) fn words(bits: u64) -> u64 {
    bits.div_ceil(64)
}

/// Whether bit `n` is set; bits behind the end are not.
pub(crate) fn get(words: &[u64], n: u64) -> bool {
    usize::try_from(n / 64)
        .ok()
        .and_then(|word| words.get(word))
        .is_some_and(|word| word >> (n % 64) & 1 == 1)
}

/// Sets bit `n`, which must be within the words, to `value`.
pub(crate) fn put(words: &mut [u64], n: u64, value: bool) {
    let word = &mut words[(n / 64) as usize];
    *word = *word & !(1 << (n % 64)) | (u64::from(value) << (n % 64));
}

/// Clears the bits of `range`, which must be within the words.
pub(crate) fn clear(words: &mut [u64], range: Range<u64>) {
    let mut at = range.start;
    while at < range.end {
        let next = (at / 64 + 1).saturating_mul(64).min(range.end);
        words[(at / 64) as usize] &= !(u64::MAX << (at % 64) & last_mask(next));
        at = next;
    }
}

/// How many bits are set.
pub(crate) fn count(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// The bits of the last word that lie within `bits` bits; all of them when the word is full.
pub(crate) fn last_mask(bits: u64) -> u64 {
    match bits % 64 {
        0 => u64::MAX,
        rest => (1 << rest) - 1,
    }
}

/// Whether `words` are as many as `bits` bits need, and clear behind the last.
pub(crate) fn fit(words: &[u64], bits: u64) -> bool {
    words.len() as u64 == self::words(bits)
        && words.last().is_none_or(|last| last & !last_mask(bits) == 0)
}
