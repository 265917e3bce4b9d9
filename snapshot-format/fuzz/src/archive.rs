//! Any bytes as an archive.

use std::os::unix::fs::FileExt;

use rouse_snapshot_format::{
    Archive, Decoder, Map, PAGE, PageState, ReadWindowError, UnpackError, VerifyArchiveError, Work,
};

use super::input::Input;
use super::seal::archive::{Right, archive};
use super::{map, scratch};

/// The bit of the first byte that says that the others are an index and frames, around which an
/// archive is to be made. Without it they are the archive.
pub const SEALED: u8 = 1;
/// What the index says of each frame is made right.
pub const FRAMED: u8 = 2;
/// And so are the numbers of pages.
pub const COUNTED: u8 = 4;

/// The largest image that is restored, in bytes.
const MAX_RESTORED: u64 = 64 << 20;

/// The first byte says how. Then come the archive, or when sealed the index's length in two bytes,
/// the index without its BLAKE3, and the frames.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mode = input.byte();
    let bytes = if mode & SEALED == 0 {
        input.rest().to_vec()
    } else {
        let length = input.u16().into();
        let index = input.take(length);
        let right = Right { frames: mode & FRAMED != 0, counts: mode & COUNTED != 0 };
        archive(index, input.rest(), right)
    };
    match Archive::open(bytes) {
        Ok(opened) => check(&opened),
        // From memory all that lies within can be read.
        Err(error) => assert!(
            error.is_damage() || error.is_unknown() && !error.to_string().is_empty(),
            "{error}"
        ),
    }
}

fn check(archive: &Archive<Vec<u8>>) {
    let (map, index) = (archive.map(), archive.index());
    let mut end = None;
    for number in 0..index.frames() {
        let frame = index.frame(number).unwrap();
        assert!(end.is_none_or(|end| end == frame.offset), "frames lie side by side");
        end = Some(frame.offset + u64::from(frame.length));
        assert!(end <= Some(archive.size()) && frame.raw_length > 0);
        assert_eq!(index.frame_of(frame.window.into()), Some(number));
        assert!(map.window_data_pages(frame.window.into()) > 0);
    }
    assert_eq!(index.frame(index.frames()), None);
    assert_eq!(index.frame_of(map.windows()), None);
    assert!(index.working_set_frames() <= index.frames());

    let verified = archive.verify(one_thread());
    if let Err(error) = &verified {
        assert!(!matches!(error, VerifyArchiveError::Read { .. }), "{error}");
    }
    if map.mem_size() <= MAX_RESTORED {
        map::check(map);
        map::comes_back(map.clone());
        let restored = restore(archive);
        assert!(restored || verified.is_err(), "it is whole, and can't be restored");
    }
}

/// Whether the image comes out, as a whole and window by window.
fn restore(archive: &Archive<Vec<u8>>) -> bool {
    let map = archive.map();
    let file = scratch::file();
    let unpacked = archive.unpack(&file, one_thread());
    assert_eq!(file.metadata().unwrap().len(), map.mem_size());
    if let Err(error) = &unpacked {
        assert!(matches!(error, UnpackError::Frame(_)), "{error}");
    }

    let mut decoder = Decoder::new().unwrap();
    let mut whole = true;
    for window in 0..map.windows() {
        let bytes = map.window_bytes(window);
        let mut read = vec![UNTOUCHED; (bytes.end - bytes.start) as usize];
        match archive.read_window(window, &mut decoder, &mut read) {
            Ok(()) if unpacked.is_ok() => {
                let mut there = vec![0; read.len()];
                file.read_exact_at(&mut there, bytes.start).unwrap();
                agree(map, window, &read, &there);
            }
            Ok(()) => {}
            Err(error) => {
                assert!(matches!(error, ReadWindowError::Frame(_)), "{error}");
                whole = false;
            }
        }
    }
    let behind = archive.read_window(map.windows(), &mut decoder, &mut []);
    assert!(matches!(behind, Err(ReadWindowError::Unknown { .. })));
    assert_eq!(whole, unpacked.is_ok());
    whole
}

/// What a window that is read is filled with before.
const UNTOUCHED: u8 = 0xAA;

/// Whether a window that was read is the same as in the restored image, where PARENT is a hole.
fn agree(map: &Map, window: u64, read: &[u8], restored: &[u8]) {
    let pages = map.pages_of(window).zip(read.chunks(PAGE as usize));
    for ((page, read), restored) in pages.zip(restored.chunks(PAGE as usize)) {
        let all = |bytes: &[u8], is: u8| bytes.iter().all(|byte| *byte == is);
        match map.state(page).unwrap() {
            PageState::Data => assert!(read == restored, "page {page} differs"),
            PageState::Zero => assert!(all(read, 0) && all(restored, 0), "page {page} is zeros"),
            PageState::Parent => {
                assert!(all(read, UNTOUCHED) && all(restored, 0), "page {page} is the parent's");
            }
        }
    }
}

fn one_thread<'a>() -> Work<'a> {
    Work { threads: std::num::NonZeroUsize::new(1), progress: None }
}
