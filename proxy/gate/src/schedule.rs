//! When the gate probes. Pure.

use std::time::Duration;

/// How long a probe may be silent before another goes out beside it. The first is not given up: a
/// guest that has just been resumed may take this long for its first byte on a busy host.
pub const HEDGE: Duration = Duration::from_millis(250);

/// How many probes of one wake may be out at once.
pub const MAX_FLYING: usize = 20;

/// How long to wait before try number `tries` (from 0), when the one before was answered with
/// *down*: at once, then 1, 2, 4 … 25 ms.
pub fn delay(tries: u32) -> Duration {
    match tries {
        0 => Duration::ZERO,
        n => Duration::from_millis((1u64 << (n - 1).min(5)).min(25)),
    }
}

/// How long a probe may stay without a byte once `timed_out` before it did: 1, 2, 4, 5 s. A slow
/// guest is found by waiting longer, not by asking more often.
pub fn patience(timed_out: u32) -> Duration {
    Duration::from_secs((1u64 << timed_out.min(3)).min(5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_come_at_once_and_then_ever_slower_up_to_25_ms() {
        let ms: Vec<_> = (0..9).map(|n| delay(n).as_millis()).collect();
        assert_eq!(ms, [0, 1, 2, 4, 8, 16, 25, 25, 25]);
        assert_eq!(delay(u32::MAX).as_millis(), 25);
    }

    #[test]
    fn patience_grows_to_5_s() {
        let s: Vec<_> = (0..5).map(|n| patience(n).as_secs()).collect();
        assert_eq!(s, [1, 2, 4, 5, 5]);
        assert_eq!(patience(u32::MAX).as_secs(), 5);
    }
}
