//! `rouse-snapshot sparsify`.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rouse_snapshot_format::{ImageId, Map, OpenMapError, Punching, SparsifyOptions, sparsify};

use crate::inspect::size;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The image. Nobody may have it mapped or locked.
    image: PathBuf,
    /// Where to write the map; beside the image, with the ending .map, unless given. A map that is
    /// there keeps its image id.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// How many threads read the image; one per core unless given.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Only say what would be found; neither punch nor write a map.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let map_path = args.map.clone().unwrap_or_else(|| args.image.with_extension("map"));
    if map_path == args.image {
        bail!(
            "{}: the map would overwrite the image; name another with --map",
            args.image.display()
        );
    }
    let image_id = id_to_keep(&map_path)?;

    let options = SparsifyOptions { threads: args.threads, dry_run: args.dry_run };
    let found = sparsify(&args.image, &options)?;
    println!("{:>10} pages of data, {} of zeros", found.data_pages(), found.zero_pages());
    println!(
        "{:>10} punched, {} allocated before, {} now",
        size(found.punched_bytes),
        size(found.allocated_before),
        size(found.allocated_after),
    );
    match found.punching {
        Punching::Done => {}
        Punching::Unsupported => println!("this filesystem can't punch holes; no space was saved"),
        Punching::Off => return Ok(()),
    }

    // A map must never be more durable than what it speaks of.
    File::open(&args.image)
        .and_then(|image| image.sync_data())
        .with_context(|| format!("{} can't be synced", args.image.display()))?;
    let map = found.into_map(image_id);
    map.write(&map_path)?;
    println!("{} is written, image {image_id}", map_path.display());
    Ok(())
}

/// The id that binds the image to its VM state and disk must survive.
fn id_to_keep(map: &Path) -> anyhow::Result<ImageId> {
    match Map::open(map) {
        Ok(map) if map.parent().is_some() => {
            bail!(
                "this is a layer over another image, where a hole means \"unchanged\"; merge it first"
            )
        }
        Ok(map) => Ok(map.image_id()),
        Err(OpenMapError::Io(e)) if e.kind() == io::ErrorKind::NotFound => Ok(ImageId::random()),
        Err(e) => Err(e).with_context(|| format!("{}, whose image id must be kept", map.display())),
    }
}
