//! `rouse-snapshot sparsify`.

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use rouse_snapshot_format::{
    Image, ImageId, Map, OpenMapError, Punching, Sparsified, SparsifyOptions, ToCopy, ToPunch,
    WindowSize,
};

use crate::failure::{About, Exit, Failure};
use crate::kind::{a_layer, refuse_half_merged, refuse_layer, require_image};
use crate::output::{Output, publish_image, write_map};
use crate::task::Task;
use crate::text::{say, size};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The image. Nobody may have it mapped or locked.
    image: PathBuf,
    /// Where to write the map; beside the image, with the ending .map, unless given. A map that is
    /// there keeps its image id.
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Leaves the image as it is and writes a copy without its zero pages.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The map's windows: a power of two from 64 to 4096; 256 unless the image has more than 256 GiB
    /// or a map that says otherwise.
    #[arg(long, value_name = "KIB", value_parser = window)]
    window: Option<WindowSize>,
    /// How many threads read the image; one per core unless given.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Only says what would be found; neither punches nor writes.
    #[arg(long)]
    dry_run: bool,
    /// Leaves it to the system when what is written becomes durable.
    #[arg(long)]
    no_sync: bool,
    /// Replaces a copy that is there, and a map that can't be read or is of an image of another
    /// size: the image then gets a new id.
    #[arg(long)]
    force: bool,
}

/// A window's size as it is given on the command line.
pub(crate) fn window(kib: &str) -> Result<WindowSize, String> {
    let refused = || "a window is a power of two from 64 to 4096 KiB".to_owned();
    let bytes = kib.parse::<u64>().ok().and_then(|kib| kib.checked_mul(1024));
    let bytes = bytes.filter(|bytes| bytes.is_power_of_two()).ok_or_else(refused)?;
    WindowSize::from_shift(bytes.trailing_zeros() as u8).map_err(|_| refused())
}

pub(crate) fn run(args: &Args, task: &Task) -> Result<(), Failure> {
    require_image(&args.image)?;
    // The map is written before anything is said, and nobody waits for who listens: the lock is gone.
    let said = match &args.output {
        None => in_place(args, task)?,
        Some(out) => to_copy(args, out, task)?,
    };
    if task.quiet() { Ok(()) } else { say(said) }
}

/// Returns what there is to say.
fn in_place(args: &Args, task: &Task) -> Result<String, Failure> {
    let image = &args.image;
    let beside = Image::map_path(image);
    let map_path = args.map.as_ref().unwrap_or(&beside);
    // The map that is there is the one to renew.
    Output::claim(map_path, true, &[image])?;
    // Until the map is written, so that nobody changes it or the image in between.
    let locked = ToPunch::open(image).about(image)?;
    refuse_half_merged(image, &[&beside, map_path])?;
    refuse_layer(image, &beside, locked.mem_size())?;
    let old = old_map(map_path, locked.mem_size(), args.force)?;
    if let Some(old) = &old {
        // Refused if it has what we would lose.
        old.check_writable().about(map_path)?;
    }

    let options = options(args, old.as_ref(), task);
    let bar = task.bar(format!("sparsify {}", image.display()));
    let found = locked.punch(&options).about(image)?;
    drop(bar);
    let said = summary(&found, false);
    if args.dry_run {
        return Ok(said);
    }
    let map = with_identity(found, old);
    write_map(&map, map_path, options.sync)?;
    Ok(format!("{said}\n{}", written(map_path, &map)))
}

