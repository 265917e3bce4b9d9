//! `rouse-snapshot inspect`.

mod cells;
mod facts;
mod picture;
mod report;
mod svg;

use std::env;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rouse_snapshot_format::Map;

use crate::failure::{About, Failure};
use crate::kind::{Kind, map_of_image, open_archive};
use crate::output::Output;
use crate::text::say;
use facts::{Disk, Facts, Stored};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A map, an archive, or an image with its map beside it.
    file: PathBuf,
    /// The map of an image; beside it, with the ending .map, unless given.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Draws the image as a heat map instead of saying anything.
    #[arg(long, value_name = "OUT", conflicts_with = "json")]
    svg: Option<PathBuf>,
    /// Replaces a drawing that is there.
    #[arg(long, requires = "svg")]
    force: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (facts, map) = look(args)?;
    if let Some(out) = &args.svg {
        let draft = Output::claim(out, args.force, &[&args.file, &map])?.draft_for_all()?;
        draft.file().write_all(svg::draw(&facts).as_bytes()).about(out)?;
        return draft.publish(false);
    }
    if args.json {
        return say(report::json(&facts));
    }
    say(report::text(&facts, colour()))
}

/// What there is to say, and the file in which it is said. Never waits for a VM: it looks at what is
/// said of an image, and takes no lock.
fn look(args: &Args) -> Result<(Facts, PathBuf), Failure> {
    let path = &args.file;
    match Kind::of(path)? {
        Kind::Map => Ok((Facts::new("map", path, Map::open(path).about(path)?), path.clone())),
        Kind::Archive => {
            let archive = open_archive(path)?;
            let stored = Stored::new(archive.index(), archive.size());
            let facts = Facts::new("archive", path, archive.into_map());
            Ok((Facts { archive: Some(stored), ..facts }, path.clone()))
        }
        Kind::Image => {
            let (map_path, map) = map_of_image(path, args.map.as_deref())?;
            let meta = fs::metadata(path).about(path)?;
            // POSIX leaves the unit open; on Linux it is 512 bytes on every filesystem.
            let disk = Disk { size: meta.len(), allocated: meta.blocks() * 512 };
            Ok((Facts { disk: Some(disk), ..Facts::new("image", path, map) }, map_path))
        }
    }
}

/// Colours are for eyes, and not for everybody's: <https://no-color.org>.
fn colour() -> bool {
    io::stdout().is_terminal()
        && env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
        && env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

#[cfg(test)]
mod tests {
    use rouse_snapshot_format::{ImageId, Map, PageState, PageStates, WindowSize, WorkingSet};

    /// A map of ZERO pages, but for those of `data`, after one wake.
    pub(crate) fn map(mem_size: u64, data: impl IntoIterator<Item = u64>, touched: &[u32]) -> Map {
        let mut states = PageStates::all(mem_size, PageState::Zero);
        for page in data {
            states.set(page, PageState::Data).unwrap();
        }
        let id = ImageId::from_hex(&"1".repeat(32)).unwrap();
        let mut set = WorkingSet::new();
        set.record(touched.iter().copied(), WindowSize::DEFAULT);
        Map::new(id, None, WindowSize::DEFAULT, states).unwrap().with_working_set(set)
    }
}
