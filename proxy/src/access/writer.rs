//! The thread that writes lines out. Whoever has a line never waits for it: where there is no room
//! the line is dropped, and counted.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use prometheus::IntCounter;

/// How many lines may wait: with lines of some KiB that is the bound on memory, too.
const QUEUE: usize = 4_096;
/// A batch is written when it is this long.
const BATCH: usize = 256 * 1024;
/// How long lines are gathered after the first. While it waits nobody has to wake the thread.
const GATHER: Duration = Duration::from_millis(10);
/// How often [`Writer::flush`] tries to get its word in.
const TRY: Duration = Duration::from_millis(2);

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// The end of this file, which is made if it is not there.
    File(PathBuf),
}

enum Message {
    Line(Vec<u8>),
    /// Only wakes the thread, which then looks whether it should reopen.
    Look,
    /// Everything before it is written when this is answered.
    Flush(SyncSender<()>),
}

/// The way to the thread. It ends, with all that it was given written, when this is dropped.
#[derive(Debug)]
pub(crate) struct Writer {
    queue: SyncSender<Message>,
    reopen: Arc<AtomicBool>,
    dropped: IntCounter,
}

impl Writer {
    /// Opens `target` and starts the thread. `dropped` counts what was not written.
    pub(crate) fn start(target: Target, dropped: IntCounter) -> io::Result<Self> {
        let sink = Sink::open(&target)?;
        let (queue, messages) = sync_channel(QUEUE);
        let reopen = Arc::new(AtomicBool::new(false));
        let thread = Thread {
            target,
            sink,
            reopen: reopen.clone(),
            dropped: dropped.clone(),
            failing: false,
            torn: false,
        };
        std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || thread.run(&messages))?;
        Ok(Self { queue, reopen, dropped })
    }

    /// Gives a line on, or drops it.
    pub(crate) fn write(&self, line: Vec<u8>) {
        if self.queue.try_send(Message::Line(line)).is_err() {
            self.dropped.inc();
        }
    }

    /// Has the file opened anew: it was moved away.
    pub(crate) fn reopen(&self) {
        self.reopen.store(true, Ordering::Release);
        // With a full queue the thread is awake anyway.
        let _ = self.queue.try_send(Message::Look);
    }

    /// Waits until everything up to here is written, at most this long. Blocks.
    pub(crate) fn flush(&self, patience: Duration) {
        let end = Instant::now() + patience;
        let (done, wait) = sync_channel(1);
        let mut word = Message::Flush(done);
        loop {
            match self.queue.try_send(word) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) if Instant::now() < end => word = back,
                Err(_) => return,
            }
            std::thread::sleep(TRY);
        }
        // Too late is not written; there is nothing else to do about it.
        let _ = wait.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

enum Sink {
    Stdout(io::Stdout),
    File(File),
}

impl Sink {
    fn open(target: &Target) -> io::Result<Self> {
        match target {
            Target::Stdout => Ok(Self::Stdout(io::stdout())),
            Target::File(path) => {
                let mut options = OpenOptions::new();
                options.append(true).create(true).mode(0o640).open(path).map(Self::File)
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout(out) => {
                let mut out = out.lock();
                out.write_all(bytes)?;
                out.flush()
            }
            Self::File(file) => file.write_all(bytes),
        }
    }
}

struct Thread {
    target: Target,
    sink: Sink,
    reopen: Arc<AtomicBool>,
    dropped: IntCounter,
    /// The last batch could not be written.
    failing: bool,
    /// And may end in the middle of a line.
    torn: bool,
}

impl Thread {
    fn run(mut self, messages: &Receiver<Message>) {
        let mut batch = Vec::with_capacity(BATCH);
        while let Ok(first) = messages.recv() {
            let mut lines = 0;
            let mut flushed = None;
            let end = Instant::now() + GATHER;
            let mut next = Some(first);
            while let Some(message) = next.take() {
                match message {
                    Message::Line(line) => {
                        batch.extend_from_slice(&line);
                        lines += 1;
                    }
                    Message::Look => {}
                    Message::Flush(done) => {
                        flushed = Some(done);
                        break;
                    }
                }
                if batch.len() >= BATCH || self.reopen.load(Ordering::Acquire) {
                    break;
                }
                next = gather(messages, end);
            }
            self.look();
            self.write(&batch, lines);
            batch.clear();
            if let Some(done) = flushed {
                // Who asked may have gone.
                let _ = done.try_send(());
            }
        }
    }

