//! Maps, right and wrong ones.
#![allow(clippy::unwrap_used)]

use std::fs;

use proptest::prelude::*;
use rouse_snapshot_format::{
    Counts, ImageId, MAX_MEM_SIZE, MAX_WINDOWS, Map, OpenMapError, PAGE, PageState, PageStates,
    SparsifyOptions, WindowSize, WorkingSet, WriteFileError, WriteMapError, sparsify,
};

/// Offsets from `FORMAT.md`.
const MAJOR: usize = 8;
const HEADER_LEN: usize = 12;
const INCOMPAT: usize = 16;
const RO_COMPAT: usize = 24;
const COMPAT: usize = 32;
const PAGE_SHIFT: usize = 40;
const WINDOW_SHIFT: usize = 41;
const SECTIONS: usize = 42;
const MEM_SIZE: usize = 48;
const IMAGE_ID: usize = 56;
const DATA_PAGES: usize = 88;
const TABLE: usize = 112;
const ENTRY: usize = 32;

fn id(n: u8) -> ImageId {
    ImageId::from_bytes([n; 16]).unwrap()
}

fn layer(states: PageStates) -> Map {
    Map::new(id(1), Some(id(2)), WindowSize::DEFAULT, states).unwrap()
}

/// 70 pages and a bit, of all three states.
fn small() -> Map {
    let mut states = PageStates::all(70 * PAGE + 5, PageState::Parent);
    for page in 0..71 {
        let state = [PageState::Data, PageState::Zero, PageState::Parent][page as usize % 3];
        states.set(page, state).unwrap();
    }
    layer(states)
}

/// [`small`] with a working set: two wakes.
fn small_with_working_set() -> Map {
    let mut set = WorkingSet::new();
    set.record([1, 0], WindowSize::DEFAULT);
    set.record([0], WindowSize::DEFAULT);
    small().with_working_set(set)
}

/// Makes the header's checksum right again.
fn seal(bytes: &mut [u8]) {
    let length = u32::from_le_bytes(bytes[HEADER_LEN..][..4].try_into().unwrap()) as usize;
    let crc = crc32c::crc32c(&bytes[..length - 4]).to_le_bytes();
    bytes[length - 4..length].copy_from_slice(&crc);
}

