//! How much memory each of our commands needs.

use anyhow::Context;

use super::lab::{Files, Holes, Lab, given, remove};
use super::synthetic;

/// What one command needed at most, in bytes.
pub(super) type Peak = (&'static str, u64);

/// Runs every command once on an image that has its map and a twin without one in `files.written`.
/// `holes` says what that twin is like.
pub(super) async fn measure(lab: &Lab, files: &Files, holes: Holes) -> anyhow::Result<Vec<Peak>> {
    let (next, layer) = (files.path("next.img"), files.path("layer.img"));
    lab.copy(&files.written, &files.work, holes).await?;
    lab.copy(&files.sparse, &next, Holes::Kept).await?;
    let (image, map) = (next.clone(), files.map.clone());
    tokio::task::spawn_blocking(move || synthetic::change(&image, &map)).await??;
    lab.make_map(&next).await?;

    let tools = &lab.tools;
    let ours = |command| tools.writer(command, false);
    remove(&files.archive)?;
    let (sparse, written, archive) = (&*files.sparse, &*files.written, &*files.archive);
    let (out, to) = (&*files.out, "-o".as_ref());
    let commands = [
        ("sparsify", given(ours("sparsify"), &[&files.work])),
        ("sparsify_output", given(ours("sparsify"), &[written, "--output".as_ref(), out])),
        ("pack", given(ours("pack"), &[written, to, archive])),
        ("unpack", given(ours("unpack"), &[archive, to, out])),
        ("verify", given(tools.ours("verify"), &[sparse])),
        ("verify_archive", given(tools.ours("verify"), &[archive])),
        ("inspect", given(tools.ours("inspect"), &[&files.map])),
        ("diff", given(tools.ours("diff"), &[sparse, &next, to, &layer])),
        ("merge", given(tools.ours("merge"), &[sparse, &layer, to, out])),
        // Last, for it changes the base.
        ("merge_in_place", given(tools.ours("merge"), &["--in-place".as_ref(), sparse, &layer])),
    ];
    let mut peaks = Vec::new();
    for (name, command) in commands {
        remove(out)?;
        remove(&out.with_extension("map"))?;
        peaks.push((name, lab.runner.peak_memory(&command).await?));
    }
    // A terabyte of holes takes longer to compare than all of this.
    if matches!(holes, Holes::Filled) {
        lab.same(sparse, &next).await.context("diff and merge")?;
    }
    Ok(peaks)
}
