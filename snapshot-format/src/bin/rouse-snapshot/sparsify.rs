//! `rouse-snapshot sparsify`.

use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use rouse_snapshot_format::{
    Image, ImageId, Map, OpenMapError, Punching, Sparsified, SparsifyOptions, WindowSize, sparsify,
    sparsify_to,
};

use crate::failure::{About, Exit, Failure};
use crate::kind::{refuse_half_merged, require_image};
use crate::output::{Output, write_map};
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
    /// Replaces a copy that is there, and a map that can't be read: the image then gets a new id.
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
    let image = &args.image;
    require_image(image)?;
    let beside = args.output.as_deref().unwrap_or(image);
    let map_path = args.map.clone().unwrap_or_else(|| Image::map_path(beside));
    // In place the map beside the image is the one to renew.
    let old_path = if args.output.is_some() { Image::map_path(image) } else { map_path.clone() };
    let map_out = Output::claim(&map_path, args.force || args.output.is_none(), &[image])?;
    refuse_half_merged(image, &old_path)?;
    let old = old_map(&old_path, args.force)?;

    let options = SparsifyOptions {
        work: task.work(args.threads),
        dry_run: args.dry_run,
        window: args.window.or_else(|| old.as_ref().map(Map::window_size)),
        sync: !args.no_sync,
    };
    let found = {
        let _bar = task.bar(format!("sparsify {}", image.display()));
        match &args.output {
            None => sparsify(image, &options).about(image)?,
            Some(out) => {
                let out = Output::claim(out, args.force, &[image, &old_path])?;
                out.differs_from(&map_path)?;
                if !args.dry_run {
                    map_out.retire()?;
                }
                sparsify_to(image, out.path(), &options).about(image)?
            }
        }
    };
    report(&found, args.output.as_deref(), task)?;
    if args.dry_run {
        return Ok(());
    }
    let (id, map) = with_identity(found, old);
    write_map(&map, &map_path, options.sync)?;
    if task.quiet() {
        Ok(())
    } else {
        say(format!("{} is written, image {id}", map_path.display()))
    }
}

/// The map of what was found, as the one that the image had: the id binds the image to its VM state
/// and disk, and what a wake touches first is as good as before.
fn with_identity(found: Sparsified, old: Option<Map>) -> (ImageId, Map) {
    let id = old.as_ref().map_or_else(ImageId::random, Map::image_id);
    let map = found.into_map(id);
    match old {
        // Windows of another size have other numbers.
        Some(old) if old.window_size() == map.window_size() => {
            (id, map.with_working_set(old.working_set().clone()))
        }
        _ => (id, map),
    }
}

fn report(found: &Sparsified, copy: Option<&Path>, task: &Task) -> Result<(), Failure> {
    if task.quiet() {
        return Ok(());
    }
    say(format!("{:>10} pages of data, {} of zeros", found.data_pages(), found.zero_pages()))?;
    let (before, now) = (size(found.allocated_before), size(found.allocated_after));
    match copy {
        Some(_) => say(format!("{now:>10} allocated by the copy, {before} by the image")),
        None => say(format!(
            "{:>10} punched, {before} allocated before, {now} now",
            size(found.punched_bytes)
        )),
    }?;
    if copy.is_none() && found.punching == Punching::Unsupported {
        say("this filesystem can't punch holes; no space was saved")?;
    }
    Ok(())
}

/// The map that the image has, if any. Its id must survive.
fn old_map(path: &Path, force: bool) -> Result<Option<Map>, Failure> {
    match Map::open(path) {
        // Even by force: this can't be taken back.
        Ok(map) if map.parent().is_some() => {
            let why = "the image is a layer over another one, where a hole means \"unchanged\"; \
                       merge it first";
            Err(Failure::new(Exit::BadInput, why)).about(path)
        }
        Ok(map) => Ok(Some(map)),
        Err(OpenMapError::Io(e)) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(OpenMapError::Io(error)) => Err(error).about(path),
        Err(_) if force => Ok(None),
        Err(error) => {
            let failure = Failure::from(error);
            let why = failure.message().unwrap_or_default();
            let why = format!("the image id that the map holds must be kept: {why}");
            Err(Failure::new(failure.exit(), why)).about(path)
        }
    }
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
