//! `rouse-snapshot diff`, `merge` and `import-diff`.

use std::fs::File;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use rouse_snapshot_format::{
    BaseBytes, Image, ImageId, LayerOptions, Map, MergeError, MergeInPlaceError, VmmDiffOptions,
    diff, flatten, journal_path, merge_copy, merge_in_place, vmm_diff,
};

use crate::failure::{About, Exit, Failure};
use crate::kind::{Kind, map_of_image, open_archive, open_image};
use crate::output::{Output, publish_map};
use crate::task::Task;
use crate::text::{say, size};

/// What these commands have in common.
#[derive(clap::Args)]
struct Common {
    /// The map of what is written; beside it, with the ending .map, unless given.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// How many threads work; one per core unless given.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Replaces what is there.
    #[arg(long)]
    force: bool,
    /// Leaves it to the system when what is written becomes durable.
    #[arg(long)]
    no_sync: bool,
}

#[derive(clap::Args)]
pub(crate) struct DiffArgs {
    /// The whole image that the layer will lie on.
    base: PathBuf,
    /// The whole image that base and layer make together.
    new: PathBuf,
    /// The layer.
    #[arg(short, long, value_name = "LAYER")]
    output: PathBuf,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
pub(crate) struct MergeArgs {
    /// The base and its layers from the bottom up; with --flatten the layers alone.
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// The merged image.
    #[arg(short, long, value_name = "OUT", required_unless_present = "in_place")]
    output: Option<PathBuf>,
    /// Changes the base itself, which can't be undone, and the map beside it. After an interruption
    /// the same command goes on.
    // Another map's journal would not be seen by who looks at the image.
    #[arg(long, conflicts_with_all = ["output", "flatten", "force", "no_sync", "map"])]
    in_place: bool,
    /// Makes one layer of several, without their base.
    #[arg(long)]
    flatten: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
pub(crate) struct ImportArgs {
    /// The sparse file as the VMM wrote it: a hole is a page that did not change. It is not touched.
    file: PathBuf,
    /// What it is a layer over: an image with its map beside it, or a map or an archive of it.
    #[arg(long, value_name = "FILE")]
    base: PathBuf,
    /// What to call the layer: 32 hexadecimal digits; random unless given.
    #[arg(long, value_name = "ID")]
    image_id: Option<ImageId>,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run_diff(args: &DiffArgs, task: &Task) -> Result<(), Failure> {
    let (out, map_out) = claim(&args.output, &args.common, &[&args.base, &args.new])?;
    let (base, new) = (open_image(&args.base, None)?, open_image(&args.new, None)?);
    let bar = task.bar(format!("diff {}", args.new.display()));
    let made = diff(&base, &new, out.path(), map_out.path(), &options(&args.common, task))
        .about(out.path())?;
    drop(bar);
    report(out.path(), &made.map, "", task)
}

pub(crate) fn run_merge(args: &MergeArgs, task: &Task) -> Result<(), Failure> {
    let (least, what) = if args.flatten { (1, "one layer") } else { (2, "a base and one layer") };
    if args.images.len() < least {
        let why = format!("name at least {what}");
        return Err(Failure::new(Exit::Usage, why));
    }
    let paths: Vec<&Path> = args.images.iter().map(PathBuf::as_path).collect();
    match &args.output {
        None => merge_into(paths[0], &paths[1..], args, task),
        Some(out) => merge_to(out, &paths, args, task),
    }
}

fn merge_to(out: &Path, paths: &[&Path], args: &MergeArgs, task: &Task) -> Result<(), Failure> {
    let (out, map_out) = claim(out, &args.common, paths)?;
    let images = open_images(paths)?;
    let images: Vec<&Image> = images.iter().collect();
    let options = options(&args.common, task);
    let bar = task.bar(format!("merge {}", out.path().display()));
    let made = if args.flatten {
        flatten(&images, out.path(), map_out.path(), &options)
    } else {
        merge_copy(images[0], &images[1..], out.path(), map_out.path(), &options)
    };
    let made = made.about(out.path())?;
    drop(bar);
    let how = match made.base {
        BaseBytes::Reflinked => ", the base's blocks shared",
        BaseBytes::Copied => ", the base copied",
        BaseBytes::None => "",
    };
    let how = format!(": {} of data written{how}", size(made.written_bytes));
    report(out.path(), &made.map, &how, task)
}

fn merge_into(base: &Path, layers: &[&Path], args: &MergeArgs, task: &Task) -> Result<(), Failure> {
    let map_path = Image::map_path(base);
    let layers = open_images(layers)?;
    let layers: Vec<&Image> = layers.iter().collect();
    let bar = task.bar(format!("merge into {}", base.display()));
    let done = merge_in_place(base, &map_path, &layers, &task.work(args.common.threads));
    drop(bar);
    let done = done.map_err(|error| {
        let goes_on = begun(&error) && journal_path(&map_path).exists();
        let failure = Failure::from(error);
        if goes_on {
            failure.and("the image is merged in part: the same command goes on")
        } else {
            failure
        }
    });
    let done = done.about(base)?;
    let how = if done.resumed { ": an earlier merge went on, or was done" } else { "" };
    report(base, &done.map, how, task)
}

/// Whether it is an error of the very merge that the journal is about, if there is one.
fn begun(error: &MergeInPlaceError) -> bool {
    use MergeInPlaceError as Error;
    match error {
        Error::Merge(MergeError::Chain(_)) => false,
        Error::Merge(_) | Error::Write(_) | Error::Remove { .. } => true,
        // That one never came to look at the image, or found it to be about another.
        Error::Open(_)
        | Error::Journal { .. }
        | Error::OtherMerge { .. }
        | Error::ForeignJournal { .. }
        | Error::Size { .. } => false,
    }
}

pub(crate) fn run_import(args: &ImportArgs, task: &Task) -> Result<(), Failure> {
    let map_path = args.common.map.clone().unwrap_or_else(|| Image::map_path(&args.file));
    let kind = Kind::of(&args.base)?;
    let base_map =
        if kind == Kind::Image { Image::map_path(&args.base) } else { args.base.clone() };
    let inputs: [&Path; 3] = [&args.file, &args.base, &base_map];
    let out = Output::claim(&map_path, args.common.force, &inputs)?;
    let base = match kind {
        Kind::Map => Map::open(&args.base).about(&args.base)?,
        Kind::Archive => open_archive(&args.base)?.map().clone(),
        Kind::Image => map_of_image(&args.base, None)?.1,
    };
    let bar = task.bar(format!("import {}", args.file.display()));
    let options =
        VmmDiffOptions { work: task.work(args.common.threads), window: Some(base.window_size()) };
    let id = args.image_id.unwrap_or_else(ImageId::random);
    let map = vmm_diff(&args.file, id, base.image_id(), &options).about(&args.file)?;
    drop(bar);
    if map.mem_size() != base.mem_size() {
        let why = format!(
            "this has {} bytes, and the image that it is to be a layer over has {}; a VMM's diff \
             is as large as the memory",
            map.mem_size(),
            base.mem_size()
        );
        return Err(Failure::new(Exit::BadInput, why)).about(&args.file);
    }
    let sync = !args.common.no_sync;
    if sync {
        // A map must never be more durable than what it speaks of.
        File::open(&args.file).and_then(|file| file.sync_data()).about(&args.file)?;
    }
    publish_map(&map, out, sync)?;
    report(&map_path, &map, "", task)
}

fn claim(out: &Path, common: &Common, images: &[&Path]) -> Result<(Output, Output), Failure> {
    let maps: Vec<PathBuf> = images.iter().map(Image::map_path).collect();
    let inputs: Vec<&Path> =
        images.iter().copied().chain(maps.iter().map(PathBuf::as_path)).collect();
    let map_path = common.map.clone().unwrap_or_else(|| Image::map_path(out));
    let out = Output::claim(out, common.force, &inputs)?;
    out.differs_from(&map_path)?;
    Ok((out, Output::claim(map_path, common.force, &inputs)?))
}

fn open_images(paths: &[&Path]) -> Result<Vec<Image>, Failure> {
    paths.iter().map(|path| open_image(path, None)).collect()
}

fn options<'a>(common: &Common, task: &'a Task) -> LayerOptions<'a> {
    LayerOptions { work: task.work(common.threads), sync: !common.no_sync, replace: common.force }
}

fn report(path: &Path, map: &Map, how: &str, task: &Task) -> Result<(), Failure> {
    if task.quiet() {
        return Ok(());
    }
    let over = map.parent().map(|parent| format!(", a layer over {parent}")).unwrap_or_default();
    say(format!("{} is written, image {}{over}{how}", path.display(), map.image_id()))
}
