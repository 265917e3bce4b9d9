//! What there is to say of a map, an archive or an image.

use std::path::Path;

use rouse_snapshot_format::{Index, Map, PAGE, PageState};

/// What is said of a file, in whatever form.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) kind: &'static str,
    pub(crate) path: String,
    pub(crate) map: Map,
    pub(crate) windows_with_data: u64,
    pub(crate) data_runs: u64,
    /// Bytes of DATA; the last page may be cut short.
    pub(crate) data_bytes: u64,
    pub(crate) working_set: WorkingSetFacts,
    /// Of an archive.
    pub(crate) archive: Option<Stored>,
    /// Of an image.
    pub(crate) disk: Option<Disk>,
}

/// What a wake touches first.
#[derive(Debug)]
pub(crate) struct WorkingSetFacts {
    /// How many wakes it was learnt from.
    pub(crate) wakes: usize,
    /// Its windows in order.
    pub(crate) order: Vec<u32>,
    /// The bytes of its windows.
    pub(crate) bytes: u64,
    /// The bytes of DATA among them.
    pub(crate) data_bytes: u64,
}

/// What an archive stores. All sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    /// The whole file.
    pub(crate) bytes: u64,
    pub(crate) frames: u64,
    /// All frames together; the rest is header, index and seek table.
    pub(crate) frame_bytes: u64,
    /// The largest frame and its window; none where there are no frames.
    pub(crate) largest: Option<(u32, u32)>,
    /// How many frames are the working set's, and so at the start.
    pub(crate) working_set_frames: u64,
    pub(crate) working_set_bytes: u64,
}

impl Stored {
    pub(crate) fn new(index: &Index, bytes: u64) -> Self {
        let frames = || (0..index.frames()).filter_map(|number| index.frame(number));
        let sum = |count: usize| frames().take(count).map(|frame| u64::from(frame.length)).sum();
        Self {
            bytes,
            frames: index.frames() as u64,
            frame_bytes: sum(index.frames()),
            largest: frames().map(|frame| (frame.length, frame.window)).max(),
            working_set_frames: index.working_set_frames() as u64,
            working_set_bytes: sum(index.working_set_frames()),
        }
    }
}

/// What an image occupies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disk {
    /// Its size in bytes.
    pub(crate) size: u64,
    /// The bytes of its blocks.
    pub(crate) allocated: u64,
}

impl Facts {
    pub(crate) fn new(kind: &'static str, path: &Path, map: Map) -> Self {
        let order = map.working_set().order(map.window_size());
        let data = |window: u64| map.states().runs_in(map.pages_of(window)).filter(is_data);
        let windows_with_data =
            (0..map.windows()).filter(|window| map.window_data_pages(*window) > 0).count() as u64;
        let (mut data_runs, mut data_bytes) = (0, 0);
        for run in map.runs().filter(is_data) {
            data_runs += 1;
            data_bytes += bytes(&map, run.pages);
        }
        let windows = order.iter().map(|window| u64::from(*window));
        let working_set = WorkingSetFacts {
            wakes: map.working_set().wakes().count(),
            bytes: windows.clone().map(|window| bytes(&map, map.pages_of(window))).sum(),
            data_bytes: windows.flat_map(data).map(|run| bytes(&map, run.pages)).sum(),
            order,
        };
        Self {
            kind,
            path: path.display().to_string(),
            windows_with_data,
            data_runs,
            data_bytes,
            working_set,
            archive: None,
            disk: None,
            map,
        }
    }
}

fn is_data(run: &rouse_snapshot_format::Run) -> bool {
    run.state == PageState::Data
}

/// The bytes of pages that the image has.
fn bytes(map: &Map, pages: std::ops::Range<u64>) -> u64 {
    (pages.end * PAGE).min(map.mem_size()) - pages.start * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::tests::map;

    #[test]
    fn bytes_and_windows_are_counted() {
        // Three windows and a byte; the byte is DATA.
        let map = map(3 * 64 * PAGE + 1, (60..70).chain([192]), &[3, 2, 1]);
        let facts = Facts::new("map", Path::new("x"), map);
        assert_eq!(facts.windows_with_data, 3);
        assert_eq!(facts.data_runs, 2);
        assert_eq!(facts.data_bytes, 10 * PAGE + 1);
        assert_eq!(facts.working_set.wakes, 1);
        assert_eq!(facts.working_set.order, [3, 2, 1]);
        assert_eq!(facts.working_set.bytes, 2 * 64 * PAGE + 1);
        assert_eq!(facts.working_set.data_bytes, 6 * PAGE + 1);
    }
}
