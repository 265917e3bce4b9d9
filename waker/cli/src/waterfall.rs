//! A wake drawn as phases, one below the other, each beginning where the one above ends.

use rouse_protocol::wake::PhaseTime;

/// How wide the bars' column is, in characters.
const WIDTH: usize = 48;

/// One line a phase, then the total. Times are in milliseconds. The lines fit 80 columns.
pub(crate) fn draw(phases: &[PhaseTime]) -> Vec<String> {
    let total = phases.iter().fold(0_u64, |sum, time| sum.saturating_add(time.us));
    let mut lines = Vec::with_capacity(phases.len() + 1);
    let mut start = 0_u64;
    for time in phases {
        let bar = bar(start, time.us, total);
        lines.push(row(time.phase.as_str(), time.us, &bar));
        start = start.saturating_add(time.us);
    }
    lines.push(row("total", total, ""));
    lines
}

/// A name, a time in microseconds, and what stands behind them.
pub(crate) fn row(name: &str, us: u64, rest: &str) -> String {
    format!("  {name:<8} {:>11.2} ms  {rest}", us as f64 / 1000.0).trim_end().to_owned()
}

/// A bar from `start` to `start + us`, where `total` is the column's whole width. Whatever took any
/// time has a mark.
fn bar(start: u64, us: u64, total: u64) -> String {
    if us == 0 || total == 0 {
        return String::new();
    }
    let cell = |us: u64| (us as f64 / total as f64 * WIDTH as f64).round() as usize;
    let from = cell(start).min(WIDTH - 1);
    let length = cell(start.saturating_add(us)).min(WIDTH).saturating_sub(from);
    let mark = if length == 0 { "▏".to_owned() } else { "█".repeat(length) };
    format!("{}{mark}", " ".repeat(from))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rouse_protocol::wake::Phase;

    use super::*;

    #[test]
    fn phases_follow_each_other() {
        let times = [(Phase::Queue, 0), (Phase::Image, 1_000), (Phase::Vmm, 23_000)];
        let last = [(Phase::Load, 10), (Phase::Resume, 23_990)];
        let phases: Vec<_> =
            times.into_iter().chain(last).map(|(phase, us)| PhaseTime { phase, us }).collect();
        let gap = |n| " ".repeat(n);
        assert_eq!(
            draw(&phases),
            [
                "  queue           0.00 ms".to_owned(),
                "  image           1.00 ms  █".to_owned(),
                format!("  vmm            23.00 ms  {}{}", gap(1), "█".repeat(23)),
                format!("  load            0.01 ms  {}▏", gap(24)),
                format!("  resume         23.99 ms  {}{}", gap(24), "█".repeat(24)),
                "  total          48.00 ms".to_owned(),
            ]
        );
    }

    proptest! {
        #[test]
        fn any_times_fit(times in prop::collection::vec(any::<u64>(), 0..9)) {
            let phases: Vec<_> =
                times.iter().zip(Phase::ALL).map(|(us, phase)| PhaseTime { phase, us: *us }).collect();
            let mut start = 0_u64;
            let total = times.iter().fold(0_u64, |sum, us| sum.saturating_add(*us));
            for us in &times {
                let bar = bar(start, *us, total);
                prop_assert!(bar.chars().count() <= WIDTH);
                prop_assert_eq!(bar.is_empty(), *us == 0);
                start = start.saturating_add(*us);
            }
            prop_assert_eq!(draw(&phases).len(), times.len() + 1);
        }
    }
}
