//! Threads for what has to wait.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The most threads: far more than a guest has processors, each of which waits for one page at most.
const MOST: usize = 64;
/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    more: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.closed {
                break;
            }
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            let waited = self.more.wait_timeout(state, IDLE);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle -= 1;
            if timeout.timed_out() && state.waiting.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        None
    }
}

/// Runs jobs on threads that come and go. The kernel bounds how many wait.
#[derive(Default)]
pub(crate) struct Pool(Arc<Shared>);

impl Pool {
    /// Runs it soon. When it is dropped instead, as no thread can be had, its reply says EIO.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        if state.closed {
            return;
        }
        state.waiting.push_back(Box::new(job));
        if state.idle >= state.waiting.len() || state.threads == MOST {
            drop(state);
            self.0.more.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        if let Err(error) = self.spawn() {
            tracing::warn!(%error, "no thread can be had to wait for a window");
            let mut state = self.0.lock();
            state.threads -= 1;
            if state.threads == 0 {
                state.waiting.clear();
            }
        }
    }

    fn spawn(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        let work = move || {
            while let Some(job) = shared.next() {
                job();
            }
        };
        thread::Builder::new().name("rouse-lazy-wait".into()).spawn(work).map(drop)
    }

    /// Nothing is begun any more. What waits for a window ends when that window is there or given up.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        let dropped = std::mem::take(&mut state.waiting);
        drop(state);
        self.0.more.notify_all();
        drop(dropped);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_that_wait_do_not_hold_up_others_and_there_are_never_too_many_threads() {
        let pool = Pool::default();
        let (go, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let (tell, told) = mpsc::channel();
        for _ in 0..MOST - 1 {
            let (gate, tell) = (Arc::clone(&gate), tell.clone());
            pool.run(move || {
                let _ = gate.lock().unwrap().recv();
                tell.send(1).unwrap();
            });
        }
        let other = tell.clone();
        pool.run(move || other.send(0).unwrap());
        assert_eq!(told.recv().unwrap(), 0);
        for _ in 0..2 * MOST {
            let tell = tell.clone();
            pool.run(move || tell.send(2).unwrap());
        }
        assert!((0..2 * MOST).all(|_| told.recv().unwrap() == 2));
        assert!(pool.0.lock().threads <= MOST);
        drop(go);
        assert!((0..MOST - 1).all(|_| told.recv().unwrap() == 1));
    }

    #[test]
    fn what_a_closed_pool_has_left_is_dropped() {
        let pool = Pool::default();
        let (tell, told) = mpsc::channel::<()>();
        pool.close();
        pool.run(move || tell.send(()).unwrap());
        assert!(told.recv().is_err());
    }
}
