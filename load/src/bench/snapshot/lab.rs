//! The programs, and the files that they work on.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use rouse_snapshot_format::{Map, PAGE};

use super::command::Runner;
use crate::machine;

/// Where everything is measured.
#[derive(Debug)]
pub(super) struct Lab {
    pub(super) dir: PathBuf,
    pub(super) runner: Runner,
    pub(super) tools: Tools,
}

/// The programs under test, those beside them, and those that help.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) ours: PathBuf,
    pub(super) fallocate: PathBuf,
    pub(super) cp: PathBuf,
    pub(super) zstd: PathBuf,
    pub(super) sync: PathBuf,
    pub(super) cmp: PathBuf,
    pub(super) cat: PathBuf,
    pub(super) stat: PathBuf,
}

/// How a copy of an image is made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Holes {
    /// Zeros are written, as a VMM's full snapshot has them.
    Filled,
    /// Holes stay holes.
    Kept,
}

impl Tools {
    pub(super) fn find() -> anyhow::Result<Self> {
        Ok(Self {
            ours: machine::beside("rouse-snapshot")?,
            fallocate: machine::installed("fallocate")?,
            cp: machine::installed("cp")?,
            zstd: machine::installed("zstd")?,
            sync: machine::installed("sync")?,
            cmp: machine::installed("cmp")?,
            cat: machine::installed("cat")?,
            stat: machine::installed("stat")?,
        })
    }

    /// `rouse-snapshot`, to be given more arguments. Unless `synced`, what it writes may be lost
    /// with the power, as what the others write.
    pub(super) fn writer(&self, command: &str, synced: bool) -> Command {
        let mut ours = self.ours(command);
        if !synced {
            ours.arg("--no-sync");
        }
        ours
    }

    /// `rouse-snapshot`, to be given more arguments.
    pub(super) fn ours(&self, command: &str) -> Command {
        of(&self.ours, &[command])
    }

    /// What was measured with, for the report.
    pub(super) fn versions(&self) -> [(&'static str, &Path, &'static str); 3] {
        [
            ("fallocate", &self.fallocate, "--version"),
            ("cp", &self.cp, "--version"),
            ("zstd", &self.zstd, "-qV"),
        ]
    }
}

/// A command with these flags.
pub(super) fn of(program: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(flags);
    command
}

/// The command with more arguments.
pub(super) fn given(mut command: Command, args: &[&Path]) -> Command {
    command.args(args);
    command
}

/// How long a disk is left alone before a command is timed.
const SETTLE: Duration = Duration::from_millis(1000);

impl Lab {
    /// A copy whose blocks are its own.
    pub(super) async fn copy(&self, from: &Path, to: &Path, holes: Holes) -> anyhow::Result<()> {
        let sparse = match holes {
            Holes::Filled => "--sparse=never",
            Holes::Kept => "--sparse=always",
        };
        let cp = of(&self.tools.cp, &["--reflink=never", sparse]);
        self.runner.run(given(cp, &[from, to])).await?;
        Ok(())
    }

    /// Has a file in the page cache, as far as it fits.
    pub(super) async fn warm(&self, file: &Path) -> anyhow::Result<()> {
        self.runner.run(given(of(&self.tools.cat, &[]), &[file])).await?;
        Ok(())
    }

    /// Writes back whatever is dirty, so that it is not written back while the next one runs.
    pub(super) async fn settle(&self) -> anyhow::Result<()> {
        let sync = of(&self.tools.sync, &["--file-system"]);
        self.runner.run(given(sync, &[&self.dir])).await?;
        // Blocks of files that were removed are told to the disk after that (`discard`), which takes
        // whoever runs next up to twice the time.
        tokio::time::sleep(SETTLE).await;
        Ok(())
    }

    /// Whether two files are the same, byte by byte; an error if not. Whoever is fast and wrong is not
    /// fast.
    pub(super) async fn same(&self, one: &Path, other: &Path) -> anyhow::Result<()> {
        let cmp = given(of(&self.tools.cmp, &[]), &[one, other]);
        self.runner.run(cmp).await.context("an image is not what it was")?;
        Ok(())
    }

    /// Makes a map beside an image with holes.
    pub(super) async fn make_map(&self, image: &Path) -> anyhow::Result<()> {
        self.runner.run(given(self.tools.writer("sparsify", false), &[image])).await?;
        Ok(())
    }

    /// The filesystem's name.
    pub(super) async fn filesystem(&self) -> anyhow::Result<String> {
        let stat = of(&self.tools.stat, &["--file-system", "--format=%T"]);
        Ok(self.runner.output(given(stat, &[&self.dir])).await?.trim().to_owned())
    }
}

/// Removes what may not be there.
pub(super) fn remove(file: &Path) -> anyhow::Result<()> {
    match std::fs::remove_file(file) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| file.display().to_string())
        }
        _ => Ok(()),
    }
}

/// One image in all its forms, in a directory of its own.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) dir: PathBuf,
    /// With holes, and its map beside it.
    pub(super) sparse: PathBuf,
    pub(super) map: PathBuf,
    /// The same without a map, every block written (unless it says otherwise where it is made).
    pub(super) written: PathBuf,
    /// A copy of `written` to be changed in place.
    pub(super) work: PathBuf,
    /// As our archive, and as `zstd` makes it of `written`.
    pub(super) archive: PathBuf,
    pub(super) compressed: PathBuf,
    /// What programs write.
    pub(super) out: PathBuf,
    pub(super) packed: PathBuf,
}

impl Files {
    /// Their names; only the directory is made.
    pub(super) fn create(lab: &Lab, name: &str) -> anyhow::Result<Self> {
        let dir = lab.dir.join(name);
        std::fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self::in_dir(&dir))
    }

    pub(super) fn in_dir(dir: &Path) -> Self {
        let file = |name| dir.join(name);
        Self {
            sparse: file("sparse.img"),
            map: file("sparse.map"),
            written: file("written.img"),
            work: file("work.img"),
            archive: file("archive.rsz"),
            compressed: file("compressed.zst"),
            out: file("out.img"),
            packed: file("out.packed"),
            dir: dir.to_owned(),
        }
    }

    /// Another one of them.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// All other forms of the sparse image, which has its map.
    pub(super) async fn expand(&self, lab: &Lab) -> anyhow::Result<()> {
        lab.copy(&self.sparse, &self.written, Holes::Filled).await?;
        let there = std::fs::metadata(&self.written)?;
        ensure!(
            // st_blocks counts units of 512 bytes on every filesystem of Linux.
            there.blocks() * 512 >= there.len(),
            "{}: this filesystem does not keep zeros that are written, so there is nothing to find; \
             name a directory on another one with --dir",
            self.dir.display()
        );
        let pack = lab.tools.writer("pack", false);
        lab.runner.run(given(pack, &[&self.written, "-o".as_ref(), &self.archive])).await?;
        let zstd = of(&lab.tools.zstd, &["-q", "-T0", "-1"]);
        lab.runner.run(given(zstd, &[&self.written, "-o".as_ref(), &self.compressed])).await?;
        Ok(())
    }

    /// The image's size, and how many bytes its DATA pages have.
    pub(super) fn sizes(&self) -> anyhow::Result<(u64, u64)> {
        let map = Map::open(&self.map).with_context(|| self.map.display().to_string())?;
        Ok((map.mem_size(), map.counts().data * PAGE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_is_what_was_there_and_what_was_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("out.img");
        std::fs::write(&file, "x").unwrap();
        remove(&file).unwrap();
        assert!(!file.exists());
        remove(&file).unwrap();
        assert!(remove(dir.path()).is_err(), "a directory is no output");
    }
}
