//! `rouse-snapshot verify`.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use rouse_snapshot_format::{Map, verify_image};

use crate::failure::{About, Exit, Failure};
use crate::kind::{Kind, open_archive, open_image};
use crate::task::Task;
use crate::text::{complain, say, size};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Maps, archives, or images with their maps beside them.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The map of the image, where only one FILE is given; beside it unless given.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// How many threads read; one per core unless given.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

/// Looks at every file, also behind a bad one. Ends as the first bad one says.
pub(crate) fn run(args: &Args, task: &Task) -> Result<(), Failure> {
    if args.map.is_some() && args.files.len() > 1 {
        return Err(Failure::new(Exit::Usage, "--map is for one image; name one FILE"));
    }
    let mut first_bad = None;
    for file in &args.files {
        match verify(file, args, task) {
            Ok(good) if task.quiet() => drop(good),
            Ok(good) => say(format!("{}: good: {good}", file.display()))?,
            Err(failure) if failure.exit() == Exit::Cancelled => return Err(failure),
            Err(failure) => {
                complain(&failure);
                first_bad.get_or_insert(failure.exit());
            }
        }
    }
    first_bad.map_or(Ok(()), |exit| Err(Failure::said(exit)))
}

/// What was looked at and found good.
fn verify(path: &Path, args: &Args, task: &Task) -> Result<String, Failure> {
    let _bar = task.bar(format!("verify {}", path.display()));
    let work = task.work(args.threads);
    match Kind::of(path)? {
        Kind::Map => {
            let map = Map::open(path).about(path)?;
            Ok(format!("map of image {}{}", map.image_id(), working_set(&map)))
        }
        Kind::Archive => {
            let archive = open_archive(path)?;
            archive.verify(work).about(path)?;
            let (id, frames) = (archive.map().image_id(), archive.index().frames());
            Ok(format!("archive of image {id}, {frames} frames"))
        }
        Kind::Image => {
            let image = open_image(path, args.map.as_deref())?;
            let verified = verify_image(&image, work).about(path)?;
            let map = image.map();
            let data = if map.has_checksums() {
                format!("{} of data are what the map says", size(verified.checked_bytes))
            } else {
                "zeros are zeros; the map has no checksums, so data was not looked at".to_owned()
            };
            Ok(format!("image {}, {data}{}", map.image_id(), working_set(map)))
        }
    }
}

/// Damage that costs nothing but time.
fn working_set(map: &Map) -> &'static str {
    if map.working_set_dropped() { "; its working set is damaged and was left out" } else { "" }
}