fn with(change: impl FnOnce(&mut Vec<u8>)) -> Result<Map, OpenMapError> {
    let mut bytes = small().to_bytes().unwrap();
    change(&mut bytes);
    seal(&mut bytes);
    Map::from_bytes(&bytes)
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

#[test]
fn the_small_map_is_what_the_document_says() {
    let bytes = small().to_bytes().unwrap();
    assert_eq!(&bytes[..8], b"ROUSEMAP");
    assert_eq!(bytes[PAGE_SHIFT..SECTIONS], [12, 18]);
    assert_eq!(bytes[HEADER_LEN..][..4], 180_u32.to_le_bytes());
    assert_eq!(bytes[IMAGE_ID..][..16], [1; 16]);
    // Two words for 71 pages, at the next multiple of 64 behind the header, and the next.
    assert_eq!(bytes.len(), 256 + 16);
    // Pages 0, 3, 6, … and 1, 4, 7, …
    assert_eq!(bytes[192], 0b0100_1001);
    assert_eq!(bytes[256], 0b1001_0010);
}

#[test]
fn every_changed_byte_is_an_error_or_makes_no_difference() {
    let map = small();
    let bytes = map.to_bytes().unwrap();
    let mut harmless = 0;
    for at in 0..bytes.len() {
        for flip in 1..=u8::MAX {
            let mut wrong = bytes.clone();
            wrong[at] ^= flip;
            match Map::from_bytes(&wrong) {
                Ok(read) => {
                    assert_eq!(read, map, "byte {at} ^ {flip:#x} changes the map");
                    harmless += 1;
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
    // The padding between header and bitmaps and between the two, and nothing else.
    assert_eq!(harmless, (192 - 180 + 256 - 208) * 255);
}

/// A map as images have them: with checksums and a working set.
fn of_an_image() -> Map {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory.img");
    let mut bytes = vec![0; 5 * 65536 + 9];
    for at in [5, 70_000, 140_000, 5 * 65536 + 1] {
        bytes[at] = at as u8 | 1;
    }
    fs::write(&path, bytes).unwrap();
    let options = SparsifyOptions { window: Some(WindowSize::MIN), ..Default::default() };
    let mut set = WorkingSet::new();
    set.record([2, 0], WindowSize::MIN);
    sparsify(&path, &options).unwrap().into_map(id(1)).with_working_set(set)
}

#[test]
fn every_changed_byte_of_a_map_with_all_sections() {
    let map = of_an_image();
    let bytes = map.to_bytes().unwrap();
    assert!(map.has_checksums());
    assert_eq!(Map::from_bytes(&bytes).unwrap(), map);
    let (mut harmless, mut without) = (0, 0);
    for at in 0..bytes.len() {
        for flip in [1, 0x40, 0xff] {
            let mut wrong = bytes.clone();
            wrong[at] ^= flip;
            let Ok(read) = Map::from_bytes(&wrong) else { continue };
            harmless += usize::from(read == map);
            without += usize::from(read.working_set_dropped());
            assert_eq!(read.states(), map.states(), "byte {at}");
            for window in 0..map.windows() {
                assert_eq!(read.checksum(window), map.checksum(window), "byte {at}");
            }
        }
    }
    // What lies between the sections, and the words of the working set: one wake of two windows.
    let header = 112 + 4 * ENTRY + 4;
    let between = (256 - header) + 2 * (64 - 16) + (64 - 6 * 8);
    assert_eq!((harmless, without), (3 * between, 3 * 4 * 4));
}

#[test]
fn a_window_without_data_has_the_checksum_of_nothing() {
    let map = of_an_image();
    let mut bytes = map.to_bytes().unwrap();
    // Windows 3 and 4 are zeros; the checksums are the third section, behind the bitmaps.
    let checksums = 384;
    assert_eq!(map.checksum(3), Some(0x2d06_8005_38d3_94c2));
    bytes[checksums + 3 * 8] ^= 1;
    let crc = crc32c::crc32c(&bytes[checksums..][..6 * 8]).to_le_bytes();
    put(&mut bytes, TABLE + 2 * ENTRY + 4, &crc);
    seal(&mut bytes);
    let error = Map::from_bytes(&bytes).unwrap_err();
    assert!(matches!(error, OpenMapError::EmptyChecksum { window: 3 }), "{error}");
}

#[test]
fn a_damaged_working_set_is_left_out_and_said() {
    let bytes = small_with_working_set().to_bytes().unwrap();
    assert_eq!(Map::from_bytes(&bytes).unwrap(), small_with_working_set());
    // One more line in the table: 212 bytes of header, so that bitmaps start at 256 and 320.
    let from = bytes.len() - 4 * 6;
    for at in from..bytes.len() {
        let mut wrong = bytes.clone();
        wrong[at] ^= 0x10;
        let read = Map::from_bytes(&wrong).unwrap();
        assert!(read.working_set_dropped() && read.working_set().is_empty(), "byte {at}");
        assert_eq!(read.states(), small().states());
    }
    // One that no writer could have meant, with a right checksum.
    let mut wrong = bytes.clone();
    wrong[from + 8..from + 12].fill(0xff);
    let crc = crc32c::crc32c(&wrong[from..]).to_le_bytes();
    put(&mut wrong, TABLE + 2 * ENTRY + 4, &crc);
    seal(&mut wrong);
    let read = Map::from_bytes(&wrong).unwrap();
    assert!(read.working_set_dropped() && read.working_set().is_empty());

    // Cut short it is an error like any other.
    let cut = Map::from_bytes(&bytes[..bytes.len() - 1]).unwrap_err();
    assert!(matches!(cut, OpenMapError::Truncated { .. }), "{cut}");
}

#[test]
fn a_working_set_names_only_windows_that_there_are() {
    let mut set = WorkingSet::new();
    set.record([5, 1, 2], WindowSize::DEFAULT);
    let map = small().with_working_set(set);
    assert_eq!(map.windows(), 2);
    assert_eq!(map.working_set().order(WindowSize::DEFAULT), [1]);

    // Nor more of them than a map of its windows may name.
    let mut set = WorkingSet::new();
    set.record(0..2000, WindowSize::MIN);
    let states = PageStates::all(1 << 30, PageState::Data);
    let map = Map::new(id(1), None, WindowSize::DEFAULT, states).unwrap().with_working_set(set);
    let read = Map::from_bytes(&map.to_bytes().unwrap()).unwrap();
    assert!(!read.working_set_dropped());
    assert_eq!(read.working_set().wakes().next().unwrap().len(), 512);
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = small().to_bytes().unwrap();
    for length in 0..bytes.len() {
        let error = Map::from_bytes(&bytes[..length]).unwrap_err();
        assert!(
            matches!(error, OpenMapError::Truncated { there, .. } if there == length as u64),
            "{length}: {error}"
        );
    }
}

#[test]
fn what_is_no_map_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Map::open(dir.path()), Err(OpenMapError::NotAMap)));
    assert!(matches!(Map::open("/dev/null"), Err(OpenMapError::NotAMap)));
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(matches!(Map::open(pipe), Err(OpenMapError::NotAMap)));
    assert!(matches!(Map::open(dir.path().join("none")), Err(OpenMapError::Io(_))));
    assert!(matches!(Map::from_bytes(b"ROUSEMAq"), Err(OpenMapError::NotAMap)));
    assert!(matches!(Map::from_bytes(b"PK"), Err(OpenMapError::NotAMap)));
    assert!(matches!(Map::from_bytes(b""), Err(OpenMapError::Truncated { there: 0, .. })));
}

#[test]
fn other_versions_and_features() {
    for major in [0_u16, 2, u16::MAX] {
        // A later version may have its checksum elsewhere: it is refused before it is looked at.
        let mut bytes = small().to_bytes().unwrap();
        put(&mut bytes, MAJOR, &major.to_le_bytes());
        let error = Map::from_bytes(&bytes).unwrap_err();
        assert!(matches!(error, OpenMapError::UnknownMajor { found, .. } if found == major));
    }
    let error = with(|b| b[INCOMPAT + 7] = 0x80).unwrap_err();
    assert!(matches!(error, OpenMapError::UnknownFeatures { bits } if bits == 1 << 63), "{error}");
    assert_eq!(with(|b| b[COMPAT] = 1).unwrap(), small());
    // Minor version.
    assert_eq!(with(|b| b[MAJOR + 2] = 9).unwrap(), small());

    let read_only = with(|b| b[RO_COMPAT] = 4).unwrap();
    assert_eq!(read_only.states(), small().states());
    let refused = read_only.to_bytes().unwrap_err();
    assert!(matches!(refused, WriteMapError::ReadOnly { bits: 4 }), "{refused}");
}

#[test]
fn headers_that_contradict_themselves() {
    let table = |b: &mut Vec<u8>, line: usize, field: usize, value: u64| {
        put(b, TABLE + line * ENTRY + field, &value.to_le_bytes());
    };
    let sections = |error| matches!(error, OpenMapError::Sections(_));

    for length in [0_u32, 4, 111, 179, 4097, u32::MAX] {
        let mut bytes = small().to_bytes().unwrap();
        put(&mut bytes, HEADER_LEN, &length.to_le_bytes());
        let error = Map::from_bytes(&bytes).unwrap_err();
        assert!(matches!(error, OpenMapError::HeaderLength(l) if l == length), "{error}");
    }
    assert!(matches!(with(|b| b[PAGE_SHIFT] = 14), Err(OpenMapError::PageSize(14))));
    assert!(matches!(with(|b| b[WINDOW_SHIFT] = 23), Err(OpenMapError::WindowSize(_))));
    assert!(matches!(with(|b| b[IMAGE_ID..][..16].fill(0)), Err(OpenMapError::NoImageId)));
    let large = |b: &mut Vec<u8>| put(b, MEM_SIZE, &(MAX_MEM_SIZE + 1).to_le_bytes());
    assert!(matches!(with(large), Err(OpenMapError::TooLarge { .. })));
    // Another size than the bitmaps are for, by a word and by a page.
    assert!(sections(with(|b| put(b, MEM_SIZE, &(1_u64 << 37).to_le_bytes())).unwrap_err()));
    let page_less = |b: &mut Vec<u8>| put(b, MEM_SIZE, &(64 * PAGE + 1).to_le_bytes());
    assert!(matches!(with(page_less), Err(OpenMapError::States)));
    assert!(matches!(with(|b| b[DATA_PAGES] += 1), Err(OpenMapError::Counts { .. })));
    // Parent's pages without a parent.
    assert!(
        matches!(with(|b| b[72..88].fill(0)), Err(OpenMapError::WithoutParent(w)) if w.pages == 23)
    );

    // Sections: missing, twice, overlapping, in the header, without end, too many.
    assert!(sections(with(|b| b[SECTIONS] = 1).unwrap_err()));
    assert!(sections(with(|b| b[TABLE + ENTRY] = 1).unwrap_err()));
    assert!(sections(with(|b| table(b, 1, 8, 200)).unwrap_err()));
    assert!(sections(with(|b| table(b, 0, 8, 100)).unwrap_err()));
    assert!(sections(with(|b| table(b, 1, 16, u64::MAX)).unwrap_err()));
    assert!(matches!(with(|b| table(b, 1, 8, u64::MAX - 16)), Err(OpenMapError::Truncated { .. })));
    let mut many = small().to_bytes().unwrap();
    many.splice(TABLE..TABLE, std::iter::repeat_n([0; ENTRY], 63).flatten());
    put(&mut many, SECTIONS, &65_u16.to_le_bytes());
    put(&mut many, HEADER_LEN, &(180_u32 + 63 * 32).to_le_bytes());
    seal(&mut many);
    assert!(sections(Map::from_bytes(&many).unwrap_err()));
}

#[test]
fn a_page_of_two_states_or_behind_the_end() {
    for (at, bit) in [(192, 1 << 1), (256, 1 << 0), (192 + 8, 1 << 7), (256 + 15, 1 << 7)] {
        let mut bytes = small().to_bytes().unwrap();
        bytes[at] |= bit;
        for (line, offset) in [(0, 192), (1, 256)] {
            let crc = crc32c::crc32c(&bytes[offset..offset + 16]).to_le_bytes();
            put(&mut bytes, TABLE + line * ENTRY + 4, &crc);
        }
        seal(&mut bytes);
        assert!(matches!(Map::from_bytes(&bytes), Err(OpenMapError::States)), "byte {at}");
    }
}

#[test]
fn sections_that_we_do_not_know_are_skipped() {
    // A third line in the table, a field of a later minor version behind it, and our two bitmaps
    // moved to make room: the header now ends at 220.
    let bytes = small().to_bytes().unwrap();
    let mut grown = bytes[..TABLE + 2 * ENTRY].to_vec();
    grown.resize(256, 9);
    grown.extend(&bytes[192..]);
    grown.resize(350, 3);
    put(&mut grown, HEADER_LEN, &220_u32.to_le_bytes());
    put(&mut grown, SECTIONS, &3_u16.to_le_bytes());
    for (line, kind, offset, length) in
        [(0, 1_u32, 256_u64, 16_u64), (1, 2, 320, 16), (2, 77, 340, 10)]
    {
        put(&mut grown, TABLE + line * ENTRY, &kind.to_le_bytes());
        put(&mut grown, TABLE + line * ENTRY + 8, &offset.to_le_bytes());
        put(&mut grown, TABLE + line * ENTRY + 16, &length.to_le_bytes());
    }
    seal(&mut grown);
    assert_eq!(Map::from_bytes(&grown).unwrap(), small());
}

#[test]
fn writing_replaces_whole_files_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory.map");
    fs::write(&path, "old").unwrap();
    small().write(&path).unwrap();
    assert_eq!(Map::open(&path).unwrap(), small());
    let names = |dir: &tempfile::TempDir| fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names(&dir), 1, "a temporary file is left");

    // A directory is in the way: the error is typed and nothing is left.
    let blocked = dir.path().join("blocked");
    fs::create_dir(&blocked).unwrap();
    let error = small().write(&blocked).unwrap_err();
    assert!(matches!(error, WriteMapError::File(WriteFileError::Io { .. })), "{error}");
    assert_eq!(names(&dir), 2);
    assert!(matches!(small().write("/"), Err(WriteMapError::File(WriteFileError::NoName(_)))));
    assert!(matches!(
        small().write(dir.path().join("none/memory.map")),
        Err(WriteMapError::File(WriteFileError::Io { .. }))
    ));
}

