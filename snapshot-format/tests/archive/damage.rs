//! Archives that are not what was written.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use rouse_snapshot_format::{
    Archive, DecodeFrameError, HeaderError, IndexError, OpenArchiveError, ReadAt, UnpackError,
    VerifyArchiveError, Work, is_archive,
};

use crate::images::{small, threads, unpacked};

/// Offsets in the index from `FORMAT.md`, and the skippable frame in front of it.
const SKIPPABLE: usize = 8;
const FRAMES: usize = 12;
const WORKING_SET_FRAMES: usize = 16;
const STATES_LEN: usize = 20;
const WORKING_SET_LEN: usize = 24;
const DATA_PAGES: usize = 32;
const HEADER: usize = 64;
const HEADER_LENGTH: usize = 92;

/// Opens, checks and unpacks.
fn all(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let archive = Archive::open(bytes).map_err(|e| e.to_string())?;
    archive.verify(threads(1)).map_err(|e| e.to_string())?;
    Ok(unpacked(&archive))
}

/// Where the index's own bytes are.
fn index_of(archive: &[u8]) -> std::ops::Range<usize> {
    let entries = u32::from_le_bytes(archive[archive.len() - 9..][..4].try_into().unwrap());
    let end = archive.len() - (entries as usize * 8 + 17);
    let last = end + 8 + (entries as usize - 1) * 8;
    let length = u32::from_le_bytes(archive[last..][..4].try_into().unwrap()) as usize;
    end - length + SKIPPABLE..end
}

/// One image and its archive for all that is done to it.
fn original() -> &'static (Vec<u8>, Vec<u8>) {
    static ORIGINAL: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    ORIGINAL.get_or_init(|| {
        let image = small();
        let archive = image.pack();
        (image.bytes, archive)
    })
}

/// An archive whose index was changed by somebody who knows how to hash.
fn with_index(change: impl FnOnce(&mut [u8])) -> Result<Archive<Vec<u8>>, OpenArchiveError> {
    let mut bytes = original().1.clone();
    let place = index_of(&bytes);
    let (body, hash) = bytes[place.clone()].split_at_mut(place.len() - 32);
    change(body);
    hash.copy_from_slice(blake3::hash(body).as_bytes());
    Archive::open(bytes)
}

fn index_error(change: impl FnOnce(&mut [u8])) -> IndexError {
    match with_index(change).unwrap_err() {
        OpenArchiveError::Index { source, .. } => source,
        other => panic!("{other}"),
    }
}

fn add(bytes: &mut [u8], at: usize, more: u32) {
    let field: &mut [u8; 4] = (&mut bytes[at..at + 4]).try_into().unwrap();
    *field = u32::from_le_bytes(*field).wrapping_add(more).to_le_bytes();
}

