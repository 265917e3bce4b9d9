//! `rouse-bench sleep`: what it costs to put an app to sleep, and what a visitor sees of it who comes
//! in the middle.
//!
//! A guest of 1 GiB is woken, has 100 MiB of its memory written anew, and is put to sleep, again and
//! again. In turn with it runs what one would use without Rouse: all of the memory is written to a
//! file. After that visitors come at ten evenly spread instants of a sleep.

mod full;
mod heap;
mod outcome;
mod place;
mod visitors;

use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Context, ensure};
use rouse_protocol::wake::{SleepReport, Tier};
use rouse_tests::{App, Binaries, DEFAULT_HOST, Node};

use self::full::Full;
use self::heap::Heap;
use self::outcome::Outcome;
use self::place::Place;
use self::visitors::Visitor;
use crate::guest::Guest;
use crate::machine;
use crate::stats::median;
use crate::units::{mib, ms};
use crate::visit::visit;

/// The app's id.
const APP: &str = "hello";
/// The guest's RAM, in MiB.
const MEMORY_MIB: u32 = 1024;
/// How much of it is written anew in each life, in MiB.
const DIRTY_MIB: u64 = 100;
/// What is needed on disk, in bytes: the image at its largest, a full copy of it, and room to breathe.
const SPACE: u64 = 3 << 30;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also print one JSON object, on the last line.
    #[arg(long)]
    json: bool,
    /// How many sleeps are measured, and how many times all of the memory is written.
    #[arg(long, default_value = "10")]
    cycles: NonZeroUsize,
    /// How often a visitor comes at each of the ten instants.
    #[arg(long, default_value = "3")]
    rounds: NonZeroUsize,
    #[command(flatten)]
    guest: Guest,
}

/// One cycle.
#[derive(Debug)]
struct Cycle {
    /// How long the visitor waited for the wake from the image, in milliseconds.
    wake_ms: f64,
    /// The sleep after it, as the waker told it.
    sleep: SleepReport,
    /// What the disk was given to write from the wake until the sleep was asked for, in bytes; none
    /// where the system does not tell. The kernel may write memory back before anybody asks.
    disk_life: Option<u64>,
    /// The same, from then on until the sleep was answered.
    disk_sleep: Option<u64>,
    /// All of the memory written, after it.
    full: Full,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let qemu = machine::installed("qemu-system-x86_64")?;
    let machine = machine::describe(&[("qemu", &qemu, "--version")]);
    let accel = args.guest.accelerator();
    println!(
        "sleep: {} sleeps of a microVM ({accel}) of {MEMORY_MIB} MiB, {DIRTY_MIB} MiB of them \
         written in each life; then {} rounds of visitors",
        args.cycles, args.rounds
    );
    machine::print(&machine);

    let binaries = args.guest.find()?;
    let (mut node, booted) = args.guest.booted_as(&binaries, app(&binaries)).await?;
    println!("first boot: {:.0} ms", ms(booted.took));
    let place = Place::of(node.root())?;
    println!("files: in {}, which is {}", node.root().display(), place.filesystem());
    let mut heap = Heap::default();
    node.sleep(APP).await;
    // One cycle that does not count, for the caches, and because only the first life has no such
    // memory yet.
    cycle(&node, &place, &mut heap).await.context("the cycle before the first")?;

    let mut cycles = Vec::new();
    for n in 1..=args.cycles.get() {
        let done = cycle(&node, &place, &mut heap).await.with_context(|| format!("cycle {n}"))?;
        println!("cycle {n:>3}: {}", done.tell());
        cycles.push(done);
    }
    let visitors = rounds(&node, &place, &mut heap, &cycles, args.rounds).await?;
    node.proxy.kill();
    node.waker.stop().await;

    let outcome = Outcome { machine, filesystem: place.filesystem(), cycles, visitors };
    outcome.report()?.print(args.json);
    Ok(())
}

/// The test app, with so much memory.
fn app(binaries: &Binaries) -> App {
    let mut app = App::hello(binaries).disk(256);
    app.vm.memory_mib = MEMORY_MIB;
    app
}

/// The app sleeps before and after.
async fn cycle(node: &Node, place: &Place, heap: &mut Heap) -> anyhow::Result<Cycle> {
    place.settle().await?;
    let begun = place.written();
    let wake_ms = woken(node).await?;
    heap.check(node).await?;
    heap.refill(node).await?;
    let (disk_life, asked) = (place.written_since(begun), place.written());
    let sleep = node.sleep(APP).await;
    let disk_sleep = place.written_since(asked);
    ensure!(sleep.tier == Tier::Image, "the app is {}, not an image", sleep.tier.as_str());

    place.settle().await?;
    let image = node.app_dir(APP).join(format!("gen-{}", sleep.generation.0));
    let full = Full::write(place, &image.join("memory.img"), &node.root().join("full.img")).await?;
    Ok(Cycle { wake_ms, sleep, disk_life, disk_sleep, full })
}

/// Wakes the sleeping app by a visit, and tells how long that took, in milliseconds.
async fn woken(node: &Node) -> anyhow::Result<f64> {
    let woken = visit(node.http(), DEFAULT_HOST, "/").await?;
    ensure!(woken.how == "resumed", "the app was not resumed, it was {}", woken.how);
    Ok(ms(woken.took))
}

/// Visitors at every instant of a sleep, so many times. The app sleeps before and after.
async fn rounds(
    node: &Node,
    place: &Place,
    heap: &mut Heap,
    cycles: &[Cycle],
    rounds: NonZeroUsize,
) -> anyhow::Result<Vec<Visitor>> {
    let lengths: Vec<_> = cycles.iter().map(|c| c.sleep.published_us as f64).collect();
    let length = Duration::from_secs_f64(median(&lengths).context("no cycles")? / 1e6);
    println!("visitors: at ten instants of a sleep that takes {:.0} ms", ms(length));
    let mut all = Vec::new();
    for n in 1..=rounds.get() {
        let met = visitors::round(node, place, heap, length)
            .await
            .with_context(|| format!("round {n}"))?;
        let told: Vec<_> = met.iter().map(Visitor::tell).collect();
        println!("round {n}: {}", told.join(", "));
        all.extend(met);
    }
    Ok(all)
}

impl Cycle {
    fn tell(&self) -> String {
        let (sleep, at) = (&self.sleep, |us: u64| us as f64 / 1e3);
        format!(
            "woken in {:.0} ms; saved after {:.0} ms, durable after {:.0}, gone after {:.0}, \
             {:.0} MiB written; all {:.0} MiB written in {:.0} ms",
            self.wake_ms,
            at(sleep.saved_us),
            at(sleep.durable_us),
            at(sleep.published_us),
            mib(sleep.written_bytes),
            mib(self.full.bytes),
            self.full.ms
        )
    }
}