#[test]
fn maps_of_the_limit_and_none_larger() {
    let all = PageStates::all(MAX_MEM_SIZE, PageState::Data);
    let too_many = layer(all.clone()).to_bytes().unwrap_err();
    assert!(matches!(too_many, WriteMapError::TooManyWindows(t) if t.windows == 1 << 22));
    let window = WindowSize::for_image(MAX_MEM_SIZE);
    let huge = Map::new(id(1), Some(id(2)), window, all).unwrap();
    let mut bytes = huge.to_bytes().unwrap();
    assert_eq!(Map::from_bytes(&bytes).unwrap(), huge);
    assert_eq!(huge.windows(), MAX_WINDOWS);
    bytes[WINDOW_SHIFT] -= 1;
    seal(&mut bytes);
    assert!(matches!(Map::from_bytes(&bytes), Err(OpenMapError::TooManyWindows(_))));
    let larger = layer(PageStates::all(MAX_MEM_SIZE + 1, PageState::Data));
    assert!(matches!(larger.to_bytes(), Err(WriteMapError::TooLarge { .. })));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        size in prop_oneof![0..3 * PAGE, 0..2000 * PAGE],
        states in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..3), 0..300),
        shift in 16_u8..=22,
    ) {
        let mut pages = PageStates::all(size, PageState::Zero);
        for (at, state) in states {
            let state = [PageState::Data, PageState::Zero, PageState::Parent][state];
            if pages.pages() > 0 {
                pages.set(at.index(pages.pages() as usize) as u64, state).unwrap();
            }
        }
        let window = WindowSize::from_shift(shift).unwrap();
        let map = Map::new(id(3), Some(id(4)), window, pages).unwrap();
        let read = Map::from_bytes(&map.to_bytes().unwrap()).unwrap();
        prop_assert_eq!(&read, &map);
        let Counts { data, zero, parent } = read.counts();
        prop_assert_eq!(data + zero + parent, read.pages());
        prop_assert!(read.state(read.pages()).is_err());
    }

    #[test]
    fn any_bytes_behind_the_magic_are_refused_without_a_panic(
        noise in prop::collection::vec(any::<u8>(), 0..400),
        sealed in any::<bool>(),
    ) {
        let mut bytes = small().to_bytes().unwrap();
        let from = if sealed { INCOMPAT } else { MAJOR };
        let end = (from + noise.len()).min(bytes.len());
        bytes[from..end].copy_from_slice(&noise[..end - from]);
        if sealed {
            seal(&mut bytes);
        }
        if let Ok(map) = Map::from_bytes(&bytes) {
            prop_assert!(map.pages() <= bytes.len() as u64 * 8);
        }
    }
}
