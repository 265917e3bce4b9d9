//! The image as a drawing that stands for itself.

use std::fmt::Write;

use rouse_snapshot_format::PAGE;

use super::cells::{Cell, cells};
use super::facts::Facts;
use crate::text::{offset, percent, size};

/// The most cells of a drawing: what a screen has room for, and a browser has patience for.
const MAX_CELLS: u64 = 4096;
/// How many cells are side by side, at least (where there are so many) and at most.
const COLUMNS: std::ops::RangeInclusive<u64> = 32..=64;
/// The grid's width, a multiple of both.
const GRID: u64 = 768;
/// The empty space beside and under everything; left of the grid stand offsets, too.
const MARGIN: u64 = 40;
const LEFT: u64 = 104;
/// Where the grid starts.
const TOP: u64 = 214;
const WIDTH: u64 = LEFT + GRID + MARGIN;
/// The longest name in the title, in characters.
const NAME: usize = 60;

/// Colours: DATA from thin to dense, then what is not DATA.
const DATA: [&str; 5] = ["#c3dbf5", "#8dbbea", "#5596d6", "#2b6cb8", "#123f7a"];
const ZERO: &str = "#e9edf2";
const PARENT: &str = "#e2d8f2";
const TOUCHED: &str = "#e8730c";

const SANS: &str = "system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,sans-serif";
const MONO: &str = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace";

