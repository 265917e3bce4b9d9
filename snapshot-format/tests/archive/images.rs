//! Images to pack, and what the tests do with archives.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rouse_snapshot_format::{
    Archive, Image, ImageId, Map, PAGE, PackOptions, Packed, PageState, PageStates,
    SparsifyOptions, WindowSize, Work, WorkingSet, pack, sparsify,
};
use tempfile::TempDir;

pub(crate) const WINDOW: WindowSize = WindowSize::MIN;
pub(crate) const WINDOW_BYTES: usize = 64 * 1024;

/// An image in a directory of its own.
pub(crate) struct Fixture {
    dir: TempDir,
    pub(crate) bytes: Vec<u8>,
    pub(crate) map: Map,
}

impl Fixture {
    /// With the map that sparsify finds.
    pub(crate) fn new(bytes: Vec<u8>, window: WindowSize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.img");
        fs::write(&path, &bytes).unwrap();
        let options = SparsifyOptions { window: Some(window), ..Default::default() };
        let map = sparsify(&path, &options).unwrap().into_map(ImageId::random());
        Self { dir, bytes, map }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("memory.img")
    }

    pub(crate) fn image(&self) -> Image {
        Image::with_map(self.path(), self.map.clone()).unwrap()
    }

    pub(crate) fn with_working_set(mut self, windows: &[u32]) -> Self {
        let mut set = WorkingSet::new();
        set.record(windows.iter().copied(), self.map.window_size());
        self.map = self.map.with_working_set(set);
        self
    }

    pub(crate) fn pack(&self) -> Vec<u8> {
        self.pack_with(&PackOptions::default()).0
    }

    pub(crate) fn pack_with(&self, options: &PackOptions<'_>) -> (Vec<u8>, Packed) {
        let mut out = Vec::new();
        let packed = pack(&self.image(), &mut out, options).unwrap();
        assert_eq!(packed.bytes, out.len() as u64);
        (out, packed)
    }

    /// The DATA pages of `window`.
    pub(crate) fn packed(&self, window: u64) -> Vec<u8> {
        packed(&self.bytes, &self.map, window)
    }
}

pub(crate) fn packed(bytes: &[u8], map: &Map, window: u64) -> Vec<u8> {
    map.pages_of(window)
        .filter(|page| map.state(*page) == Ok(PageState::Data))
        .flat_map(|page| {
            let start = (page * PAGE) as usize;
            bytes[start..(start + PAGE as usize).min(bytes.len())].to_vec()
        })
        .collect()
}

pub(crate) fn threads(count: usize) -> Work<'static> {
    Work { threads: NonZeroUsize::new(count), progress: None }
}

/// The image that an archive restores.
pub(crate) fn unpacked(archive: &Archive<impl rouse_snapshot_format::ReadAt>) -> Vec<u8> {
    let mut file = tempfile::tempfile().unwrap();
    archive.unpack(&file, threads(2)).unwrap();
    read_all(&mut file)
}

pub(crate) fn read_all(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// An image of some windows, of every kind of page; a third of them each.
pub(crate) fn small() -> Fixture {
    let pages = 3 * WINDOW_BYTES / PAGE as usize;
    let mut bytes = vec![0; pages * PAGE as usize + 100];
    for (number, page) in bytes.chunks_mut(PAGE as usize).enumerate() {
        match number % 3 {
            0 => {}
            1 => page.fill(number as u8),
            _ => {
                let mut x = number as u32 + 1;
                let some = page.len().min(300);
                page[..some].fill_with(|| {
                    x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (x >> 28) as u8
                });
            }
        }
    }
    Fixture::new(bytes, WINDOW).with_working_set(&[2, 0])
}

/// A layer over another image: its file holds only the DATA pages.
pub(crate) fn layer(dir: &Path) -> (Image, Vec<u8>) {
    let pages = 40;
    let mut states = PageStates::all(pages * PAGE - 5, PageState::Parent);
    let mut bytes = vec![0; (pages * PAGE) as usize - 5];
    for page in 0..pages {
        let state = [PageState::Data, PageState::Parent, PageState::Zero][page as usize % 3];
        states.set(page, state).unwrap();
        if state == PageState::Data {
            let start = (page * PAGE) as usize;
            let end = (start + PAGE as usize).min(bytes.len());
            bytes[start..end].fill(page as u8);
        }
    }
    let path = dir.join("layer.img");
    fs::write(&path, &bytes).unwrap();
    let map = Map::new(ImageId::random(), Some(ImageId::random()), WINDOW, states).unwrap();
    (Image::with_map(path, map).unwrap(), bytes)
}

/// Pieces of an image: zeros, one byte repeated, or noise that does not compress.
pub(crate) fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just((0_u8, false)),
        any::<u8>().prop_map(|byte| (byte, false)),
        any::<u8>().prop_map(|seed| (seed, true)),
    ];
    let length = prop_oneof![
        0_usize..20,
        1_usize..30_000,
        (1_usize..40).prop_map(|pages| pages * PAGE as usize),
        (0_usize..3).prop_map(|n| WINDOW_BYTES + n - 1),
    ];
    prop::collection::vec((piece, length), 0..10).prop_map(|pieces| {
        let mut bytes = Vec::new();
        for ((byte, noise), length) in pieces {
            let mut x = u64::from(byte) + 1;
            bytes.extend((0..length).map(|_| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if noise { (x >> 33) as u8 } else { byte }
            }));
        }
        bytes
    })
}
