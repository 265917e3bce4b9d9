//! HTTP/2 frame by frame, so that a test can send what no library would.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::wait::patience;

/// Kinds of frames (RFC 9113, section 6).
#[allow(missing_docs, reason = "the RFC's names")]
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// On a SETTINGS or PING frame.
pub const ACK: u8 = 1;
/// On a DATA or HEADERS frame.
pub const END_STREAM: u8 = 1;
/// On a HEADERS or CONTINUATION frame.
pub const END_HEADERS: u8 = 4;

/// What every HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// See [`kind`].
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream.
    pub stream: u32,
    /// What is in it.
    pub payload: Vec<u8>,
}

impl Frame {
    /// The error that a RST_STREAM or GOAWAY frame tells of.
    pub fn error(&self) -> Option<u32> {
        let at = match self.kind {
            kind::RST_STREAM => 0,
            kind::GOAWAY => 4,
            _ => return None,
        };
        Some(u32::from_be_bytes(self.payload.get(at..at + 4)?.try_into().ok()?))
    }

    /// Whether it is the last of its stream.
    pub fn ends_stream(&self) -> bool {
        self.kind == kind::RST_STREAM
            || (matches!(self.kind, kind::DATA | kind::HEADERS) && self.flags & END_STREAM != 0)
    }

    /// The status, if it is the first HEADERS frame of its connection: what a later one means depends on
    /// those before.
    pub fn status(&self) -> Option<u16> {
        const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
        if self.kind != kind::HEADERS {
            return None;
        }
        // A new size of the table may come before.
        let block = &self.payload[self.payload.iter().position(|b| b & 0xe0 != 0x20)?..];
        match *block {
            [indexed @ 0x88..=0x8e, ..] => INDEXED.get(usize::from(indexed - 0x88)).copied(),
            [0x48 | 0x08 | 0x18, length, ref rest @ ..] => {
                let text = rest.get(..usize::from(length & 0x7f))?;
                let huffman = length & 0x80 != 0;
                if huffman { digits(text) } else { std::str::from_utf8(text).ok()?.parse().ok() }
            }
            _ => None,
        }
    }
}

/// Three digits in HPACK's Huffman code (RFC 7541, appendix B).
fn digits(text: &[u8]) -> Option<u16> {
    let bits: Vec<u16> =
        text.iter().flat_map(|b| (0..8).rev().map(move |i| u16::from(b >> i & 1))).collect();
    let (mut number, mut at) = (0, 0);
    let take =
        |from: usize, n: usize| Some(bits.get(from..from + n)?.iter().fold(0, |a, b| a * 2 + b));
    for _ in 0..3 {
        let (digit, length) = match take(at, 5)? {
            short @ 0..=2 => (short, 5),
            _ => (take(at, 6)?.checked_sub(0b01_1001)? + 3, 6),
        };
        number = number * 10 + digit;
        at += length;
    }
    Some(number)
}

/// Header fields in HPACK, each as a literal that is not indexed. Any bytes can be in them.
pub fn fields(all: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in all {
        block.push(0x10);
        for text in [name, value] {
            number(&mut block, text.len());
            block.extend_from_slice(text);
        }
    }
    block
}

/// A text's length (RFC 7541, section 5.1, with a prefix of 7 bits).
fn number(block: &mut Vec<u8>, n: usize) {
    let byte = |n: usize| u8::try_from(n & 0xff).unwrap_or_default();
    let Some(mut rest) = n.checked_sub(127) else { return block.push(byte(n)) };
    block.push(127);
    while rest >= 128 {
        block.push(byte(rest % 128) | 0x80);
        rest /= 128;
    }
    block.push(byte(rest));
}

/// A client's connection.
#[derive(Debug)]
pub struct Frames {
    stream: TcpStream,
}

