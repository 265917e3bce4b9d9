//! Layers that the bytes describe, merged in every way there is, beside the plain one.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use rouse_snapshot_format::{
    ChainError, Image, ImageId, LayerOptions, MAX_DEPTH, Map, MergeError, MergeInPlaceError, PAGE,
    PageState, PageStates, SparsifyOptions, WindowSize, Work, WorkingSet, diff, flatten,
    journal_path, merge_copy, merge_in_place, sparsify, verify_image,
};

use super::input::Input;
use super::{scratch, seal};

/// The bit of the first byte that says that a journal, made of what the layers leave of the bytes,
/// lies beside the image that is merged in place.
pub const JOURNAL: u8 = 1;
/// The journal is made as it should be, but for the base's size and the map in it.
pub const SEALED: u8 = 2;
/// The image that is merged in place has no map, as one that is half merged.
pub const NO_MAP: u8 = 4;
/// The base's map has no checksums.
pub const BARE: u8 = 8;

const MAX_PAGES: u16 = 64;

/// The first byte says how; the others are the base, how many layers there are, the layers from the
/// bottom up, and the journal.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mode = input.byte();
    let dir = scratch::directory();
    let mut scene =
        Scene { dir: dir.path(), model: Vec::new(), base: Vec::new(), layers: Vec::new() };
    let base = scene.base(&mut input, mode & BARE != 0);
    for _ in 0..=input.byte() % (MAX_DEPTH as u8 + 1) {
        scene.layer(&mut input);
    }
    if mode & JOURNAL == 0 {
        scene.merge(&base);
    } else {
        scene.merge_with_journal(&base, mode, &mut input);
    }
}

/// Images upon each other, in a directory.
struct Scene<'a> {
    dir: &'a Path,
    base: Vec<u8>,
    layers: Vec<Image>,
    /// What the base and all layers are together.
    model: Vec<u8>,
}

