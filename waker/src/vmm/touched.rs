//! Which pages of a memory file may have been written during this life.
//!
//! The file is the guest's RAM, mapped shared by the VMM. Whoever writes a page through a mapping
//! has the page in its page table first, KVM's guests too, whose pages KVM takes from there. So a
//! page that the VMM has not mapped now, and that nobody has unmapped since the life began, was
//! never written. Soft-dirty bits would be finer, and are not in many kernels
//! (CONFIG_MEM_SOFT_DIRTY). Source: Linux, Documentation/admin-guide/mm/pagemap.rst.
//!
//! Of what unmaps pages behind the VMM's back, two happen by themselves, and both count in
//! `/proc/vmstat` first: reclaim scans pages (`pgscan_*`, mm/vmscan.c), and compaction isolates
//! them (`compact_isolated`, mm/compaction.c). Compaction moves pages and leaves a migration entry
//! meanwhile, but it may split a large folio of a file for that, and a split unmaps it
//! (mm/huge_memory.c, `unmap_folio`). Allocation of contiguous memory does both (`cma_alloc_*`).
//! When a counter has moved, wherever on the node, nothing is known.
//!
//! It is on the caller that nothing else unmaps pages during a life. The VMM does not discard,
//! protect or remap guest memory (no balloon); nobody else writes, truncates or punches the file,
//! or asks for its pages to be paged out (process_madvise(2)); no memory is unplugged from
//! the node. **Holes end a mark too:** a sleep punches none before its VM is gone.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{fstatfs, makedev};
use serde::{Deserialize, Serialize};

/// An entry's bits for a page that is present (63), or swapped or being moved (62).
const MAPPED: u64 = 0b11 << 62;
const ENTRY: u64 = size_of::<u64>() as u64;
/// How many bytes of a pagemap are read at once: the entries of 32 MiB of memory.
const PIECE: u64 = 64 * 1024;
/// How often a file may be mapped over. QEMU does it once; the bound is on what a VMM can make the
/// waker read.
const MAX_TIMES: u64 = 4;
/// `f_type` of tmpfs: statfs(2).
const TMPFS: i64 = 0x0102_1994;

/// The counters of all that unmaps pages, when a life began.
///
/// Taken before the VMM maps the file. Valid until the node restarts, and a VM is gone by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark(u64);

/// What may have been written.
#[derive(Debug)]
pub enum Touched {
    /// These bytes of the file, and no others: ascending, neither touching nor overlapping, page by
    /// page. Far more than what was written: pages that were only read, and their neighbours.
    Ranges(Vec<Range<u64>>),
    /// Anything.
    Unknown(Reason),
}

/// Why it is not known what was written.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// Nothing is known of the life's begin.
    #[error("there is no mark from when the life began")]
    NoMark,
    /// Pages may have been unmapped.
    #[error("the kernel has reclaimed or moved pages since the life began")]
    Moved,
    /// The kernel is told to page out what is seldom used, without counting it.
    #[error("DAMON pages out on this node (admin-guide/mm/damon)")]
    Damon,
    /// The process does not map the file shared.
    #[error("process {0} has not mapped the file shared")]
    NotMapped(i32),
    /// It maps it too often.
    #[error("process {0} has mapped the file more than {MAX_TIMES} times over")]
    TooOften(i32),
    /// The kernel may replace tmpfs's page tables when it makes huge pages of small ones.
    #[error("the file is on tmpfs")]
    Tmpfs,
    /// Something can't be read.
    #[error("{what}: {source}")]
    Read {
        /// What.
        what: String,
        /// What reading it said.
        source: io::Error,
    },
}

impl Mark {
    /// The counters now.
    ///
    /// Fails where the kernel lacks `pgscan_anon` and `pgscan_file`, before Linux 5.8: the
    /// older ones leave out reclaim within a cgroup.
    pub fn now() -> io::Result<Self> {
        sum(&fs::read_to_string("/proc/vmstat")?).map(Self).ok_or_else(|| {
            let what = "/proc/vmstat has no `pgscan_anon` and `pgscan_file`";
            io::Error::new(io::ErrorKind::Unsupported, what)
        })
    }
}

