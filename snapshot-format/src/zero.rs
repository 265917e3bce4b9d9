//! Whether bytes are zeros, with the widest vectors that this CPU has.
#![allow(unsafe_code)]

/// Whether all of some bytes are zero.
pub(crate) type IsZero = fn(&[u8]) -> bool;

/// What is compared before looking at the outcome, in bytes: four of the widest registers, enough
/// to be as fast as the cache, and little enough that a page of data is known by its start.
const STEP: usize = 256;

/// The fastest test that this CPU can do. To be asked for once; all give the same answers.
pub(crate) fn fastest() -> IsZero {
    variants().next().unwrap_or(plain)
}

/// Whether all of `bytes` are zero. For loops, [`fastest`] is to be asked for once before.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    fastest()(bytes)
}

/// The tests that this CPU can do, the fastest first.
fn variants() -> impl Iterator<Item = IsZero> {
    let mut all: [Option<IsZero>; 3] = [None, None, Some(plain)];
    #[cfg(target_arch = "x86_64")]
    {
        all[0] = x86::avx512();
        all[1] = x86::avx2();
    }
    all.into_iter().flatten()
}

/// With what every CPU of the architecture has: SSE2 on x86-64, NEON on 64-bit ARM.
fn plain(bytes: &[u8]) -> bool {
    body(bytes)
}

/// The compiler makes vectors of it, as wide as the function allows that it is put into.
#[inline(always)]
fn body(bytes: &[u8]) -> bool {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    steps.iter().all(|step| {
        let words = step.as_chunks::<8>().0;
        words.iter().fold(0, |any, word| any | u64::from_ne_bytes(*word)) == 0
    }) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{IsZero, body};

    #[target_feature(enable = "avx2")]
    fn with_avx2(bytes: &[u8]) -> bool {
        body(bytes)
    }

    #[target_feature(enable = "avx512f")]
    fn with_avx512(bytes: &[u8]) -> bool {
        body(bytes)
    }

    pub(super) fn avx2() -> Option<IsZero> {
        // SAFETY: the function is safe on a CPU with AVX2, and nobody gets it on another.
        is_x86_feature_detected!("avx2").then_some(|bytes| unsafe { with_avx2(bytes) })
    }

    pub(super) fn avx512() -> Option<IsZero> {
        // SAFETY: the function is safe on a CPU with AVX-512F, and nobody gets it on another.
        is_x86_feature_detected!("avx512f").then_some(|bytes| unsafe { with_avx512(bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_is_found_wherever_it_is() {
        let all: Vec<_> = variants().collect();
        assert!(!all.is_empty());
        for is_zero in all {
            for length in [0, 1, 7, 63, 64, 255, 256, 257, 1000, 4095, 4096] {
                // Behind every start within a vector, with ones around it.
                for start in [0, 1, 8, 63] {
                    let mut around = vec![0xff; start + length + 64];
                    let bytes = &mut around[start..start + length];
                    bytes.fill(0);
                    assert!(is_zero(bytes));
                    for at in 0..length {
                        bytes[at] = 0x80;
                        assert!(!is_zero(bytes), "byte {at} of {length}");
                        bytes[at] = 0;
                    }
                }
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn all_variants_agree(
            bytes in proptest::collection::vec(proptest::prelude::prop_oneof![
                1000 => proptest::prelude::Just(0_u8),
                1 => proptest::prelude::any::<u8>(),
            ], 0..5000),
        ) {
            let wanted = bytes.iter().all(|byte| *byte == 0);
            for is_zero in variants() {
                proptest::prop_assert_eq!(is_zero(&bytes), wanted);
            }
        }
    }
}