fn field(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// Where the columns of the index start.
fn columns(body: &[u8]) -> usize {
    HEADER + field(body, 8) + field(body, STATES_LEN) + field(body, WORKING_SET_LEN)
}

#[test]
fn every_changed_byte_is_an_error_or_makes_no_difference() {
    let (image, bytes) = original();
    assert!(all(bytes).unwrap() == *image);
    let mut harmless = 0;
    for at in 0..bytes.len() {
        // Frames are thousands of bytes under one hash; the rest is fields, each of its own kind.
        let flips: &[u8] =
            if at > 200 && at < index_of(bytes).start { &[1] } else { &[1, 0x40, 0xff] };
        for flip in flips {
            let mut wrong = bytes.clone();
            wrong[at] ^= flip;
            match all(&wrong) {
                Ok(read) => {
                    assert!(read == *image, "byte {at} ^ {flip:#x} changes the image");
                    harmless += 1;
                }
                Err(error) => assert!(!error.is_empty()),
            }
        }
    }
    // The two unused bits of the seek table's descriptor, one of which is among our flips.
    assert_eq!(harmless, 1);
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = &original().1;
    for length in 0..bytes.len() {
        let error = Archive::open(&bytes[..length]).unwrap_err();
        assert!(error.is_damage() && !error.to_string().is_empty(), "{length}: {error}");
    }
    // And so is one that loses bytes in the middle.
    let mut hole = bytes.clone();
    hole.drain(500..600);
    assert!(Archive::open(&hole).is_err());
}

#[test]
fn what_is_no_archive_is_refused() {
    for other in [&b""[..], b"PK", b"ROUSEMAP", &[0; 4096], &[0xff; 100]] {
        assert!(!is_archive(other));
        assert!(matches!(Archive::open(other), Err(OpenArchiveError::NoSeekTable)));
    }
    assert!(is_archive(&small().pack()));
    assert!(is_archive(&small().pack()[..12]));

    // A seekable zstd file of somebody else.
    let mut other = Vec::new();
    let mut encoder = zeekstd::Encoder::new(&mut other).unwrap();
    encoder.compress(&[7; 100_000]).unwrap();
    encoder.end_frame().unwrap();
    encoder.compress(&[8; 100_000]).unwrap();
    encoder.finish().unwrap();
    let error = Archive::open(other.as_slice()).unwrap_err();
    let not = matches!(error, OpenArchiveError::Index { source: IndexError::NotAnIndex, .. });
    assert!(not, "{error}");
}

#[test]
fn a_seek_table_allocates_no_more_than_the_file_justifies() {
    for entries in [0_u32, 1, 3, 1000, 1 << 20, 0x0800_0000, u32::MAX] {
        let mut bytes = original().1.clone();
        let at = bytes.len() - 9;
        bytes[at..at + 4].copy_from_slice(&entries.to_le_bytes());
        let error = Archive::open(&bytes).unwrap_err();
        assert!(matches!(error, OpenArchiveError::SeekTable(_)), "{entries}: {error}");
    }
}

#[test]
fn an_index_is_not_read_before_its_start_bears_it_out() {
    /// Counts what is asked for.
    #[derive(Debug)]
    struct Counting(Vec<u8>, AtomicU64, u64);
    impl ReadAt for Counting {
        fn size(&self) -> std::io::Result<u64> {
            Ok(self.0.len() as u64 + self.2)
        }
        // So many zeros lie in front of the bytes.
        fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
            self.1.fetch_add(buffer.len() as u64, Ordering::Relaxed);
            let zeros = self.2.saturating_sub(offset).min(buffer.len() as u64);
            let (front, rest) = buffer.split_at_mut(zeros as usize);
            front.fill(0);
            if rest.is_empty() {
                Ok(())
            } else {
                self.0.read_exact_at(rest, offset + zeros - self.2)
            }
        }
    }
    // A sparse file whose last entry says that nearly all of it is the index.
    let long: u32 = 0xfff0_0000;
    let mut table = zeekstd::SeekTable::new();
    table.log_frame(100, 0).unwrap();
    table.log_frame(long, 0).unwrap();
    let mut end = Vec::new();
    std::io::Read::read_to_end(&mut table.into_serializer(), &mut end).unwrap();
    let file = Counting(end, AtomicU64::new(0), 100 + u64::from(long));
    let error = Archive::open(&file).unwrap_err();
    assert!(error.is_damage(), "{error}");
    assert!(file.1.load(Ordering::Relaxed) < 4 << 20, "the index was read");
}

#[test]
fn an_archive_of_a_later_version_is_refused_as_that_and_is_no_damage() {
    // Whoever comes later may hash otherwise, and put other things where ours are.
    for change in [&(|b: &mut [u8]| b[HEADER + 8] = 2) as &dyn Fn(&mut [u8]), &|b| {
        b[HEADER + 8] = 2;
        b[8..HEADER].fill(0xee);
        b[HEADER + 16..].fill(0xee);
    }] {
        let mut bytes = original().1.clone();
        let place = index_of(&bytes);
        change(&mut bytes[place]);
        let error = Archive::open(bytes).unwrap_err();
        assert!(error.to_string().contains("major version is 2"), "{error}");
        assert!(error.is_unknown() && !error.is_damage());
    }
    // A feature, and a codec.
    for (at, value) in [(16, 1), (42, 2)] {
        let error = with_index(|b| {
            b[HEADER + at] = value;
            let end = HEADER + HEADER_LENGTH - 4;
            let crc = crc32c::crc32c(&b[HEADER..end]).to_le_bytes();
            b[end..end + 4].copy_from_slice(&crc);
        })
        .unwrap_err();
        assert!(error.is_unknown() && !error.is_damage(), "{error}");
    }
    assert!(Archive::open(&original().1[..100]).unwrap_err().is_damage());
}