/// The sum of all counters that move before pages are unmapped. Those are never reset.
fn sum(vmstat: &str) -> Option<u64> {
    let counters = vmstat.lines().filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        let counts = name.starts_with("pgscan_")
            || name.starts_with("pgsteal_")
            || name.starts_with("cma_alloc_")
            || name == "compact_isolated";
        counts.then_some((name, value.parse::<u64>().ok()?))
    });
    let (mut sum, mut needed) = (0_u64, 0);
    for (name, value) in counters {
        sum = sum.wrapping_add(value);
        needed += usize::from(matches!(name, "pgscan_anon" | "pgscan_file"));
    }
    (needed == 2).then_some(sum)
}

/// Whether DAMON runs with a scheme that pages out, by Documentation/admin-guide/mm/damon/usage.rst
/// and reclaim.rst: what it unmaps moves no counter, so that [`touched`] is not to be asked. One that
/// has run and ended in the meantime is not seen.
pub fn damon_pages_out() -> bool {
    let reads =
        |path: &Path, word: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == word);
    if reads(Path::new("/sys/module/damon_reclaim/parameters/enabled"), "Y") {
        return true;
    }
    let below = |dir: &Path| -> Vec<PathBuf> {
        fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let running = below(Path::new("/sys/kernel/mm/damon/admin/kdamonds"))
        .into_iter()
        .filter(|kdamond| reads(&kdamond.join("state"), "on"));
    let contexts = running.flat_map(|kdamond| below(&kdamond.join("contexts")));
    let mut schemes = contexts.flat_map(|context| below(&context.join("schemes")));
    schemes.any(|scheme| reads(&scheme.join("action"), "pageout"))
}

/// Which bytes of `file` the process `pid` may have written since `mark`. The process stands still.
///
/// It reads 8 bytes for each page of the file, and blocks for that long.
pub fn touched(pid: i32, file: &File, mark: Option<Mark>) -> Touched {
    match ranges(pid, file, mark) {
        Ok(ranges) => Touched::Ranges(ranges),
        Err(reason) => Touched::Unknown(reason),
    }
}

fn ranges(pid: i32, file: &File, mark: Option<Mark>) -> Result<Vec<Range<u64>>, Reason> {
    let mark = mark.ok_or(Reason::NoMark)?;
    let unmoved = || {
        let now = Mark::now().map_err(|source| failed("/proc/vmstat", source))?;
        if now == mark { Ok(()) } else { Err(Reason::Moved) }
    };
    unmoved()?;
    let mapped = mapped(pid, file)?;
    // Counters that are kept per CPU are summed up only now and then on some kernels. Reading this
    // file does it at once, and also when it complains of another counter (EINVAL).
    match fs::read("/proc/sys/vm/stat_refresh") {
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
            return Err(failed("/proc/sys/vm/stat_refresh", error));
        }
        _ => unmoved()?,
    }
    Ok(mapped)
}

fn failed(what: impl Into<String>, source: io::Error) -> Reason {
    Reason::Read { what: what.into(), source }
}

/// What of the file the process has mapped now, or may have had mapped elsewhere before.
fn mapped(pid: i32, file: &File) -> Result<Vec<Range<u64>>, Reason> {
    let meta = file.metadata().map_err(|source| failed("the memory file", source))?;
    let on = fstatfs(file).map_err(|source| failed("the memory file", source.into()))?;
    if on.f_type == TMPFS {
        return Err(Reason::Tmpfs);
    }
    let page = rustix::param::page_size() as u64;
    let len = meta.len();
    let end = len.checked_next_multiple_of(page).unwrap_or(len);
    let mut mappings = mappings(pid, meta.dev(), meta.ino())?;
    if mappings.is_empty() {
        return Err(Reason::NotMapped(pid));
    }
    for mapping in &mut mappings {
        mapping.bytes = mapping.bytes.min(end.saturating_sub(mapping.offset));
    }
    let all = mappings.iter().fold(0_u64, |all, m| all.saturating_add(m.bytes));
    if all > end.saturating_mul(MAX_TIMES) {
        return Err(Reason::TooOften(pid));
    }

    let path = format!("/proc/{pid}/pagemap");
    let pagemap = File::open(&path).map_err(|source| failed(&path, source))?;
    let mut found = unmapped(&mappings, end);
    for mapping in &mappings {
        mapping.read(&pagemap, page, &mut found).map_err(|source| failed(&path, source))?;
    }
    let mut found = merge(found);
    if let Some(last) = found.last_mut() {
        last.end = last.end.min(len);
    }
    found.retain(|range| !range.is_empty());
    Ok(found)
}

