//! The wall clock after a sleep. A restored guest believes that it is still the instant of the
//! snapshot; only `CLOCK_REALTIME` is stepped, never the monotonic clock, whose jump would set
//! off every timer at once.

use std::io;
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};

/// A difference as small as the way of the message is left alone, in nanoseconds.
const TOLERANCE_NS: i128 = 10_000_000;

/// By how many nanoseconds the clock that shows `now_ns` must go when it is `told_ns`; none when
/// it is near enough.
fn step(now_ns: i128, told_ns: u64) -> Option<i128> {
    let step = i128::from(told_ns) - now_ns;
    (step.abs() > TOLERANCE_NS).then_some(step)
}

/// Sets the wall clock to `unix_ns` nanoseconds of Unix time unless it shows nearly that.
/// Returns by how many milliseconds it was stepped. Needs `CAP_SYS_TIME`.
pub fn set(unix_ns: u64) -> io::Result<i64> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_REALTIME)?);
    let now_ns = i128::try_from(now.as_nanos()).map_err(io::Error::other)?;
    let Some(step) = step(now_ns, unix_ns) else { return Ok(0) };
    clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::from(Duration::from_nanos(unix_ns)))?;
    i64::try_from(step / 1_000_000).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_differences_are_left_alone() {
        const T: i128 = 1_800_000_000_000_000_000;
        for (told, stepped) in [
            (T, None),
            (T + 10_000_000, None),
            (T - 10_000_000, None),
            (T + 10_000_001, Some(10_000_001)),
            (T - 3_600_000_000_000, Some(-3_600_000_000_000)),
        ] {
            assert_eq!(step(T, u64::try_from(told).unwrap()), stepped);
        }
        assert!(step(0, u64::MAX).is_some());
    }
}
