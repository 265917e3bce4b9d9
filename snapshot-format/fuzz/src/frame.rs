//! Any bytes as the frame of a window.

use std::io::Read;

use rouse_snapshot_format::{DecodeFrameError, Decoder, Frame};
use twox_hash::XxHash3_64;

use super::input::Input;

/// The largest window.
const MAX: u32 = 4 << 20;

/// A length of three bytes, and the frame, whose BLAKE3 is right.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let raw_length = (u32::from(input.u16()) | u32::from(input.byte()) << 16) % (MAX + 1);
    let bytes = input.rest();
    let streamed = decompressed(bytes, raw_length);
    let frame = Frame {
        window: 3,
        offset: 100,
        length: bytes.len() as u32,
        raw_length,
        blake3: *blake3::hash(bytes).as_bytes(),
        checksum: streamed.as_deref().map_or(0, XxHash3_64::oneshot),
    };
    let mut decoder = Decoder::new().unwrap();
    match decoder.decode(&frame, bytes) {
        Ok(packed) => {
            assert_eq!(packed.len(), raw_length as usize);
            assert_eq!(XxHash3_64::oneshot(packed), frame.checksum);
            assert!(streamed.is_none_or(|streamed| streamed == packed));
        }
        Err(DecodeFrameError::Checksum { .. }) => {
            assert_eq!(streamed, None, "another checksum than that of the same bytes");
        }
        Err(DecodeFrameError::Blake3 { .. }) => panic!("the BLAKE3 is right"),
        Err(DecodeFrameError::Length { there, .. }) => assert!(there < raw_length as usize),
        Err(error @ DecodeFrameError::Zstd { .. }) => assert!(!error.to_string().is_empty()),
    }

    let other = Frame { blake3: [0; 32], ..frame };
    assert!(matches!(decoder.decode(&other, bytes), Err(DecodeFrameError::Blake3 { .. })));
    // What it met before makes no difference to what comes after.
    let good = zstd::bulk::compress(&[7; 5000], 1).unwrap();
    let frame = Frame {
        length: good.len() as u32,
        raw_length: 5000,
        blake3: *blake3::hash(&good).as_bytes(),
        checksum: XxHash3_64::oneshot(&[7; 5000]),
        ..frame
    };
    assert!(decoder.decode(&frame, &good).unwrap() == [7; 5000]);
}

/// What zstd's other interface makes of a frame, if that is of the right length.
pub fn decompressed(bytes: &[u8], length: u32) -> Option<Vec<u8>> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(bytes).ok()?;
    decoder.window_log_max(22).ok()?;
    let mut streamed = Vec::new();
    decoder.take(u64::from(length) + 1).read_to_end(&mut streamed).ok()?;
    (streamed.len() == length as usize).then_some(streamed)
}