    fn look(&mut self) {
        if !self.reopen.swap(false, Ordering::AcqRel) {
            return;
        }
        match Sink::open(&self.target) {
            Ok(sink) => {
                self.sink = sink;
                self.torn = false;
            }
            Err(error) => tracing::error!("the access log stays where it is: {error}"),
        }
    }

    fn write(&mut self, batch: &[u8], lines: u64) {
        if batch.is_empty() {
            return;
        }
        let torn = std::mem::take(&mut self.torn);
        let ended = if torn { self.sink.write(b"\n") } else { Ok(()) };
        match ended.and_then(|()| self.sink.write(batch)) {
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!("the access log is written again");
            }
            Ok(()) => {}
            Err(error) => {
                self.torn = true;
                self.dropped.inc_by(lines);
                // Once, not for each batch.
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!("the access log can't be written: {error}");
                }
            }
        }
    }
}

/// The next message before `end`. Sleeping first costs whoever sends nothing: only a thread that
/// waits on the queue itself has to be woken.
fn gather(messages: &Receiver<Message>, end: Instant) -> Option<Message> {
    if let Ok(message) = messages.try_recv() {
        return Some(message);
    }
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return None;
    }
    std::thread::sleep(left);
    messages.try_recv().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter() -> IntCounter {
        IntCounter::new("dropped", "Dropped.").unwrap()
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn lines_are_appended_in_order_and_a_moved_file_is_opened_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (file, moved) = (dir.path().join("a.log"), dir.path().join("a.log.1"));
        std::fs::write(&file, "before\n").unwrap();
        let writer = Writer::start(Target::File(file.clone()), counter()).unwrap();
        for n in 0..1_000 {
            writer.write(format!("{n}\n").into_bytes());
        }
        writer.flush(PATIENCE);
        let expected: String = (0..1_000).map(|n| format!("{n}\n")).collect();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("before\n{expected}"));

        std::fs::rename(&file, &moved).unwrap();
        writer.write(b"still there\n".to_vec());
        writer.flush(PATIENCE);
        writer.reopen();
        writer.write(b"new\n".to_vec());
        writer.flush(PATIENCE);
        assert!(std::fs::read_to_string(&moved).unwrap().ends_with("\nstill there\n"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new\n");
        assert_eq!(writer.dropped.get(), 0);
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted_and_nobody_waits() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        // Somebody who holds the other end, and reads nothing.
        let mut options = OpenOptions::new();
        let _reader = options.read(true).write(true).open(&pipe).unwrap();
        let writer = Writer::start(Target::File(pipe), counter()).unwrap();
        let line = vec![b'x'; 1_024];
        for _ in 0..10 * QUEUE {
            writer.write(line.clone());
        }
        // What is in the pipe, in one batch and in the queue is not dropped; the rest is.
        assert!(writer.dropped.get() > 5 * QUEUE as u64, "{}", writer.dropped.get());
        writer.flush(Duration::from_millis(20));
    }

    #[test]
    fn a_failed_write_is_counted_by_lines() {
        let writer = Writer::start(Target::File("/dev/full".into()), counter()).unwrap();
        for _ in 0..3 {
            writer.write(b"line\n".to_vec());
        }
        writer.flush(PATIENCE);
        assert_eq!(writer.dropped.get(), 3);
    }

    #[test]
    fn a_file_that_cannot_be_made_is_an_error() {
        assert!(Writer::start(Target::File("/nowhere/a.log".into()), counter()).is_err());
    }
}
