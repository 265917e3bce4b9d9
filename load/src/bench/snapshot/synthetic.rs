//! Images that are made up, of pages that are real.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, ensure};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rouse_snapshot_format::{Map, PAGE, PageState};

/// The longest run of pages that are written side by side: half a MiB, as what is mapped and
/// touched at random looks after a while.
const LONGEST: u64 = 128;
/// Every image is made of the same random numbers.
const SEED: u64 = 0x0072_6f75_7365;

/// So many pages have their states in one page of a bitmap, a bit each: 128 MiB of an image.
const BITMAP_PAGE: u64 = 8 * PAGE;

/// Where an image has data.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Anywhere, in runs of 1 to [`LONGEST`] pages.
    Runs {
        /// The image's size in pages.
        pages: u64,
        /// How many of them are not zeros; no more than there are.
        data: u64,
    },
    /// One page, anywhere in every [`BITMAP_PAGE`]: no page of a bitmap is like another, or spared.
    Spread {
        /// The image's size in pages.
        pages: u64,
    },
}

impl Shape {
    /// The image's size in pages.
    fn pages(self) -> u64 {
        match self {
            Self::Runs { pages, .. } | Self::Spread { pages } => pages,
        }
    }

    /// For the report.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Runs { .. } => format!("runs of 1 to {LONGEST} pages"),
            Self::Spread { .. } => format!("one page in every {} MiB", (BITMAP_PAGE * PAGE) >> 20),
        }
    }

    /// The runs of data, ascending.
    fn runs(self, rng: &mut StdRng) -> Vec<Range<u64>> {
        match self {
            Self::Runs { pages, data } => random_runs(pages, data, rng),
            Self::Spread { pages } => (0..pages)
                .step_by(BITMAP_PAGE as usize)
                .map(|start| rng.random_range(start..pages.min(start + BITMAP_PAGE)))
                .map(|page| page..page + 1)
                .collect(),
        }
    }
}

/// [`Shape::Runs`].
fn random_runs(pages: u64, data: u64, rng: &mut StdRng) -> Vec<Range<u64>> {
    let mut lengths = Vec::new();
    let mut left = data;
    while left > 0 {
        let length = rng.random_range(1..=LONGEST).min(left);
        lengths.push(length);
        left -= length;
    }
    // How many zeros there are before each run, in all.
    let zeros = pages - data;
    let mut before: Vec<_> = lengths.iter().map(|_| rng.random_range(0..=zeros)).collect();
    before.sort_unstable();
    let mut data = 0;
    lengths
        .into_iter()
        .zip(before)
        .map(|(length, zeros)| {
            let start = zeros + data;
            data += length;
            start..start + length
        })
        .collect()
}

/// The DATA pages of a real image, in its own runs of at most [`LONGEST`] pages, which come in any
/// order and again when all have come: what is compressed is as in the image, and what repeats is
/// too far away for a compressor.
#[derive(Debug)]
struct Content {
    image: File,
    runs: Vec<Range<u64>>,
    /// The next of them, and what is left of the one before.
    next: usize,
    left: Range<u64>,
}

impl Content {
    fn of(image: &Path, map: &Path) -> anyhow::Result<Self> {
        let map = Map::open(map).with_context(|| map.display().to_string())?;
        // A last page that is cut short is no page for another image.
        let whole = map.mem_size() / PAGE;
        let mut runs = Vec::new();
        for run in map.runs().filter(|run| run.state == PageState::Data) {
            let end = run.pages.end.min(whole);
            let starts = (run.pages.start..end).step_by(LONGEST as usize);
            runs.extend(starts.map(|start| start..end.min(start + LONGEST)));
        }
        ensure!(!runs.is_empty(), "{} has no data to make another image of", image.display());
        let file = File::open(image).with_context(|| image.display().to_string())?;
        Ok(Self { image: file, next: runs.len(), runs, left: 0..0 })
    }

    /// Fills `pages`, whole ones, with the next that there are.
    fn fill(&mut self, mut pages: &mut [u8], rng: &mut StdRng) -> io::Result<()> {
        while !pages.is_empty() {
            if self.left.is_empty() {
                if self.next == self.runs.len() {
                    self.runs.shuffle(rng);
                    self.next = 0;
                }
                self.left = self.runs[self.next].clone();
                self.next += 1;
            }
            let bytes = ((self.left.end - self.left.start) * PAGE).min(pages.len() as u64);
            let (now, later) = pages.split_at_mut(bytes as usize);
            self.image.read_exact_at(now, self.left.start * PAGE)?;
            self.left.start += bytes / PAGE;
            pages = later;
        }
        Ok(())
    }
}

