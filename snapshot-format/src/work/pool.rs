//! Jobs on several threads, with the results in no order or in that of the jobs.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::{panic, thread};

/// Runs `run` on every job, on at most `threads` threads of which the caller's is one. `jobs` is
/// asked for the next one when a thread is free; `state` makes what a thread keeps from job to job. The
/// first error ends it all and is returned.
pub(crate) fn parallel<J, S, E: Send>(
    threads: usize,
    jobs: impl Iterator<Item = Result<J, E>> + Send,
    state: impl Fn() -> S + Sync,
    run: impl Fn(&mut S, J) -> Result<(), E> + Sync,
) -> Result<(), E> {
    // None once there are no more, or an error was met.
    let queue = Mutex::new(Some(jobs));
    let stop = || *lock(&queue) = None;
    let work = || {
        let mut kept = state();
        loop {
            let next = lock(&queue).as_mut().and_then(Iterator::next);
            let done = match next {
                None => return Ok(()),
                Some(job) => job.and_then(|job| run(&mut kept, job)),
            };
            if done.is_err() {
                stop();
                return done;
            }
        }
    };
    thread::scope(|scope| {
        // A thread that can't be had is one fewer; this one works too.
        let others: Vec<_> = (1..threads)
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        let mut done = work();
        for other in others {
            done = done.and(other.join().unwrap_or_else(|panic| panic::resume_unwind(panic)));
        }
        done
    })
}

/// Runs `run` on every job, on at most `threads` threads, and gives the results to `sink` on the
/// caller's in the order of the jobs. No more than `depth` jobs are taken ahead of the sink, which bounds
/// what is in memory. The first error ends it all and is returned.
pub(crate) fn ordered<J, S, T: Send, E: Send>(
    threads: usize,
    depth: u64,
    jobs: impl Iterator<Item = Result<J, E>> + Send,
    state: impl Fn() -> S + Sync,
    run: impl Fn(&mut S, J) -> Result<T, E> + Sync,
    mut sink: impl FnMut(T) -> Result<(), E>,
) -> Result<(), E> {
    let line = Line {
        inner: Mutex::new(Inner { jobs: Some(jobs), taken: 0, sunk: 0, done: BTreeMap::new() }),
        free: Condvar::new(),
        ready: Condvar::new(),
    };
    let work = || {
        let _watch = Watch(&line);
        let mut kept = state();
        while let Some((number, job)) = line.take(depth) {
            line.put(number, job.and_then(|job| run(&mut kept, job)));
        }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (0..threads.max(1))
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        if others.is_empty() {
            // No thread to be had: one job after the other, here.
            let mut kept = state();
            while let Some((number, job)) = line.take(depth) {
                line.put(number, job.and_then(|job| run(&mut kept, job)));
                line.next().map_or(Ok(()), |done| done.and_then(&mut sink))?;
            }
            return Ok(());
        }
        // The workers wait for this thread, so they have to hear of its end, whatever it is.
        let watch = Watch(&line);
        let mut done = Ok(());
        while let Some(next) = line.next() {
            done = next.and_then(&mut sink);
            if done.is_err() {
                break;
            }
        }
        drop(watch);
        for other in others {
            other.join().unwrap_or_else(|panic| panic::resume_unwind(panic));
        }
        done
    })
}

/// Jobs on their way through several threads and into order again.
struct Line<I, T, E> {
    inner: Mutex<Inner<I, T, E>>,
    /// The sink has taken one, or it is over.
    free: Condvar,
    /// A job is done, or it is over.
    ready: Condvar,
}

struct Inner<I, T, E> {
    /// None once there are no more, or it is over.
    jobs: Option<I>,
    /// How many were taken from `jobs`.
    taken: u64,
    /// How many the sink has begun.
    sunk: u64,
    /// Those that are done and whose turn has not come.
    done: BTreeMap<u64, Result<T, E>>,
}