#[test]
fn an_index_that_contradicts_itself() {
    use IndexError as E;
    assert!(matches!(index_error(|b| b[0] = b'X'), E::NotAnIndex));
    // Longer than it is, by a little (whatever is then out of place) and by all that a number says.
    for at in [8, FRAMES, STATES_LEN, WORKING_SET_LEN] {
        index_error(|b| add(b, at, 1));
    }
    for more in [1_000_000, 1 << 30, 1 << 31] {
        let of = |at| index_error(|b| add(b, at, more));
        assert!(matches!(of(FRAMES), E::FrameCount { .. }));
        for at in [8, STATES_LEN, WORKING_SET_LEN] {
            let error = of(at);
            let bounded = matches!(
                error,
                E::PartLength { .. } | E::Truncated { .. } | E::Header(_) | E::StatesFrame(_)
            );
            assert!(bounded, "{at} + {more}: {error}");
        }
    }
    assert!(matches!(index_error(|b| b[DATA_PAGES] ^= 1), E::Counts { .. }));
    assert!(matches!(index_error(|b| b[HEADER] ^= 1), E::Header(HeaderError::NotAnArchive)));
    assert!(matches!(index_error(|b| b[HEADER + 20] ^= 1), E::Header(HeaderError::Checksum)));
    assert!(matches!(index_error(|b| b[HEADER + HEADER_LENGTH] ^= 1), E::StatesFrame(_)));
    assert!(matches!(index_error(|b| b[WORKING_SET_FRAMES] = 200), E::FrameCount { .. }));

    // The columns: four windows, of which 2 and 0 are the working set.
    let window = |frame: usize, to: u8| {
        index_error(move |b| {
            let at = columns(b) + frame * 4;
            b[at] = to;
        })
    };
    assert!(matches!(window(0, 77), E::Order { frame: 0, window: 77, .. }));
    assert!(matches!(window(1, 2), E::Order { frame: 1, window: 2, .. }));
    let swapped = index_error(|b| b[WORKING_SET_FRAMES] = 0);
    assert!(matches!(swapped, E::Order { frame: 1, window: 0, .. }), "{swapped}");
    let length = |to: u32| {
        index_error(move |b| {
            let at = columns(b) + field(b, FRAMES) * 4;
            b[at..at + 4].copy_from_slice(&to.to_le_bytes());
        })
    };
    assert!(matches!(length(0), E::FrameLength { frame: 0, length: 0 }));
    assert!(matches!(length(u32::MAX), E::FrameLength { frame: 0, .. }));
    assert!(matches!(length(100), E::Gap { .. }));
}

#[test]
fn what_the_frames_hold_is_checked_too() {
    // The index says another checksum than the window's, and the archive is whole otherwise.
    let archive = with_index(|b| {
        let frames = field(b, FRAMES);
        let at = columns(b) + frames * (4 + 4 + 32);
        b[at] ^= 1;
    })
    .unwrap();
    let error = archive.verify(Work::default()).unwrap_err();
    let checksum = DecodeFrameError::Checksum { offset: 100, window: 2 };
    assert_eq!(error.to_string(), checksum.to_string());
    let error = archive.unpack(&tempfile::tempfile().unwrap(), Work::default()).unwrap_err();
    assert!(matches!(error, UnpackError::Frame(DecodeFrameError::Checksum { .. })), "{error}");
}

#[test]
fn a_frame_is_not_decompressed_before_it_is_verified() {
    let mut bytes = original().1.clone();
    let frame = Archive::open(bytes.as_slice()).unwrap().index().frame(1).unwrap();
    bytes[frame.offset as usize + 20] ^= 1;
    let archive = Archive::open(&bytes).unwrap();
    let error = archive.verify(Work::default()).unwrap_err();
    let expected = matches!(error, VerifyArchiveError::Frame(DecodeFrameError::Blake3 { offset, window })
        if offset == frame.offset && window == frame.window);
    assert!(expected, "{error}");
}

#[test]
fn a_working_set_that_makes_no_sense_is_left_out() {
    let archive = with_index(|b| {
        let at = HEADER + field(b, 8) + field(b, STATES_LEN);
        b[at + 8..at + 12].fill(0xff);
    })
    .unwrap();
    assert!(archive.map().working_set_dropped() && archive.map().working_set().is_empty());
    assert!(unpacked(&archive) == original().0);
}

/// A source that fails at one place, as a disk or a network does.
#[derive(Debug)]
struct Failing {
    bytes: Vec<u8>,
    bad: std::ops::Range<u64>,
}

impl ReadAt for Failing {
    fn size(&self) -> std::io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        if offset < self.bad.end && self.bad.start < offset + buffer.len() as u64 {
            return Err(std::io::Error::other("bad sector"));
        }
        self.bytes.read_exact_at(buffer, offset)
    }
}

#[test]
fn a_source_that_fails_is_an_error_and_not_damage() {
    let bytes = original().1.clone();
    let length = bytes.len() as u64;
    let error = Archive::open(Failing { bytes, bad: length - 1..length }).unwrap_err();
    assert!(matches!(&error, OpenArchiveError::Read { .. }) && !error.is_damage(), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn any_bytes_in_the_index_are_refused_without_a_panic(
        noise in prop::collection::vec(any::<u8>(), 1..60),
        at in any::<prop::sample::Index>(),
    ) {
        let opened = with_index(|body| {
            let at = at.index(body.len());
            let some = noise.len().min(body.len() - at);
            body[at..at + some].copy_from_slice(&noise[..some]);
        });
        if let Ok(archive) = opened {
            // A checksum, a hash, the working set: the archive opens, and what it restores is right
            // or an error.
            if archive.verify(Work::default()).is_ok() {
                prop_assert!(unpacked(&archive) == original().0);
            }
        }
    }
}
