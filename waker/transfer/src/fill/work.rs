//! Threads that verify, decompress and write.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rouse_snapshot_format::Decoder;

use super::error::FillError;
use super::shared::Shared;

/// The most threads: four decode 2 GB/s, which is more than a link brings.
const MOST_THREADS: usize = 4;
/// What buffers kept for reuse may take, in bytes.
const MOST_KEPT: usize = 8 << 20;

/// The bytes of a frame that is claimed.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) frame: usize,
    pub(super) fault: bool,
    pub(super) bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    closed: bool,
    kept: Vec<Vec<u8>>,
    kept_bytes: usize,
}

/// Frames that wait to be written. How many is bounded by who claims them.
#[derive(Debug, Default)]
pub(super) struct Queue {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, job: Job) {
        let mut jobs = self.lock();
        if job.fault {
            jobs.waiting.push_front(job);
        } else {
            jobs.waiting.push_back(job);
        }
        drop(jobs);
        self.more.notify_one();
    }

    /// An empty buffer, used before if there is one.
    pub(super) fn buffer(&self) -> Vec<u8> {
        let mut jobs = self.lock();
        let buffer = jobs.kept.pop().unwrap_or_default();
        jobs.kept_bytes -= buffer.capacity();
        buffer
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut jobs = self.lock();
        if jobs.kept_bytes + buffer.capacity() <= MOST_KEPT {
            jobs.kept_bytes += buffer.capacity();
            jobs.kept.push(buffer);
        }
    }

    fn pop(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if jobs.closed {
                return None;
            }
            match jobs.waiting.pop_front() {
                Some(job) => return Some(job),
                None => jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn close(&self) {
        self.lock().closed = true;
        self.more.notify_all();
    }
}

/// The threads; when it is dropped they have ended.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(super) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let count = thread::available_parallelism().map_or(1, |n| n.get().min(MOST_THREADS));
        let mut workers = Self { shared: Arc::clone(shared), threads: Vec::new() };
        for _ in 0..count {
            let shared = Arc::clone(shared);
            let thread = thread::Builder::new().name("rouse-fill".into());
            workers.threads.push(thread.spawn(move || work(&shared))?);
        }
        Ok(workers)
    }
}

impl Drop for Workers {
    /// Waits for the frame that each thread is at: milliseconds.
    fn drop(&mut self) {
        self.shared.queue.close();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                self.shared.fail(FillError::Broken("a thread panicked".into()));
            }
        }
    }
}

fn work(shared: &Shared) {
    let mut decoder = match Decoder::new() {
        Ok(decoder) => decoder,
        Err(error) => return shared.fail(FillError::Broken(error.to_string())),
    };
    while let Some(job) = shared.queue.pop() {
        place(shared, &mut decoder, &job);
        shared.queue.give_back(job.bytes);
    }
}

fn place(shared: &Shared, decoder: &mut Decoder, job: &Job) {
    let Some((remote, frame)) = shared.layers.frame(job.frame) else { return };
    let packed = match decoder.decode(&frame, &job.bytes) {
        Ok(packed) => packed,
        Err(error) => return shared.spoilt(job.frame, job.fault, error),
    };
    for (bytes, place) in remote.map().data_runs(frame.window.into()) {
        if let Err(source) = shared.file.write_all_at(&packed[place], bytes.start) {
            let (offset, source) = (bytes.start, Arc::new(source));
            return shared.fail(FillError::Write { offset, source });
        }
    }
    shared.written(job.frame, job.fault, packed.len() as u64);
}
