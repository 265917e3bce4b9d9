//! Words and numbers for people.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now, in milliseconds of Unix time.
pub(crate) fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Text that came from elsewhere, without what would move a terminal's cursor or change its colours.
pub(crate) fn plain(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

/// [`plain`] on one line.
pub(crate) fn line(text: &str) -> String {
    plain(text).split('\n').map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Bytes in at most five characters: `0`, `512B`, `9.8M`, `976M`, `1.2G`.
pub(crate) fn short_size(bytes: u64) -> String {
    match bytes {
        0 => return "0".to_owned(),
        1..1000 => return format!("{bytes}B"),
        _ => {}
    }
    let mut value = bytes as f64;
    for unit in ["K", "M", "G", "T", "P"] {
        value /= 1024.0;
        if value < 9.95 {
            return format!("{value:.1}{unit}");
        }
        if value < 999.5 {
            return format!("{value:.0}{unit}");
        }
    }
    format!("{:.0}E", value / 1024.0)
}

/// Bytes as people write them.
pub(crate) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// How long before `now` it was, both in milliseconds of Unix time. A clock that was set back makes
/// it `now`.
pub(crate) fn ago(then: u64, now: u64) -> String {
    let seconds = now.saturating_sub(then) / 1000;
    match seconds {
        0 => "now".to_owned(),
        1..60 => format!("{seconds}s ago"),
        60..3600 => format!("{}m ago", seconds / 60),
        3600..172_800 => format!("{}h ago", seconds / 3600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}

/// A time that was taken, from microseconds.
pub(crate) fn took(us: u64) -> String {
    let ms = us as f64 / 1000.0;
    if us < 1_000_000 { format!("{ms:.2} ms") } else { format!("{:.2} s", ms / 1000.0) }
}

/// [`took`] in at most seven characters.
pub(crate) fn short_took(us: u64) -> String {
    let ms = us as f64 / 1000.0;
    match us {
        0..9_950 => format!("{ms:.1} ms"),
        9_950..999_500 => format!("{ms:.0} ms"),
        999_500..99_950_000 => format!("{:.1} s", ms / 1000.0),
        _ => format!("{:.0} s", ms / 1000.0),
    }
}

/// When something may be tried again, from milliseconds.
pub(crate) fn in_time(ms: u64) -> String {
    match ms {
        0..1000 => format!("in {ms} ms"),
        1000..120_000 => format!("in {:.1} s", ms as f64 / 1000.0),
        _ => format!("in {} min", ms.div_ceil(60_000)),
    }
}

/// A moment of Unix time in UTC, as logs write it.
pub(crate) fn moment(unix_ms: u64) -> String {
    let time =
        i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| format!("{unix_ms} ms"), |time| format!("{time:.3}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes() {
        for (bytes, short, long) in [
            (0, "0", "0 B"),
            (999, "999B", "999 B"),
            (1000, "1.0K", "1000 B"),
            (1536, "1.5K", "1.5 KiB"),
            (1023 << 10, "1.0M", "1023.0 KiB"),
            (41 << 20, "41M", "41.0 MiB"),
            (256 << 20, "256M", "256.0 MiB"),
            (5 << 40, "5.0T", "5.0 TiB"),
        ] {
            assert_eq!((&*short_size(bytes), &*size(bytes)), (short, long));
        }
    }

    #[test]
    fn times() {
        for (ms, said) in [
            (0, "now"),
            (999, "now"),
            (1000, "1s ago"),
            (59_999, "59s ago"),
            (60_000, "1m ago"),
            (3_600_000, "1h ago"),
            (47 * 3_600_000, "47h ago"),
            (48 * 3_600_000, "2d ago"),
        ] {
            assert_eq!(ago(1_000_000, 1_000_000 + ms), said);
        }
        assert_eq!(ago(1_000_000, 5), "now");
        for (us, long, short) in [
            (0, "0.00 ms", "0.0 ms"),
            (31, "0.03 ms", "0.0 ms"),
            (12_090, "12.09 ms", "12 ms"),
            (303_700, "303.70 ms", "304 ms"),
            (2_310_000, "2.31 s", "2.3 s"),
        ] {
            assert_eq!((&*took(us), &*short_took(us)), (long, short));
        }
        assert_eq!([500, 60_000, 150_000].map(in_time), ["in 500 ms", "in 60.0 s", "in 3 min"]);
        assert_eq!(moment(1_796_085_123_456), "2026-12-01T00:32:03.456Z");
        assert_eq!(moment(u64::MAX), "18446744073709551615 ms");
    }

    #[test]
    fn nothing_moves_the_cursor() {
        assert_eq!(plain("a\x1b[31mb\r\nc\t\u{9b}"), "a\u{fffd}[31mb\u{fffd}\nc\u{fffd}\u{fffd}");
        assert_eq!(line(" a \n  b"), "a b");
    }

    proptest! {
        #[test]
        fn short_means_short(bytes: u64, us in 0..100_000_000_000_u64) {
            prop_assert!(short_size(bytes).len() <= 5, "{}", short_size(bytes));
            prop_assert!(short_took(us).len() <= 8, "{}", short_took(us));
        }
    }
}