impl Frames {
    /// Connects, and says the preface with these settings.
    pub async fn connect(to: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut stream = TcpStream::connect(to).await.expect("the proxy takes connections");
        stream.set_nodelay(true).expect("a socket takes options");
        stream.write_all(PREFACE).await.expect("the proxy reads");
        let mut frames = Self { stream };
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        frames.send(kind::SETTINGS, 0, 0, &payload).await;
        frames
    }

    /// Sends a frame. It may be that nobody reads any more.
    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        let length = u32::try_from(payload.len()).expect("a frame is short").to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.bytes(&[&head, payload].concat()).await
    }

    /// Sends these bytes. It may be that nobody reads any more.
    pub async fn bytes(&mut self, bytes: &[u8]) -> bool {
        let write = tokio::time::timeout(patience(), self.stream.write_all(bytes)).await;
        write.expect("the proxy reads or hangs up").is_ok()
    }

    /// Sends a request without a body, whole.
    pub async fn get(&mut self, stream: u32, host: &str, path: &str) {
        let fields = request("GET", host, path);
        self.send(kind::HEADERS, END_HEADERS | END_STREAM, stream, &fields).await;
    }

    /// The next frame; none when the connection has ended. Panics when nothing comes.
    pub async fn next(&mut self) -> Option<Frame> {
        let frame = async {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).await.ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).ok()?];
            self.stream.read_exact(&mut payload).await.ok()?;
            let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
            Some(Frame { kind: head[3], flags: head[4], stream, payload })
        };
        tokio::time::timeout(patience(), frame).await.expect("the proxy sends or hangs up")
    }

    /// The next frame that `wanted` wants. Panics when the connection ends before.
    pub async fn until(&mut self, what: &str, wanted: impl Fn(&Frame) -> bool) -> Frame {
        let mut passed = Vec::new();
        loop {
            match self.next().await {
                Some(frame) if wanted(&frame) => return frame,
                Some(frame) => passed.push(frame),
                None => panic!("the connection ended before {what}: {passed:?}"),
            }
        }
    }

    /// The frames of a stream up to its last, or to the end of the connection, which is a GOAWAY in them.
    pub async fn stream(&mut self, stream: u32) -> Vec<Frame> {
        let mut all = Vec::new();
        while let Some(frame) = self.next().await {
            if frame.stream == stream || frame.kind == kind::GOAWAY {
                let last = frame.stream == stream && frame.ends_stream();
                all.push(frame);
                if last {
                    break;
                }
            }
        }
        all
    }
}

/// The fields of a request over plain HTTP.
pub fn request(method: &str, host: &str, path: &str) -> Vec<u8> {
    fields(&[
        (b":method", method.as_bytes()),
        (b":scheme", b"http"),
        (b":authority", host.as_bytes()),
        (b":path", path.as_bytes()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_in_every_form() {
        let status = |block: &[u8]| {
            let payload = block.to_vec();
            Frame { kind: kind::HEADERS, flags: END_HEADERS, stream: 1, payload }.status()
        };
        assert_eq!(status(&[0x88]), Some(200));
        assert_eq!(status(&[0x20, 0x8c, 0x01]), Some(400));
        assert_eq!(status(b"\x08\x03503"), Some(503));
        // From RFC 7541, appendix C.6.
        assert_eq!(status(&[0x48, 0x82, 0x64, 0x02]), Some(302));
        assert_eq!(status(&[0x48, 0x83, 0x64, 0x0e, 0xff]), Some(307));
        assert_eq!(status(&[0xc1]), None, "that depends on what came before");
    }

    #[test]
    fn long_texts_have_their_length() {
        let block = fields(&[(b"a", &[b'x'; 1337])]);
        // RFC 7541, appendix C.1.2, with two bits more of prefix: 1337 - 127 = 1210 = 9 * 128 + 58.
        assert_eq!(block[..6], [0x10, 1, b'a', 0x7f, 58 | 0x80, 9]);
        assert_eq!(block.len(), 6 + 1337);
    }
}
