//! An image cut into cells that a picture has room for.

use std::ops::Range;

use rouse_snapshot_format::{Map, PageState};

/// Pages side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// The first of them and the end.
    pub(crate) pages: Range<u64>,
    pub(crate) data: u64,
    pub(crate) zero: u64,
    pub(crate) parent: u64,
    /// When the working set first comes here: the place in its order, from 0.
    pub(crate) touched: Option<usize>,
}

impl Cell {
    fn new(pages: Range<u64>) -> Self {
        Self { pages, data: 0, zero: 0, parent: 0, touched: None }
    }

    /// How dense its DATA is: 0 where there is none, `levels` where nearly all is.
    pub(crate) fn density(&self, levels: u64) -> u64 {
        let pages = self.pages.end - self.pages.start;
        (self.data * levels).div_ceil(pages.max(1))
    }
}

/// The image in cells of `per_cell` pages, from the first to the last, which may be cut short.
/// `order` is the working set.
pub(crate) fn cells(map: &Map, order: &[u32], per_cell: u64) -> Vec<Cell> {
    let (pages, per_cell) = (map.pages(), per_cell.max(1));
    let mut cells: Vec<_> = (0..pages.div_ceil(per_cell))
        .map(|cell| Cell::new(cell * per_cell..((cell + 1) * per_cell).min(pages)))
        .collect();
    for run in map.runs() {
        let mut at = run.pages.start;
        while at < run.pages.end {
            let cell = &mut cells[(at / per_cell) as usize];
            let end = run.pages.end.min(cell.pages.end);
            *match run.state {
                PageState::Data => &mut cell.data,
                PageState::Zero => &mut cell.zero,
                PageState::Parent => &mut cell.parent,
            } += end - at;
            at = end;
        }
    }
    for (place, window) in order.iter().enumerate() {
        let pages = map.pages_of((*window).into());
        let touched = pages.start / per_cell..pages.end.div_ceil(per_cell);
        for cell in &mut cells[touched.start as usize..touched.end as usize] {
            cell.touched.get_or_insert(place);
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::tests::map;
    use rouse_snapshot_format::PAGE;

    #[test]
    fn every_page_is_counted_once() {
        let map = map(200 * PAGE - 1, (10..30).chain([199]), &[2, 0]);
        for per_cell in [1, 7, 64, 200, 1000] {
            let cells = cells(&map, &[2, 0], per_cell);
            let sum = |count: fn(&Cell) -> u64| cells.iter().map(count).sum::<u64>();
            assert_eq!(sum(|cell| cell.data), 21);
            assert_eq!(sum(|cell| cell.zero), 179);
            assert_eq!(sum(|cell| cell.pages.end - cell.pages.start), 200);
        }
        let cells = cells(&map, &[2, 0], 64);
        let touched: Vec<_> = cells.iter().map(|cell| cell.touched).collect();
        assert_eq!(touched, [Some(1), None, Some(0), None]);
        let density: Vec<_> = cells.iter().map(|cell| cell.density(4)).collect();
        assert_eq!(density, [2, 0, 0, 1]);
    }
}