/// Returns what there is to say.
fn to_copy(args: &Args, out: &Path, task: &Task) -> Result<String, Failure> {
    let image = &args.image;
    let beside = Image::map_path(image);
    let map_path = args.map.clone().unwrap_or_else(|| Image::map_path(out));
    let out = Output::claim(out, args.force, &[image, &beside])?;
    out.differs_from(&map_path)?;
    let map_out = Output::claim(&map_path, args.force, &[image, &beside])?;
    let locked = ToCopy::open(image).about(image)?;
    refuse_half_merged(image, &[&beside])?;
    let old = old_map(&beside, locked.mem_size(), args.force)?;

    let options = options(args, old.as_ref(), task);
    let bar = task.bar(format!("sparsify {}", image.display()));
    if args.dry_run {
        return Ok(summary(&locked.look(&options).about(image)?, true));
    }
    let draft = out.draft()?;
    // It is synced when it gets its name.
    let unsynced = SparsifyOptions { sync: false, ..options };
    let found = locked.copy_to(draft.file(), &unsynced).about(image)?;
    drop(bar);
    let said = summary(&found, true);
    let map = with_identity(found, old);
    publish_image(draft, &map, map_out, options.sync)?;
    Ok(format!("{said}\n{}", written(&map_path, &map)))
}

fn options<'a>(args: &Args, old: Option<&Map>, task: &'a Task) -> SparsifyOptions<'a> {
    SparsifyOptions {
        work: task.work(args.threads),
        dry_run: args.dry_run,
        window: args.window.or_else(|| old.map(Map::window_size)),
        sync: !args.no_sync,
        ..SparsifyOptions::default()
    }
}

/// The map of what was found, as the one that the image had: the id binds the image to its VM state
/// and disk, and what a wake touches first is as good as before.
fn with_identity(found: Sparsified, old: Option<Map>) -> Map {
    let map = found.into_map(old.as_ref().map_or_else(ImageId::random, Map::image_id));
    match old {
        // Windows of another size have other numbers.
        Some(old) if old.window_size() == map.window_size() => {
            map.with_working_set(old.working_set().clone())
        }
        _ => map,
    }
}

fn summary(found: &Sparsified, copied: bool) -> String {
    let pages =
        format!("{:>10} pages of data, {} of zeros", found.data_pages(), found.zero_pages());
    let (before, now) = (size(found.allocated_before), size(found.allocated_after));
    if copied {
        return format!("{pages}\n{now:>10} allocated by the copy, {before} by the image");
    }
    let punched = size(found.punched_bytes);
    let mut said = format!("{pages}\n{punched:>10} punched, {before} allocated before, {now} now");
    if found.punching == Punching::Unsupported {
        said.push_str("\nthis filesystem can't punch holes; no space was saved");
    }
    said
}

fn written(path: &Path, map: &Map) -> String {
    format!("{} is written, image {}", path.display(), map.image_id())
}

/// The map that the image of `mem_size` bytes has, if any. Its id must survive.
fn old_map(path: &Path, mem_size: u64, force: bool) -> Result<Option<Map>, Failure> {
    let failure = match Map::open(path) {
        // Even by force: this can't be taken back.
        Ok(map) if map.parent().is_some() => return Err(a_layer()).about(path),
        Ok(map) if map.mem_size() == mem_size => return Ok(Some(map)),
        Err(OpenMapError::Io(e)) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(OpenMapError::Io(error)) => return Err(error).about(path),
        _ if force => return Ok(None),
        Ok(map) => {
            let why = format!(
                "the map is of an image of {} bytes, and this one has {mem_size}; `--force` \
                 replaces it and gives the image a new id",
                map.mem_size()
            );
            Failure::new(Exit::BadInput, why)
        }
        Err(error) => {
            let failure = Failure::from(error);
            let why = failure.message().unwrap_or_default();
            let why = format!("the image id that the map holds must be kept: {why}");
            Failure::new(failure.exit(), why)
        }
    };
    Err(failure).about(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_powers_of_two_within_bounds() {
        assert_eq!(window("64"), Ok(WindowSize::MIN));
        assert_eq!(window("256"), Ok(WindowSize::DEFAULT));
        assert_eq!(window("4096"), Ok(WindowSize::MAX));
        for bad in ["", "0", "32", "96", "8192", "-1", "1e3", "18446744073709551615"] {
            assert!(window(bad).is_err(), "{bad}");
        }
    }
}
