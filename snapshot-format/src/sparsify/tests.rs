mod copying;
mod in_place;
mod refreshing;
mod scanning;

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::packed;
use crate::units::PageState;
use crate::work::Progress;

fn quick() -> SparsifyOptions<'static> {
    SparsifyOptions::default()
}

fn on_threads(threads: usize) -> Work<'static> {
    Work { threads: NonZeroUsize::new(threads), progress: None }
}

fn holder(dir: &tempfile::TempDir, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join("memory.img");
    fs::write(&path, bytes).unwrap();
    path
}

/// What the states of `bytes` are, computed the plain way.
fn states_of(bytes: &[u8]) -> Vec<PageState> {
    let state = |page: &[u8]| match page.iter().all(|b| *b == 0) {
        true => PageState::Zero,
        false => PageState::Data,
    };
    bytes.chunks(PAGE as usize).map(state).collect()
}

fn found_states(found: &Sparsified) -> Vec<PageState> {
    found.states().runs().flat_map(|run| run.pages.map(move |_| run.state)).collect()
}

/// The checksums of the windows of `bytes`, computed the plain way.
fn checksums_of(bytes: &[u8], window: WindowSize) -> Vec<u64> {
    let of = |window: &[u8]| {
        let pages = window.chunks(PAGE as usize).filter(|page| page.iter().any(|b| *b != 0));
        packed::checksum(&pages.collect::<Vec<_>>().concat())
    };
    bytes.chunks(window.bytes() as usize).map(of).collect()
}

fn found_checksums(found: &Sparsified) -> Vec<u64> {
    let map = found.clone().into_map(ImageId::random());
    assert!(map.has_checksums());
    (0..map.windows()).map(|window| map.checksum(window).unwrap()).collect()
}

fn any_window() -> impl Strategy<Value = WindowSize> {
    (16..=22_u8).prop_map(|shift| WindowSize::from_shift(shift).unwrap())
}

#[derive(Clone, Debug)]
enum Part {
    /// Zeros that are written, so that they occupy blocks.
    Zeros,
    /// Never written.
    Hole,
    /// Zeros but for one byte.
    Byte(u8, usize),
    Noise(u8),
}

fn any_image() -> impl Strategy<Value = Vec<(Part, usize)>> {
    let part = prop_oneof![
        Just(Part::Zeros),
        Just(Part::Hole),
        (1..=u8::MAX, any::<usize>()).prop_map(|(byte, at)| Part::Byte(byte, at)),
        (1..=u8::MAX).prop_map(Part::Noise),
    ];
    // Lengths around pages, buffers and pieces, and any between.
    let length = prop_oneof![
        10 => 0_usize..20,
        10 => 1_usize..30_000,
        20 => (1_usize..40).prop_map(|pages| pages * PAGE as usize),
        10 => (0_usize..3).prop_map(|n| BUFFER + n - 1),
        1 => (0_usize..3).prop_map(|n| PIECE as usize + n - 1),
    ];
    prop::collection::vec((part, length), 0..12)
}

fn build(path: &Path, parts: &[(Part, usize)]) -> Vec<u8> {
    let mut file = File::create(path).unwrap();
    let mut wanted = Vec::new();
    for (part, length) in parts {
        let mut bytes = vec![0; *length];
        match part {
            Part::Zeros | Part::Hole => {}
            Part::Byte(byte, at) => {
                if let Some(len) = NonZeroUsize::new(*length) {
                    bytes[*at % len] = *byte;
                }
            }
            Part::Noise(byte) => bytes.fill(*byte),
        }
        match part {
            Part::Hole => drop(file.seek(SeekFrom::Current(*length as i64)).unwrap()),
            _ => file.write_all(&bytes).unwrap(),
        }
        wanted.extend(bytes);
    }
    file.set_len(wanted.len() as u64).unwrap();
    wanted
}
