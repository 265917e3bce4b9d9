//! Images to be restored.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use rouse_snapshot_format::{
    Archive, ImageId, Map, PAGE, PackOptions, SparsifyOptions, Work, WorkingSet, pack, sparsify,
};

use crate::guest::Guest;
use crate::visit::visit;

/// How much of what is made up is DATA, in percent: a guest that works.
const DATA_PERCENT: u64 = 40;
/// How much of each page of DATA is noise, in bytes: packed it is a third or so, as guests' memory is.
const NOISE: usize = 1200;
/// One window in so many is of the working set.
const TOUCHED: u64 = 8;

/// An image on disk, its map, and its archive.
pub(super) struct Image {
    path: PathBuf,
    pub(super) map: Map,
    archive: PathBuf,
    pub(super) bytes: u64,
    /// Bytes of DATA.
    pub(super) data: u64,
    /// Bytes of DATA in the working set.
    pub(super) working_set: u64,
}

impl Image {
    /// Runs of pages, each a bit of noise and words that come again and again.
    pub(super) fn synthetic(dir: &Path, bytes: u64) -> anyhow::Result<Self> {
        let path = dir.join("synthetic.img");
        let file = File::create_new(&path)?;
        file.set_len(bytes)?;
        let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
        let mut page = [0_u8; PAGE as usize];
        let mut at = 0;
        while at < bytes {
            // Runs of a few hundred KiB, so that windows are full, empty and in part.
            let length = (1 + next(&mut dice) % 128) * PAGE;
            if next(&mut dice) % 100 < DATA_PERCENT {
                for offset in (at..(at + length).min(bytes)).step_by(PAGE as usize) {
                    for chunk in page[..NOISE].chunks_mut(8) {
                        let noise = next(&mut dice).to_le_bytes();
                        chunk.copy_from_slice(&noise[..chunk.len()]);
                    }
                    let word = format!("page {} of a guest that does not exist; ", offset % 7919);
                    for chunk in page[NOISE..].chunks_mut(word.len()) {
                        chunk.copy_from_slice(&word.as_bytes()[..chunk.len()]);
                    }
                    file.write_all_at(&page, offset)?;
                }
            }
            at += length;
        }
        drop(file);
        let map = sparsify(&path, &SparsifyOptions::default())?.into_map(ImageId::random());
        let full: Vec<u32> = (0..map.windows())
            .filter(|window| map.window_data_pages(*window) > 0)
            .filter_map(|window| u32::try_from(window).ok())
            .collect();
        // All over the image, in no order.
        let mut touched: Vec<u32> =
            full.iter().copied().filter(|_| next(&mut dice).is_multiple_of(TOUCHED)).collect();
        touched.sort_by_key(|window| window.wrapping_mul(2_654_435_761));
        let mut set = WorkingSet::new();
        set.record(touched, map.window_size());
        Self::of(path, map.with_working_set(set))
    }

    /// The test guest's memory, after a wake has told what it takes.
    pub(super) async fn of_guest(dir: &Path, guest: &Guest) -> anyhow::Result<Self> {
        let binaries = guest.find()?;
        let (node, _) = guest.booted(&binaries).await?;
        for _ in 0..2 {
            node.sleep("hello").await;
            visit(node.http(), rouse_tests::DEFAULT_HOST, "/").await?;
        }
        let report = node.sleep("hello").await;
        let from = node.app_dir("hello").join(format!("gen-{}", report.generation));
        let path = dir.join("guest.img");
        fs::copy(from.join("memory.img"), &path)?;
        let known = Map::open(from.join("memory.map"))?;
        let map = sparsify(&path, &SparsifyOptions::default())?.into_map(ImageId::random());
        Self::of(path, map.with_working_set(known.working_set().clone()))
    }

    fn of(path: PathBuf, map: Map) -> anyhow::Result<Self> {
        let archive = path.with_extension("rsz");
        let image = rouse_snapshot_format::Image::with_map(&path, map.clone())?;
        pack(&image, File::create_new(&archive)?, &PackOptions::default())?;
        let touched = map.working_set().order(map.window_size());
        let pages: u64 = touched.iter().map(|w| map.window_data_pages(u64::from(*w))).sum();
        let (bytes, data) = (map.mem_size(), map.counts().data * PAGE);
        Ok(Self { path, map, archive, bytes, data, working_set: pages * PAGE })
    }

    pub(super) fn open(&self) -> anyhow::Result<rouse_snapshot_format::Image> {
        Ok(rouse_snapshot_format::Image::with_map(&self.path, self.map.clone())?)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether `restored` is this image, byte for byte.
    pub(super) fn check(&self, restored: &Path) -> anyhow::Result<()> {
        let (ours, theirs) = (File::open(&self.path)?, File::open(restored)?);
        ensure!(theirs.metadata()?.len() == self.bytes, "it has another size");
        let mut buffers = (vec![0; 1 << 20], vec![0; 1 << 20]);
        let mut at = 0;
        while at < self.bytes {
            let length = usize::try_from((self.bytes - at).min(1 << 20))?;
            ours.read_exact_at(&mut buffers.0[..length], at)?;
            theirs.read_exact_at(&mut buffers.1[..length], at)?;
            ensure!(buffers.0[..length] == buffers.1[..length], "it differs near offset {at}");
            at += length as u64;
        }
        Ok(())
    }

    /// How long its archive, which is in the page cache, takes to unpack on all cores, in seconds.
    pub(super) async fn decode(&self, to: &Path) -> anyhow::Result<f64> {
        let (archive, to) = (self.archive.clone(), to.to_owned());
        let decoded = tokio::task::spawn_blocking(move || {
            let file = File::create_new(&to)?;
            let begun = Instant::now();
            Archive::open(&File::open(&archive)?)?.unpack(&file, Work::default())?;
            Ok(begun.elapsed().as_secs_f64())
        });
        decoded.await.context("decoding")?
    }

    pub(super) fn remove(&self) -> anyhow::Result<()> {
        fs::remove_file(&self.path)?;
        Ok(fs::remove_file(&self.archive)?)
    }
}

/// xorshift64 (Marsaglia, 2003): the same image each time.
fn next(x: &mut u64) -> u64 {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    *x
}
