//! The table of `rouse ps`.

use anstyle::{AnsiColor, Style};
use rouse_protocol::status::AppStatus;
use rouse_protocol::watch::AppState;

use crate::text::{ago, in_time, line, short_size, short_took};

const HEAD: [&str; 8] = ["APP", "STATE", "GEN", "SINCE", "RAM", "IMAGE", "DISK", "LAST WAKE"];

/// Numbers are compared by their ends.
const RIGHT: [bool; 8] = [false, false, true, false, true, true, true, false];

/// An app's id is cut to no less, in characters.
const SHORTEST: usize = 8;

/// A line an app, and below the table why apps are failed or parked. Where `columns` are given, ids
/// are cut so that the lines fit.
pub(super) fn draw(
    apps: &[AppStatus],
    now: u64,
    columns: Option<usize>,
    paint: impl Fn(&str, Style) -> String,
) -> String {
    if apps.is_empty() {
        return "no apps: put a file for each into apps.d\n".to_owned();
    }
    let mut rows: Vec<_> = apps.iter().map(|app| cells(app, now)).collect();
    let wide = |rows: &[[String; 8]], i: usize| {
        let cells = rows.iter().map(|row| row[i].chars().count());
        cells.max().unwrap_or(0).max(HEAD[i].len())
    };
    if let Some(columns) = columns {
        let others: usize = (1..HEAD.len()).map(|i| wide(&rows, i) + 2).sum();
        let room = columns.saturating_sub(others).max(SHORTEST);
        rows.iter_mut().for_each(|row| row[0] = cut(&row[0], room));
    }
    let widths: [usize; 8] = std::array::from_fn(|i| wide(&rows, i));
    let mut text = join(&HEAD.map(str::to_owned), &widths, |cell, _| cell);
    for (row, app) in rows.iter().zip(apps) {
        let style = style(&app.view.state);
        text.push_str(&join(
            row,
            &widths,
            |cell, i| if i == 1 { paint(&cell, style) } else { cell },
        ));
    }
    for app in apps {
        text.push_str(&note(app, now));
    }
    text
}

