//! What is timed: our commands and their peers.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use super::lab::{Files, Holes, Lab, Tools, given, of, remove};

/// How zstd writes an image that has holes.
const UNZSTD: &[&str] = &["-q", "-f", "-d", "--sparse"];

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Part {
    Sparsify,
    Pack,
    Unpack,
    Verify,
    MapOpen,
    Memory,
}

/// One command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Job {
    /// In place.
    Sparsify,
    /// Into another file.
    SparsifyOutput,
    DigHoles,
    Cp,
    /// Of an image without a map, so that it is scanned, as zstd has to.
    Pack,
    /// Of a sparse image with its map.
    PackMapped,
    Zstd,
    Unpack,
    Unzstd,
    Verify,
}

/// What a job did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) took: Duration,
    /// What its output occupies on disk, in bytes; of an archive its length.
    pub(super) stored: u64,
}

impl Job {
    /// Those that are measured beside each other are in one part.
    pub(super) const ALL: [Self; 10] = [
        Self::Sparsify,
        Self::SparsifyOutput,
        Self::DigHoles,
        Self::Cp,
        Self::Pack,
        Self::PackMapped,
        Self::Zstd,
        Self::Unpack,
        Self::Unzstd,
        Self::Verify,
    ];

    /// In the report.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sparsify => "sparsify",
            Self::SparsifyOutput => "sparsify_output",
            Self::DigHoles => "fallocate_dig_holes",
            Self::Cp => "cp_sparse",
            Self::Pack => "pack",
            Self::PackMapped => "pack_with_map",
            Self::Zstd => "zstd_1",
            Self::Unpack => "unpack",
            Self::Unzstd => "zstd_d_sparse",
            Self::Verify => "verify",
        }
    }

    pub(super) fn part(self) -> Part {
        match self {
            Self::Sparsify | Self::SparsifyOutput | Self::DigHoles | Self::Cp => Part::Sparsify,
            Self::Pack | Self::PackMapped | Self::Zstd => Part::Pack,
            Self::Unpack | Self::Unzstd => Part::Unpack,
            Self::Verify => Part::Verify,
        }
    }

    fn is_ours(self) -> bool {
        !matches!(self, Self::DigHoles | Self::Cp | Self::Zstd | Self::Unzstd)
    }

    fn input(self, files: &Files) -> &Path {
        match self {
            Self::Sparsify | Self::DigHoles => &files.work,
            Self::SparsifyOutput | Self::Cp | Self::Pack | Self::Zstd => &files.written,
            Self::PackMapped | Self::Verify => &files.sparse,
            Self::Unpack => &files.archive,
            Self::Unzstd => &files.compressed,
        }
    }

    /// What it writes or changes, if it does.
    fn output(self, files: &Files) -> Option<&Path> {
        match self {
            Self::Sparsify | Self::DigHoles => Some(&files.work),
            Self::SparsifyOutput | Self::Cp | Self::Unpack | Self::Unzstd => Some(&files.out),
            Self::Pack | Self::PackMapped | Self::Zstd => Some(&files.packed),
            Self::Verify => None,
        }
    }

    fn command(self, tools: &Tools, files: &Files, synced: bool) -> Command {
        let ours = |command| tools.writer(command, synced);
        let zstd = |flags: &[&str]| of(&tools.zstd, flags);
        let (input, to) = (self.input(files), "-o".as_ref());
        let (out, packed) = (&*files.out, &*files.packed);
        match self {
            Self::Sparsify => given(ours("sparsify"), &[input]),
            Self::SparsifyOutput => given(ours("sparsify"), &[input, "--output".as_ref(), out]),
            Self::DigHoles => given(of(&tools.fallocate, &["--dig-holes"]), &[input]),
            Self::Cp => given(of(&tools.cp, &["--sparse=always"]), &[input, out]),
            Self::Pack | Self::PackMapped => given(ours("pack"), &[input, to, packed]),
            Self::Zstd => given(zstd(&["-q", "-f", "-T0", "-1"]), &[input, to, packed]),
            Self::Unpack => given(ours("unpack"), &[input, to, out]),
            Self::Unzstd => given(zstd(UNZSTD), &[input, to, out]),
            Self::Verify => given(tools.ours("verify"), &[input]),
        }
    }

    /// Does it once. All but the command itself is outside of the time: its input is made or read into
    /// the page cache, what is dirty is written back. With `synced` the output is durable in the
    /// end, which a peer leaves to `sync`.
    pub(super) async fn run(self, lab: &Lab, files: &Files, synced: bool) -> anyhow::Result<Done> {
        self.clean(files)?;
        if self.input(files) == files.work {
            lab.copy(&files.written, &files.work, Holes::Filled).await?;
        }
        lab.warm(self.input(files)).await?;
        lab.settle().await?;
        let mut took = lab.runner.run(self.command(&lab.tools, files, synced)).await?;
        let output = self.output(files);
        if let (true, false, Some(output)) = (synced, self.is_ours(), output) {
            took += lab.runner.run(given(of(&lab.tools.sync, &["--data"]), &[output])).await?;
        }
        let stored = output.map_or(Ok(0), |output| stored(output, self.part() == Part::Pack))?;
        Ok(Done { took, stored })
    }

    /// [`Self::run`] without telling the time, and with a look at what came of it.
    pub(super) async fn check(self, lab: &Lab, files: &Files) -> anyhow::Result<()> {
        self.run(lab, files, false).await?;
        if let Some(back) = self.restore(&lab.tools, files) {
            lab.runner.run(back).await.context(self.name())?;
        }
        let image = match self.part() {
            Part::Pack => Some(&*files.out),
            _ => self.output(files),
        };
        if let Some(image) = image {
            lab.same(&files.written, image).await.context(self.name())?;
        }
        remove(&files.out)?;
        remove(&files.out.with_extension("map"))?;
        self.clean(files)
    }

    /// Makes an image again of what it has packed.
    fn restore(self, tools: &Tools, files: &Files) -> Option<Command> {
        let back = match self {
            Self::Pack | Self::PackMapped => tools.writer("unpack", false),
            Self::Zstd => of(&tools.zstd, UNZSTD),
            _ => return None,
        };
        Some(given(back, &[&files.packed, "-o".as_ref(), &files.out]))
    }

    /// Removes what it has written, and the map that may lie beside it.
    pub(super) fn clean(self, files: &Files) -> anyhow::Result<()> {
        let Some(output) = self.output(files) else { return Ok(()) };
        remove(output)?;
        remove(&output.with_extension("map"))
    }
}

