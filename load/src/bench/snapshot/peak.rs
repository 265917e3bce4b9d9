//! How much memory each of our commands needs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use rouse_snapshot_format::Map;

use super::lab::{Files, Holes, Lab, given, remove};
use super::synthetic::{self, Extent, Shape};

/// What one command needed at most, in bytes.
pub(super) type Peak = (&'static str, u64);

/// Runs every command once on an image of this shape, that has its map and a twin without one in
/// `files.written`. In the end the image is another.
pub(super) async fn measure(lab: &Lab, files: &Files, shape: Shape) -> anyhow::Result<Vec<Peak>> {
    let (holes, extent) = match shape {
        Shape::Runs { .. } => (Holes::Filled, Extent::Little),
        Shape::Spread { .. } => (Holes::Kept, Extent::Everywhere),
    };
    let [next, last] = ["next.img", "last.img"].map(|name| files.path(name));
    lab.copy(&files.written, &files.work, holes).await?;
    changed(lab, &files.sparse, &next, extent).await?;
    changed(lab, &next, &last, extent).await?;
    remove(&files.archive)?;

    let mut meter = Meter { lab, files, peaks: Vec::new() };
    whole(&mut meter).await?;
    let flat = layers(&mut meter, &next, &last).await?;
    // A terabyte of holes takes longer to compare than all of this.
    let compares = matches!(shape, Shape::Runs { .. });
    if compares {
        lab.same(&files.out, &last).await.context("merge of two layers")?;
    }
    // It changes the base.
    let in_place = given(lab.tools.ours("merge"), &["--in-place".as_ref(), &files.sparse, &flat]);
    meter.run("merge_in_place", in_place).await?;
    if compares {
        lab.same(&files.sparse, &last).await.context("merge in place of flattened layers")?;
    }
    Ok(meter.peaks)
}

/// Runs commands.
struct Meter<'a> {
    lab: &'a Lab,
    files: &'a Files,
    peaks: Vec<Peak>,
}

impl Meter<'_> {
    /// `files.out` is not there before.
    async fn run(&mut self, name: &'static str, command: Command) -> anyhow::Result<()> {
        remove(&self.files.out)?;
        remove(&self.files.out.with_extension("map"))?;
        self.peaks.push((name, self.lab.runner.peak_memory(&command).await?));
        Ok(())
    }
}

/// The commands for one image and its archive.
async fn whole(meter: &mut Meter<'_>) -> anyhow::Result<()> {
    let (files, tools) = (meter.files, &meter.lab.tools);
    let [recorded, trace] = ["recorded.map", "trace"].map(|name| files.path(name));
    let copied = std::fs::copy(&files.map, &recorded);
    copied.with_context(|| recorded.display().to_string())?;
    write_trace(&files.map, &trace).with_context(|| trace.display().to_string())?;

    let ours = |command| tools.writer(command, false);
    let (sparse, written, archive) = (&*files.sparse, &*files.written, &*files.archive);
    let (out, to) = (&*files.out, "-o".as_ref());
    let commands = [
        ("sparsify", given(ours("sparsify"), &[&files.work])),
        ("sparsify_output", given(ours("sparsify"), &[written, "--output".as_ref(), out])),
        ("pack", given(ours("pack"), &[written, to, archive])),
        ("unpack", given(ours("unpack"), &[archive, to, out])),
        ("verify", given(tools.ours("verify"), &[sparse])),
        ("verify_archive", given(tools.ours("verify"), &[archive])),
        ("record", given(ours("record"), &[&recorded, &trace])),
        ("inspect_map", given(tools.ours("inspect"), &[&recorded])),
        ("inspect_image", given(tools.ours("inspect"), &[sparse])),
        ("inspect_archive", given(tools.ours("inspect"), &[archive])),
    ];
    for (name, command) in commands {
        meter.run(name, command).await?;
    }
    Ok(())
}

/// The commands for layers, but for the one that changes their base: `next` is over the image, and
/// `last` over `next`. Returns the layer that is both; `files.out` is what they make of the image.
async fn layers(meter: &mut Meter<'_>, next: &Path, last: &Path) -> anyhow::Result<PathBuf> {
    let (files, tools) = (meter.files, &meter.lab.tools);
    let ours = |command| tools.writer(command, false);
    let [first, second, flat] =
        ["first.layer", "second.layer", "flat.layer"].map(|name| files.path(name));
    let (sparse, out, to) = (&*files.sparse, &*files.out, "-o".as_ref());
    let imported = files.path("imported.map");
    // A layer's file is what a VMM could have written: a hole is what did not change.
    let import = ["--base".as_ref(), sparse, "--map".as_ref(), &*imported];

    meter.run("diff", given(ours("diff"), &[sparse, next, to, &first])).await?;
    meter.lab.runner.run(given(ours("diff"), &[next, last, to, &second])).await?;
    let commands = [
        ("import_diff", given(given(ours("import-diff"), &[&first]), &import)),
        ("merge", given(ours("merge"), &[sparse, &first, to, out])),
        ("merge_flatten", {
            given(ours("merge"), &["--flatten".as_ref(), &first, &second, to, &flat])
        }),
        ("merge_two_layers", given(ours("merge"), &[sparse, &first, &second, to, out])),
    ];
    for (name, command) in commands {
        meter.run(name, command).await?;
    }
    Ok(flat)
}

/// A copy of a sparse image with changes, and its map.
async fn changed(lab: &Lab, from: &Path, to: &Path, extent: Extent) -> anyhow::Result<()> {
    lab.copy(from, to, Holes::Kept).await?;
    let (image, map) = (to.to_owned(), from.with_extension("map"));
    tokio::task::spawn_blocking(move || synthetic::change(&image, &map, extent)).await??;
    lab.make_map(to).await
}

/// The longest trace that tells something: of a wake that touched every window of the image.
fn write_trace(map: &Path, trace: &Path) -> anyhow::Result<()> {
    let map = Map::open(map)?;
    let mut lines = BufWriter::new(File::create(trace)?);
    for window in 0..map.windows() {
        writeln!(lines, "{:#x}", map.window_bytes(window).start)?;
    }
    Ok(lines.flush()?)
}
