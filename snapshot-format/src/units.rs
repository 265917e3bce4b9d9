//! Pages, their states, and windows.

use std::fmt;
use std::ops::Range;

pub use crate::states::{PageStates, Runs};

/// The size of a page in bytes: the unit in which guests map memory on every CPU that we run on,
/// and the smallest block that the common filesystems can give back.
pub const PAGE: u64 = 4096;

/// The binary logarithm of [`PAGE`], as files say it.
pub(crate) const PAGE_SHIFT: u8 = PAGE.trailing_zeros() as u8;

/// What an image knows of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageState {
    /// Its bytes are in this image.
    Data,
    /// It is all zeros.
    Zero,
    /// In a layer over another image: it is as it was there.
    Parent,
}

impl PageState {
    /// The word in output for people and programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Zero => "zero",
            Self::Parent => "parent",
        }
    }
}

/// A page that lies behind the image's end. It is an error, never zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the map knows pages 0 to {pages} (not included), and not page {page}")]
pub struct UnknownPage {
    /// The page that was asked for.
    pub page: u64,
    /// How many pages there are.
    pub pages: u64,
}

/// How many pages are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages whose bytes are in the image.
    pub data: u64,
    /// Pages of zeros.
    pub zero: u64,
    /// Pages that are the parent's.
    pub parent: u64,
}

/// The most windows that an image may have, whatever their size: what is kept for each of them, at
/// some 50 bytes, stays small beside a process's memory.
pub const MAX_WINDOWS: u64 = 1 << 20;

/// The size of a window: 256 KiB unless an image says otherwise.
///
/// At 256 KiB frames compress within 4 % of 2 MiB frames, a cold fault decodes in 0.3 ms, and
/// eight windows are one huge page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WindowSize(u8);

/// A number that no [`WindowSize`] has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a window is a power of two from 64 KiB (shift 16) to 4 MiB (shift 22), not of shift {0}")]
pub struct WindowSizeError(pub u8);

impl WindowSize {
    /// 256 KiB.
    pub const DEFAULT: Self = Self(18);
    /// 64 KiB.
    pub const MIN: Self = Self(16);
    /// 4 MiB.
    pub const MAX: Self = Self(22);

    /// The window of 2^`shift` bytes.
    pub fn from_shift(shift: u8) -> Result<Self, WindowSizeError> {
        if (Self::MIN.0..=Self::MAX.0).contains(&shift) {
            Ok(Self(shift))
        } else {
            Err(WindowSizeError(shift))
        }
    }

    /// The binary logarithm of the size.
    pub fn shift(self) -> u8 {
        self.0
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.0
    }

    /// The size in pages.
    pub fn pages(self) -> u64 {
        self.bytes() / PAGE
    }

    /// The size for an image of `mem_size` bytes: the default, or the smallest larger one with
    /// which the image has no more than [`MAX_WINDOWS`].
    pub fn for_image(mem_size: u64) -> Self {
        (Self::DEFAULT.0..Self::MAX.0)
            .map(Self)
            .find(|window| window.count(mem_size) <= MAX_WINDOWS)
            .unwrap_or(Self::MAX)
    }

    /// How many windows an image of `mem_size` bytes has; the last may be cut short.
    pub fn count(self, mem_size: u64) -> u64 {
        mem_size.div_ceil(self.bytes())
    }

    /// The pages of `window` in an image of `mem_size` bytes; none behind its end.
    pub fn pages_of(self, window: u64, mem_size: u64) -> Range<u64> {
        let all = mem_size.div_ceil(PAGE);
        let start = window.saturating_mul(self.pages()).min(all);
        start..start.saturating_add(self.pages()).min(all)
    }
}

impl Default for WindowSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Debug for WindowSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowSize({} KiB)", self.bytes() / 1024)
    }
}

/// Pages side by side that are all in the same state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The pages.
    pub pages: Range<u64>,
    /// Their state.
    pub state: PageState,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_sizes_have_limits() {
        for shift in 0..=255 {
            assert_eq!(WindowSize::from_shift(shift).is_ok(), (16..=22).contains(&shift));
        }
        assert_eq!(WindowSize::default().bytes(), 256 * 1024);
        for (size, shift) in [(0, 18), (256 << 30, 18), ((256 << 30) + 1, 19), (1 << 40, 20)] {
            let window = WindowSize::for_image(size);
            assert_eq!(window.shift(), shift);
            assert!(window.count(size) <= MAX_WINDOWS);
        }
        assert_eq!(WindowSize::DEFAULT.pages_of(1, (256 << 10) + 1), 64..65);
        assert_eq!(WindowSize::DEFAULT.pages_of(2, (256 << 10) + 1), 65..65);
        assert_eq!(WindowSize::DEFAULT.pages_of(u64::MAX, 1), 1..1);
    }
}