/// Makes a sparse image at `path`, with the pages of the real image `of` and its map. The same every
/// time.
pub(super) fn create(path: &Path, shape: Shape, of: (&Path, &Path)) -> anyhow::Result<()> {
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut content = Content::of(of.0, of.1)?;
    let failed = || path.display().to_string();
    let file = File::create_new(path).with_context(failed)?;
    let bytes = shape.pages() * PAGE;
    file.set_len(bytes).with_context(|| format!("{} of {bytes} bytes", path.display()))?;
    let mut buffer = vec![0; (LONGEST * PAGE) as usize];
    for run in shape.runs(&mut rng) {
        let pages = &mut buffer[..((run.end - run.start) * PAGE) as usize];
        content.fill(pages, &mut rng).context("the real image")?;
        file.write_all_at(pages, run.start * PAGE).with_context(failed)?;
    }
    Ok(())
}

/// How much [`change`] changes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Extent {
    /// As a VM does that was awake for a while: three of eight runs of data.
    Little,
    /// Every run of data.
    Everywhere,
}

/// What becomes of a run of data.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Stays,
    /// Its first page has other bytes.
    Differs,
    /// Its first page is zeros.
    Shrinks,
    /// It has a page more.
    Grows,
}

impl Extent {
    /// What becomes of one run after the other, again and again.
    fn fates(self) -> &'static [Fate] {
        use Fate::{Differs, Grows, Shrinks, Stays};
        match self {
            Self::Little => &[Differs, Stays, Stays, Shrinks, Stays, Grows, Stays, Stays],
            Self::Everywhere => &[Differs, Shrinks, Grows],
        }
    }
}

