//! Figures, by hand: `cargo test -p rouse-lazy --test measure -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::print_stdout)]

mod support;

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use support::{Case, WINDOW, is_there, map};

const SIZE: u64 = 512 << 20;

fn forget(file: &File) {
    file.sync_all().unwrap();
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn cached(path: &Path) -> String {
    let output = Command::new("fincore").args(["-n", "-o", "RES"]).arg(path).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The median and the 99th percentile of faults in a mapping, one in each window of 256 KiB, and the time
/// for all pages of every fourth window, in order.
fn faults(what: &str, path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mapped = map(&file);
    let mut sum = 0_u64;
    let mut times: Vec<Duration> = (0..SIZE / WINDOW)
        .map(|number| {
            // Scattered, and in the middle of a window.
            let window = number * 769 % (SIZE / WINDOW);
            let begun = Instant::now();
            sum += u64::from(mapped[(window * WINDOW + WINDOW / 2) as usize]);
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    let (middle, late) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    let begun = Instant::now();
    for page in (0..SIZE / 4096).filter(|page| page * 4096 / WINDOW % 4 == 1) {
        sum += u64::from(mapped[page as usize * 4096]);
    }
    let all = begun.elapsed();
    println!(
        "{what}: fault median {middle:?}, p99 {late:?}; every page of 128 MiB {all:?} ({sum})"
    );
}

/// How long a guest takes to write a byte to every page, once all are mapped, and to sync them.
fn dirtied(what: &str, path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut mapped = map(&file);
    let begun = Instant::now();
    for page in 0..SIZE / 4096 {
        mapped[page as usize * 4096] ^= 1;
    }
    let written = begun.elapsed();
    mapped.flush().unwrap();
    println!("{what}: 512 MiB dirtied in {written:?}, synced after {:?}", begun.elapsed());
}

fn sequential(what: &str, path: &Path) {
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let begun = Instant::now();
    while file.read(&mut buffer).unwrap() > 0 {}
    let rate = SIZE as f64 / begun.elapsed().as_secs_f64() / f64::from(1 << 20);
    println!("{what}: read in order at {rate:.0} MiB/s");
}

#[test]
#[ignore = "figures, by hand"]
fn figures() {
    if !is_there() {
        return;
    }
    let plain = tempfile::NamedTempFile::new().unwrap();
    plain.as_file().write_all_at(&support::noise(SIZE, 7), 0).unwrap();
    forget(plain.as_file());
    faults("plain, from disk", plain.path());
    faults("plain, cached", plain.path());
    forget(plain.as_file());
    sequential("plain, from disk", plain.path());
    sequential("plain, cached", plain.path());
    dirtied("plain, cached", plain.path());
    drop(plain);

    for whole in [false, true] {
        let what = if whole { "lazy, whole" } else { "lazy, each window comes when asked for" };
        for read in [false, true] {
            let case = Case::new(SIZE);
            case.gate.open();
            if whole {
                case.place.backing().write_all_at(&case.gate.bytes, 0).unwrap();
                case.file.as_ref().unwrap().set_whole();
            }
            let backing = case.place.root.path().join("backing.img");
            if read {
                sequential(what, &case.path());
                println!("  cached: {} and backing {}", cached(&case.path()), cached(&backing));
                case.place.backing().sync_all().unwrap();
                case.file.as_ref().unwrap().drop_backing_cache().unwrap();
                println!("  dropped: {} and backing {}", cached(&case.path()), cached(&backing));
                sequential("lazy, cached", &case.path());
                dirtied("lazy, cached", &case.path());
            } else {
                faults(what, &case.path());
                faults("lazy, cached", &case.path());
            }
        }
    }
}
