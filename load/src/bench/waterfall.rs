//! A wake drawn as phases, one below the other, each beginning where the one above ends.

use rouse_protocol::wake::Phase;

use crate::timing::Timing;

/// How wide the bars' column is, in characters.
const WIDTH: usize = 48;

/// One line a phase, then the total and our own share. Times are in milliseconds.
pub(crate) fn draw(timing: &Timing) -> String {
    let phases =
        Phase::ALL.map(|phase| (phase.as_str(), timing.get(phase.as_str()).unwrap_or(0.0)));
    let sum: f64 = phases.iter().map(|(_, ms)| ms).sum();
    let mut lines = Vec::new();
    let mut start = 0.0;
    for (name, ms) in phases {
        let bar = bar(start, ms, sum);
        lines.push(format!("  {name:<8} {ms:>9.2} ms  {bar}").trim_end().to_owned());
        start += ms;
    }
    lines.push(format!("  {:<8} {:>9.2} ms", "total", timing.get("total").unwrap_or(sum)));
    if let Some(own) = timing.get("own") {
        lines.push(format!("  {:<8} {own:>9.2} ms  all but VMM, guest and app", "our own"));
    }
    lines.join("\n")
}

/// A bar of what lies between `start` and `start + ms`, where `sum` is the column's whole width.
/// Whatever took any time has a mark.
fn bar(start: f64, ms: f64, sum: f64) -> String {
    if ms <= 0.0 || sum <= 0.0 {
        return String::new();
    }
    let cell = |ms: f64| (ms / sum * WIDTH as f64).round() as usize;
    let from = cell(start).min(WIDTH - 1);
    let length = cell(start + ms).min(WIDTH).saturating_sub(from);
    let mark = if length == 0 { "▏".to_owned() } else { "█".repeat(length) };
    format!("{}{mark}", " ".repeat(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other() {
        let timing = Timing::parse(
            "hold;dur=0.2, image;dur=1, vmm;dur=12, load;dur=12, gate;dur=47.8, app;dur=23, \
             own;dur=2.5, total;dur=96",
        );
        let drawn = draw(&timing);
        let lines: Vec<_> = drawn.lines().collect();
        assert_eq!(lines[0], "  hold          0.20 ms  ▏");
        assert_eq!(lines[1], "  queue         0.00 ms");
        assert_eq!(lines[2], "  fetch         0.00 ms");
        assert_eq!(lines[3], format!("  image         1.00 ms  █"));
        assert_eq!(lines[4], format!("  vmm          12.00 ms   {}", "█".repeat(6)));
        assert_eq!(
            lines[5],
            format!("  load         12.00 ms  {}{}", " ".repeat(7), "█".repeat(6))
        );
        assert_eq!(lines[6], "  resume        0.00 ms");
        assert_eq!(
            lines[9],
            format!("  app          23.00 ms  {}{}", " ".repeat(37), "█".repeat(11))
        );
        assert_eq!(lines[10], "  total        96.00 ms");
        assert_eq!(lines[11], "  our own       2.50 ms  all but VMM, guest and app");
        assert_eq!(lines.len(), 12);
    }

    #[test]
    fn any_times_fit() {
        for (start, ms, sum) in
            [(0.0, 1e9, 1.0), (1e9, 1.0, 1.0), (5.0, 1e-9, 5.0), (0.0, 0.0, 0.0)]
        {
            assert!(bar(start, ms, sum).chars().count() <= WIDTH);
        }
        assert!(draw(&Timing::default()).contains("total"));
    }
}