impl<J, I: Iterator<Item = J>, T, E> Line<I, T, E> {
    /// The next job and its number, once the sink is near enough.
    fn take(&self, depth: u64) -> Option<(u64, J)> {
        let mut inner = lock(&self.inner);
        while inner.jobs.is_some() && inner.taken >= inner.sunk + depth.max(1) {
            inner = self.free.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(job) = inner.jobs.as_mut()?.next() else {
            inner.jobs = None;
            drop(inner);
            self.wake_all();
            return None;
        };
        inner.taken += 1;
        Some((inner.taken - 1, job))
    }

    fn put(&self, number: u64, done: Result<T, E>) {
        lock(&self.inner).done.insert(number, done);
        self.ready.notify_one();
    }

    /// The result whose turn it is; none when all were.
    fn next(&self) -> Option<Result<T, E>> {
        let mut inner = lock(&self.inner);
        loop {
            let turn = inner.sunk;
            if let Some(done) = inner.done.remove(&turn) {
                inner.sunk += 1;
                self.free.notify_one();
                return Some(done);
            }
            // Fewer are taken than sunk when a job ended after it was all over.
            if inner.jobs.is_none() && inner.taken <= inner.sunk {
                return None;
            }
            inner = self.ready.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wake_all(&self) {
        self.free.notify_all();
        self.ready.notify_all();
    }
}

/// Ends it all when whoever holds it ends, in whatever way: nobody may wait for one that is gone.
struct Watch<'a, I, T, E>(&'a Line<I, T, E>);

impl<I, T, E> Drop for Watch<'_, I, T, E> {
    fn drop(&mut self) {
        let mut inner = lock(&self.0.inner);
        if thread::panicking() || inner.jobs.is_some() {
            // What was taken and not done never will be.
            inner.jobs = None;
            inner.taken = inner.sunk;
            inner.done.clear();
        }
        drop(inner);
        self.0.free.notify_all();
        self.0.ready.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn jobs(count: u64) -> impl Iterator<Item = Result<u64, u64>> + Send {
        (0..count).map(Ok)
    }

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        for threads in [0, 1, 2, 5] {
            for depth in [0, 1, 3, 100] {
                let mut got = Vec::new();
                let ahead = AtomicU64::new(0);
                let most = AtomicU64::new(0);
                let run = |made: &mut u64, job: u64| {
                    let now = ahead.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    *made += 1;
                    if job.is_multiple_of(7) {
                        thread::yield_now();
                    }
                    Ok(job * 3)
                };
                let sink = |result| {
                    ahead.fetch_sub(1, Ordering::SeqCst);
                    got.push(result);
                    Ok(())
                };
                ordered(threads, depth, jobs(500), || 0, run, sink).unwrap();
                assert_eq!(got, (0..500).map(|n| n * 3).collect::<Vec<_>>());
                // The sink counts as one, from when it takes a result until it has noted it.
                assert!(most.into_inner() <= depth.max(1) + 1);
            }
        }
    }

    #[test]
    fn the_first_error_in_order_ends_it() {
        for threads in [1, 2, 5] {
            let mut got = Vec::new();
            let fail = |_: &mut (), job| if job >= 40 { Err(job) } else { Ok(job) };
            let sink = |job| {
                got.push(job);
                Ok(())
            };
            assert_eq!(ordered(threads, 8, jobs(1000), || (), fail, sink), Err(40));
            assert_eq!(got, (0..40).collect::<Vec<_>>());
            // A sink that fails, and a source that does.
            let sink = |job| if job == 5 { Err(99) } else { Ok(()) };
            assert_eq!(ordered(threads, 8, jobs(1000), || (), |(), job| Ok(job), sink), Err(99));
            let source = jobs(10).chain([Err(7)]).chain(jobs(10));
            assert_eq!(ordered(threads, 8, source, || (), |(), job| Ok(job), |_| Ok(())), Err(7));

            let source = jobs(10).chain([Err(7)]).chain(jobs(1000));
            assert_eq!(parallel(threads, source, || (), |(), _| Ok(())), Err(7));
            let fail = |_: &mut (), job| if job == 500 { Err(job) } else { Ok(()) };
            assert_eq!(parallel(threads, jobs(1000), || (), fail), Err(500));
        }
    }

    #[test]
    fn every_job_is_done_once() {
        for threads in [0, 1, 2, 5] {
            let sum = AtomicU64::new(0);
            let run = |_: &mut (), job| {
                sum.fetch_add(job, Ordering::Relaxed);
                Ok::<_, u64>(())
            };
            parallel(threads, jobs(1000), || (), run).unwrap();
            assert_eq!(sum.into_inner(), 999 * 500);
        }
        ordered(2, 4, jobs(0), || (), |(), job| Ok(job), |_| panic!("there was none")).unwrap();
    }

    #[test]
    fn a_panic_is_passed_on_and_nobody_waits_for_ever() {
        let worker = || {
            let run = |_: &mut (), job| if job == 20 { panic!("worker") } else { Ok(job) };
            ordered(2, 4, jobs(1000), || (), run, |_| Ok(()))
        };
        let sink = || {
            let sink = |job| if job == 20 { panic!("sink") } else { Ok(()) };
            ordered(2, 4, jobs(1000), || (), |(), job| Ok(job), sink)
        };
        assert!(panic::catch_unwind(worker).is_err());
        assert!(panic::catch_unwind(sink).is_err());
        // A job that ends after another has panicked, while the sink is not looking.
        let late = || {
            let panicked = AtomicU64::new(0);
            let wait = |until: u64| {
                while panicked.load(Ordering::SeqCst) < until {
                    thread::yield_now();
                }
            };
            let run = |_: &mut (), job| {
                match job {
                    20 => {
                        wait(1);
                        panicked.store(2, Ordering::SeqCst);
                        panic!("worker")
                    }
                    19 => {
                        wait(2);
                        // Until the other's end has been noted, if it is noted soon.
                        (0..1000).for_each(|_| thread::yield_now());
                    }
                    _ => {}
                }
                Ok(job)
            };
            let sink = |job| {
                if job == 18 {
                    panicked.store(1, Ordering::SeqCst);
                    (0..2000).for_each(|_| thread::yield_now());
                }
                Ok(())
            };
            ordered(2, 4, jobs(1000), || (), run, sink)
        };
        assert!(panic::catch_unwind(late).is_err());
        let unordered = || {
            let run = |_: &mut (), job| if job == 20 { panic!("worker") } else { Ok(()) };
            parallel(2, jobs(1000), || (), run)
        };
        assert!(panic::catch_unwind(unordered).is_err());
    }
}
