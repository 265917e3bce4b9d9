//! What RFC 9113 calls an error is one, of the kind it says, and of the connection or the stream alone.

use rouse_tests::frames::{ACK, END_HEADERS, END_STREAM, Frame, fields, kind, request};
use rouse_tests::{Frames, ORIGIN_HOST};

use crate::World;

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const COMPRESSION_ERROR: u32 = 9;

/// A kind, flags, a stream and a payload.
type Sent = (u8, u8, u32, Vec<u8>);

fn head() -> Vec<u8> {
    request("GET", ORIGIN_HOST, "/page")
}

fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

/// What the proxy says of these frames: the error of the first GOAWAY or RST_STREAM that is one, and whether
/// it was the connection's.
async fn error(world: &World, sent: &[Sent]) -> Option<(u32, bool)> {
    let mut frames = world.frames().await;
    for (kind, flags, stream, payload) in sent {
        frames.send(*kind, *flags, *stream, payload).await;
    }
    while let Some(frame) = frames.next().await {
        if let Some(error) = frame.error().filter(|error| *error != 0) {
            let all = frame.kind == kind::GOAWAY;
            if all {
                // And then it is closed.
                while frames.next().await.is_some() {}
            }
            return Some((error, all));
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_the_connection() {
    let world = World::new().await;
    // Of many an error h2 says PROTOCOL_ERROR only, which is true of all.
    let (whole, open) = (END_HEADERS | END_STREAM, END_HEADERS);
    let long = vec![0; 16_385];
    let priority = kind::PRIORITY;
    let cases: Vec<(&str, Vec<Sent>, &[u32])> = vec![
        (
            "a frame that is too large",
            vec![(kind::DATA, 0, 1, vec![0; 1 << 17])],
            &[FRAME_SIZE_ERROR],
        ),
        (
            "DATA too large",
            vec![(kind::HEADERS, open, 1, head()), (kind::DATA, 0, 1, long.clone())],
            &[FRAME_SIZE_ERROR],
        ),
        (
            "HEADERS too large",
            vec![(kind::HEADERS, whole, 1, long)],
            &[FRAME_SIZE_ERROR, COMPRESSION_ERROR],
        ),
        ("DATA on stream 0", vec![(kind::DATA, 0, 0, b"a".to_vec())], &[PROTOCOL_ERROR]),
        ("HEADERS on stream 0", vec![(kind::HEADERS, whole, 0, head())], &[PROTOCOL_ERROR]),
        ("RST_STREAM on stream 0", vec![(kind::RST_STREAM, 0, 0, vec![0; 4])], &[PROTOCOL_ERROR]),
        ("a stream of the server's", vec![(kind::HEADERS, whole, 2, head())], &[PROTOCOL_ERROR]),
        (
            "a stream below one before",
            vec![(kind::HEADERS, whole, 5, head()), (kind::HEADERS, whole, 3, head())],
            &[PROTOCOL_ERROR, STREAM_CLOSED],
        ),
        ("DATA on an idle stream", vec![(kind::DATA, 0, 1, b"a".to_vec())], &[PROTOCOL_ERROR]),
        (
            "RST_STREAM on an idle stream",
            vec![(kind::RST_STREAM, 0, 1, vec![0; 4])],
            &[PROTOCOL_ERROR],
        ),
        (
            "WINDOW_UPDATE on an idle stream",
            vec![(kind::WINDOW_UPDATE, 0, 1, vec![0, 0, 0, 1])],
            &[PROTOCOL_ERROR],
        ),
        ("a window of 0 more", vec![(kind::WINDOW_UPDATE, 0, 0, vec![0; 4])], &[PROTOCOL_ERROR]),
        (
            "a window too large",
            vec![(kind::WINDOW_UPDATE, 0, 0, vec![0x7f, 0xff, 0xff, 0xff])],
            &[FLOW_CONTROL_ERROR],
        ),
        (
            "a short WINDOW_UPDATE",
            vec![(kind::WINDOW_UPDATE, 0, 0, vec![0; 3])],
            &[FRAME_SIZE_ERROR],
        ),
        ("a short PING", vec![(kind::PING, 0, 0, vec![0; 7])], &[FRAME_SIZE_ERROR]),
        ("a PING of a stream", vec![(kind::PING, 0, 1, vec![0; 8])], &[PROTOCOL_ERROR]),
        (
            "a short RST_STREAM",
            vec![(kind::HEADERS, open, 1, head()), (kind::RST_STREAM, 0, 1, vec![0; 3])],
            &[FRAME_SIZE_ERROR],
        ),
        ("SETTINGS of a stream", vec![(kind::SETTINGS, 0, 1, vec![])], &[PROTOCOL_ERROR]),
        ("odd SETTINGS", vec![(kind::SETTINGS, 0, 0, vec![0; 5])], &[FRAME_SIZE_ERROR]),
        (
            "an acknowledgement that says something",
            vec![(kind::SETTINGS, ACK, 0, setting(1, 1))],
            &[FRAME_SIZE_ERROR],
        ),
        (
            "push that is neither on nor off",
            vec![(kind::SETTINGS, 0, 0, setting(2, 2))],
            &[PROTOCOL_ERROR],
        ),
        (
            "a window that no stream has",
            vec![(kind::SETTINGS, 0, 0, setting(4, 1 << 31))],
            &[FLOW_CONTROL_ERROR],
        ),
        (
            "frames that are too small",
            vec![(kind::SETTINGS, 0, 0, setting(5, 16_383))],
            &[PROTOCOL_ERROR],
        ),
        (
            "frames that are too large",
            vec![(kind::SETTINGS, 0, 0, setting(5, 1 << 24))],
            &[PROTOCOL_ERROR],
        ),
        (
            "a client's PUSH_PROMISE",
            vec![(kind::PUSH_PROMISE, END_HEADERS, 1, [&[0, 0, 0, 2][..], &head()].concat())],
            &[PROTOCOL_ERROR],
        ),
        (
            "CONTINUATION of nothing",
            vec![(kind::CONTINUATION, END_HEADERS, 1, head())],
            &[PROTOCOL_ERROR],
        ),
        (
            "a frame within HEADERS",
            vec![(kind::HEADERS, 0, 1, head()), (kind::PING, 0, 0, vec![0; 8])],
            &[PROTOCOL_ERROR],
        ),
        (
            "another stream within HEADERS",
            vec![(kind::HEADERS, 0, 1, head()), (kind::CONTINUATION, END_HEADERS, 3, vec![])],
            &[PROTOCOL_ERROR],
        ),
        (
            "padding longer than its frame",
            vec![(kind::HEADERS, open, 1, head()), (kind::DATA, 8, 1, vec![9, 0, 0])],
            &[PROTOCOL_ERROR],
        ),
        (
            "fields that are no HPACK",
            vec![(kind::HEADERS, whole, 1, vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])],
            &[COMPRESSION_ERROR],
        ),
        ("a field of no table", vec![(kind::HEADERS, whole, 1, vec![0xfe])], &[COMPRESSION_ERROR]),
        ("field 0", vec![(kind::HEADERS, whole, 1, vec![0x80])], &[COMPRESSION_ERROR]),
        (
            "a table larger than it may be",
            vec![(kind::HEADERS, whole, 1, [&[0x3f, 0xff, 0xff, 0x03][..], &head()].concat())],
            &[COMPRESSION_ERROR],
        ),
        ("PRIORITY on stream 0", vec![(priority, 0, 0, vec![0; 5])], &[PROTOCOL_ERROR]),
    ];
    let mut wrong = Vec::new();
    for (what, sent, errors) in cases {
        let got = error(&world, &sent).await;
        if !got.is_some_and(|(e, all)| all && (e == PROTOCOL_ERROR || errors.contains(&e))) {
            wrong.push(format!("{what}: {got:?}, not one of {errors:?} of the connection"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    world.fine().await;
    // Some were forwarded before they broke off.
    assert!(world.origin.read().0.len() < 10, "hardly anything of it is a request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_stream_alone() {
    let world = World::new().await;
    let open = END_HEADERS;
    let with = |name: &[u8], value: &[u8]| [head(), fields(&[(name, value)])].concat();
    let cases: Vec<(&str, Vec<Sent>, &[u32])> = vec![
        (
            "a stream's window too large",
            vec![
                (kind::HEADERS, open, 1, head()),
                (kind::WINDOW_UPDATE, 0, 1, vec![0x7f, 0xff, 0xff, 0xff]),
            ],
            &[FLOW_CONTROL_ERROR],
        ),
        (
            "a stream's window of 0 more",
            vec![(kind::HEADERS, open, 1, head()), (kind::WINDOW_UPDATE, 0, 1, vec![0; 4])],
            &[PROTOCOL_ERROR],
        ),
        (
            "a field in capitals",
            vec![(kind::HEADERS, open, 1, with(b"X-Upper", b"a"))],
            &[PROTOCOL_ERROR],
        ),
        (
            "a field of a connection",
            vec![(kind::HEADERS, open, 1, with(b"connection", b"close"))],
            &[PROTOCOL_ERROR],
        ),
        ("a second path", vec![(kind::HEADERS, open, 1, with(b":path", b"/"))], &[PROTOCOL_ERROR]),
    ];
    for (what, sent, errors) in cases {
        let mut frames = world.frames().await;
        for (kind, flags, stream, payload) in &sent {
            frames.send(*kind, *flags, *stream, payload).await;
        }
        let reset = frames.until(what, |f| f.error().is_some_and(|error| error != 0)).await;
        let got = reset.error().expect("it is one");
        assert!(errors.contains(&got), "{what}: {reset:?}");
        if reset.kind == kind::RST_STREAM {
            goes_on(&mut frames).await;
        }
    }
}

/// Another stream of the same connection is answered.
async fn goes_on(frames: &mut Frames) {
    frames.get(101, ORIGIN_HOST, "/page").await;
    let answered = |f: &Frame| f.stream == 101 && f.kind == kind::HEADERS;
    frames.until("the answer of another stream", answered).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_http_2_is_hung_up_on() {
    let world = World::new().await;
    for said in
        ["GET / HTTP/1.1\r\nHost: origin.localhost\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"]
    {
        let mut visitor = rouse_tests::Raw::connect(world.front.h2c()).await.expect("it listens");
        visitor.write(said).await.expect("the proxy reads");
        visitor.read_to_end().await;
    }
    world.fine().await;
}
