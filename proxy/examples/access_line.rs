//! What one line of the access log costs whoever makes it: `cargo run --release -p rouse-proxy
//! --example access_line`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "answers on the command line")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use rouse_proxy::Record;

const ROUNDS: u32 = 11;
const LINES: u32 = 50_000;

fn main() {
    let record = Record {
        time: Duration::from_millis(1_796_100_000_123),
        app: Some("hello"),
        generation: Some(7),
        host: Some(b"hello.example.org"),
        method: "GET",
        path: b"/articles/2026/a-path-of-common-length",
        protocol: http::Version::HTTP_2,
        tls: Some("TLSv1.3"),
        certificate: None,
        client: Some([203, 0, 113, 7].into()),
        status: Some(200),
        bytes_out: 48_213,
        bytes_in: 0,
        duration: Duration::from_micros(3_217),
        held: None,
        wake: None,
        phases: None,
        error: None,
        user_agent: Some(b"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
        trace_id: Some(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736),
        upstream_reused: Some(true),
        retries: 0,
    };
    let escaped = Record { user_agent: Some("a \"quoted\" agent, ü".as_bytes()), ..record };
    for (name, record) in [("plain", record), ("escaped", escaped)] {
        let mut rounds: Vec<_> = (0..ROUNDS)
            .map(|_| {
                let began = Instant::now();
                for _ in 0..LINES {
                    drop(black_box(black_box(&record).line()));
                }
                began.elapsed().as_nanos() / u128::from(LINES)
            })
            .collect();
        rounds.sort_unstable();
        let (low, median) = (rounds[0], rounds[rounds.len() / 2]);
        println!("{name}: {median} ns a line (least {low}), {} bytes", record.line().len());
    }
}
