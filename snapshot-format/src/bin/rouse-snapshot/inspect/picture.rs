//! The image as characters.

use clap::builder::styling::{AnsiColor, Style};
use rouse_snapshot_format::{Map, PAGE};

use super::cells::{Cell, cells};
use crate::text::{offset, size};

/// How wide the picture is, in characters, and how many lines it has at most.
const COLUMNS: u64 = 64;
const LINES: u64 = 16;

/// What the working set is drawn in.
const TOUCHED: Style =
    Style::new().fg_color(Some(clap::builder::styling::Color::Ansi(AnsiColor::BrightYellow)));

/// The image from its first page to its last, each line with the offset at which it starts. The
/// denser a cell, the more of it is DATA. A cell without is a dot where a part of it is the parent's.
pub(crate) fn lines(map: &Map, order: &[u32], colour: bool) -> Vec<String> {
    let per_cell = map.pages().div_ceil(COLUMNS * LINES).max(1);
    let cells = cells(map, order, per_cell);
    let mut lines: Vec<_> = cells
        .chunks(COLUMNS as usize)
        .map(|line| {
            let start = offset(line[0].pages.start * PAGE);
            let shades: String = line.iter().map(|cell| shade(cell, colour)).collect();
            let rest = " ".repeat(COLUMNS as usize - line.len());
            format!("{start:>11} |{shades}{rest}|")
        })
        .collect();
    let mut legend = vec![format!("one cell is {}", size(per_cell * PAGE)), "░▒▓█ data".to_owned()];
    if map.counts().parent > 0 {
        legend.push("· parent".to_owned());
    }
    if colour && !order.is_empty() {
        legend.push(format!("{TOUCHED}working set{TOUCHED:#}"));
    }
    lines.push(format!("{:>11}  {}", "", legend.join(", ")));
    lines
}

fn shade(cell: &Cell, colour: bool) -> String {
    let touched = colour && cell.touched.is_some();
    let shade = match cell.density(4) {
        0 if cell.parent > 0 => '·',
        // Nothing can't be seen in any colour.
        0 if touched => '-',
        0 => ' ',
        1 => '░',
        2 => '▒',
        3 => '▓',
        _ => '█',
    };
    if touched { format!("{TOUCHED}{shade}{TOUCHED:#}") } else { shade.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::tests::map;

    #[test]
    fn the_picture_shows_where_data_is() {
        // 2048 pages are 1024 cells of two.
        let lines = lines(&map(2048 * PAGE, 1..5, &[]), &[], true);
        assert_eq!(lines.len(), 17);
        assert_eq!(lines[0], format!("{:>11} |▒█▒{}|", "0", " ".repeat(61)));
        assert_eq!(lines[1], format!("{:>11} |{}|", "512 KiB", " ".repeat(64)));
        assert_eq!(lines[16].trim(), "one cell is 8.0 KiB, ░▒▓█ data");
        let empty = super::lines(&map(0, [], &[]), &[], true);
        assert_eq!(empty.len(), 1);
    }

    #[test]
    fn the_working_set_is_coloured_where_that_is_wanted() {
        let map = map(3 * 64 * PAGE, [0], &[1]);
        let plain = lines(&map, &[1], false).join("\n");
        assert!(!plain.contains('\x1b') && !plain.contains("working set"));
        let coloured = lines(&map, &[1], true).join("\n");
        assert_eq!(coloured.matches("\x1b[93m-\x1b[0m").count(), 64);
        assert!(coloured.contains("working set"));
    }
}
