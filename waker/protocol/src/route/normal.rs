//! A path as the app may come to read it, which is how it is matched.

use smallvec::SmallVec;

/// A normalised path. Only long ones are on the heap.
pub type NormalPath = SmallVec<[u8; 128]>;

/// Normalises a path that starts with a slash. Never longer than `path`.
pub fn normalize(path: &[u8]) -> NormalPath {
    let mut out = NormalPath::new();
    out.push(b'/');
    // Where the segment being read starts; what is before it ends with a slash.
    let mut start = 1;
    let mut rest = path.get(1..).unwrap_or_default();
    while let Some((byte, after)) = decode_first(rest) {
        rest = after;
        if byte == b'/' {
            start = close(&mut out, start, true);
        } else {
            out.push(byte);
        }
    }
    close(&mut out, start, false);
    out
}

/// Ends the segment that starts at `start`, and says where the next one does.
fn close(out: &mut NormalPath, start: usize, more: bool) -> usize {
    match out.get(start..).unwrap_or_default() {
        b"" => start,
        b"." => {
            out.truncate(start);
            start
        }
        b".." => {
            let above = out.get(..start - 1).unwrap_or_default();
            let parent = above.iter().rposition(|b| *b == b'/').map_or(1, |slash| slash + 1);
            out.truncate(parent);
            parent
        }
        _ if more => {
            out.push(b'/');
            out.len()
        }
        _ => start,
    }
}

/// The first byte of a percent-encoded text, decoded, and the rest. A `%` that encodes nothing
/// stands for itself.
pub(super) fn decode_first(text: &[u8]) -> Option<(u8, &[u8])> {
    let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    match text {
        [] => None,
        [b'%', high, low, rest @ ..] => match (digit(*high), digit(*low)) {
            (Some(high), Some(low)) => Some((high << 4 | low, rest)),
            _ => text.split_first().map(|(b, rest)| (*b, rest)),
        },
        [first, rest @ ..] => Some((*first, rest)),
    }
}
