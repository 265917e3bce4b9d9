//! Little-endian fields of a byte string. Whoever asks knows that they lie within it.

use std::io;

use crate::id::ImageId;

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes is an array of N")
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn id_at(bytes: &[u8], at: usize) -> Option<ImageId> {
    ImageId::from_bytes(array_at(bytes, at))
}

pub(crate) fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

/// Hands the bytes of `words` over, some thousand words at a time.
pub(crate) fn each_words(
    words: impl Iterator<Item = u64>,
    mut part: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    const WORDS: usize = 8192;
    let mut buffer = Vec::with_capacity(WORDS * 8);
    for word in words {
        buffer.extend(word.to_le_bytes());
        if buffer.len() == WORDS * 8 {
            part(&buffer)?;
            buffer.clear();
        }
    }
    if buffer.is_empty() { Ok(()) } else { part(&buffer) }
}
