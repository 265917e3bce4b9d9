//! Writes inputs to begin with, one of each kind that a fuzzer would be long in finding:
//! `cargo run --bin seeds` in this directory.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rouse_fuzz::{archive, map, merge};
use rouse_snapshot_format::{
    Archive, Image, ImageId, Map, PAGE, PackOptions, PageState, PageStates, SparsifyOptions,
    WindowSize, WorkingSet, pack, sparsify,
};

fn main() -> io::Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, seeds) in
        [("map", maps()), ("archive", archives()), ("frame", frames()), ("merge", merges())]
    {
        let dir = dir.join(target);
        fs::create_dir_all(&dir)?;
        for (name, bytes) in seeds {
            fs::write(dir.join(format!("seed-{name}")), bytes)?;
        }
    }
    Ok(())
}

type Seeds = Vec<(&'static str, Vec<u8>)>;

fn id(n: u8) -> ImageId {
    ImageId::from_bytes([n; 16]).unwrap()
}

/// Every kind of page, in two windows and a bit.
fn bytes() -> Vec<u8> {
    let mut bytes = vec![0; 35 * PAGE as usize + 100];
    for (number, page) in bytes.chunks_mut(PAGE as usize).enumerate() {
        match number % 5 {
            0 => page.fill(number as u8),
            1 => page[50] = 1,
            _ => {}
        }
    }
    bytes
}

/// An image of `bytes`, and a layer of the same file.
fn images(dir: &Path, bytes: &[u8]) -> [Image; 2] {
    let path = dir.join("memory.img");
    fs::write(&path, bytes).unwrap();
    let window = Some(WindowSize::MIN);
    let found = sparsify(&path, &SparsifyOptions { window, ..Default::default() }).unwrap();
    let mut set = WorkingSet::new();
    for touched in [&[2][..], &[0, 2], &[2, 0]] {
        set.record(touched.iter().copied(), WindowSize::MIN);
    }
    let whole = found.into_map(id(1)).with_working_set(set);
    let mut states = whole.states().clone();
    for page in (0..states.pages()).filter(|page| page % 4 == 3) {
        states.set(page, PageState::Parent).unwrap();
    }
    let layer = Map::new(id(2), Some(id(1)), WindowSize::MIN, states).unwrap();
    [whole, layer].map(|map| Image::with_map(&path, map).unwrap())
}

fn maps() -> Seeds {
    let dir = tempfile::tempdir().unwrap();
    let [whole, layer] = images(dir.path(), &bytes());
    let empty = PageStates::all(0, PageState::Zero);
    let empty = Map::new(id(1), None, WindowSize::DEFAULT, empty).unwrap();
    let of = |mode: u8, map: &Map| [&[mode], map.to_bytes().unwrap().as_slice()].concat();
    let mut later = whole.map().to_bytes().unwrap();
    // A minor version, features under which it is only read, and a section that nobody knows.
    (later[10], later[24], later[32], later[112 + 3 * 32]) = (9, 4, 1, 77);
    vec![
        ("plain", of(0, whole.map())),
        ("whole", of(map::SEALED | map::COUNTED, whole.map())),
        ("layer", of(map::SEALED, layer.map())),
        ("empty", of(map::SEALED, &empty)),
        ("later", [&[map::SEALED], later.as_slice()].concat()),
    ]
}

fn archives() -> Seeds {
    let of = |bytes: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        images(dir.path(), bytes).map(|image| {
            let mut out = Vec::new();
            pack(&image, &mut out, &PackOptions::default()).unwrap();
            out
        })
    };
    let ([whole, layer], [empty, _], [zeros, _]) = (of(&bytes()), of(&[]), of(&[0; 3 << 16]));
    vec![
        ("plain", [&[0], whole.as_slice()].concat()),
        ("whole", open(archive::SEALED | archive::FRAMED | archive::COUNTED, &whole)),
        ("strict", open(archive::SEALED, &whole)),
        ("layer", open(archive::SEALED | archive::FRAMED, &layer)),
        ("empty", open(archive::SEALED | archive::COUNTED, &empty)),
        ("zeros", open(archive::SEALED | archive::FRAMED, &zeros)),
        ("vast", open(archive::SEALED, &vast())),
    ]
}

