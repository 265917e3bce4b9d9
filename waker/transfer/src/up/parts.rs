//! A stream of bytes cut into parts.

use std::io::{self, Write};

use bytes::{Bytes, BytesMut};
use rouse_snapshot_format::{Map, PAGE};
use rouse_store::MAX_PARTS;
use tokio::sync::mpsc;

use super::MEMORY;

/// The size of a part of most archives, in bytes: at 8 MiB a request's own time is small beside that of its bytes.
const PART: u64 = 8 << 20;

/// The size of the parts of an image's archive: the same for the same map, as an upload that is taken up
/// again must be cut in the same places.
pub(super) fn part_size(map: &Map) -> u64 {
    for_archive(map.counts().data * PAGE, map.windows())
}

/// For so many bytes in so many frames. No frame is longer than what it holds by more than 1/256 and 64
/// bytes (zstd's `ZSTD_COMPRESSBOUND`, with room); index and seek table have 56 bytes for each, and two
/// bits for each page, of which PARENT and ZERO pages are covered by the 2^26 bytes at the end.
fn for_archive(data: u64, windows: u64) -> u64 {
    let most = data + data / 256 + windows * (64 + 56 + 64) + (1 << 26);
    most.div_ceil(u64::from(MAX_PARTS)).next_multiple_of(1 << 20).max(PART)
}

/// How many parts may be on their way at once, besides one in the channel, one being filled and one in hand.
pub(super) fn in_flight(part: u64) -> usize {
    (MEMORY / part).saturating_sub(3).max(1) as usize
}

/// Cuts what is written to it.
pub(super) struct Parts {
    to: mpsc::Sender<Bytes>,
    size: usize,
    part: BytesMut,
}

impl Parts {
    pub(super) fn new(to: mpsc::Sender<Bytes>, size: u64) -> Self {
        Self { to, size: size as usize, part: BytesMut::new() }
    }

    /// The last part, which no other follows: the only one that may be short, or empty.
    pub(super) fn finish(self) -> Bytes {
        self.part.freeze()
    }
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        // A full part goes only once there is more: so the last is known to be the last.
        if self.part.len() == self.size {
            let full = std::mem::replace(&mut self.part, BytesMut::with_capacity(self.size));
            let full = full.freeze();
            self.to.blocking_send(full).map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        let some = bytes.len().min(self.size - self.part.len());
        self.part.extend_from_slice(&bytes[..some]);
        Ok(some)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_suffice_for_the_largest_image_and_stay_small_for_others() {
        assert_eq!(for_archive(0, 0), PART);
        assert_eq!(for_archive(64 << 30, 1 << 18), PART);
        for (data, windows) in [(1 << 40, 1 << 20), (1 << 37, 1 << 19), (79 << 30, 1 << 20)] {
            let part = for_archive(data, windows);
            assert!(data + data / 256 <= part * u64::from(MAX_PARTS), "{data}");
            assert!(part < 128 << 20);
        }
        assert_eq!(in_flight(PART), 5);
        assert_eq!(in_flight(106 << 20), 1);
    }

    #[test]
    fn what_is_written_is_cut_where_the_size_says() {
        let (tx, mut rx) = mpsc::channel(10);
        let mut parts = Parts::new(tx, 10);
        parts.write_all(&[1; 7]).unwrap();
        parts.write_all(&[2; 13]).unwrap();
        assert_eq!(rx.try_recv().unwrap(), [[1; 7].as_slice(), &[2; 3]].concat());
        assert!(rx.try_recv().is_err(), "the second may be the last");
        assert_eq!(parts.finish(), [2; 10].as_slice());
    }
}