/// Changes the image at `path`, whose map is `map`.
pub(super) fn change(path: &Path, map: &Path, extent: Extent) -> anyhow::Result<()> {
    let map = Map::open(map).with_context(|| map.display().to_string())?;
    let file = File::options().read(true).write(true).open(path);
    let file = file.with_context(|| path.display().to_string())?;
    let last = map.mem_size() / PAGE;
    let data = map.runs().filter(|run| run.state == PageState::Data && run.pages.end < last);
    for (run, fate) in data.zip(extent.fates().iter().cycle()) {
        change_run(&file, &run.pages, *fate).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn change_run(file: &File, run: &Range<u64>, fate: Fate) -> io::Result<()> {
    let mut page = vec![0; PAGE as usize];
    file.read_exact_at(&mut page, run.start * PAGE)?;
    let at = match fate {
        Fate::Stays => return Ok(()),
        Fate::Differs => {
            page.iter_mut().for_each(|byte| *byte = !*byte);
            run.start
        }
        Fate::Shrinks => {
            page.fill(0);
            run.start
        }
        Fate::Grows => run.end,
    };
    file.write_all_at(&page, at * PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rouse_snapshot_format::{ImageId, PageStates, WindowSize};

    #[test]
    fn runs_are_apart_and_make_up_the_data() {
        for (pages, data) in [(1 << 20, 62_914), (1000, 1000), (1, 1), (10, 0)] {
            let runs = Shape::Runs { pages, data }.runs(&mut StdRng::seed_from_u64(SEED));
            assert_eq!(runs.iter().map(|run| run.end - run.start).sum::<u64>(), data);
            assert!(runs.iter().all(|run| (1..=LONGEST).contains(&(run.end - run.start))));
            assert!(runs.windows(2).all(|pair| pair[0].end <= pair[1].start));
            assert!(runs.last().is_none_or(|run| run.end <= pages));
        }
    }

    #[test]
    fn spread_data_spares_no_page_of_a_bitmap() {
        for (pages, wanted) in [(1 << 28, 8192), (3 * BITMAP_PAGE + 1, 4), (1, 1)] {
            let runs = Shape::Spread { pages }.runs(&mut StdRng::seed_from_u64(SEED));
            assert_eq!(runs.len(), wanted);
            for (n, run) in runs.iter().enumerate() {
                assert_eq!(run.end - run.start, 1);
                assert_eq!(run.start / BITMAP_PAGE, n as u64);
            }
            assert!(runs.last().is_some_and(|run| run.end <= pages));
        }
    }

    /// An image whose every page is full of its own number, with data in pages 2 to 299, and its
    /// map.
    fn numbered(dir: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
        let (image, path) = (dir.join("real.img"), dir.join("real.map"));
        let mut bytes = vec![0; 400 * PAGE as usize];
        let mut states = PageStates::all(400 * PAGE, PageState::Zero);
        for page in 2..300_u64 {
            let start = (page * PAGE) as usize;
            let number = page.to_le_bytes().repeat(PAGE as usize / 8);
            bytes[start..start + PAGE as usize].copy_from_slice(&number);
            states.set(page, PageState::Data).unwrap();
        }
        std::fs::write(&image, bytes).unwrap();
        let map = Map::new(ImageId::random(), None, WindowSize::DEFAULT, states).unwrap();
        map.write_unsynced(&path).unwrap();
        (image, path)
    }

    fn numbers(path: &Path) -> Vec<u64> {
        let bytes = std::fs::read(path).unwrap();
        let page = |page: &[u8]| u64::from_le_bytes(page[8..16].try_into().unwrap());
        bytes.chunks(PAGE as usize).map(page).collect()
    }

    #[test]
    fn an_image_is_made_of_the_real_pages_as_often_as_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let (image, map) = numbered(dir.path());
        let made = dir.path().join("made.img");
        let shape = Shape::Runs { pages: 5000, data: 3 * 298 };
        create(&made, shape, (&image, &map)).unwrap();
        let numbers = numbers(&made);
        assert_eq!(numbers.len(), 5000);
        for page in 2..300 {
            assert_eq!(numbers.iter().filter(|number| **number == page).count(), 3, "page {page}");
        }
        // And the same again.
        let again = dir.path().join("again.img");
        create(&again, shape, (&image, &map)).unwrap();
        assert!(std::fs::read(&again).unwrap() == std::fs::read(&made).unwrap());
    }

    #[test]
    fn an_image_without_data_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (image, map) = (dir.path().join("real.img"), dir.path().join("real.map"));
        std::fs::write(&image, vec![0; PAGE as usize]).unwrap();
        let states = PageStates::all(PAGE, PageState::Zero);
        let zero = Map::new(ImageId::random(), None, WindowSize::DEFAULT, states).unwrap();
        zero.write_unsynced(&map).unwrap();
        let made = dir.path().join("made.img");
        let error = create(&made, Shape::Runs { pages: 9, data: 1 }, (&image, &map)).unwrap_err();
        assert!(error.to_string().contains("no data"), "{error}");
    }

    /// How many pages of the same image `extent` changes, takes the data of, and gives data.
    fn changed(extent: Extent) -> [usize; 3] {
        let dir = tempfile::tempdir().unwrap();
        let (image, map) = numbered(dir.path());
        let made = dir.path().join("made.img");
        create(&made, Shape::Runs { pages: 50_000, data: 5000 }, (&image, &map)).unwrap();
        let before = numbers(&made);
        let mut states = PageStates::all(50_000 * PAGE, PageState::Zero);
        for (page, _) in before.iter().enumerate().filter(|(_, number)| **number > 0) {
            states.set(page as u64, PageState::Data).unwrap();
        }
        let map = dir.path().join("made.map");
        let made_map = Map::new(ImageId::random(), None, WindowSize::DEFAULT, states).unwrap();
        made_map.write_unsynced(&map).unwrap();
        change(&made, &map, extent).unwrap();
        let after = numbers(&made);
        let count = |is: fn(u64, u64) -> bool| {
            before.iter().zip(&after).filter(|(before, after)| is(**before, **after)).count()
        };
        [
            count(|before, after| before > 0 && after > 0 && before != after),
            count(|before, after| before > 0 && after == 0),
            count(|before, after| before == 0 && after > 0),
        ]
    }

    #[test]
    fn a_change_is_of_every_kind_and_as_large_as_wanted() {
        let (little, everywhere) = (changed(Extent::Little), changed(Extent::Everywhere));
        assert!(little.iter().all(|count| *count > 0), "{little:?}");
        assert!(little.iter().zip(everywhere).all(|(few, many)| *few < many), "{everywhere:?}");
        assert!(everywhere.iter().sum::<usize>() < 200, "{everywhere:?}");
    }
}
