//! Which pages of a memory file may have been written? Asked of a real process that maps one.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::process::{Child, ChildStdin, Command, Stdio};

use memmap2::{MmapMut, MmapOptions};
use rouse_waker::vmm::touched::{Mark, Reason, Touched, touched};

/// Makes the test that it is set for a child that maps and touches, instead of a test.
const PLAN: &str = "ROUSE_TEST_TOUCH";
const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// How often a child is tried again because the machine reclaimed or moved pages meanwhile.
const TRIES: usize = 50;

/// A child that has touched the file as planned and stands still. It ends with its input.
struct Toucher {
    child: Child,
    _input: Option<ChildStdin>,
}

impl Toucher {
    /// `plan`: words `map=OFFSET+BYTES`, `private=OFFSET+BYTES`, `write=OFFSET`, `read=OFFSET`;
    /// the last two concern the mapping last made.
    fn start(test: &str, path: &str, plan: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(PLAN, format!("{path} {plan}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let said = BufReader::new(child.stdout.take().unwrap());
        assert!(said.lines().any(|line| line.unwrap().ends_with("ready")), "the child failed");
        Self { child, _input: input }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }
}

impl Drop for Toucher {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Does what the plan says, if there is one, until its input ends.
fn is_child() -> bool {
    let Ok(plan) = std::env::var(PLAN) else {
        return false;
    };
    let mut words = plan.split(' ');
    let file = File::options().read(true).write(true).open(words.next().unwrap()).unwrap();
    let mut maps: Vec<(u64, MmapMut)> = Vec::new();
    for word in words {
        let (verb, what) = word.split_once('=').unwrap();
        if let Some((offset, bytes)) = what.split_once('+') {
            let (offset, bytes): (u64, usize) = (offset.parse().unwrap(), bytes.parse().unwrap());
            let mut options = MmapOptions::new();
            let options = options.offset(offset).len(bytes);
            // SAFETY: the file is this test's own, and nobody truncates it while it is mapped.
            let map = unsafe {
                match verb {
                    "map" => options.map_mut(&file),
                    _ => options.map_copy(&file),
                }
            };
            maps.push((offset, map.unwrap()));
            continue;
        }
        let (offset, map) = maps.last_mut().unwrap();
        let at = usize::try_from(what.parse::<u64>().unwrap() - *offset).unwrap();
        match verb {
            "write" => map[at] = 1,
            _ => assert_eq!(std::hint::black_box(map[at]), 0),
        }
    }
    std::io::stdout().write_all(b"ready\n").unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    true
}

/// A sparse file on a disk, not on tmpfs.
fn file(bytes: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(bytes).unwrap();
    file
}

/// What a child that follows the plan has touched, if this user may know.
fn ranges_of(test: &str, bytes: u64, plan: &str) -> Option<Vec<Range<u64>>> {
    for _ in 0..TRIES {
        let file = file(bytes);
        let mark = Mark::now().unwrap();
        let child = Toucher::start(test, file.path().to_str().unwrap(), plan);
        match touched(child.pid(), file.as_file(), Some(mark)) {
            Touched::Ranges(ranges) => {
                assert!(ranges.iter().all(|r| r.start < r.end && r.end <= bytes), "{ranges:x?}");
                let apart = ranges.windows(2).all(|two| two[0].end < two[1].start);
                assert!(apart, "neither sorted nor merged: {ranges:x?}");
                return Some(ranges);
            }
            Touched::Unknown(Reason::Moved) => {}
            Touched::Unknown(Reason::Read { what, source })
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                assert_eq!(what, "/proc/sys/vm/stat_refresh", "that is root's alone");
                return None;
            }
            Touched::Unknown(reason) => panic!("{reason}"),
        }
    }
    panic!("this machine reclaims or moves pages without end");
}

/// Is all of this page in the ranges?
fn is_in(ranges: &[Range<u64>], page: u64) -> bool {
    ranges.iter().any(|range| range.start <= page && page + PAGE <= range.end)
}

/// Is any of this page in the ranges?
fn is_near(ranges: &[Range<u64>], page: u64) -> bool {
    ranges.iter().any(|range| range.start < page + PAGE && page < range.end)
}

#[test]
fn what_was_written_is_in_it_and_what_is_far_away_is_not() {
    if is_child() {
        return;
    }
    let written = [0, 80 * MIB + PAGE, 96 * MIB - PAGE, 256 * MIB - PAGE];
    let writes = written.map(|page| format!("write={page}")).join(" ");
    let plan = format!("map=0+{} read={} {writes}", 256 * MIB, 160 * MIB);
    let test = "what_was_written_is_in_it_and_what_is_far_away_is_not";
    let Some(ranges) = ranges_of(test, 256 * MIB, &plan) else { return };
    for page in written {
        assert!(is_in(&ranges, page), "page {page:#x} is not in {ranges:x?}");
    }
    for page in [40 * MIB, 120 * MIB, 200 * MIB, 240 * MIB] {
        assert!(!is_near(&ranges, page), "page {page:#x} is in {ranges:x?}");
    }
}

#[test]
fn parts_are_found_at_their_offsets_and_what_is_not_mapped_counts() {
    if is_child() {
        return;
    }
    // A file that ends within a page; the last part reaches beyond its end. What is written into a
    // private mapping does not reach the file.
    let bytes = 160 * MIB + 100;
    let part = |how, offset, len, write| format!("{how}={offset}+{len} write={write}");
    let plan = [
        part("map", 0, 32 * MIB, 16 * MIB),
        part("map", 64 * MIB, 32 * MIB, 80 * MIB),
        part("map", 128 * MIB, 40 * MIB, 160 * MIB),
        part("private", 64 * MIB, 32 * MIB, 92 * MIB),
    ];
    let test = "parts_are_found_at_their_offsets_and_what_is_not_mapped_counts";
    let Some(ranges) = ranges_of(test, bytes, &plan.join(" ")) else { return };
    for page in [16 * MIB, 80 * MIB, 32 * MIB, 48 * MIB, 64 * MIB - PAGE, 96 * MIB, 127 * MIB] {
        assert!(is_in(&ranges, page), "page {page:#x} is not in {ranges:x?}");
    }
    assert_eq!(ranges.last().map(|last| last.end), Some(bytes));
    for page in [0, 8 * MIB, 28 * MIB, 68 * MIB, 92 * MIB, 140 * MIB] {
        assert!(!is_near(&ranges, page), "page {page:#x} is in {ranges:x?}");
    }
}

#[test]
fn nothing_is_known_without_a_mapping_or_a_mark() {
    if is_child() {
        return;
    }
    let test = "nothing_is_known_without_a_mapping_or_a_mark";
    let (mapped, other) = (file(MIB), file(MIB));
    let plan = format!("map=0+{MIB} write=0");
    let child = Toucher::start(test, mapped.path().to_str().unwrap(), &plan);
    let pid = child.pid();
    let ask = |file: &tempfile::NamedTempFile, mark| match touched(pid, file.as_file(), mark) {
        Touched::Unknown(reason) => reason,
        Touched::Ranges(ranges) => panic!("{ranges:x?}"),
    };
    // Whatever the machine reclaims meanwhile.
    let ask_now = |file| {
        (0..TRIES)
            .map(|_| ask(file, Some(Mark::now().unwrap())))
            .find(|reason| !matches!(reason, Reason::Moved))
    };
    assert!(matches!(ask(&mapped, None), Reason::NoMark));
    // No node has reclaimed this much.
    let long_ago = serde_json::from_str("18446744073709551615").unwrap();
    assert!(matches!(ask(&mapped, Some(long_ago)), Reason::Moved));
    let reason = ask_now(&other);
    assert!(matches!(reason, Some(Reason::NotMapped(of)) if of == pid), "{reason:?}");

    drop(child);
    let reason = ask_now(&mapped);
    let Some(Reason::Read { what, .. }) = reason else { panic!("{reason:?}") };
    assert_eq!(what, format!("/proc/{pid}/maps"));
}