/// What a file occupies on disk, or how long it is.
fn stored(file: &Path, length: bool) -> anyhow::Result<u64> {
    let meta = std::fs::metadata(file).with_context(|| file.display().to_string())?;
    // st_blocks counts units of 512 bytes on every filesystem of Linux.
    Ok(if length { meta.len() } else { meta.blocks() * 512 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Tools {
        let program = |name: &str| name.into();
        Tools {
            ours: program("rouse-snapshot"),
            fallocate: program("fallocate"),
            cp: program("cp"),
            zstd: program("zstd"),
            sync: program("sync"),
            cmp: program("cmp"),
            cat: program("cat"),
            stat: program("stat"),
        }
    }

    /// A command as a person would type it.
    fn typed(command: &Command) -> String {
        let words = [command.get_program()].into_iter().chain(command.get_args());
        words.map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_compared() {
        let wanted = [
            "rouse-snapshot sparsify --no-sync work.img",
            "rouse-snapshot sparsify --no-sync written.img --output out.img",
            "fallocate --dig-holes work.img",
            "cp --sparse=always written.img out.img",
            "rouse-snapshot pack --no-sync written.img -o out.packed",
            "rouse-snapshot pack --no-sync sparse.img -o out.packed",
            "zstd -q -f -T0 -1 written.img -o out.packed",
            "rouse-snapshot unpack --no-sync archive.rsz -o out.img",
            "zstd -q -f -d --sparse compressed.zst -o out.img",
            "rouse-snapshot verify sparse.img",
        ];
        let (tools, files) = (tools(), Files::in_dir(Path::new("")));
        for (job, wanted) in Job::ALL.into_iter().zip(wanted) {
            assert_eq!(typed(&job.command(&tools, &files, false)), wanted);
            let synced = typed(&job.command(&tools, &files, true));
            assert_eq!(synced, wanted.replace(" --no-sync", ""));
        }
    }

    #[test]
    fn whatever_is_packed_is_unpacked_once() {
        let (tools, files) = (tools(), Files::in_dir(Path::new("")));
        for job in Job::ALL {
            let back = job.restore(&tools, &files).map(|command| typed(&command));
            let wanted = match job {
                Job::Pack | Job::PackMapped => "rouse-snapshot unpack --no-sync",
                Job::Zstd => "zstd -q -f -d --sparse",
                _ => {
                    assert_eq!(back, None);
                    continue;
                }
            };
            assert_eq!(back, Some(format!("{wanted} out.packed -o out.img")));
        }
    }
}
