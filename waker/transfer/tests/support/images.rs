//! Images of some windows.

use std::fs;
use std::path::PathBuf;

use rouse_snapshot_format::{
    Image, ImageId, Map, SparsifyOptions, WindowSize, WorkingSet, sparsify,
};
use tempfile::TempDir;

/// An image in a directory of its own.
pub(crate) struct Fixture {
    pub(crate) dir: TempDir,
    pub(crate) bytes: Vec<u8>,
    pub(crate) map: Map,
}

impl Fixture {
    pub(crate) fn new(bytes: Vec<u8>, touched: &[u32]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.img");
        fs::write(&path, &bytes).unwrap();
        let options = SparsifyOptions { window: Some(WindowSize::MIN), ..Default::default() };
        let map = sparsify(&path, &options).unwrap().into_map(ImageId::random());
        let mut set = WorkingSet::new();
        set.record(touched.iter().copied(), map.window_size());
        let map = map.with_working_set(set);
        Self { dir, bytes, map }
    }

    pub(crate) fn image(&self) -> Image {
        Image::with_map(self.dir.path().join("memory.img"), self.map.clone()).unwrap()
    }

    /// An empty file for the same image.
    pub(crate) fn file_to_fill(&self) -> fs::File {
        fs::File::create_new(self.path("filled.img")).unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// So many pages of noise, of which each `hole`th is zeros.
pub(crate) fn noise(pages: usize, hole: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut bytes = vec![0; pages * 4096];
    for (number, page) in bytes.chunks_mut(4096).enumerate() {
        if number % hole != 0 {
            page.as_chunks_mut::<8>().0.iter_mut().for_each(|word| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                *word = x.to_le_bytes();
            });
        }
    }
    bytes
}