impl Scene<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A whole image of these bytes.
    fn whole(&self, name: &str, bytes: &[u8], id: ImageId, window: WindowSize) -> Image {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        let options =
            SparsifyOptions { work: one_thread(), window: Some(window), ..Default::default() };
        let map = sparsify(&path, &options).unwrap().into_map(id);
        Image::with_map(path, map).unwrap()
    }

    fn base(&mut self, input: &mut Input<'_>, bare: bool) -> Image {
        let window = window(input);
        let set = working_set(input, window);
        self.base = pages(input);
        self.model.clone_from(&self.base);
        let image = self.whole("base.img", &self.base, id(0), window);
        let mut map = image.map().clone();
        if bare {
            map = Map::new(id(0), None, window, map.states().clone()).unwrap();
        }
        Image::with_map(image.path(), map.with_working_set(set)).unwrap()
    }

    /// Puts another layer on top.
    fn layer(&mut self, input: &mut Input<'_>) {
        let number = self.layers.len() + 1;
        let path = self.path(&format!("layer-{number}.img"));
        let (below, own) = (id(number - 1), id(number));
        let (diffed, window) = (input.byte() & 1 == 1, window(input));
        let set = working_set(input, window);
        let layer = if diffed {
            let new = pages(input);
            let old = self.whole("old.img", &self.model, below, WindowSize::MIN);
            let new = self.whole("new.img", &new, own, window);
            let map = new.map().clone().with_working_set(set);
            let new = Image::with_map(new.path(), map).unwrap();
            let map = diff(&old, &new, &path, &Image::map_path(&path), &options()).unwrap().map;
            assert_eq!(map, Map::open(Image::map_path(&path)).unwrap());
            let layer = Image::with_map(&path, map).unwrap();
            verify_image(&layer, one_thread()).unwrap();
            layer
        } else {
            let states = states(input);
            let mut bytes = vec![0; states.mem_size() as usize];
            for (page, bytes) in (0..).zip(bytes.chunks_mut(PAGE as usize)) {
                if states.state(page) == Ok(PageState::Data) {
                    fill(bytes, input.byte());
                }
            }
            fs::write(&path, bytes).unwrap();
            let map = Map::new(own, Some(below), window, states).unwrap();
            Image::with_map(&path, map.with_working_set(set)).unwrap()
        };
        self.model = applied(&self.model, &layer);
        if diffed {
            assert!(self.model == fs::read(self.path("new.img")).unwrap(), "diff and back");
        }
        self.layers.push(layer);
    }

    fn layers(&self) -> Vec<&Image> {
        self.layers.iter().collect()
    }

    fn top(&self) -> ImageId {
        self.layers.last().unwrap().map().image_id()
    }

    /// The image to be merged in place, and its map.
    fn live(&self, base: &Image) -> (PathBuf, PathBuf) {
        let path = self.path("live.img");
        fs::write(&path, &self.base).unwrap();
        let map = Image::map_path(&path);
        base.map().write_unsynced(&map).unwrap();
        (path, map)
    }

    fn merge(&self, base: &Image) {
        let (out, flat) = (self.path("out.img"), self.path("flat.img"));
        let (out_map, flat_map) = (Image::map_path(&out), Image::map_path(&flat));
        let (live, live_map) = self.live(base);
        let copied = merge_copy(base, &self.layers(), &out, &out_map, &options());
        let flattened = flatten(&self.layers(), &flat, &flat_map, &options());
        let placed = merge_in_place(&live, &live_map, &self.layers(), &one_thread());
        if self.layers.len() > MAX_DEPTH {
            let deep = |error| matches!(error, MergeError::Chain(ChainError::TooDeep { .. }));
            assert!(deep(copied.unwrap_err()) && deep(flattened.unwrap_err()));
            let Err(MergeInPlaceError::Merge(error)) = placed else { panic!("{placed:?}") };
            assert!(deep(error) && !out.exists() && !flat.exists());
            assert!(fs::read(&live).unwrap() == self.base);
            return;
        }

        let copied = copied.unwrap().map;
        assert_eq!((copied.image_id(), copied.parent()), (self.top(), None));
        self.is(&out, &copied);
        let placed = placed.unwrap();
        assert!(!placed.resumed);
        assert_eq!(placed.map, copied, "merged in place and copied");
        self.is(&live, &copied);
        let again = merge_in_place(&live, &live_map, &self.layers(), &one_thread()).unwrap();
        assert!(again.resumed && again.map == copied && !journal_path(&live_map).exists());
        self.is(&live, &copied);

        match flattened {
            Ok(flattened) => {
                let map = flattened.map;
                assert_eq!((map.image_id(), map.parent()), (self.top(), Some(id(0))));
                let flat = Image::open(&flat, &flat_map).unwrap();
                assert_eq!(flat.map(), &map);
                verify_image(&flat, one_thread()).unwrap();
                assert!(applied(&self.base, &flat) == self.model, "flattened");
                merge_copy(base, &[&flat], &out, &out_map, &options()).unwrap();
                assert!(fs::read(&out).unwrap() == self.model, "flattened and merged");
            }
            Err(MergeError::Torn { page }) => {
                let within = |layer: &Image| {
                    let end = layer.map().mem_size();
                    end / PAGE == page && !end.is_multiple_of(PAGE)
                };
                assert!(self.layers.iter().any(within), "page {page} is not torn");
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Whether the image at `path` is what it should be, with the map `map` beside it.
    fn is(&self, path: &Path, map: &Map) {
        assert!(fs::read(path).unwrap() == self.model, "{path:?}");
        let image = Image::open(path, Image::map_path(path)).unwrap();
        assert_eq!(image.map(), map);
        verify_image(&image, one_thread()).unwrap();
    }

    fn merge_with_journal(&self, base: &Image, mode: u8, input: &mut Input<'_>) {
        let (live, live_map) = self.live(base);
        let journal = if mode & SEALED == 0 { input.rest().to_vec() } else { self.journal(input) };
        fs::write(journal_path(&live_map), journal).unwrap();
        if mode & NO_MAP != 0 {
            fs::remove_file(&live_map).unwrap();
        }
        let map = fs::read(&live_map).ok();
        match merge_in_place(&live, &live_map, &self.layers(), &one_thread()) {
            Ok(merged) => {
                let image = Image::open(&live, &live_map).unwrap();
                // That a working set was left out is said once, and not of what is written.
                let set = merged.map.working_set().clone();
                assert_eq!(image.map(), &merged.map.with_working_set(set));
                assert!(!journal_path(&live_map).exists());
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert!(fs::read(&live).unwrap() == self.base, "changed, and then: {error}");
                assert!(fs::read(&live_map).ok() == map, "the map is gone, and then: {error}");
            }
        }
    }

    /// The journal of this merge, with any map and any size of the base.
    fn journal(&self, input: &mut Input<'_>) -> Vec<u8> {
        let base_size = match input.byte() % 4 {
            0 => u64::from(input.u32()) << (input.byte() % 32),
            _ => self.base.len() as u64,
        };
        let mut bytes = b"ROUSEMRG\x01\0".to_vec();
        bytes.extend((self.layers.len() as u16).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(id(0).to_bytes());
        bytes.extend(base_size.to_le_bytes());
        bytes.extend((1..=self.layers.len()).flat_map(|number| id(number).to_bytes()));
        bytes.extend([0; 4]);
        seal::crc_at_end(&mut bytes);
        let mut map = input.rest().to_vec();
        // The map's image is the topmost layer, and whole.
        seal::put(&mut map, 56, &self.top().to_bytes());
        seal::put(&mut map, 72, &[0; 16]);
        seal::map(&mut map, true);
        bytes.extend(map);
        bytes
    }
}

/// `below` with `layer` applied to it, page by page.
fn applied(below: &[u8], layer: &Image) -> Vec<u8> {
    let mut bytes = fs::read(layer.path()).unwrap();
    let map = layer.map();
    assert_eq!(bytes.len() as u64, map.mem_size());
    for (page, bytes) in (0..).zip(bytes.chunks_mut(PAGE as usize)) {
        match map.state(page).unwrap() {
            PageState::Data => {}
            PageState::Zero => bytes.fill(0),
            PageState::Parent => {
                let below = below.get((page * PAGE) as usize..).unwrap_or_default();
                let there = below.len().min(bytes.len());
                bytes[..there].copy_from_slice(&below[..there]);
                bytes[there..].fill(0);
            }
        }
    }
    bytes
}

fn id(number: usize) -> ImageId {
    ImageId::from_bytes([number as u8 + 1; 16]).unwrap()
}

fn window(input: &mut Input<'_>) -> WindowSize {
    WindowSize::from_shift(16 + input.byte() % 3).unwrap()
}

/// A wake or none.
fn working_set(input: &mut Input<'_>, window: WindowSize) -> WorkingSet {
    let mut set = WorkingSet::new();
    let touched = input.byte();
    set.record((0..4).filter(|bit| touched >> bit & 1 == 1), window);
    set
}

/// The size of an image in bytes.
fn size(input: &mut Input<'_>) -> usize {
    let pages = usize::from(u16::from(input.byte()) % (MAX_PAGES + 1));
    (pages * PAGE as usize).saturating_sub(usize::from(input.u16() % PAGE as u16))
}

/// The bytes of an image; zeros from where the input ends.
fn pages(input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = vec![0; size(input)];
    bytes.chunks_mut(PAGE as usize).for_each(|page| fill(page, input.byte()));
    bytes
}

/// Makes a page of a byte: all of it, or only its end.
fn fill(page: &mut [u8], with: u8) {
    match page {
        [.., last] if with & 0x80 != 0 => *last = with,
        page => page.fill(with),
    }
}

fn states(input: &mut Input<'_>) -> PageStates {
    let mut states = PageStates::all(size(input) as u64, PageState::Parent);
    for page in 0..states.pages() {
        let state =
            [PageState::Parent, PageState::Data, PageState::Zero][input.byte() as usize % 3];
        states.set(page, state).unwrap();
    }
    states
}

fn options<'a>() -> LayerOptions<'a> {
    LayerOptions { work: one_thread(), sync: false, replace: true }
}

fn one_thread<'a>() -> Work<'a> {
    Work { threads: NonZeroUsize::new(1), progress: None }
}