/// The archive of a large image, a layer that changes nothing. The largest would take a fuzzer a
/// second for each try.
fn vast() -> Vec<u8> {
    const SIZE: u64 = 64 << 30;
    let dir = rouse_fuzz::scratch::directory();
    let path = dir.path().join("memory.img");
    File::create_new(&path).unwrap().set_len(SIZE).unwrap();
    let states = PageStates::all(SIZE, PageState::Parent);
    let map = Map::new(id(2), Some(id(1)), WindowSize::MAX, states).unwrap();
    let mut out = Vec::new();
    pack(&Image::with_map(&path, map).unwrap(), &mut out, &PackOptions::default()).unwrap();
    out
}

/// What the target makes an archive of: the index's length, index and frames.
fn open(mode: u8, archive: &[u8]) -> Vec<u8> {
    let u32_at = |at: usize| u32::from_le_bytes(archive[at..at + 4].try_into().unwrap()) as usize;
    let header = 8 + u32_at(4);
    let opened = Archive::open(archive).unwrap();
    let index = opened.index();
    let last = index.frames().checked_sub(1).and_then(|n| index.frame(n));
    let end = last.map_or(header, |frame| frame.offset as usize + frame.length as usize);
    let body = &archive[end + 8..end + 8 + u32_at(end + 4) - 32];
    let length = (body.len() as u16).to_le_bytes();
    [&[mode], &length[..], body, &archive[header..end]].concat()
}

fn frames() -> Seeds {
    let of = |raw: &[u8], level: i32| {
        let mut zstd = zstd::bulk::Compressor::new(level).unwrap();
        zstd.include_checksum(true).unwrap();
        [&(raw.len() as u32).to_le_bytes()[..3], &zstd.compress(raw).unwrap()].concat()
    };
    let text: Vec<u8> =
        (0..9000_u32).flat_map(|n| (n * n % 977).to_string().into_bytes()).collect();
    vec![
        ("empty", of(&[], 1)),
        ("one-byte", of(&[7; 1 << 16], 1)),
        ("pages", of(&bytes()[..8 * PAGE as usize], 3)),
        ("text", of(&text[..16 * 1024], 19)),
        ("largest", of(&[0; 4 << 20], 1)),
    ]
}

fn merges() -> Seeds {
    // Window, wake, pages, how many bytes less, a byte for each page.
    let base = [0, 1, 6, 0, 0, 1, 0, 0x81, 3, 4, 5];
    // By hand: kind, window, wake, size, states, a byte for each page of DATA.
    let hand = [0, 1, 2, 6, 0, 0, 0, 1, 2, 1, 0, 0, 9, 8];
    // By diff: kind, window, wake, size, pages.
    let diff = [1, 0, 1, 7, 5, 0, 1, 0, 9, 3, 0, 5, 6];
    let shrunk = [0, 0, 0, 3, 7, 0, 0, 2, 0];
    let grown = [0, 0, 0, 5, 7, 0, 0, 0, 0, 1, 0, 4];
    let of = |mode: u8, layers: &[&[u8]], behind: &[u8]| {
        [&[mode], &base[..], &[layers.len() as u8 - 1], &layers.concat(), behind].concat()
    };
    let dir = tempfile::tempdir().unwrap();
    let [map, _] = images(dir.path(), &[1; 6 * PAGE as usize]);
    let map = map.map().to_bytes().unwrap();
    let mut later = map.clone();
    later[24] = 4;
    let sealed = merge::JOURNAL | merge::SEALED;
    vec![
        ("one", of(0, &[&hand], &[])),
        ("diff", of(0, &[&diff], &[])),
        ("chain", of(merge::BARE, &[&diff, &hand, &diff], &[])),
        ("cut", of(0, &[&shrunk, &grown], &[])),
        ("deep", of(0, &[&hand[..]; 9], &[])),
        ("journal", of(sealed, &[&hand], &[&[1], map.as_slice()].concat())),
        ("half", of(sealed | merge::NO_MAP, &[&hand], &[&[1], map.as_slice()].concat())),
        ("later", of(sealed, &[&hand], &[&[1], later.as_slice()].concat())),
        ("noise", of(merge::JOURNAL, &[&hand], b"ROUSEMRG")),
    ]
}
