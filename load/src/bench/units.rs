//! Times and sizes as they are told.

use std::time::Duration;

/// In milliseconds.
pub(crate) fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

/// In MiB.
pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
