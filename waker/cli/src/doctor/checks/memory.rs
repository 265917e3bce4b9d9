//! RAM, swap and the kernel's word on pressure (`/proc/meminfo`, `/proc/pressure/memory`).

use std::io;

use crate::doctor::{Check, Needs};
use crate::text::size;

/// Time for which some task waited for memory, in percent of the last 10 s, from which on a node is
/// short of it.
const PRESSED: f64 = 10.0;

/// A value of `/proc/meminfo`, in bytes; there they are in KiB.
fn field(meminfo: &str, name: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn unknown(check: &'static str, meminfo: &io::Result<String>) -> Check {
    let why = meminfo.as_ref().err().map(|error| format!(": {error}"));
    let found = format!("/proc/meminfo can't be read{}", why.unwrap_or_default());
    Check::warn(check, found, "mount /proc")
}

pub(in crate::doctor) fn memory(meminfo: &io::Result<String>, needs: &Needs) -> Check {
    let fields = meminfo
        .as_ref()
        .ok()
        .and_then(|text| Some((field(text, "MemTotal")?, field(text, "MemAvailable")?)));
    let Some((total, available)) = fields else {
        return unknown("memory", meminfo);
    };
    let found = format!(
        "{} of {} are available; all apps awake at once take {}",
        size(available),
        size(total),
        size(needs.memory)
    );
    match &needs.largest {
        Some((app, memory)) if *memory > total => {
            let todo = format!("{app} alone has {}: lower its vm.memory_mib", size(*memory));
            Check::fail("memory", found, todo)
        }
        _ if needs.memory > available => {
            let todo =
                "only some apps can be awake at once; the others are told that the node is full";
            Check::warn("memory", found, todo)
        }
        _ => Check::ok("memory", found),
    }
}

pub(in crate::doctor) fn swap(meminfo: &io::Result<String>) -> Check {
    let fields = meminfo
        .as_ref()
        .ok()
        .and_then(|text| Some((field(text, "SwapTotal")?, field(text, "SwapFree")?)));
    match fields {
        None => unknown("swap", meminfo),
        Some((0, _)) => Check::ok("swap", "there is none"),
        Some((total, free)) => {
            let used = total.saturating_sub(free);
            let found = format!("{} of {} are used", size(used), size(total));
            // Guests' memory is a file and is not swapped; what is, is the processes around it.
            if used > total / 2 {
                return Check::warn("swap", found, "the node is short of memory: wakes are slow");
            }
            Check::ok("swap", found)
        }
    }
}

/// `text` is `/proc/pressure/memory`.
pub(in crate::doctor) fn pressure(text: &io::Result<String>) -> Check {
    let text = match text {
        Ok(text) => text,
        Err(error) => {
            let todo = "boot with psi=1 (CONFIG_PSI): without it paused apps give their RAM back by \
                        time alone";
            return Check::warn("pressure", format!("/proc/pressure/memory: {error}"), todo);
        }
    };
    let some = text.lines().find_map(|line| line.strip_prefix("some avg10="));
    let share = some.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    match share {
        Some(share) if share >= PRESSED => {
            let found = format!("tasks waited for memory {share} % of the last 10 s");
            Check::warn("pressure", found, "the node is short of memory: put apps to sleep")
        }
        Some(share) => {
            Check::ok("pressure", format!("tasks waited for memory {share} % of the last 10 s"))
        }
        None => {
            Check::warn("pressure", "it can't be read", "is /proc/pressure/memory the kernel's?")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::assert_check;
    use super::*;
    use crate::doctor::Verdict::{Fail, Ok as Well, Warn};

    #[test]
    fn memory_against_what_the_apps_need() {
        let text = |available| {
            Ok(format!("MemTotal:  1048576 kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n"))
        };
        let needs = |memory: u64, largest: u64| Needs {
            memory,
            largest: Some(("big".parse().unwrap(), largest)),
        };
        let gib = 1 << 30;
        for (text, needs, verdict, words) in [
            (text("1048576"), needs(gib, gib), Well, "1.0 GiB of 1.0 GiB"),
            (text("524288"), needs(gib, gib), Warn, "512.0 MiB of 1.0 GiB"),
            (text("524288"), needs(gib + 1, gib + 1), Fail, "big alone has 1.0 GiB"),
            (text("1"), Needs::default(), Well, "take 0 B"),
            (text("x"), Needs::default(), Warn, "meminfo"),
            (Err(io::ErrorKind::NotFound.into()), Needs::default(), Warn, "mount /proc"),
        ] {
            assert_check(&memory(&text, &needs), verdict, words);
        }
    }

    #[test]
    fn swap_that_is_used_is_a_sign() {
        for (total, free, verdict, words) in [
            (0, 0, Well, "none"),
            (1024, 1024, Well, "0 B of 1.0 MiB"),
            (1024, 512, Well, "512.0 KiB"),
            (1024, 511, Warn, "short of memory"),
        ] {
            let text = Ok(format!("SwapTotal: {total} kB\nSwapFree: {free} kB\n"));
            assert_check(&swap(&text), verdict, words);
        }
        assert_check(&swap(&Ok(String::new())), Warn, "meminfo");
    }

    #[test]
    fn pressure_of_the_last_seconds() {
        let text =
            |share| Ok(format!("some avg10={share} avg60=0.00 avg300=0.00 total=3\nfull avg10=0"));
        for (text, verdict, words) in [
            (text("0.00"), Well, "0 %"),
            (text("10.01"), Warn, "10.01 %"),
            (text("x"), Warn, "can't be read"),
            (Err(io::ErrorKind::NotFound.into()), Warn, "psi=1"),
        ] {
            assert_check(&pressure(&text), verdict, words);
        }
    }
}
