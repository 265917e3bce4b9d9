//! With a fill from a store behind it.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod support;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use rouse_lazy::{LazyFile, Windows};
use rouse_snapshot_format::{
    Image, ImageId, PackOptions, SparsifyOptions, WindowSize, pack, sparsify,
};
use rouse_store::{Condition, Directory, Key, Store};
use rouse_transfer::{Fill, FillOptions, Layers, Patience, Remote};
use support::{Place, is_there, map, noise, us};

const WINDOW: usize = 64 << 10;
const WINDOWS: usize = 200;

/// Noise with windows of zeros, and pages of zeros in others.
fn image() -> Vec<u8> {
    let mut bytes = noise((WINDOWS * WINDOW) as u64, 3);
    for window in (0..WINDOWS).step_by(7) {
        bytes[window * WINDOW..(window + 1) * WINDOW].fill(0);
    }
    for page in (3..WINDOWS * 16).step_by(5) {
        bytes[page * 4096..(page + 1) * 4096].fill(0);
    }
    bytes
}

async fn start(place: &Place, bytes: &[u8], lost: bool) -> Fill {
    let path = place.root.path().join("image");
    fs::write(&path, bytes).unwrap();
    let options = SparsifyOptions { window: Some(WindowSize::MIN), ..Default::default() };
    let map = sparsify(&path, &options).unwrap().into_map(ImageId::random());
    let mut archive = Vec::new();
    let image = Image::with_map(&path, map).unwrap();
    let packed = pack(&image, &mut archive, &PackOptions::default()).unwrap();
    let store = Arc::new(Directory::open(place.root.path().join("store")).unwrap());
    let key = Key::new("image").unwrap();
    store.put(&key, archive.into(), Condition::Absent).await.unwrap();
    let patience = Patience::default();
    let remote =
        Remote::open(store.clone(), key.clone(), packed.index_blake3, packed.bytes, &patience);
    let remote = remote.await.unwrap();
    if lost {
        store.delete(&key).await.unwrap();
    }
    let layers = Layers::new(vec![remote]).unwrap();
    Fill::start(layers, place.backing(), FillOptions::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_guest_writes_before_and_after_the_fill_stays() {
    if !is_there() {
        return;
    }
    let place = Place::new();
    let bytes = image();
    let fill = Arc::new(start(&place, &bytes, false).await);
    let size = bytes.len() as u64;
    assert_eq!(fill.window_bytes(), WINDOW as u64);
    let lazy = LazyFile::mount(&place.dir, "memory.img", place.backing(), size, fill.clone(), us());
    let lazy = lazy.unwrap();
    let path = lazy.path().to_owned();
    let mut wanted = bytes.clone();
    // Faults would block the runtime's threads.
    let guest = tokio::task::spawn_blocking(move || {
        let file = fs::File::options().read(true).write(true).open(path).unwrap();
        let mut mapped = map(&file);
        for window in (0..WINDOWS).rev().step_by(3) {
            let place = window * WINDOW + window * 4;
            assert!(mapped[place..place + 99] == wanted[place..place + 99]);
            mapped[place..place + 99].fill(0xee);
            wanted[place..place + 99].fill(0xee);
            if window % 2 == 0 {
                mapped.flush_range(place, 99).unwrap();
            }
        }
        (mapped, wanted)
    });
    let (mut mapped, mut wanted) = guest.await.unwrap();
    fill.whole().await.unwrap();
    lazy.set_whole();
    let ended = tokio::task::spawn_blocking(move || {
        mapped[5 * WINDOW..6 * WINDOW].fill(0xdd);
        wanted[5 * WINDOW..6 * WINDOW].fill(0xdd);
        assert!(mapped[..] == wanted[..]);
        drop(mapped);
        lazy.unmount().unwrap();
        wanted
    });
    let wanted = ended.await.unwrap();
    let mut backed = vec![0; bytes.len()];
    place.backing().read_exact_at(&mut backed, 0).unwrap();
    assert!(backed == wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_store_has_lost_the_image_reads_fail_and_only_holes_are_zeros() {
    if !is_there() {
        return;
    }
    let place = Place::new();
    let bytes = image();
    let fill = Arc::new(start(&place, &bytes, true).await);
    let size = bytes.len() as u64;
    let lazy = LazyFile::mount(&place.dir, "memory.img", place.backing(), size, fill, us());
    let path = lazy.as_ref().unwrap().path().to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let file = fs::File::open(path).unwrap();
        for window in 0..WINDOWS {
            let mut some = [1; 4096];
            match file.read_exact_at(&mut some, (window * WINDOW) as u64) {
                Ok(()) => assert!(window % 7 == 0 && some == [0; 4096], "window {window}"),
                Err(error) => assert_eq!(error.raw_os_error(), Some(5), "{error}"),
            }
        }
    });
    read.await.unwrap();
}
