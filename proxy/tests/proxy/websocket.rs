//! A WebSocket over HTTP/2 (RFC 8441) is not offered, so that browsers come by HTTP/1.1 instead.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{PATIENCE, World, client};

const SETTINGS: u8 = 4;
const RST_STREAM: u8 = 3;
/// In a SETTINGS frame: extended CONNECT is understood.
const ENABLE_CONNECT_PROTOCOL: u16 = 8;
const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Headers as HPACK's literals, never indexed.
fn headers(lines: &[(&str, &str)]) -> Vec<u8> {
    let text = |s: &str| [&[u8::try_from(s.len()).unwrap()], s.as_bytes()].concat();
    lines.iter().flat_map(|(n, v)| [vec![0x10], text(n), text(v)].concat()).collect()
}

/// The next frame: its kind, stream and payload.
async fn read(stream: &mut TcpStream) -> (u8, u8, Vec<u8>) {
    let frame = async {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.unwrap();
        (head[3], head[8], payload)
    };
    tokio::time::timeout(PATIENCE, frame).await.unwrap()
}

#[tokio::test]
async fn it_is_not_offered_and_who_tries_all_the_same_is_reset_alone() {
    let world = World::new("").await;
    let mut stream = client::connect(world.proxy.h2c).await;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    let (kind, _, settings) = read(&mut stream).await;
    assert_eq!(kind, SETTINGS);
    let ids = settings.chunks(6).map(|s| u16::from_be_bytes([s[0], s[1]]));
    assert!(!ids.into_iter().any(|id| id == ENABLE_CONNECT_PROTOCOL), "{settings:?}");

    let connect = headers(&[
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":authority", "hello.test"),
        (":path", "/ws"),
        ("sec-websocket-version", "13"),
    ]);
    // END_HEADERS, and no END_STREAM.
    stream.write_all(&frame(1, 4, 1, &connect)).await.unwrap();
    loop {
        let (kind, id, payload) = read(&mut stream).await;
        assert!(id == 0 || kind == RST_STREAM, "{kind} {payload:?}");
        if kind == RST_STREAM {
            assert_eq!((id, &*payload), (1, &PROTOCOL_ERROR[..]));
            break;
        }
    }

    // The connection goes on.
    let get = headers(&[
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "hello.test"),
        (":path", "/"),
    ]);
    stream.write_all(&frame(1, 5, 3, &get)).await.unwrap();
    while read(&mut stream).await.1 != 3 {}
    assert_eq!(world.guest.seen().len(), 1, "the WebSocket woke nobody");
}
