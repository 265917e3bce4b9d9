//! `rouse-bench restore`: how fast an image comes back from an S3 server, beside what one would script.
//!
//! On two images: a large one that is made up, and a guest's own. The server runs in a process of its own on the same
//! machine, its link shaped to 100 MB/s with 30 ms to the first byte, for all requests together (a machine's own link,
//! which one GET fills as well as many) and for each (what a store gives a connection), and then not shaped. In turn run: ours; a plain
//! GET piped into `zstd -d`; a download to a file and `zstd -d` then. Nothing is synced, by none of them. Unshaped also
//! what bounds all of them here: the bytes of our archive copied over loopback, and their decompression alone.

mod image;
mod ours;
mod peers;
mod server;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use self::image::Image;
use self::ours::Ours;
use self::peers::Peers;
use self::server::{Link, Server};
use crate::guest::Guest;
use crate::machine;
use crate::report::{Bar, Report};
use crate::stats::{median, paired_ratio, worst};
use crate::units::mib;

pub(crate) use self::ours::{OursArgs, run_ours};
pub(crate) use self::server::run_server;

/// What is needed on disk besides twice the larger image, in bytes.
const SPACE: u64 = 4 << 30;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also print one JSON object, on the last line.
    #[arg(long)]
    json: bool,
    /// How often each way is measured.
    #[arg(long, default_value = "3")]
    rounds: NonZeroUsize,
    /// The size of the image that is made up, in MiB. Its bars are meant for the default.
    #[arg(long, value_name = "MIB", default_value = "4096")]
    synthetic_mib: NonZeroUsize,
    /// Where the images are made; beside the binaries unless given. All are removed in the end.
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    guest: Guest,
}

/// What was measured on one image over one link, in seconds.
#[derive(Debug, Default)]
struct Times {
    working_set: Vec<f64>,
    whole: Vec<f64>,
    pipe: Vec<f64>,
    script: Vec<f64>,
    copy: Vec<f64>,
    decode: Vec<f64>,
    peak_mib: Vec<f64>,
    requests: Vec<f64>,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let (curl, zstd) = (machine::installed("curl")?, machine::installed("zstd")?);
    let machine = machine::describe(&[("curl", &curl, "--version"), ("zstd", &zstd, "--version")]);
    println!("restore: from an S3 server on loopback, {} rounds; all share the cores", args.rounds);
    println!(
        "ours is timed from an open store on, as a waker has it; the peers with their processes"
    );
    machine::print(&machine);
    let place = match &args.dir {
        Some(dir) => dir.clone(),
        None => machine::bench_dir()?,
    };
    let bytes = (args.synthetic_mib.get() as u64) << 20;
    machine::ensure_space(&place, 2 * bytes + SPACE, "name another directory with --dir")?;
    let dir = tempfile::Builder::new().prefix("rouse-bench-").tempdir_in(&place)?;
    let mut report = json!({ "machine": machine });
    let mut bars = Vec::new();
    let mut server = Server::start(dir.path()).await?;
    for name in ["synthetic", "guest"] {
        let image = match name {
            "synthetic" => Image::synthetic(dir.path(), bytes)?,
            _ => Image::of_guest(dir.path(), &args.guest).await?,
        };
        let (ours, packed) = server.upload(&image).await?;
        println!(
            "{name}: {:.0} MiB, {:.0} MiB of them DATA, {:.0} MiB packed; the working set has {:.0} MiB of DATA",
            mib(image.bytes),
            mib(image.data),
            mib(packed),
            mib(image.working_set),
        );
        for link in Link::ALL {
            server.shape(link).await?;
            let times = measure(args, &server, &image, &ours, dir.path(), link).await?;
            tell(name, link.name(), packed, &times);
            report[format!("{name}, {}", link.name())] = figures(&times);
            bars.extend(bars_of(name, link, &times));
        }
        image.remove()?;
    }
    let mut report = Report::new("restore", report);
    for (name, value, bar) in bars {
        report = report.bar(name, value, bar);
    }
    report.print(args.json);
    Ok(())
}

