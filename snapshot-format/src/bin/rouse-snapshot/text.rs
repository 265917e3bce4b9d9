//! Words and numbers for people.

use std::fmt::Display;
use std::io::{self, Write};

use crate::failure::{About, Failure};

/// A line on standard output. Whoever closed it has seen enough, and that is no failure.
pub(crate) fn say(line: impl Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).about("standard output".as_ref())
        }
        _ => Ok(()),
    }
}

/// A line on standard error. There is nobody to tell when it can't be written.
pub(crate) fn note(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// What went wrong, unless that was said already.
pub(crate) fn complain(failure: &Failure) {
    if let Some(message) = failure.message() {
        note(format_args!("rouse-snapshot: {message}"));
    }
}

/// Bytes as people write them.
pub(crate) fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// Where something is, in bytes, exact to a hundredth: 1.25 GiB, 32 MiB, 0.
pub(crate) fn offset(bytes: u64) -> String {
    let units = [("TiB", 1_u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let Some((unit, length)) = units.into_iter().find(|(_, length)| bytes >= *length) else {
        return if bytes == 0 { "0".to_owned() } else { format!("{bytes} B") };
    };
    let number = format!("{:.2}", bytes as f64 / length as f64);
    format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
}

/// How many hundredths of `all` are `part`.
pub(crate) fn percent(part: u64, all: u64) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}

/// How often `part` goes into `all`; none where there is nothing to compare with.
pub(crate) fn ratio(all: u64, part: u64) -> Option<f64> {
    (part > 0).then(|| all as f64 / part as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(4 << 40), "4.0 TiB");
        assert_eq!(size(5000 << 40), "5000.0 TiB");
    }

    #[test]
    fn offsets() {
        let said = [0, 5, 100 << 20, (1 << 30) + (1 << 28), 1 << 40].map(offset);
        assert_eq!(said, ["0", "5 B", "100 MiB", "1.25 GiB", "1 TiB"]);
    }

    #[test]
    fn shares_of_nothing() {
        assert_eq!(percent(0, 0), 0.0);
        assert_eq!(percent(1, 8), 12.5);
        assert_eq!(ratio(9, 0), None);
        assert_eq!(ratio(9, 2), Some(4.5));
    }
}
