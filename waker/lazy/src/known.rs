//! Which windows are known to be there.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rouse_transfer::Fill;

/// Brings windows of the backing file.
///
/// A window is asked for until it was there once, and never again.
pub trait Windows: Send + Sync + 'static {
    /// The size of a window in bytes: a power of two, of at least a page; the last may be cut short.
    fn window_bytes(&self) -> u64;

    /// Returns when `window` is in the backing file, and nothing but the guest will ever write to it again.
    ///
    /// Called from threads that may block. An error fails what was read by EIO; it may be asked for again.
    fn need(&self, window: u64) -> io::Result<()>;
}

impl Windows for Fill {
    fn window_bytes(&self) -> u64 {
        self.map().window_size().bytes()
    }

    fn need(&self, window: u64) -> io::Result<()> {
        self.need_blocking(window).map_err(io::Error::other)
    }
}

/// A bit for each window that was there when it was asked for: no lock is taken for it any more.
pub(crate) struct Known {
    windows: Arc<dyn Windows>,
    shift: u32,
    there: Box<[AtomicU64]>,
    whole: AtomicBool,
    told: AtomicBool,
}

impl Known {
    /// None: there are no such windows.
    pub(crate) fn new(windows: Arc<dyn Windows>, size: u64) -> Option<Self> {
        let bytes = windows.window_bytes();
        if !bytes.is_power_of_two() || bytes < 4096 {
            return None;
        }
        let words = size.div_ceil(bytes).div_ceil(64);
        let there = (0..words).map(|_| AtomicU64::new(0)).collect();
        let (whole, told) = (AtomicBool::new(false), AtomicBool::new(false));
        Some(Self { windows, shift: bytes.trailing_zeros(), there, whole, told })
    }

    pub(crate) fn window_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// Nothing is asked for any more.
    pub(crate) fn set_whole(&self) {
        self.whole.store(true, Ordering::Release);
    }

    fn windows_of(&self, bytes: &Range<u64>) -> Range<u64> {
        bytes.start >> self.shift..((bytes.end - 1) >> self.shift) + 1
    }

    fn is_there(&self, window: u64) -> bool {
        let word = self.there.get((window / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Acquire) & (1 << (window % 64)) != 0)
    }

    /// Whether every window of these bytes, which are not none, is known to be there.
    pub(crate) fn covers(&self, bytes: &Range<u64>) -> bool {
        self.whole.load(Ordering::Acquire)
            || self.windows_of(bytes).all(|window| self.is_there(window))
    }

    /// Whether these bytes lie in more than one window.
    pub(crate) fn crosses(&self, bytes: &Range<u64>) -> bool {
        let windows = self.windows_of(bytes);
        windows.end - windows.start > 1
    }

    /// Waits for every window of these bytes, which are not none.
    pub(crate) fn wait(&self, bytes: &Range<u64>) -> io::Result<()> {
        for window in self.windows_of(bytes) {
            if self.whole.load(Ordering::Acquire) {
                break;
            }
            if self.is_there(window) {
                continue;
            }
            self.windows.need(window).inspect_err(|error| {
                // All that is read fails from here on: once says it.
                if !self.told.swap(true, Ordering::Relaxed) {
                    tracing::error!(window, %error, "a window of a memory file can't be had");
                }
            })?;
            if let Some(word) = self.there.get((window / 64) as usize) {
                word.fetch_or(1 << (window % 64), Ordering::Release);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Asked(Mutex<Vec<u64>>, AtomicBool);

    impl Windows for Asked {
        fn window_bytes(&self) -> u64 {
            4096
        }

        fn need(&self, window: u64) -> io::Result<()> {
            self.0.lock().unwrap().push(window);
            if self.1.load(Ordering::Relaxed) { Err(io::Error::other("gone")) } else { Ok(()) }
        }
    }

    #[test]
    fn a_window_is_asked_for_until_it_is_there_and_none_when_all_are() {
        let asked = Arc::new(Asked::default());
        let known = Known::new(asked.clone(), 100 * 4096 + 1).unwrap();
        assert!(!known.covers(&(0..1)) && !known.crosses(&(4095..4096)));
        assert!(known.crosses(&(4095..4097)));
        asked.1.store(true, Ordering::Relaxed);
        known.wait(&(70 * 4096..71 * 4096)).unwrap_err();
        asked.1.store(false, Ordering::Relaxed);
        known.wait(&(70 * 4096..72 * 4096)).unwrap();
        known.wait(&(71 * 4096 - 1..71 * 4096 + 1)).unwrap();
        known.wait(&(100 * 4096..100 * 4096 + 1)).unwrap();
        assert_eq!(*asked.0.lock().unwrap(), [70, 70, 71, 100]);
        assert!(known.covers(&(70 * 4096..72 * 4096)) && !known.covers(&(69 * 4096..72 * 4096)));
        known.set_whole();
        known.wait(&(0..4096 * 100)).unwrap();
        assert!(known.covers(&(0..4096 * 100)));
        assert_eq!(asked.0.lock().unwrap().len(), 4);
    }

    #[test]
    fn windows_that_are_no_windows_are_refused() {
        struct Odd(u64);
        impl Windows for Odd {
            fn window_bytes(&self) -> u64 {
                self.0
            }
            fn need(&self, _: u64) -> io::Result<()> {
                Ok(())
            }
        }
        assert!([0, 2048, 12288].into_iter().all(|n| Known::new(Arc::new(Odd(n)), 9).is_none()));
    }
}
