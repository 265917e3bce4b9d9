//! Lines out of what arrives in pieces.

use rouse_protocol::MAX_LINE;
use tracing::warn;

/// Cuts what arrives into lines, and drops those longer than [`MAX_LINE`] without keeping them.
#[derive(Debug, Default)]
pub(crate) struct LineBuffer {
    bytes: Vec<u8>,
    /// In a line that is too long, up to its end.
    dropping: bool,
}

impl LineBuffer {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole line, without its end.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let Some(end) = self.bytes.iter().position(|b| *b == b'\n') else {
                if self.bytes.len() > MAX_LINE {
                    self.dropping = true;
                }
                if self.dropping {
                    self.bytes.clear();
                }
                return None;
            };
            let rest = self.bytes.split_off(end + 1);
            let mut line = std::mem::replace(&mut self.bytes, rest);
            line.pop();
            if std::mem::take(&mut self.dropping) || line.len() > MAX_LINE {
                warn!("a line longer than {MAX_LINE} bytes was dropped");
                continue;
            }
            return Some(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(parts: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut buffer = LineBuffer::default();
        let mut lines = Vec::new();
        for part in parts {
            buffer.push(part);
            lines.extend(std::iter::from_fn(|| buffer.next()));
            assert!(buffer.bytes.len() <= MAX_LINE);
        }
        lines
    }

    #[test]
    fn a_line_too_long_is_dropped_and_the_next_is_read() {
        let long = vec![b'x'; MAX_LINE + 1];
        assert_eq!(cut(&[&long, b"y\nz\n"]), [b"z"]);
        assert_eq!(cut(&[&long, &long, b"\nz\n"]), [b"z"]);
        assert_eq!(cut(&[&[&long[..], b"\nz\n"].concat()]), [b"z"]);
        let most = &long[..MAX_LINE];
        assert_eq!(cut(&[most, b"\n"]), [most]);
    }

    proptest! {
        #[test]
        fn where_the_reads_end_makes_no_difference(
            lines in prop::collection::vec("[^\n]{0,20}", 0..8),
            at in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let text: Vec<u8> = lines.iter().flat_map(|l| format!("{l}\n").into_bytes()).collect();
            let mut ends: Vec<usize> = at.iter().map(|i| i.index(text.len() + 1)).collect();
            ends.extend([0, text.len()]);
            ends.sort_unstable();
            let parts: Vec<&[u8]> = ends.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let expected: Vec<Vec<u8>> = lines.iter().map(|l| l.clone().into_bytes()).collect();
            prop_assert_eq!(cut(&parts), expected);
        }
    }
}
