//! `rouse-bench snapshot`: what `rouse-snapshot` does, beside what one would use without it.
//!
//! On two images: the memory of a real guest, and a large one made of its pages. Both with every
//! block written, as a VMM's full snapshot is. Our commands and their peers run in turn, each round in
//! another order, and ratios are taken round by round. What they write is not synced, by none of
//! them; in rounds of their own they are measured with that too.

mod command;
mod contest;
mod job;
mod lab;
mod memory;
mod outcome;
mod peak;
mod rounds;
mod synthetic;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rouse_snapshot_format::PAGE;
use serde_json::Value;

use self::command::Runner;
use self::job::Part;
use self::lab::{Files, Holes, Lab, Tools, given};
use self::outcome::{Image, Outcome, Source};
use self::rounds::Results;
use self::synthetic::Shape;
use crate::guest::Guest;
use crate::machine;

pub(crate) use self::command::{PeakArgs, peak_memory};

/// How much of the large image is not zeros: what is common in guests that idle, where a snapshot
/// format gains most.
const DATA_PERCENT: u64 = 6;
/// The size of the image whose maps are as large as they get, in bytes.
const HUGE: u64 = 1 << 40;
/// What is needed on disk besides three times the larger image, in bytes: the real image and what is
/// sparse or compressed.
const SPACE: u64 = 3 << 30;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also print one JSON object, on the last line.
    #[arg(long)]
    json: bool,
    /// How often each command is measured.
    #[arg(long, default_value = "5")]
    rounds: NonZeroUsize,
    /// Where the images are made, about 15 GiB of them; beside the binaries unless given. All are
    /// removed in the end.
    #[arg(long)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    guest: Guest,
    /// The real image; the memory of the test guest, which is booted for it, unless given.
    #[arg(long, value_name = "FILE")]
    real: Option<PathBuf>,
    /// Only these parts.
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<Part>,
    /// The size of the large image, in MiB. For trying the benchmark out: its bars are meant for the
    /// default.
    #[arg(long, value_name = "MIB", default_value = "4096", hide = true)]
    synthetic_mib: NonZeroUsize,
}

impl Args {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// Those parts that are measured in rounds.
    fn rounds_of(&self) -> Vec<Part> {
        let parts = [Part::Sparsify, Part::Pack, Part::Unpack, Part::Verify];
        parts.into_iter().filter(|part| self.wants(*part)).collect()
    }

    /// The size of the large image, in bytes.
    fn synthetic_bytes(&self) -> u64 {
        (self.synthetic_mib.get() as u64) << 20
    }

    fn synthetic(&self) -> Shape {
        let pages = self.synthetic_bytes() / PAGE;
        Shape::Runs { pages, data: (pages * DATA_PERCENT / 100).max(1) }
    }
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let tools = Tools::find()?;
    let machine = machine::describe(&tools.versions());
    println!("snapshot: rouse-snapshot and its peers, {} rounds", args.rounds);
    machine::print(&machine);

    let place = match &args.dir {
        Some(dir) => dir.clone(),
        None => machine::bench_dir()?,
    };
    let real = match &args.real {
        Some(file) => std::fs::metadata(file).with_context(|| file.display().to_string())?.len(),
        None => 0,
    };
    let needed = args.synthetic_bytes().max(real).saturating_mul(3) + SPACE;
    machine::ensure_space(&place, needed, "name another directory with --dir")?;
    let dir = tempfile::Builder::new()
        .prefix("rouse-bench-")
        .tempdir_in(&place)
        .with_context(|| place.display().to_string())?;
    let runner = Runner::new(dir.path());
    let lab = Lab { dir: dir.path().to_owned(), runner, tools };
    let filesystem = lab.filesystem().await?;
    println!("files: in {}, which is {filesystem}", place.display());

    let mut outcome = Outcome::new(machine, filesystem, args.rounds.get());
    let real = Files::create(&lab, "real")?;
    let source = match &args.real {
        Some(file) => {
            lab.copy(file, &real.sparse, Holes::Kept).await?;
            Source::File(file.file_name().unwrap_or_default().display().to_string())
        }
        None => sleeping_guest(&lab, &args.guest, &real).await?,
    };
    lab.make_map(&real.sparse).await?;
    let mut image = Image::of("real", source, &real)?;
    image.results = compared(&lab, &real, args).await?;
    outcome.images.push(image);

