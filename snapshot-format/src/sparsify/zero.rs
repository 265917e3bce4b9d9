//! Whether bytes are zeros.

/// What is compared before looking at the outcome, in bytes: enough for the compiler to use the
/// widest registers that it may, and little enough that a page of data is known by its start.
const STEP: usize = 256;

/// Whether all of `bytes` are zero.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    steps.iter().all(|step| {
        let words = step.as_chunks::<8>().0;
        words.iter().fold(0, |any, word| any | u64::from_ne_bytes(*word)) == 0
    }) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_is_found_wherever_it_is() {
        for length in [0, 1, 7, 255, 256, 257, 4096] {
            let mut bytes = vec![0; length];
            assert!(is_zero(&bytes));
            for at in 0..length {
                bytes[at] = 0x80;
                assert!(!is_zero(&bytes), "byte {at} of {length}");
                bytes[at] = 0;
            }
        }
    }
}
