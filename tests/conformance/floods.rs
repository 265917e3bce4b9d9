//! What costs a client little costs the proxy no more than a bounded amount.

use rouse_tests::frames::{END_HEADERS, END_STREAM, fields, kind, request};
use rouse_tests::{Frames, ORIGIN_HOST};

use crate::World;

/// What a flood may cost, in bytes: far less than it would if it were kept or unfolded.
const BOUND: usize = 128 << 20;

impl World {
    /// The memory that the proxy has now.
    fn memory(&self) -> usize {
        let file = format!("/proc/{}/statm", self.front.proxy.pid());
        let text = std::fs::read_to_string(file).expect("the proxy runs");
        let pages = text.split(' ').nth(1).and_then(|n| n.parse::<usize>().ok());
        pages.expect("a process has memory") * 4096
    }

    /// `flood` is over soon enough, costs little, and hits nobody else.
    async fn survives(&self, what: &str, flood: impl AsyncFnOnce(Frames)) {
        let before = self.memory();
        flood(self.frames().await).await;
        let grown = self.memory().saturating_sub(before);
        assert!(grown < BOUND, "{what}: {grown} bytes");
        self.fine().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_that_never_ends_is_cut_off() {
    let world = World::new().await;
    world
        .survives("CONTINUATION without end", async |mut frames| {
            frames.send(kind::HEADERS, END_STREAM, 1, &request("GET", ORIGIN_HOST, "/page")).await;
            let more = fields(&[(b"x", &[b'a'; 16_000])]);
            let mut sent = 0;
            while frames.send(kind::CONTINUATION, 0, 1, &more).await {
                sent += 1;
                assert!(sent < 20_000, "320 MB of one header are read");
            }
        })
        .await;
    world
        .survives("empty CONTINUATION without end", async |mut frames| {
            frames.send(kind::HEADERS, END_STREAM, 1, &request("GET", ORIGIN_HOST, "/page")).await;
            let mut sent = 0;
            while frames.send(kind::CONTINUATION, 0, 1, b"").await {
                sent += 1;
                assert!(sent < 2_000_000, "it is read for ever");
            }
        })
        .await;
    assert!(world.origin.requests().iter().all(|r| r.header("x").is_empty()), "none came of it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_header_that_unfolds_into_a_large_one_is_refused() {
    let world = World::new().await;
    world
        .survives("an HPACK bomb", async |mut frames| {
            // 3 KB into the table, and then the same over and over by one byte each.
            let value = [b'a'; 3000];
            let mut block = request("GET", ORIGIN_HOST, "/page");
            let mut literal = fields(&[(b"x", &value)]);
            literal[0] = 0x40;
            block.extend_from_slice(&literal);
            block.extend(std::iter::repeat_n(0xbe, 12_000));
            frames.send(kind::HEADERS, END_HEADERS | END_STREAM, 1, &block).await;
            let mut refused = false;
            for stream in (3..203).step_by(2) {
                let again = [request("GET", ORIGIN_HOST, "/page"), vec![0xbe; 16_000]].concat();
                frames.send(kind::HEADERS, END_HEADERS | END_STREAM, stream, &again).await;
            }
            for frame in frames.stream(1).await {
                refused |= frame.error().is_some() || frame.status().is_some_and(|s| s >= 400);
            }
            assert!(refused, "it is refused");
        })
        .await;
    let seen = world.origin.requests();
    assert!(seen.iter().all(|r| r.all("x").is_empty()), "none of it reaches the app");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_reset_at_once_end_the_connection() {
    const STREAMS: u32 = 100_000;
    let world = World::new().await;
    world
        .survives("rapid reset", async |mut frames| {
            let head = request("GET", ORIGIN_HOST, "/page");
            for n in 0..STREAMS {
                let stream = 2 * n + 1;
                let sent =
                    frames.send(kind::HEADERS, END_HEADERS | END_STREAM, stream, &head).await
                        && frames.send(kind::RST_STREAM, 0, stream, &8_u32.to_be_bytes()).await;
                if !sent {
                    return;
                }
            }
            panic!("{STREAMS} streams are opened and reset");
        })
        .await;
    let (seen, _) = world.origin.read();
    assert!(seen.len() < 10_000, "the app is spared: {}", seen.len());
}

/// Answers that nobody reads do not pile up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_and_settings_whose_answers_nobody_reads_are_not_kept() {
    let world = World::new().await;
    for (what, kind, payload) in
        [("PING", kind::PING, &b"12345678"[..]), ("SETTINGS", kind::SETTINGS, b"\0\x03\0\0\0\x64")]
    {
        world
            .survives(what, async |mut frames| {
                let flood = async {
                    for _ in 0..400_000 {
                        if !frames.send(kind, 0, 0, payload).await {
                            return;
                        }
                    }
                };
                // It may stop reading, which is as good as hanging up.
                let _ = tokio::time::timeout(std::time::Duration::from_secs(3), flood).await;
            })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_takes_is_not_read_from_the_app_either() {
    let world = World::new().await;
    let before = world.memory();
    let mut all = Vec::new();
    for _ in 0..8 {
        let mut frames = Frames::connect(world.front.h2c(), &[(0x4, 0)]).await;
        frames.get(1, ORIGIN_HOST, "/long").await;
        frames.until("a header", |f| f.kind == kind::HEADERS && f.stream == 1).await;
        all.push(frames);
    }
    world.fine().await;
    let grown = world.memory().saturating_sub(before);
    assert!(grown < BOUND, "of {} bytes, {grown} are kept", 8 * crate::LONG);
}
