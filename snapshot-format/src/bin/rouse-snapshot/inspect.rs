//! `rouse-snapshot inspect`.

use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use rouse_snapshot_format::{Map, PAGE, PageState};

/// How wide the picture is, in characters, and how many lines it has at most.
const COLUMNS: u64 = 64;
const LINES: u64 = 16;

pub(crate) fn run(path: &Path, json: bool) -> anyhow::Result<()> {
    let map = Map::open(path).with_context(|| path.display().to_string())?;
    let text = if json { as_json(&map).to_string() } else { as_text(&map) };
    match writeln!(io::stdout(), "{text}") {
        // Whoever read us has seen enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

fn as_json(map: &Map) -> serde_json::Value {
    let counts = map.counts();
    serde_json::json!({
        "image_id": map.image_id().to_hex(),
        "parent": map.parent().map(|id| id.to_hex()),
        "mem_size": map.mem_size(),
        "page_size": PAGE,
        "window_size": map.window_size().bytes(),
        "windows": map.windows(),
        "pages": {
            "all": map.pages(),
            "data": counts.data,
            "zero": counts.zero,
            "parent": counts.parent,
        },
        "data_runs": map.runs().filter(|run| run.state == PageState::Data).count(),
    })
}

fn as_text(map: &Map) -> String {
    let counts = map.counts();
    let share = |pages: u64| {
        let percent = 100.0 * pages as f64 / map.pages().max(1) as f64;
        format!("{pages:>10} pages  {percent:5.1} %  {}", size(pages * PAGE))
    };
    let mut lines = vec![
        format!("image   {}", map.image_id()),
        format!(
            "size    {} in {} pages, {} windows of {} KiB",
            size(map.mem_size()),
            map.pages(),
            map.windows(),
            map.window_size().bytes() / 1024
        ),
        format!("data    {}", share(counts.data)),
        format!("zero    {}", share(counts.zero)),
    ];
    if let Some(parent) = map.parent() {
        lines.insert(1, format!("over    {parent}"));
        lines.push(format!("parent  {}", share(counts.parent)));
    }
    let runs = map.runs().filter(|run| run.state == PageState::Data).count();
    lines.push(format!("runs    {runs:>10} of data"));
    lines.extend(picture(map));
    lines.join("\n")
}

/// The image from its first page to its last; the darker a cell, the more of it is data. A cell
/// without data is a dot where a part of it is the parent's.
fn picture(map: &Map) -> Vec<String> {
    let pages = map.pages();
    let per_cell = pages.div_ceil(COLUMNS * LINES).max(1);
    let mut cells = vec![(0_u64, false); pages.div_ceil(per_cell) as usize];
    for run in map.runs() {
        let mut at = run.pages.start;
        while at < run.pages.end {
            let cell = at / per_cell;
            let end = run.pages.end.min((cell + 1) * per_cell);
            match run.state {
                PageState::Data => cells[cell as usize].0 += end - at,
                PageState::Parent => cells[cell as usize].1 = true,
                PageState::Zero => {}
            }
            at = end;
        }
    }
    let shade = |(data, parent): &(u64, bool)| match (data * 4).div_ceil(per_cell) {
        0 if *parent => '·',
        0 => ' ',
        1 => '░',
        2 => '▒',
        3 => '▓',
        _ => '█',
    };
    let mut lines: Vec<_> = cells
        .chunks(COLUMNS as usize)
        .map(|line| format!("  |{:<64}|", line.iter().map(shade).collect::<String>()))
        .collect();
    lines.push(format!("  one cell is {}", size(per_cell * PAGE)));
    lines
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

#[cfg(test)]
mod tests {
    use super::*;
    use rouse_snapshot_format::{ImageId, PageStates, WindowSize};

    fn map(pages: u64, data: std::ops::Range<u64>) -> Map {
        let mut states = PageStates::all(pages * PAGE, PageState::Zero);
        data.for_each(|page| states.set(page, PageState::Data).unwrap());
        let id = ImageId::from_hex(&"1".repeat(32)).unwrap();
        Map::new(id, None, WindowSize::DEFAULT, states).unwrap()
    }

    #[test]
    fn the_picture_shows_where_data_is() {
        // 2048 pages are 1024 cells of two.
        let lines = picture(&map(2048, 1..5));
        assert_eq!(lines.len(), 17);
        assert_eq!(lines[0], format!("  |▒█▒{}|", " ".repeat(61)));
        assert_eq!(lines[1], format!("  |{}|", " ".repeat(64)));
        assert_eq!(lines[16], "  one cell is 8.0 KiB");
        assert_eq!(picture(&map(0, 0..0)), ["  one cell is 4.0 KiB"]);
    }

    #[test]
    fn json_has_what_scripts_need() {
        let json = as_json(&map(3, 0..1));
        assert_eq!(json["pages"]["data"], 1);
        assert_eq!(json["pages"]["zero"], 2);
        assert_eq!(json["mem_size"], 3 * PAGE);
        assert_eq!(json["parent"], serde_json::Value::Null);
        assert_eq!(json["data_runs"], 1);
    }

    #[test]
    fn sizes() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(4 << 40), "4.0 TiB");
        assert_eq!(size(5000 << 40), "5000.0 TiB");
    }
}