fn join(
    cells: &[String; 8],
    widths: &[usize; 8],
    decorate: impl Fn(String, usize) -> String,
) -> String {
    let mut text = String::new();
    for (i, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let gap = " ".repeat(width.saturating_sub(cell.chars().count()));
        let cell = decorate(cell.clone(), i);
        let padded = if RIGHT[i] { format!("{gap}{cell}  ") } else { format!("{cell}{gap}  ") };
        text.push_str(&padded);
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn cells(app: &AppStatus, now: u64) -> [String; 8] {
    let none = || "-".to_owned();
    let view = &app.view;
    let last = app.last_wake.as_ref().map(|wake| match wake.outcome {
        Some(outcome) => {
            let us = wake.phases.iter().fold(0_u64, |sum, time| sum.saturating_add(time.us));
            format!("{} {}", outcome.as_str(), short_took(us))
        }
        None => "failed".to_owned(),
    });
    [
        view.id.to_string(),
        view.state.as_str().to_owned(),
        view.generation.to_string(),
        ago(view.since_unix_ms, now),
        short_size(u64::from(app.memory_mib) << 20),
        short_size(app.image_bytes),
        app.disk_bytes.map_or_else(none, short_size),
        last.unwrap_or_else(none),
    ]
}

fn cut(id: &str, room: usize) -> String {
    if id.chars().count() <= room {
        return id.to_owned();
    }
    id.chars().take(room.saturating_sub(1)).chain(['…']).collect()
}

fn note(app: &AppStatus, now: u64) -> String {
    let id = &app.view.id;
    match &app.view.state {
        AppState::Failed { detail, retry_after_ms } => {
            let (failures, when) = (app.failures, in_time(*retry_after_ms));
            format!("{id} failed {failures} times, next try {when}: {}\n", line(detail))
        }
        AppState::Parked { detail } => format!("{id} is parked: {}\n", line(detail)),
        _ => match app.busy_until_unix_ms.and_then(|until| until.checked_sub(now)) {
            Some(left) => format!("{id} says that it is busy; the end is {}\n", in_time(left)),
            None => String::new(),
        },
    }
}

fn style(state: &AppState) -> Style {
    let colour = match state {
        AppState::Awake(_) => AnsiColor::Green,
        AppState::Waking | AppState::Draining { .. } | AppState::Snapshotting => AnsiColor::Yellow,
        AppState::Failed { .. } | AppState::Parked { .. } => AnsiColor::Red,
        AppState::Asleep | AppState::Paused => return Style::new().dimmed(),
    };
    colour.on_default()
}

#[cfg(test)]
mod tests {
    use rouse_protocol::app::Generation;
    use rouse_protocol::status::WakeTrace;
    use rouse_protocol::wake::{Outcome, Phase, PhaseTime};
    use rouse_protocol::watch::{AppView, Policy};

    use super::*;

    const NOW: u64 = 1_796_085_123_456;

    fn app(id: &str, state: AppState) -> AppStatus {
        AppStatus {
            view: AppView {
                id: id.parse().unwrap(),
                rules: vec![],
                policy: Policy {
                    idle_ms: 0,
                    hold_deadline_ms: 0,
                    gate_path: "/".into(),
                    ..Policy::default()
                },
                generation: Generation(7),
                since_unix_ms: NOW - 180_000,
                state,
            },
            memory_mib: 256,
            vcpus: 1,
            pid: None,
            image_bytes: 41 << 20,
            disk_bytes: None,
            disk_size: None,
            busy_until_unix_ms: None,
            failures: 2,
            last_wake: None,
        }
    }

    fn plain(apps: &[AppStatus], columns: Option<usize>) -> String {
        draw(apps, NOW, columns, |text, _| text.to_owned())
    }

    #[test]
    fn a_line_an_app_and_why_some_do_not_run() {
        let mut hello = app("hello", AppState::Asleep);
        hello.disk_bytes = Some(1_288_490_188);
        hello.last_wake = Some(WakeTrace {
            at_unix_ms: NOW,
            generation: Generation(7),
            outcome: Some(Outcome::Resumed),
            refused: None,
            store: None,
            error: None,
            phases: vec![PhaseTime { phase: Phase::Vmm, us: 303_700 }],
            patches: vec![],
        });
        let parked = app("shop", AppState::Parked { detail: "disk:\x1b[2J another marker".into() });
        let failed =
            app("x", AppState::Failed { detail: "QEMU ended".into(), retry_after_ms: 500 });
        let expected = "\
APP    STATE   GEN  SINCE    RAM  IMAGE  DISK  LAST WAKE
hello  asleep    7  3m ago  256M    41M  1.2G  resumed 304 ms
shop   parked    7  3m ago  256M    41M     -  -
x      failed    7  3m ago  256M    41M     -  -
shop is parked: disk:\u{fffd}[2J another marker
x failed 2 times, next try in 500 ms: QEMU ended
";
        assert_eq!(plain(&[hello, parked, failed], Some(80)), expected);
        assert!(plain(&[], None).contains("apps.d"));
    }

    #[test]
    fn the_widest_table_fits_a_terminal_and_loses_nothing_elsewhere() {
        let id = "i".repeat(63);
        let mut wide = app(&id, AppState::Snapshotting);
        wide.view.generation = Generation(1_234_567);
        wide.view.since_unix_ms = NOW - 364 * 86_400_000;
        (wide.image_bytes, wide.disk_bytes) = (999 << 20, Some(999 << 20));
        wide.last_wake = Some(WakeTrace {
            at_unix_ms: NOW,
            generation: Generation(7),
            outcome: Some(Outcome::Unpaused),
            refused: None,
            store: None,
            error: None,
            phases: vec![PhaseTime { phase: Phase::Vmm, us: 999_000 }],
            patches: vec![],
        });
        let drawn = plain(std::slice::from_ref(&wide), Some(80));
        assert!(drawn.lines().all(|line| line.chars().count() <= 80), "{drawn}");
        assert!(drawn.contains('…'), "{drawn}");
        assert!(plain(&[wide], None).contains(&id));
    }

    #[test]
    fn colours_do_not_move_columns() {
        let apps = [app("a", AppState::Asleep), app("b", AppState::Waking)];
        let painted = draw(&apps, NOW, None, |text, _| format!("<{text}>"));
        assert_eq!(painted.replace(['<', '>'], ""), plain(&apps, None));
        assert!(painted.contains("<waking>"), "{painted}");
    }
}
