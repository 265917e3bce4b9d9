//! Is memory short on this node, and which paused apps are saved to disk for it?
//!
//! Sources: `/proc/meminfo` (proc_meminfo(5)), and pressure stall information in
//! `/proc/pressure/memory` (Linux, Documentation/accounting/psi.rst), which a kernel may lack or
//! have switched off.

use std::fs;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use rouse_protocol::app::AppId;
use tokio::time::Instant;

const MEMINFO: &str = "/proc/meminfo";
const PRESSURE: &str = "/proc/pressure/memory";

/// The least [`Limits::keep_free`] of a node, in bytes.
const LEAST_KEEP_FREE: u64 = 256 << 20;
/// The shortest time that stalls are measured over: in less, one stall would count as many.
const LEAST_SPAN: Duration = Duration::from_secs(1);

/// What `/proc/meminfo` says, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meminfo {
    /// `MemTotal`.
    pub total: u64,
    /// `MemAvailable`: what can be had without swapping.
    pub available: u64,
    /// `Mapped`: pages of files that some process has mapped.
    pub mapped: u64,
    /// `Active(file)` and `Inactive(file)`: the page cache that can be given up.
    pub cached: u64,
}

/// For how long since the node's start at least one task has waited for memory: `total` of the line
/// `some`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stalled(pub Duration);

/// Why the state of memory is not known.
#[derive(Debug, thiserror::Error)]
pub enum ReadingError {
    /// A file can't be read.
    #[error("{path}: {source}")]
    Read {
        /// Which.
        path: &'static str,
        /// What reading it said.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{path} has no `{field}` that can be understood")]
    Field {
        /// Which file.
        path: &'static str,
        /// What is missing in it.
        field: &'static str,
    },
}

/// One look at memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// How much there is.
    pub memory: Meminfo,
    /// How long it was waited for; none where the kernel does not count that.
    pub stalled: Option<Stalled>,
}

/// When memory counts as short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// What is kept free, in bytes.
    pub keep_free: u64,
    /// The share of time, 0 to 1, in which some task may wait for memory.
    pub stalled: f64,
}

/// Whether memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// It is not.
    None,
    /// It is.
    Short {
        /// How much should be freed, in bytes; at least 1.
        lacking_bytes: u64,
    },
}

/// Judges one look after the other.
#[derive(Clone, Copy, Debug)]
pub struct Judge {
    limits: Limits,
    /// Where the span that stalls are measured over begins.
    last: Option<(Instant, Stalled)>,
}

/// A paused app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paused {
    /// Which.
    pub app: AppId,
    /// Since when it has been paused.
    pub since: Instant,
    /// The memory that saving it frees, in bytes.
    pub memory_bytes: u64,
}

impl FromStr for Meminfo {
    type Err = ReadingError;

    fn from_str(text: &str) -> Result<Self, ReadingError> {
        let bytes = |field: &'static str| {
            let line = |line: &str| -> Option<u64> {
                let value = line.strip_prefix(field)?.strip_prefix(':')?.trim();
                value.strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
            };
            text.lines().find_map(line).ok_or(ReadingError::Field { path: MEMINFO, field })
        };
        Ok(Self {
            total: bytes("MemTotal")?,
            available: bytes("MemAvailable")?,
            mapped: bytes("Mapped")?,
            cached: bytes("Active(file)")?.saturating_add(bytes("Inactive(file)")?),
        })
    }
}

impl FromStr for Stalled {
    type Err = ReadingError;

    fn from_str(text: &str) -> Result<Self, ReadingError> {
        let mut fields =
            text.lines().find_map(|l| l.strip_prefix("some ")).unwrap_or("").split(' ');
        let total = fields.find_map(|f| f.strip_prefix("total=")?.parse().ok());
        let micros =
            total.ok_or(ReadingError::Field { path: PRESSURE, field: "some … total=" })?;
        Ok(Self(Duration::from_micros(micros)))
    }
}

