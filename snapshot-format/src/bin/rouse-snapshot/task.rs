//! A long operation: what shows how far it is, and what ends it early.

use std::fs;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::sys::signal::{SigSet, Signal};
use rouse_snapshot_format::{Progress, Work};

/// How often a bar is looked after: often enough to seem to move.
const TICK: Duration = Duration::from_millis(100);

/// What all commands have in common: who watches, and who may end them.
pub(crate) struct Task {
    progress: Arc<Progress>,
    signal: Arc<AtomicU8>,
    quiet: bool,
}

impl Task {
    /// If it is a `long` one, from here on the first Ctrl-C, SIGTERM or SIGHUP ends the operation
    /// cleanly, and a second one the process at once. To be called before there is any other thread.
    pub(crate) fn start(quiet: bool, long: bool) -> Self {
        let task = Self { progress: Arc::default(), signal: Arc::default(), quiet };
        if long {
            task.watch();
        }
        task
    }

    fn watch(&self) {
        let ignored = ignored();
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
            .into_iter()
            .filter(|signal| ignored & (1 << (*signal as u32 - 1)) == 0)
            .collect();
        let (progress, signal) = (self.progress.clone(), self.signal.clone());
        // Without a thread or a mask the signals do what they always do.
        if signals.thread_block().is_ok() {
            let watch = move || {
                if let Ok(came) = signals.wait() {
                    signal.store(came as i32 as u8, Ordering::Relaxed);
                    progress.cancel();
                }
                let _ = signals.thread_unblock();
                loop {
                    thread::park();
                }
            };
            if thread::Builder::new().name("signals".to_owned()).spawn(watch).is_err() {
                let _ = signals.thread_unblock();
            }
        }
    }

    /// Whether only errors are to be said.
    pub(crate) fn quiet(&self) -> bool {
        self.quiet
    }

    /// How the library is to work.
    pub(crate) fn work(&self, threads: Option<NonZeroUsize>) -> Work<'_> {
        Work { threads, progress: Some(&self.progress) }
    }

    /// The number of the signal that came, if one did.
    pub(crate) fn signal(&self) -> Option<u8> {
        Some(self.signal.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }

    /// Shows on a terminal how far the operation is, as long as the value lives.
    pub(crate) fn bar(&self, what: impl Into<String>) -> Bar {
        let target = ProgressDrawTarget::stderr();
        if self.quiet || target.is_hidden() {
            return Bar(None);
        }
        let bar = ProgressBar::with_draw_target(None, target)
            .with_style(style("{msg} {spinner:.blue}"))
            .with_message(what.into());
        let progress = self.progress.clone();
        // One task may work through several files; each has a bar of its own.
        let (done, total) = (progress.done(), progress.total());
        let (end, ended) = mpsc::channel::<()>();
        let draw = move || {
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let total = progress.total().saturating_sub(total);
                if total > 0 && bar.length() != Some(total) {
                    bar.set_length(total);
                    bar.set_style(style(FAR));
                }
                bar.set_position(progress.done().saturating_sub(done));
                bar.tick();
            }
            bar.finish_and_clear();
        };
        Bar(thread::Builder::new().spawn(draw).ok().map(|thread| (end, thread)))
    }
}

/// The signals that whoever started the program had it ignore, as `nohup` does, a bit each; they
/// would come to who waits for them all the same.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// A bar, once it is known what there is to do.
const FAR: &str = "{msg} {wide_bar:.blue} {bytes}/{total_bytes}  {bytes_per_sec}  {eta}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("━━╌")
}

/// A bar on the terminal, or none. Gone when dropped.
pub(crate) struct Bar(Option<(mpsc::Sender<()>, JoinHandle<()>)>);

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            // If it panicked there is no bar to take away.
            let _ = thread.join();
        }
    }
}