async fn measure(
    args: &Args,
    server: &Server,
    image: &Image,
    ours: &Ours,
    dir: &Path,
    link: Link,
) -> anyhow::Result<Times> {
    let peers = Peers { server, dir };
    let mut times = Times::default();
    for round in 0..args.rounds.get() {
        let restored = dir.join("restored.img");
        // What others have written is not written back in our time, nor in theirs.
        tokio::task::spawn_blocking(nix::unistd::sync).await?;
        let run = ours.run(&restored).await?;
        if round == 0 {
            image.check(&restored).context("what ours restored")?;
        }
        std::fs::remove_file(&restored)?;
        times.working_set.push(run.working_set);
        times.whole.push(run.whole);
        times.peak_mib.push(run.peak_mib);
        times.requests.push(run.requests);
        times.pipe.push(peers.pipe(&restored).await?);
        if round == 0 {
            image.check(&restored).context("what the pipe restored")?;
        }
        std::fs::remove_file(&restored)?;
        times.script.push(peers.script(&restored).await?);
        std::fs::remove_file(&restored)?;
        if link == Link::Bare {
            times.copy.push(peers.copy(ours).await?);
            times.decode.push(image.decode(&restored).await?);
            std::fs::remove_file(&restored)?;
        }
    }
    ensure!(!times.whole.is_empty(), "nothing was measured");
    Ok(times)
}

fn of(values: &[f64]) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

fn tell(name: &str, link: &str, packed: u64, times: &Times) {
    let row = |what: &str, values: &[f64]| {
        if !values.is_empty() {
            println!(
                "  {what:<34} {:>8.2} s  {:>6.2} × ours",
                of(values),
                of(values) / of(&times.whole)
            );
        }
    };
    println!("{name}, {link}:");
    row("ours, the working set", &times.working_set);
    row("ours, all of it", &times.whole);
    row("GET | zstd -d", &times.pipe);
    row("GET to a file, then zstd -d", &times.script);
    row("our archive copied over loopback", &times.copy);
    row("our archive decompressed alone", &times.decode);
    let (peak, requests) = (worst(&times.peak_mib).unwrap_or(f64::NAN), of(&times.requests));
    let rate = mib(packed) / of(&times.whole) * 1.048_576;
    println!("  ours at the most {peak:.0} MiB of memory, {requests:.0} requests, {rate:.0} MB/s");
}

fn figures(times: &Times) -> Value {
    json!({
        "working_set_s": times.working_set, "whole_s": times.whole, "pipe_s": times.pipe,
        "script_s": times.script, "copy_s": times.copy, "decode_s": times.decode,
        "peak_mib": times.peak_mib, "requests": times.requests,
    })
}

fn bars_of(name: &str, over: Link, times: &Times) -> Vec<(String, f64, Bar)> {
    let link = over.name();
    let ratio = |ours: &[f64], theirs: &[f64]| paired_ratio(ours, theirs).unwrap_or(f64::NAN);
    let mut bars = vec![
        (
            format!("{name}, {link}: working set / whole"),
            ratio(&times.working_set, &times.whole),
            Bar::AtMost(0.35),
        ),
        (
            format!("{name}, {link}: peak memory, MiB"),
            worst(&times.peak_mib).unwrap_or(f64::NAN),
            Bar::AtMost(256.0),
        ),
    ];
    bars.push(if over == Link::Bare {
        let bounds = times.copy.iter().zip(&times.decode);
        let bounds: Vec<f64> = bounds.map(|(copy, decode)| copy.max(*decode)).collect();
        (
            format!("{name}, {link}: ours / slower of copy and decompression"),
            ratio(&times.whole, &bounds),
            Bar::AtMost(1.25),
        )
    } else {
        (
            format!("{name}, {link}: pipe / ours"),
            ratio(&times.pipe, &times.whole),
            Bar::AtLeast(5.0),
        )
    });
    bars
}