/// A heat map with everything that it needs in it.
pub(crate) fn draw(facts: &Facts) -> String {
    let grid = Grid::new(facts);
    let height = TOP + grid.height() + 74;
    let mut svg = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t">
<title id="t">{title}</title>
<style>text{{font:13px {SANS};fill:#4a5568}}.h{{font-size:22px;font-weight:600;fill:#1a202c}}.m{{font-family:{MONO}}}.b{{font-size:19px;font-weight:600;fill:#1a202c}}.s{{font-size:11px;fill:#718096}}.e{{text-anchor:end}}</style>
<defs>{zero}{parent}</defs>
<rect width="100%" height="100%" fill="#fff"/>
"##,
        title = escape(&format!("{} {}", facts.kind, facts.map.image_id())),
        zero = grid.pattern("z", ZERO),
        parent = grid.pattern("p", PARENT),
    );
    heading(&mut svg, facts);
    totals(&mut svg, facts);
    grid.draw(&mut svg, facts);
    footer(&mut svg, facts, &grid, TOP + grid.height() + 34);
    svg.push_str("</svg>\n");
    svg
}

fn heading(svg: &mut String, facts: &Facts) {
    let map = &facts.map;
    let name = facts.path.rsplit('/').next().unwrap_or_default();
    let short: String = name.chars().take(NAME).collect();
    let cut = if short.len() < name.len() { "…" } else { "" };
    let over = match map.parent() {
        Some(parent) => format!(r#"  layer over <tspan class="m">{parent}</tspan>"#),
        None => String::new(),
    };
    let _ = write!(
        svg,
        r#"<text class="h" x="{MARGIN}" y="50">{}{cut}</text>
<text x="{MARGIN}" y="76" xml:space="preserve">image <tspan class="m">{}</tspan>{over}</text>
<text x="{MARGIN}" y="96">{}, {} windows of {} KiB</text>
"#,
        escape(&short),
        map.image_id(),
        size(map.mem_size()),
        map.windows(),
        map.window_size().bytes() / 1024,
    );
}

/// The sums with their colours, which makes them the legend as well, and a bar of them.
fn totals(svg: &mut String, facts: &Facts) {
    let (map, counts, set) = (&facts.map, facts.map.counts(), &facts.working_set);
    let mut sums = vec![("DATA", DATA[3], counts.data), ("ZERO", ZERO, counts.zero)];
    if map.parent().is_some() {
        sums.push(("PARENT", PARENT, counts.parent));
    }
    let whole = WIDTH - 2 * MARGIN;
    let column = whole / 4;
    let mut x = MARGIN;
    for (name, colour, pages) in &sums {
        let share = percent(*pages, map.pages());
        let swatch = format!(r#"fill="{colour}""#);
        total(svg, x, &swatch, name, &size(pages * PAGE), &format!("{share:.1} %, {pages} pages"));
        x += column;
    }
    if !set.order.is_empty() {
        let swatch = format!(r#"fill="none" stroke="{TOUCHED}" stroke-width="2""#);
        let windows = format!("{} windows, {} of data", set.order.len(), size(set.data_bytes));
        total(svg, x, &swatch, "working set", &size(set.bytes), &windows);
    }
    let _ = writeln!(
        svg,
        r#"<clipPath id="c"><rect x="{MARGIN}" y="178" width="{whole}" height="8" rx="4"/></clipPath><g clip-path="url(#c)">"#
    );
    let mut from = MARGIN as f64;
    for (_, colour, pages) in &sums {
        let width = whole as f64 * percent(*pages, map.pages()) / 100.0;
        let _ = writeln!(
            svg,
            r#"<rect x="{from:.2}" y="178" width="{width:.2}" height="8" fill="{colour}"/>"#
        );
        from += width;
    }
    svg.push_str("</g>\n");
}

fn total(svg: &mut String, x: u64, swatch: &str, name: &str, value: &str, more: &str) {
    let _ = writeln!(
        svg,
        r#"<rect x="{}" y="117" width="10" height="10" rx="2" {swatch}/><text class="s" x="{}" y="126">{name}</text><text class="b" x="{x}" y="148">{value}</text><text class="s" x="{x}" y="165">{more}</text>"#,
        x + 1,
        x + 18,
    );
}

fn footer(svg: &mut String, facts: &Facts, grid: &Grid, y: u64) {
    let mut x = LEFT;
    let _ = write!(svg, r#"<text class="s" x="{x}" y="{y}">DATA in a cell: less</text>"#);
    x += 112;
    for colour in DATA {
        let top = y - 10;
        let _ = write!(
            svg,
            r#"<rect x="{x}" y="{top}" width="12" height="12" rx="2" fill="{colour}"/>"#
        );
        x += 14;
    }
    let _ = writeln!(svg, r#"<text class="s" x="{}" y="{y}">more</text>"#, x + 4);
    let windows = if grid.windows == 1 { "window" } else { "windows" };
    let _ = writeln!(
        svg,
        r#"<text class="s e" x="{}" y="{y}">one cell is {} {windows}, {}</text>"#,
        LEFT + GRID,
        grid.windows,
        size(grid.windows * facts.map.window_size().bytes()),
    );
}

/// The cells and where they are drawn.
struct Grid {
    cells: Vec<Cell>,
    /// How many windows are a cell.
    windows: u64,
    columns: u64,
    /// A cell's width and height.
    side: u64,
}

impl Grid {
    fn new(facts: &Facts) -> Self {
        let map = &facts.map;
        // Powers of two, so that lines start at round offsets.
        let windows = map.windows().div_ceil(MAX_CELLS).next_power_of_two();
        let cells = cells(map, &facts.working_set.order, windows * map.window_size().pages());
        let wide = (cells.len() as f64).sqrt().ceil() as u64;
        let columns = wide.next_power_of_two().clamp(*COLUMNS.start(), *COLUMNS.end());
        Self { cells, windows, columns, side: GRID / columns }
    }

    fn height(&self) -> u64 {
        (self.cells.len() as u64).div_ceil(self.columns) * self.side
    }

    /// A field of cells that are all alike.
    fn pattern(&self, id: &str, colour: &str) -> String {
        let side = self.side;
        let inner = side - 1;
        format!(
            r#"<pattern id="{id}" width="{side}" height="{side}" patternUnits="userSpaceOnUse"><rect width="{inner}" height="{inner}" rx="2" fill="{colour}"/></pattern>"#
        )
    }

    fn draw(&self, svg: &mut String, facts: &Facts) {
        let every = (self.cells.len() as u64).div_ceil(self.columns).div_ceil(16).max(1);
        let _ = writeln!(svg, r#"<g transform="translate({LEFT},{TOP})">"#);
        for (row, line) in self.cells.chunks(self.columns as usize).enumerate() {
            let y = row as u64 * self.side;
            if (row as u64).is_multiple_of(every) {
                let _ = writeln!(
                    svg,
                    r#"<text class="s e" x="-12" y="{}">{}</text>"#,
                    y + self.side / 2 + 4,
                    offset(line[0].pages.start * PAGE)
                );
            }
            let mut column = 0;
            for group in line.chunk_by(|a, b| look(a).is_some() && look(a) == look(b)) {
                self.group(svg, facts, group, column * self.side, y);
                column += group.len() as u64;
            }
        }
        svg.push_str("</g>\n");
    }

    /// A cell, or several that look alike.
    fn group(&self, svg: &mut String, facts: &Facts, group: &[Cell], x: u64, y: u64) {
        let (side, inner) = (self.side, self.side - 1);
        let _ = match look(&group[0]) {
            Some(pattern) => {
                let width = group.len() as u64 * side;
                write!(
                    svg,
                    r#"<rect x="{x}" y="{y}" width="{width}" height="{side}" fill="url(#{pattern})">"#
                )
            }
            None => write!(
                svg,
                r#"<rect x="{x}" y="{y}" width="{inner}" height="{inner}" rx="2" fill="{}">"#,
                fill(&group[0])
            ),
        };
        let _ = writeln!(svg, "<title>{}</title></rect>", tooltip(facts, group));
        if group[0].touched.is_some() {
            // Within the cell, so that neighbours don't cover each other's.
            let outline = inner - 2;
            let _ = writeln!(
                svg,
                r#"<rect x="{}" y="{}" width="{outline}" height="{outline}" rx="1.5" fill="none" stroke="{TOUCHED}" stroke-width="2" pointer-events="none"/>"#,
                x + 1,
                y + 1,
            );
        }
    }
}

/// The pattern of a cell without DATA that no wake touches.
fn look(cell: &Cell) -> Option<&'static str> {
    match (cell.touched, cell.data, cell.parent) {
        (None, 0, 0) => Some("z"),
        (None, 0, _) => Some("p"),
        _ => None,
    }
}

fn fill(cell: &Cell) -> &'static str {
    match cell.density(DATA.len() as u64) as usize {
        0 if cell.parent > 0 => PARENT,
        0 => ZERO,
        level => DATA[level.min(DATA.len()) - 1],
    }
}

fn tooltip(facts: &Facts, group: &[Cell]) -> String {
    let start = group[0].pages.start;
    let end = group.last().map_or(start, |cell| cell.pages.end);
    let sum = |count: fn(&Cell) -> u64| group.iter().map(count).sum::<u64>();
    let mut text =
        format!("{} to {}", offset(start * PAGE), offset((end * PAGE).min(facts.map.mem_size())));
    let states = [
        ("DATA", sum(|cell| cell.data)),
        ("ZERO", sum(|cell| cell.zero)),
        ("PARENT", sum(|cell| cell.parent)),
    ];
    for (name, pages) in states.into_iter().filter(|(_, pages)| *pages > 0) {
        let _ =
            write!(text, "\n{name} {} ({:.0} %)", size(pages * PAGE), percent(pages, end - start));
    }
    if let Some(place) = group[0].touched {
        let _ = write!(text, "\nworking set: no. {}", place + 1);
    }
    text
}

/// As it may stand in XML, which has no place for most control characters.
fn escape(text: &str) -> String {
    let mut safe = String::new();
    for character in text.chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::tests::map;
    use std::path::Path;

    #[test]
    fn a_drawing_is_bounded_and_whole() {
        let full = 1 << 32;
        // Every other window has a page of DATA: no two cells look alike.
        let scattered = (0..full / PAGE).step_by(2 * 64);
        for (map, most) in [
            (map(0, [], &[]), 0),
            (map(1, [0], &[0]), 1),
            (map(full, scattered, &[5, 7]), MAX_CELLS),
            (map(1 << 38, [], &[]), 64),
        ] {
            let svg = draw(&Facts::new("map", Path::new("x"), map));
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
            let titles = svg.matches("<title>").count() as u64;
            assert!(titles <= most, "{titles}");
            assert!(svg.len() < 2_000_000);
        }
    }

    #[test]
    fn names_are_text_and_the_working_set_is_outlined() {
        let map = map(100 * 64 * PAGE, (0..64).chain([70]), &[1]);
        let svg = draw(&Facts::new("map", Path::new("a/<b>&\u{7}.map"), map));
        assert!(svg.contains(">&lt;b&gt;&amp;\u{fffd}.map</text>"), "{svg}");
        assert_eq!(svg.matches(&format!("stroke=\"{TOUCHED}\"")).count(), 2);
        assert!(svg.contains("working set: no. 1"));
        assert!(svg.contains("0 to 256 KiB\nDATA 256.0 KiB (100 %)"));
    }
}