impl Meminfo {
    /// What new memory can be had from without taking any from a guest, in bytes.
    ///
    /// The guests' RAM is page cache of their images, mapped, and to the kernel such pages are
    /// available: it would write them out and drop them before it counted memory as short. So what
    /// is mapped does not count here, as far as it can be page cache at all. Where much of it is
    /// shared memory of other programs, this comes out too low rather than too high.
    pub fn free(&self) -> u64 {
        self.available.saturating_sub(self.mapped.min(self.cached))
    }
}

impl Reading {
    /// Looks.
    pub fn now() -> Result<Self, ReadingError> {
        let read =
            |path| fs::read_to_string(path).map_err(|source| ReadingError::Read { path, source });
        let memory = read(MEMINFO)?.parse()?;
        let stalled = match fs::read_to_string(PRESSURE) {
            Ok(text) => Some(text.parse()?),
            // Not built, or built and switched off: CONFIG_PSI_DEFAULT_DISABLED, psi=0.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported) =>
            {
                None
            }
            Err(source) => return Err(ReadingError::Read { path: PRESSURE, source }),
        };
        Ok(Self { memory, stalled })
    }
}

impl Limits {
    /// The defaults for a node with `total` bytes of memory.
    ///
    /// 5 % are kept free, at least 256 MiB: a wake of a usual guest finds its memory at once while
    /// paused apps are being saved, and it is far above the marks at which the kernel begins to
    /// take pages from the guests (`vm.watermark_scale_factor`: steps of 0.1 % of memory). Memory
    /// waited for in a tenth of the time is well below the 60 % at which systemd-oomd kills.
    pub fn of_node(total: u64) -> Self {
        Self { keep_free: (total / 20).max(LEAST_KEEP_FREE), stalled: 0.1 }
    }
}

impl Judge {
    /// Judges by `limits`.
    pub fn new(limits: Limits) -> Self {
        Self { limits, last: None }
    }

    /// Is memory short, at `now`? What is being freed already is not known here: the caller takes
    /// it off.
    ///
    /// Memory is short below the limit, and what lacks then is counted to a quarter above it: one
    /// app that is saved is followed by some peace, not by the next one at the next look.
    pub fn judge(&mut self, now: Instant, reading: &Reading) -> Pressure {
        let stalls = self.stalls(now, reading.stalled);
        let free = reading.memory.free();
        let keep = self.limits.keep_free;
        let lacking_bytes = if free < keep {
            keep.saturating_add(keep / 4) - free
        } else {
            // Tasks wait although there seems to be enough: the kernel knows better, and nobody
            // knows how much lacks. One app at a time, then.
            u64::from(stalls)
        };
        match lacking_bytes {
            0 => Pressure::None,
            lacking_bytes => Pressure::Short { lacking_bytes },
        }
    }

    /// Was memory waited for too long since the last look? The kernel's own averages would still
    /// say so seconds after it was over.
    fn stalls(&mut self, now: Instant, stalled: Option<Stalled>) -> bool {
        let Some(stalled) = stalled else {
            return false;
        };
        let Some((then, before)) = self.last else {
            self.last = Some((now, stalled));
            return false;
        };
        let span = now.saturating_duration_since(then);
        if span < LEAST_SPAN {
            return false;
        }
        self.last = Some((now, stalled));
        stalled.0.saturating_sub(before.0).as_secs_f64() > span.as_secs_f64() * self.limits.stalled
    }
}

/// Which paused apps go to disk so that `lacking_bytes` come free: those paused for longest, and no
/// more than it takes. All of them, where all do not suffice.
pub fn choose(paused: &[Paused], lacking_bytes: u64) -> Vec<AppId> {
    let mut order: Vec<_> = paused.iter().filter(|p| p.memory_bytes > 0).collect();
    order.sort_by_key(|p| (p.since, &p.app));
    let mut freed = 0_u64;
    let enough = |p: &&&Paused| {
        let more = freed < lacking_bytes;
        freed = freed.saturating_add(p.memory_bytes);
        more
    };
    order.iter().take_while(enough).map(|p| p.app.clone()).collect()
}

#[cfg(test)]
#[path = "pressure_tests.rs"]
mod tests;