    let (synthetic, shape) = (Files::create(&lab, "synthetic")?, args.synthetic());
    let mut image = made("synthetic", &lab, &synthetic, shape, &real).await?;
    if args.wants(Part::MapOpen) {
        let map = synthetic.map.clone();
        let opened = tokio::task::spawn_blocking(move || memory::map_open(&map)).await??;
        outcome.map_open_ms = Some(opened);
    }
    image.results = compared(&lab, &synthetic, args).await?;
    if args.wants(Part::Memory) {
        println!("memory: each command once");
        lab.copy(&synthetic.sparse, &synthetic.written, Holes::Filled).await?;
        image.peaks = peak::measure(&lab, &synthetic, shape).await?;
        std::fs::remove_dir_all(&synthetic.dir)?;
    }
    outcome.images.push(image);
    if args.wants(Part::Memory) {
        let (huge, shape) = (Files::create(&lab, "huge")?, Shape::Spread { pages: HUGE / PAGE });
        let mut image = made("sparse_1tib", &lab, &huge, shape, &real).await?;
        std::fs::hard_link(&huge.sparse, &huge.written)?;
        image.peaks = peak::measure(&lab, &huge, shape).await?;
        outcome.images.push(image);
    }
    drop(dir);
    outcome.report()?.print(args.json);
    Ok(())
}

/// Everything that is measured in rounds, on one image. Of its files only the sparse image and its
/// map are left.
async fn compared(lab: &Lab, files: &Files, args: &Args) -> anyhow::Result<Results> {
    let parts = args.rounds_of();
    if parts.is_empty() {
        return Ok(Results::default());
    }
    files.expand(lab).await?;
    let results = rounds::measure(lab, files, &parts, args.rounds).await?;
    for file in [&files.written, &files.archive, &files.compressed] {
        std::fs::remove_file(file).with_context(|| file.display().to_string())?;
    }
    Ok(results)
}

/// A sparse image of the pages of `real`, and its map.
async fn made(
    name: &'static str,
    lab: &Lab,
    files: &Files,
    shape: Shape,
    real: &Files,
) -> anyhow::Result<Image> {
    let (path, of) = (files.sparse.clone(), (real.sparse.clone(), real.map.clone()));
    let create = move || synthetic::create(&path, shape, (&of.0, &of.1));
    tokio::task::spawn_blocking(create).await??;
    lab.make_map(&files.sparse).await?;
    let source = Source::Real { layout: shape.describe() };
    Image::of(name, source, files)
}

/// The memory of a guest that was visited and put to sleep, and its map, as the waker has published
/// them.
async fn sleeping_guest(lab: &Lab, guest: &Guest, files: &Files) -> anyhow::Result<Source> {
    println!("booting the guest ({}) for its memory", guest.accelerator());
    let (mut node, _) = guest.booted(&guest.find()?).await?;
    node.sleep("hello").await;
    let image = published(&node.app_dir("hello"))?;
    lab.copy(&image.join("memory.img"), &files.sparse, Holes::Kept).await?;
    let cp = given(lab::of(&lab.tools.cp, &[]), &[&image.join("memory.map"), &files.map]);
    lab.runner.run(cp).await?;
    let accelerator = accelerator(&image.join("manifest.json"))?;
    node.proxy.kill();
    node.waker.stop().await;
    Ok(Source::Guest { accelerator })
}

/// What the VM ran on, from its image's manifest: who asks for `auto` does not know.
fn accelerator(manifest: &Path) -> anyhow::Result<String> {
    let failed = || manifest.display().to_string();
    let text = std::fs::read_to_string(manifest).with_context(failed)?;
    let manifest: Value = serde_json::from_str(&text).with_context(failed)?;
    let named = manifest["vmm"]["accelerator"].as_str();
    Ok(named.with_context(|| format!("{} names no accelerator", failed()))?.to_owned())
}

/// The directory of the app's only image.
fn published(app: &Path) -> anyhow::Result<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(app).with_context(|| app.display().to_string())? {
        let dir = entry?.path();
        let generation = dir.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"gen-"));
        if generation && dir.join("manifest.json").is_file() {
            found.push(dir);
        }
    }
    ensure!(found.len() == 1, "{} has {} images instead of one", app.display(), found.len());
    found.pop().context("no image")
}
