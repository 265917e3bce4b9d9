//! `rouse-snapshot record`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use rouse_snapshot_format::{FirstTouch, Image, Map};

use crate::failure::{About, Exit, Failure};
use crate::kind::{Kind, map_of_image};
use crate::output::write_map;
use crate::task::Task;
use crate::text::{say, size};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The map, or the image that it lies beside.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The bytes of the image that a wake touched, in that order: an offset a line, decimal or with
    /// 0x in front. Empty lines and what is behind # mean nothing. Standard input unless given.
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,
    /// Leaves it to the system when the map becomes durable.
    #[arg(long)]
    no_sync: bool,
}

/// The longest line of a trace, in bytes; an offset has 20 digits.
const MAX_LINE: u64 = 256;

pub(crate) fn run(args: &Args, task: &Task) -> Result<(), Failure> {
    let file = &args.file;
    let (path, image, map) = match Kind::of(file)? {
        Kind::Map => (file.clone(), file.with_extension("img"), Map::open(file).about(file)?),
        Kind::Image => {
            let (path, map) = map_of_image(file, None)?;
            (path, file.clone(), map)
        }
        Kind::Archive => {
            let why = "this is an archive, which is not changed; record before packing";
            return Err(Failure::new(Exit::BadInput, why)).about(file);
        }
    };
    let (id, window) = (map.image_id(), map.window_size());
    let mem_size = map.mem_size();
    let mut touch = FirstTouch::new(window, mem_size);
    match args.trace.as_deref().filter(|trace| *trace != Path::new("-")) {
        Some(trace) => {
            let lines = BufReader::new(File::open(trace).about(trace)?);
            read(lines, mem_size, &mut touch).about(trace)?;
        }
        None => {
            let name = Path::new("standard input");
            read(io::stdin().lock(), mem_size, &mut touch).about(name)?;
        }
    }

    let touched = touch.into_order();
    let of_wake = touched.len() as u64 * window.bytes();
    // Whoever writes the trace may take its time: only now, and until the map is written, nobody may
    // be changing it and its image. A map alone has nobody who would.
    let locked = image.is_file().then(|| Image::open(&image, &path).about(&image)).transpose()?;
    let map = match &locked {
        Some(image) => image.map().clone(),
        None => Map::open(&path).about(&path)?,
    };
    if (map.image_id(), map.window_size()) != (id, window) || map.mem_size() != mem_size {
        let why = "the image became another while the trace was read; record a wake of that one";
        return Err(Failure::new(Exit::InUse, why)).about(&path);
    }
    let mut set = map.working_set().clone();
    set.record(touched, window);
    let fetched = set.order(window).len() as u64 * window.bytes();
    let wakes = set.wakes().count();
    write_map(&map.with_working_set(set), &path, !args.no_sync)?;
    if task.quiet() {
        return Ok(());
    }
    let (of_wake, fetched) = (size(of_wake), size(fetched));
    say(format!(
        "{}: {of_wake} touched; {fetched} are the working set of {wakes} wakes",
        path.display()
    ))
}

fn read(mut lines: impl BufRead, mem_size: u64, touch: &mut FirstTouch) -> Result<(), Failure> {
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let length = lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
        if length == 0 {
            break;
        }
        if let Some(offset) = offset(&line, mem_size).map_err(|why| bad_line(number, why))? {
            touch.touch(offset);
        }
    }
    Ok(())
}

/// The offset in a line; none in an empty one.
fn offset(line: &[u8], mem_size: u64) -> Result<Option<u64>, String> {
    if line.len() as u64 == MAX_LINE {
        return Err("the line is too long for an offset".into());
    }
    let text = String::from_utf8_lossy(line);
    let text = text.split('#').next().unwrap_or_default().trim();
    if text.is_empty() {
        return Ok(None);
    }
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match number {
        Ok(offset) if offset < mem_size => Ok(Some(offset)),
        Ok(offset) => Err(format!("the image has {mem_size} bytes, and none at {offset}")),
        Err(_) => Err(format!("{text:?} is no offset: write digits, or 0x and hexadecimal ones")),
    }
}

fn bad_line(number: u64, why: String) -> Failure {
    Failure::new(Exit::BadInput, format!("line {number}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rouse_snapshot_format::WindowSize;

    fn windows(text: &str) -> Result<Vec<u32>, Option<String>> {
        let mut touch = FirstTouch::new(WindowSize::MIN, 10 << 16);
        match read(text.as_bytes(), 10 << 16, &mut touch) {
            Ok(()) => Ok(touch.into_order()),
            Err(failure) => Err(failure.message().map(str::to_owned)),
        }
    }

    #[test]
    fn offsets_become_windows() {
        let trace = "0x30000\n\n# a wake\n5 # the first window\n 196609\n0\n655359";
        assert_eq!(windows(trace), Ok(vec![3, 0, 9]));
        assert_eq!(windows(""), Ok(vec![]));
    }

    #[test]
    fn a_bad_line_is_named() {
        for (trace, words) in [
            ("1\n2\nx\n", "line 3: \"x\""),
            ("-1\n", "line 1"),
            ("655360\n", "none at 655360"),
            ("0xg\n", "line 1"),
            (&"9".repeat(300), "too long"),
            ("99999999999999999999999\n", "is no offset"),
        ] {
            let said = windows(trace).unwrap_err().unwrap();
            assert!(said.contains(words), "{trace:?}: {said}");
        }
    }
}
