//! `rouse-snapshot pack` and `unpack`.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rouse_snapshot_format::{
    Image, ImageId, PackOptions, Packed, SparsifyOptions, ToCopy, Work, pack,
};

use crate::failure::{About, Exit, Failure};
use crate::kind::{open_archive, open_image, refuse_half_merged, refuse_layer, require_image};
use crate::output::{Output, publish_image};
use crate::task::Task;
use crate::text::{note, say, size};

#[derive(clap::Args)]
pub(crate) struct PackArgs {
    /// The image.
    image: PathBuf,
    /// The archive; beside the image, with the ending .rsz, unless given. - is standard output.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The image's map; beside it, with the ending .map, unless given. Without one the image is
    /// scanned, and taken for a whole one.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// What to call an image that has no map: 32 hexadecimal digits; random unless given.
    #[arg(long, value_name = "ID", conflicts_with = "map")]
    image_id: Option<ImageId>,
    /// zstd's level: 1 is fastest, 19 smallest.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..=19))]
    level: i32,
    /// How many threads compress; one per core unless given.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Replaces an archive that is there.
    #[arg(long)]
    force: bool,
    /// Leaves it to the system when the archive becomes durable.
    #[arg(long)]
    no_sync: bool,
}

#[derive(clap::Args)]
pub(crate) struct UnpackArgs {
    /// The archive.
    archive: PathBuf,
    /// The image; beside the archive, with the ending .img, unless given.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Its map; beside the image, with the ending .map, unless given.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// How many threads decompress; one per core unless given.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Replaces an image and a map that are there.
    #[arg(long)]
    force: bool,
    /// Leaves it to the system when image and map become durable.
    #[arg(long)]
    no_sync: bool,
}

pub(crate) fn pack_image(args: &PackArgs, task: &Task) -> Result<(), Failure> {
    let path = &args.image;
    if args.output.as_deref() == Some(Path::new("-")) {
        let out = standard_output()?;
        let packed = compress(args, task, &out)?;
        // The archive has standard output.
        if !task.quiet() {
            note(summary(&packed, Path::new("standard output")));
        }
        return Ok(());
    }
    let out = args.output.clone().unwrap_or_else(|| path.with_extension("rsz"));
    let beside = Image::map_path(path);
    let map = args.map.as_ref().unwrap_or(&beside);
    let draft = Output::claim(&out, args.force, &[path, map, &beside])?.draft()?;
    let packed = compress(args, task, draft.file())?;
    draft.publish(!args.no_sync)?;
    if task.quiet() { Ok(()) } else { say(summary(&packed, &out)) }
}

/// Standard output as a file: without a buffer that waits for the ends of lines.
fn standard_output() -> Result<File, Failure> {
    let out = io::stdout();
    if out.is_terminal() {
        let why = "an archive is nothing for a terminal; redirect it, or name a file with -o";
        return Err(Failure::new(Exit::Usage, why));
    }
    Ok(File::from(out.as_fd().try_clone_to_owned().about("standard output".as_ref())?))
}

fn compress(args: &PackArgs, task: &Task, out: impl Write) -> Result<Packed, Failure> {
    let path = &args.image;
    let work = task.work(args.threads);
    let _bar = task.bar(format!("pack {}", path.display()));
    let beside = Image::map_path(path);
    let has_map = args.map.is_some() || beside.exists();
    refuse_half_merged(path, &[&beside, args.map.as_ref().unwrap_or(&beside)])?;
    let image = if has_map { named(args)? } else { scanned(args, work)? };
    pack(&image, out, &PackOptions { level: args.level, work }).about(path)
}

/// The image with the map that it has.
fn named(args: &PackArgs) -> Result<Image, Failure> {
    let image = open_image(&args.image, args.map.as_deref())?;
    let (id, mem_size) = (image.map().image_id(), image.map().mem_size());
    if image.map().parent().is_none() {
        refuse_layer(&args.image, &Image::map_path(&args.image), mem_size)?;
    }
    if args.image_id.is_some_and(|asked| asked != id) {
        let why = format!("its map says that this is the image {id}; leave --image-id out");
        return Err(Failure::new(Exit::BadInput, why)).about(&args.image);
    }
    Ok(image)
}

/// The image with a map made for it. What changes between the scan and the packing is found by the
/// latter.
fn scanned(args: &PackArgs, work: Work<'_>) -> Result<Image, Failure> {
    let path = &args.image;
    require_image(path)?;
    let options = SparsifyOptions { work, ..SparsifyOptions::default() };
    let image = ToCopy::open(path).about(path)?;
    let found = image.look(&options).about(path)?;
    let id = args.image_id.unwrap_or_else(ImageId::random);
    Ok(image.into_image(found, id))
}

fn summary(packed: &Packed, path: &Path) -> String {
    format!("{}: {} in {} frames", path.display(), size(packed.bytes), packed.frames)
}

pub(crate) fn unpack(args: &UnpackArgs, task: &Task) -> Result<(), Failure> {
    let path = &args.archive;
    let out = args.output.clone().unwrap_or_else(|| path.with_extension("img"));
    let map_path = args.map.clone().unwrap_or_else(|| Image::map_path(&out));
    let image = Output::claim(&out, args.force, &[path])?;
    let map_out = Output::claim(&map_path, args.force, &[path])?;
    image.differs_from(&map_path)?;

    let archive = open_archive(path)?;
    // Before all the work: the map that belongs to the image could not be written.
    archive.map().check_writable().about(path)?;
    let draft = image.draft()?;
    {
        let _bar = task.bar(format!("unpack {}", path.display()));
        archive.unpack(draft.file(), task.work(args.threads)).about(path)?;
    }
    publish_image(draft, archive.map(), map_out, !args.no_sync)?;
    if task.quiet() {
        return Ok(());
    }
    let map = archive.map();
    say(format!("{} is written, image {}", out.display(), map.image_id()))
}