/// A part of the file in the process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    address: u64,
    bytes: u64,
    /// Where in the file it begins.
    offset: u64,
}

impl Mapping {
    /// Appends the ranges of the file whose pages are mapped.
    fn read(&self, pagemap: &File, page: u64, found: &mut Vec<Range<u64>>) -> io::Result<()> {
        let end = self.bytes / page * ENTRY;
        let begin = self.address / page * ENTRY;
        let mut piece = vec![0; usize::try_from(PIECE.min(end)).unwrap_or(0)];
        let mut at = 0;
        while at < end {
            let len = usize::try_from(PIECE.min(end - at)).unwrap_or(0);
            pagemap.read_exact_at(&mut piece[..len], begin + at)?;
            let first = self.offset + at / ENTRY * page;
            for (entry, start) in
                piece[..len].as_chunks().0.iter().zip((first..).step_by(page as usize))
            {
                if u64::from_ne_bytes(*entry) & MAPPED != 0 {
                    push(found, start..start + page);
                }
            }
            at += len as u64;
        }
        Ok(())
    }
}

/// The shared mappings of a file, by its device and inode.
fn mappings(pid: i32, device: u64, inode: u64) -> Result<Vec<Mapping>, Reason> {
    let path = format!("/proc/{pid}/maps");
    let failed = |source| failed(&path, source);
    let mut maps = BufReader::new(File::open(&path).map_err(failed)?);
    let (mut found, mut line) = (Vec::new(), Vec::new());
    loop {
        // The kernel bounds a line: its only long part is a path.
        line.clear();
        if maps.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            return Ok(found);
        }
        let Some(parsed) = parse(&line) else {
            let source = io::Error::new(io::ErrorKind::InvalidData, "a line can't be understood");
            return Err(failed(source));
        };
        if !parsed.shared || parsed.inode != inode {
            continue;
        }
        // Some filesystems (btrfs) have another device here than in stat(2).
        let same = || {
            let link = format!("/proc/{pid}/map_files/{}", parsed.name);
            fs::metadata(link).is_ok_and(|meta| (meta.dev(), meta.ino()) == (device, inode))
        };
        if parsed.device == device || same() {
            found.push(parsed.mapping);
        }
    }
}

/// One line of `/proc/PID/maps`: proc_pid_maps(5).
struct Line<'a> {
    name: &'a str,
    mapping: Mapping,
    shared: bool,
    device: u64,
    inode: u64,
}

fn parse(line: &[u8]) -> Option<Line<'_>> {
    // The path, which may be no UTF-8, comes after all that is looked at.
    let mut fields = line.split(|b| b.is_ascii_whitespace()).map(|f| std::str::from_utf8(f).ok());
    let mut field = || fields.next().flatten();
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let name = field()?;
    let (address, end) = name.split_once('-')?;
    let (address, end) = (hex(address)?, hex(end)?);
    let shared = field()?.ends_with('s');
    let offset = hex(field()?)?;
    let (major, minor) = field()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let device = makedev(number(major)?, number(minor)?);
    let inode = field()?.parse().ok()?;
    let bytes = end.checked_sub(address)?;
    offset.checked_add(bytes)?;
    Some(Line { name, mapping: Mapping { address, bytes, offset }, shared, device, inode })
}

/// The parts of a file of `end` bytes that no mapping shows now. They may have been mapped before.
fn unmapped(mappings: &[Mapping], end: u64) -> Vec<Range<u64>> {
    let shown = merge(mappings.iter().map(|m| m.offset..m.offset + m.bytes).collect());
    let mut from = 0;
    let mut gaps = Vec::new();
    for range in shown {
        gaps.push(from..range.start.min(end));
        from = range.end;
    }
    gaps.push(from..end);
    gaps.retain(|gap| !gap.is_empty());
    gaps
}

/// Ascending, with those that touch or overlap made one.
fn merge(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged = Vec::with_capacity(ranges.len());
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        push(&mut merged, range);
    }
    merged
}

/// Appends a range, or lets the last one grow by it.
fn push(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if (last.start..=last.end).contains(&range.start) => {
            last.end = last.end.max(range.end);
        }
        _ => ranges.push(range),
    }
}

#[cfg(test)]
#[path = "touched_tests.rs"]
mod tests;
