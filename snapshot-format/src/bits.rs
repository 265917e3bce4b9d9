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

/// A bitmap of `bits` bits, all set.
pub(crate) fn full(bits: u64) -> Vec<u64> {
    let mut full = vec![u64::MAX; words(bits) as usize];
    if let Some(last) = full.last_mut() {
        *last = last_mask(bits);
    }
    full
}

/// A copy which leaves to the system the memory that would hold nothing but zeros, as there is much of
/// in the bitmaps of a large and sparse image.
pub(crate) fn copy(words: &[u64]) -> Vec<u64> {
    let mut copy = vec![0; words.len()];
    // A page of memory each.
    for (to, from) in copy.chunks_mut(512).zip(words.chunks(512)) {
        if from.iter().any(|word| *word != 0) {
            to.copy_from_slice(from);
        }
    }
    copy
}

/// Whether `words` are as many as `bits` bits need, and clear behind the last.
pub(crate) fn fit(words: &[u64], bits: u64) -> bool {
    words.len() as u64 == self::words(bits)
        && words.last().is_none_or(|last| last & !last_mask(bits) == 0)
}

/// How many bits of `range` are set; those behind the end are not.
pub(crate) fn count_in(words: &[u64], range: Range<u64>) -> u64 {
    let end = range.end.min(words.len() as u64 * 64);
    if range.start >= end {
        return 0;
    }
    let (first, last) = ((range.start / 64) as usize, ((end - 1) / 64) as usize);
    let from = u64::MAX << (range.start % 64);
    let to = last_mask(end);
    if first == last {
        return u64::from((words[first] & from & to).count_ones());
    }
    u64::from((words[first] & from).count_ones())
        + count(&words[first + 1..last])
        + u64::from((words[last] & to).count_ones())
}
